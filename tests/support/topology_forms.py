"""A machine in the forms in which people have theirs, as the tools print them: numactl, lscpu, lstopo."""

from collections import defaultdict
from collections.abc import Iterable

from bayplan.model.machine import Cpu, Machine
from bayplan.sets import CpuSet


def numactl_text(machine: Machine) -> str:
    """`numactl -H`."""
    ids = list(machine.node_ids)
    lines = [f"available: {len(ids)} nodes ({machine.node_ids})"]
    for node in machine.nodes:
        lines.append(f"node {node.id} cpus:{''.join(f' {cpu}' for cpu in node.cpus)}")
        lines.append(f"node {node.id} size: {node.memory_bytes >> 20} MB")
        lines.append(f"node {node.id} free: 1 MB")
    lines.append("node distances:")
    lines.append(f"node {''.join(f' {node:3}' for node in ids)} ")
    lines += [f"{node:3}: {''.join(f' {machine.distance(node, other):3}' for other in ids)} " for node in ids]
    return "\n".join(lines) + "\n"


def lscpu_text(machine: Machine) -> str:
    """`lscpu -p`, whose ids are counted on from 0."""
    online = [cpu for cpu in machine.cpus if cpu.online]
    cores = _counted(cpu.core_id for cpu in online)
    caches = _counted(cpu.l3_cache_id for cpu in online if cpu.l3_cache_id is not None)
    lines = [
        "# The following is the parsable format, which can be fed to other",
        "# programs. Each different item in every column has an unique ID",
        "# starting usually from zero.",
        "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3",
    ]
    for cpu in online:
        core = cores[cpu.core_id]
        l3 = "" if cpu.l3_cache_id is None else caches[cpu.l3_cache_id]
        lines.append(f"{cpu.id},{core},{cpu.socket_id},{cpu.node_id},,{core},{core},{core},{l3}")
    return "\n".join(lines) + "\n"


def lstopo_xml(machine: Machine, version: int) -> str:
    """lstopo's XML in the format of hwloc 1 or 2, without what is no part of a `Machine`. In format 1 nodes
    contain CPUs; in format 2 their memory hangs beside them."""
    everybody = CpuSet(cpu.id for cpu in machine.cpus)
    online = machine.online_cpus
    inner = "".join(_node(machine, node.id, version) for node in machine.nodes)
    packages = "".join(
        f'<object type="Package" os_index="{socket}" {_sets(cpus)}/>'
        for socket, cpus in _grouped(machine, "socket_id")
    )
    cores = "".join(
        f'<object type="Core" os_index="{core}" {_sets(cpus)}/>'
        for core, cpus in _grouped(machine, "core_id")
    )
    l3 = 'type="L3Cache"' if version > 1 else 'type="Cache" depth="3" cache_type="0"'
    caches = "".join(f"<object {l3} {_sets(cpus)}/>" for _, cpus in _grouped(machine, "l3_cache_id"))
    units = "".join(f'<object type="PU" os_index="{cpu}" {_sets(CpuSet([cpu]))}/>' for cpu in online)
    root = (
        f'<object type="Machine" os_index="0" cpuset="{_mask(online)}" complete_cpuset="{_mask(everybody)}" '
        f'online_cpuset="{_mask(online)}">{inner}{packages}{cores}{caches}{units}'
    )
    if version == 1:
        return f"{_HEAD}<topology>{root}{_distances_1(machine)}</object></topology>"
    return f'{_HEAD}<topology version="2.0">{root}</object>{_distances_2(machine)}</topology>'


_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc.dtd">\n'


def _node(machine: Machine, node_id: int, version: int) -> str:
    node = machine.node_by_id[node_id]
    all_cpus = CpuSet(cpu.id for cpu in machine.cpus if cpu.node_id == node_id)
    own = node.cpus
    pages = "".join(
        f'<page_type size="{size}" count="{pool // size}"/>' for size, pool in node.hugepages_bytes.items()
    )
    return (
        f'<object type="NUMANode" os_index="{node_id}" gp_index="{node_id + version}" cpuset="{_mask(own)}" '
        f'complete_cpuset="{_mask(all_cpus)}" local_memory="{node.memory_bytes}">'
        f'<page_type size="4096" count="7"/>{pages}</object>'
    )


def _distances_1(machine: Machine) -> str:
    rows = [machine.distance(a, b) for a in machine.node_ids for b in machine.node_ids]
    values = "".join(f'<latency value="{one / 10:.6f}"/>' for one in rows)
    size = len(machine.nodes)
    return f'<distances nbobjs="{size}" relative_depth="1" latency_base="10.000000">{values}</distances>'


def _distances_2(machine: Machine) -> str:
    ids = list(machine.node_ids)
    rows = [str(machine.distance(a, b)) for a in ids for b in ids]
    chunks = "".join(
        f'<u64values length="9">{" ".join(rows[first : first + 10])} </u64values>'
        for first in range(0, len(rows), 10)
    )
    return (
        f'<distances2 type="NUMANode" nbobjs="{len(ids)}" kind="5" name="NUMALatency" indexing="os">'
        f'<indexes length="9">{" ".join(map(str, ids))} </indexes>{chunks}</distances2>'
    )


def _grouped(machine: Machine, name: str) -> Iterable[tuple[int, CpuSet]]:
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for cpu in machine.cpus:
        if cpu.online and getattr(cpu, name) is not None:
            groups[getattr(cpu, name)].append(cpu.id)
    return [(key, CpuSet(cpus)) for key, cpus in groups.items()]


def _counted(ids: Iterable[int]) -> dict[int, int]:
    return {one: number for number, one in enumerate(dict.fromkeys(ids))}


def _sets(cpus: CpuSet) -> str:
    return f'cpuset="{_mask(cpus)}" complete_cpuset="{_mask(cpus)}"'


def _mask(cpus: CpuSet) -> str:
    """Words of 32 bits, the highest first; hwloc leaves empty ones in the middle empty."""
    words: list[str] = []
    mask = cpus.mask
    while mask or not words:
        words.append(f"0x{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join("" if word == "0x00000000" and len(words) > 1 else word for word in reversed(words))


def online_cpu(cpu: Cpu) -> tuple[int, int, int, int | None, int | None]:
    """What all of these forms say of an online CPU."""
    return cpu.id, cpu.core_id, cpu.socket_id, cpu.node_id, cpu.l3_cache_id
