"""What a container is told of its place: the document of its file, and variables of its environment. Pure.

The document is a function of machine, shared CPUs and entry, but for its generation, so that two of them
agree exactly when they say the same. It has the shape of the metadata of devices (KEP-5304, DeviceMetadata of
metadata.resource.k8s.io) where that has a field: ``metadata``, and ``requests`` with ``devices`` and typed
``attributes``, whose names are Kubernetes' own or those of its driver for CPUs. What it has no field for
stands beside: CPUs as lists of the kernel's, what is promised on which nodes, the memory policy.

Variables are set once, at the creation, for containers with CPUs of their own: the shared ones change.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from bayplan.model.claims import hugepages_of
from bayplan.model.decision import Decision, Reason
from bayplan.model.ledger import Entry
from bayplan.model.machine import Cpu, Machine
from bayplan.model.memory_kinds import open_mems
from bayplan.model.origin import Origin
from bayplan.model.policy import PlacementFiles, PlacementPolicy
from bayplan.model.wishes import Wishes
from bayplan.model.workload import PLACEMENT_MOUNT, Container
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet

API_VERSION: Final = "bayplan.dev/v1alpha1"
KIND: Final = "PlacementMetadata"
DRIVER: Final = "bayplan.dev"
NUMA_NODE: Final = "resource.kubernetes.io/numaNode"

RTE_MAX_LCORE: Final = 128
"""DPDK as distributions build it takes no CPU from here on by ``-l``."""

NO_FILE: Final = "no-placement-file"
"""Code of the reason that a container gets no file, although it should."""
NO_ENVIRONMENT: Final = "environment-not-set"
"""Code of the reason that not all variables are set that were asked for."""


def wished_file(policy: PlacementPolicy, wishes: Wishes) -> tuple[Wishes, tuple[Reason, ...]]:
    """*wishes* with the operator's rule where they say nothing of the file, and reasons for what of them is
    not done."""
    if policy.placement_files is PlacementFiles.OFF:
        note = (Reason(NO_FILE, "placementFiles is off: it gets no placement file"),)
        return replace(wishes, placement_file=False), note if wishes.placement_file else ()
    if wishes.placement_file is None:
        return replace(wishes, placement_file=policy.placement_files is PlacementFiles.ALL), ()
    return wishes, ()


def without_file(decision: Decision, why: str) -> Decision:
    """*decision* about a container that gets no file, because of *why*."""
    request = replace(decision.request, placement_file=False)
    return replace(decision, request=request, reasons=(*decision.reasons, Reason(NO_FILE, why)))


def as_mounted(entry: Entry, container: Container) -> Entry:
    """*entry* of a *container* that came over NRI and runs: its answer may have been lost, and with it the
    mount; what is mounted is known from its spec."""
    decision = entry.decision
    if not entry.origin.is_listed or decision.request.placement_file == container.has_our_placement:
        return entry
    if container.has_our_placement:
        return replace(
            entry, decision=replace(decision, request=replace(decision.request, placement_file=True))
        )
    return replace(entry, decision=without_file(decision, "it was created without its placement file"))


def as_far_as_possible(
    machine: Machine, decision: Decision, container: Container, origin: Origin
) -> Decision:
    """*decision* with what of file and variables cannot be had by a container that comes as *origin* says:
    nothing that its spec has is replaced."""
    if decision.request.placement_file and container.placement_source and not container.has_our_placement:
        why = f"its spec mounts {container.placement_source} at {PLACEMENT_MOUNT}"
        decision = without_file(decision, why)
    asked = decision.request.environment
    if not asked:
        return decision
    why = ""
    if not origin.changes_spec:
        why = "a hook cannot set variables of the environment"
    elif not decision.placement.own_cpus:
        why = "variables of the environment are for containers with CPUs of their own"
    elif kept := sorted(environment_of(machine, decision).keys() & set(container.given_environment)):
        text = f"its spec sets {', '.join(kept)} itself"
        return replace(decision, reasons=(*decision.reasons, Reason(NO_ENVIRONMENT, text)))
    if not why:
        return decision
    request = replace(decision.request, environment=())
    return replace(decision, request=request, reasons=(*decision.reasons, Reason(NO_ENVIRONMENT, why)))


def environment_of(machine: Machine, decision: Decision, given: Collection[str] = ()) -> Mapping[str, str]:
    """The variables that a container with CPUs of its own gets, without those *given* by its spec."""
    own, placement = decision.placement.own_cpus, decision.placement
    if not own:
        return {}
    variables = dict[str, str]()
    for program in decision.request.environment:
        match program:
            case "openmp":
                places = ",".join(f"{{{','.join(map(str, core))}}}" for core in _cores(machine, own))
                variables |= {"OMP_PLACES": places, "OMP_NUM_THREADS": str(len(own))}
            case "go":
                variables["GOMAXPROCS"] = str(len(own))
            case "jvm":
                nodes = placement.mems or machine.nodes_of(own)
                numa = " -XX:+UseNUMA" if len(nodes) > 1 else ""
                variables["JAVA_TOOL_OPTIONS"] = f"-XX:ActiveProcessorCount={len(own)}{numa}"
            case "dpdk":
                # It reads no variable: this is for its command line.
                variables["DPDK_EAL_ARGS"] = f"{_dpdk_lcores(own)}{_socket_memory(machine, decision)}"
    return {name: value for name, value in variables.items() if name not in given}


def _dpdk_lcores(own: CpuSet) -> str:
    """The CPUs *own* as EAL takes them: by ``-l`` only those below RTE_MAX_LCORE, above it as it advises."""
    if all(cpu < RTE_MAX_LCORE for cpu in own):
        return f"-l {own}"
    return f"--lcores {','.join(f'{lcore}@{cpu}' for lcore, cpu in enumerate(sorted(own)))}"


Known = dict[CpuSet, list[dict[str, Any]]]
"""The devices of sets of shared CPUs of one machine."""


def document(machine: Machine, shared: CpuSet, entry: Entry, known: Known | None = None) -> dict[str, Any]:
    """What *entry* was given, where *shared* are the CPUs of those without their own; of generation 0.
    *known* keeps what was worked out of a set of shared CPUs, for the others on the same *machine*."""
    request, placement = entry.decision.request, entry.decision.placement
    namespace, pod, container = (*request.name.split("/", 2), "", "")[:3]
    own = placement.own_cpus
    others = request.pinned_cpus or (placement.cpus_among(shared) - own)
    nodes = request.pinned_mems or placement.mems or open_mems(machine, request) or machine.memory_nodes
    known = {} if known is None else known
    if others not in known:
        known[others] = _cache_devices(machine, others)
    written: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": container,
            "namespace": namespace,
            "uid": request.container_id,
            "generation": 0,
        },
        "pod": pod,
        "cpus": {"exclusive": str(own), "shared": str(others)},
        "mems": str(nodes),
        "promises": _promises(entry.decision),
        "requests": [
            {"name": "exclusive-cpus", "devices": _cpu_devices(machine, own)},
            {"name": "shared-cpus", "devices": known[others]},
            {"name": "memory", "devices": _node_devices(machine, nodes)},
        ],
    }
    policy = placement.memory_policy or request.given_policy
    if policy is not None:
        written["memoryPolicy"] = {
            "mode": policy.mode.kernel_name,
            "nodes": str(policy.nodes),
            "flags": policy.kernel_flags,
        }
    return written


def body_of(machine: Machine, shared: CpuSet, entry: Entry, known: Known | None = None) -> bytes:
    """`document` as text, one key on each line, so that a shell can read it."""
    written = document(machine, shared, entry, known)
    return msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n"


def with_generation(body: bytes, generation: int) -> bytes:
    """*body* with its *generation*. In JSON no text has a bare quotation mark in it."""
    return body.replace(b'"generation": 0', b'"generation": %d' % generation, 1)


def _promises(decision: Decision) -> list[dict[str, Any]]:
    """What is promised on each set of nodes as a whole; a promise of the engine `kubelet` is on one node."""
    return [
        {"nodes": str(nodes), "bytes": {key: amount for key, amount in sorted(row.items()) if amount}}
        for nodes, row in decision.promises
    ]


def _cores(machine: Machine, cpus: CpuSet) -> list[list[int]]:
    """The *cpus* of each core, by the core's first one."""
    cores = dict[int, list[int]]()
    for cpu in _known(machine, cpus):
        cores.setdefault(cpu.core_id, []).append(cpu.id)
    return [ids for _, ids in sorted(cores.items())]


def _known(machine: Machine, cpus: CpuSet) -> list[Cpu]:
    return [machine.cpu_by_id[cpu] for cpu in cpus if cpu in machine.cpu_by_id]


def _cpu_devices(machine: Machine, cpus: CpuSet) -> list[dict[str, Any]]:
    return [
        _device(
            f"cpu{cpu.id}",
            {"cpuID": cpu.id, "coreID": cpu.core_id, "socketID": cpu.socket_id},
            cpu.node_id,
            {} if cpu.l3_cache_id is None else {"cacheL3ID": cpu.l3_cache_id},
        )
        for cpu in _known(machine, cpus)
    ]


def _cache_devices(machine: Machine, cpus: CpuSet) -> list[dict[str, Any]]:
    """One device for the *cpus* of a node behind one L3 cache: of all the CPUs of a large machine, one each
    would take a file of 50 kB."""
    groups = dict[tuple[int, int], list[int]]()
    for cpu in _known(machine, cpus):
        cache = -1 if cpu.l3_cache_id is None else cpu.l3_cache_id
        groups.setdefault((-1 if cpu.node_id is None else cpu.node_id, cache), []).append(cpu.id)
    devices = []
    for (node, cache), ids in sorted(groups.items()):
        together = CpuSet(ids)
        one = _device(
            f"cpus{ids[0]}", {}, None if node < 0 else node, {} if cache < 0 else {"cacheL3ID": cache}
        )
        one["attributes"] |= {
            "cpus": {"string": str(together)},
            "cores": {"strings": [str(CpuSet(core)) for core in _cores(machine, together)]},
        }
        devices.append(one)
    return devices


def _node_devices(machine: Machine, nodes: NodeSet) -> list[dict[str, Any]]:
    """One device for each node, with its distances to all nodes of the machine."""
    all_nodes = {"strings": [str(node) for node in machine.node_ids]}
    devices = []
    for node in nodes:
        one = _device(f"node{node}", {}, node)
        one["attributes"] |= {
            "nodes": all_nodes,
            "distances": {"ints": [machine.distance(node, other) for other in machine.node_ids]},
        }
        devices.append(one)
    return devices


def _device(
    name: str, ints: Mapping[str, int], node: int | None, more: Mapping[str, int] | None = None
) -> dict[str, Any]:
    numbers = {**({} if node is None else {NUMA_NODE: node}), **ints, **(more or {})}
    attributes: dict[str, Any] = {key: {"int": number} for key, number in numbers.items()}
    return {"driver": DRIVER, "pool": "node", "name": name, "attributes": attributes}


def _socket_memory(machine: Machine, decision: Decision) -> str:
    """The huge pages of each node in MiB, where it is certain how many those are; DPDK counts from node 0."""
    by_node = dict[int, int]()
    for part in _promises(decision):
        nodes, pages_bytes = NodeSet.parse(part["nodes"]), sum(hugepages_of(part["bytes"]).values())
        if not pages_bytes:
            continue
        if len(nodes) != 1:
            return ""
        by_node[min(nodes)] = by_node.get(min(nodes), 0) + pages_bytes
    if not by_node:
        return ""
    amounts = (by_node.get(node, 0) // MIB for node in range(max(machine.node_ids) + 1))
    return f" --socket-mem {','.join(map(str, amounts))}"
