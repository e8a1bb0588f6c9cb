"""A machine from the XML of lstopo, in the formats of hwloc 1.x and of 2.x and 3.x.

lstopo says where CPUs, cores, caches, packages and memory are, and distances, kinds of cores and pages where
it knows them. It does not say which node's memory is ordinary beyond a word of its own (HBM, GPUMemory), nor
which CPUs the kernel lists on a node: memory that lstopo attaches to CPUs of an earlier node has none here.
"""

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from bayplan.config.values import invalid
from bayplan.host.sysfs import UNKNOWN_SOCKET
from bayplan.model.machine import (
    LOCAL_DISTANCE,
    MAX_DISTANCE,
    REMOTE_DISTANCE,
    Cpu,
    Machine,
    Node,
    in_first_nodes,
    kinds_of,
)
from bayplan.printable import pattern
from bayplan.quantity import KIB
from bayplan.sets import CpuSet, NodeSet, cpus_text
from bayplan.simulate.tool_outputs import (
    ASSUMED_BYTES_PER_CPU,
    Imported,
    assumed_distances,
    assumed_memory,
)

_GROUP: Final = pattern(r"0x([0-9a-fA-F]{1,8})|")
_WORD_BITS: Final = 32
_INSTRUCTION: Final = "2"
_LATENCY: Final = 4
"""HWLOC_DISTANCES_KIND_MEANS_LATENCY (hwloc/distances.h)."""
_PAGE_BYTES: Final = 64 * KIB
"""Pages above the largest that the kernel has as its own, 64 KiB of arm64 and POWER, are huge ones."""
_PACKAGES: Final = ("Package", "Socket")
_TIERS: Final = (("HBM", "MCDRAM"), ("DRAM",), ("CXL-DRAM", "SPM", "GPUMemory"), ("NVM", "CXL-NVM"))
"""What hwloc calls memory, the fastest first."""
_GPU: Final = "GPUMemory"


def is_lstopo(text: str) -> bool:
    """Whether *text* can only be meant as lstopo's XML."""
    begin = text.lstrip()[:4096]
    return begin.startswith("<") and ("<topology" in begin or "<root" in begin or begin.startswith("<?xml"))


def machine_of_lstopo(text: str) -> Imported:
    """The machine of a document that lstopo exported.

    Raises:
        InvalidValueError: it is no such document, was cut off, or lacks what decides.
    """
    try:
        root = ET.fromstring(text)  # noqa: S314 - a file that its reader named; expat bounds what entities become
    except (ET.ParseError, ValueError) as error:
        raise invalid("the file", str(error), "XML of lstopo that is whole") from error
    if root.tag not in ("topology", "root"):
        raise invalid("the file", f"<{root.tag}>", "<topology>, as lstopo exports it")
    return _Document(root).machine()


class _Document:
    """The objects of a document by type, in their order."""

    def __init__(self, root: ET.Element) -> None:
        self.root = root
        self.objects: defaultdict[str, list[ET.Element]] = defaultdict(list)
        for element in root.iter("object"):
            self.objects[element.get("type", "")].append(element)
        self.assumed: list[str] = []

    def machine(self) -> Imported:
        """What the document says.

        Raises:
            InvalidValueError: it has no CPU, or an amount is no number.
        """
        present, online = self._cpus()
        if not online:
            raise invalid("PU", "no object of that type", "at least one")
        nodes = self._nodes(online)
        kinds = self._kinds(online)
        linked = {cpu: node.id for node in nodes for cpu in node.cpus}
        cores, l3 = self._lowest("Core", online), self._lowest_l3(online)
        dies = self._lowest("Die", online)
        sockets = self._sockets(online)
        if not cores:
            self.assumed.append("a core for each CPU, as there are no cores")
        complete = self._complete_nodes()
        cpus = [
            Cpu(
                cpu,
                cores.get(cpu, cpu),
                sockets.get(cpu, max(sockets.values(), default=-1) + 1),
                linked.get(cpu),
                l3.get(cpu),
                die_id=dies.get(cpu),
                kind=kinds.get(cpu, ""),
            )
            if cpu in online
            else Cpu(cpu, cpu, UNKNOWN_SOCKET, complete.get(cpu), None, online=False)
            for cpu in present
        ]
        if present - online:
            self.assumed.append(f"{cpus_text(present - online)} to be offline, as lstopo does not show them")
        return Imported(Machine(nodes, tuple(cpus)), tuple(self.assumed))

    def _cpus(self) -> tuple[CpuSet, CpuSet]:
        """Those that there are, and those of them that are online."""
        machine = (self.objects["Machine"] or self.objects["System"] or [ET.Element("object")])[0]
        shown = CpuSet(map(_index, self.objects["PU"]))
        online = machine.get("online_cpuset")
        return _cpus(machine, "complete_cpuset") | shown, shown if online is None else shown & _mask(online)

    def _nodes(self, online: CpuSet) -> tuple[Node, ...]:
        elements = self.objects["NUMANode"]
        if not elements:
            elements = self.objects["Machine"][:1]
            if not elements:
                raise invalid("Machine", "no object of that type", "one, or objects of the type NUMANode")
        ids = [_index(one) if one.get("type") == "NUMANode" else 0 for one in elements]
        if len(set(ids)) != len(ids):
            raise invalid("NUMANode", f"nodes with the ids {sorted(ids)}", "each os_index once")
        near = {
            node: (_cpus(one) if one.get("type") == "NUMANode" else online) & online
            for node, one in zip(ids, elements, strict=True)
        }
        own = in_first_nodes(near)
        memory = {node: _amount(one, "local_memory") for node, one in zip(ids, elements, strict=True)}
        if not any(memory.values()):
            self.assumed.append(assumed_memory())
            memory = {node: len(cpus) * ASSUMED_BYTES_PER_CPU for node, cpus in own.items()}
        distances = self._distances(ids)
        tiers = self._tiers(ids, elements)
        return tuple(
            Node(
                node,
                own[node],
                memory[node],
                _pools(one, memory[node]),
                distances[node],
                tier=tiers.get(node),
                initiators=self._initiators(own, near, node),
                owner=_owner(one),
            )
            for node, one in zip(ids, elements, strict=True)
        )

    def _initiators(self, own: Mapping[int, CpuSet], near: Mapping[int, CpuSet], node: int) -> NodeSet:
        if own[node]:
            return NodeSet()
        return NodeSet(other for other, cpus in own.items() if not cpus.isdisjoint(near[node]))

    def _tiers(self, ids: list[int], found: list[ET.Element]) -> dict[int, int]:
        """The order of memory where lstopo has words for several kinds."""
        ranks = {
            node: rank
            for node, one in zip(ids, found, strict=True)
            for rank, words in enumerate(_TIERS)
            if _kind(one) in words
        }
        given = sorted(set(ranks.values()))
        if len(given) <= 1:
            return {}
        self.assumed.append("the order of memory tiers by lstopo's words for them")
        return {node: given.index(rank) for node, rank in ranks.items()}

    def _sockets(self, online: CpuSet) -> dict[int, int]:
        packages = [
            (one, cpus) for type_ in _PACKAGES for one in self.objects[type_] if (cpus := _cpus(one) & online)
        ]
        ids = [one.get("os_index", "") for one, _ in packages]
        known = all(one.isdecimal() and int(one) < _UNKNOWN for one in ids) and len(set(ids)) == len(ids)
        if not packages:
            self.assumed.append("a single socket, as there are no packages")
        return {
            cpu: int(ids[number]) if known else number
            for number, (_, cpus) in enumerate(packages)
            for cpu in cpus
        }

    def _lowest(self, type_: str, online: CpuSet) -> dict[int, int]:
        """Of each CPU, the lowest one of the object of that type which has it."""
        return {
            cpu: min(cpus) for one in self.objects[type_] if (cpus := _cpus(one) & online) for cpu in cpus
        }

    def _lowest_l3(self, online: CpuSet) -> dict[int, int]:
        found = self._lowest("L3Cache", online)
        for one in self.objects["Cache"]:
            cpus = _cpus(one) & online
            if cpus and one.get("depth") == "3" and one.get("cache_type", "0") != _INSTRUCTION:
                found |= dict.fromkeys(cpus, min(cpus))
        return found

    def _complete_nodes(self) -> dict[int, int]:
        """The node of each CPU, offline ones as well; the first where several have it."""
        found: dict[int, int] = {}
        for one in self.objects["NUMANode"]:
            for cpu in _cpus(one, "complete_cpuset"):
                found.setdefault(cpu, _index(one))
        return found

    def _kinds(self, online: CpuSet) -> dict[int, str]:
        """Kinds of cores, in the order of lstopo's efficiency: the highest is the strongest."""
        ranked = []
        for number, one in enumerate(self.root.iter("cpukind")):
            efficiency = one.get("forced_efficiency", "")
            rank = int(efficiency) if efficiency.lstrip("-").isdecimal() and efficiency != "-1" else number
            ranked.append((rank, _cpus(one) & online))
        return kinds_of([cpus for _, cpus in sorted(ranked, key=lambda pair: -pair[0])])

    def _distances(self, ids: list[int]) -> dict[int, dict[int, int]]:
        """The row of each node."""
        for names, values in (*self._distances_2(), *self._distances_1(ids)):
            if set(names) != set(ids) or len(values) != len(names) ** 2:
                continue
            size = len(names)
            return {
                node: dict(sorted(zip(names, values[row * size : row * size + size], strict=True)))
                for row, node in enumerate(names)
            }
        if len(ids) > 1:
            self.assumed.append(f"distances of {LOCAL_DISTANCE} and {REMOTE_DISTANCE}, as there are none")
        return {node: assumed_distances(node, ids) for node in ids}

    def _distances_2(self) -> Iterator[tuple[list[int], list[int]]]:
        """Hwloc 2 and 3: ids by the kernel or by lstopo, values beside each other."""
        by_gp = {one.get("gp_index"): _index(one) for one in self.objects["NUMANode"]}
        for one in self.root.iter("distances2"):
            kind = one.get("kind", "0")
            if one.get("type") != "NUMANode" or not (kind.isdecimal() and int(kind) & _LATENCY):
                continue
            indexes = " ".join(part.text or "" for part in one.iter("indexes")).split()
            values = " ".join(part.text or "" for part in one.iter("u64values")).split()
            if one.get("indexing") == "gp":
                indexes = [str(by_gp.get(index, "")) for index in indexes]
            if all(text.isdecimal() for text in (*indexes, *values)):
                yield list(map(int, indexes)), [min(int(value), MAX_DISTANCE) for value in values]

    def _distances_1(self, ids: list[int]) -> Iterator[tuple[list[int], list[int]]]:
        """Hwloc 1: multiples of the local latency, of objects in their order."""
        for one in self.root.iter("distances"):
            base = float(one.get("latency_base", "10") or 10)
            values = [float(value.get("value", "0")) * base for value in one.iter("latency")]
            if values and one.get("nbobjs") == str(len(ids)):
                yield ids, [min(round(value), MAX_DISTANCE) for value in values]


_UNKNOWN: Final = 1 << 31
"""hwloc prints an os_index of -1 as 4294967295."""


def _index(element: ET.Element) -> int:
    text = element.get("os_index", "")
    if not text.isdecimal() or int(text) > CpuSet.max_id:
        raise invalid(f"os_index of a {element.get('type')}", repr(text), f"a number up to {CpuSet.max_id}")
    return int(text)


def _cpus(element: ET.Element, name: str = "cpuset") -> CpuSet:
    text = element.get(name)
    return CpuSet() if text is None else _mask(text)


def _mask(text: str) -> CpuSet:
    """Hwloc's format: words of 32 bits in hexadecimal, the highest first; empty ones are 0."""
    words = text.split(",")
    values = [int(match[1] or "0", 16) for word in words if (match := _GROUP.fullmatch(word)) is not None]
    if len(values) != len(words):
        raise invalid("cpuset", repr(text), "a mask such as 0x0000000f,0xffffffff")
    mask = 0
    for value in values:
        mask = mask << _WORD_BITS | value
    if mask.bit_length() > CpuSet.max_id + 1:
        raise invalid("cpuset", repr(text), f"CPUs up to {CpuSet.max_id}")
    return CpuSet.of_mask(mask)


def _amount(element: ET.Element, name: str) -> int:
    text = element.get(name, "0")
    if not text.isdecimal():
        raise invalid(name, repr(text), "a number of bytes")
    return int(text)


def _pools(element: ET.Element, memory_bytes: int) -> dict[int, int]:
    pools = {
        size_bytes: size_bytes * _amount(one, "count")
        for one in element.findall("page_type")
        if (size_bytes := _amount(one, "size")) > _PAGE_BYTES
    }
    return pools if sum(pools.values()) <= memory_bytes else {}


def _kind(element: ET.Element) -> str:
    for one in element.findall("info"):
        if one.get("name") == "MemoryTier":
            return one.get("value", "")
    return element.get("subtype", "")


def _owner(element: ET.Element) -> str:
    """The GPU whose memory the node is."""
    for one in element.findall("info"):
        if one.get("name") == "PCIBusID":
            return one.get("value", "")
    return _GPU if _kind(element) == _GPU else ""
