"""The options of kubelet's managers: names of policies, values, feature gates, and which exclude each other;
and the memory that is reserved on each NUMA node.

Sources: Kubernetes v1.36, of the CPU Manager v1.37. Nothing here knows a configuration file; names and values
come as text. Problems are reported in kubelet's words, all of them together, each with its place. In
`ReservationProblem.kubelet` is the sentence that kubelet has for a problem, for those who search for that;
kubelet stops at the first.
"""

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from bayplan.errors import BayplanError, Problem, excerpt
from bayplan.kubelet.pod import Amounts, is_memory, page_size_bytes
from bayplan.model.claims import sum_of
from bayplan.model.kubelet_version import NEWEST, KubeletRules
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.quantity import format_bytes, format_page_size

NONE: Final = "none"
STATIC: Final = "static"
"""The CPU Manager's policies as in cpuManagerPolicy."""

FULL_PCPUS_ONLY: Final = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
ALIGN_BY_SOCKET: Final = "align-by-socket"
DISTRIBUTE_ACROSS_CORES: Final = "distribute-cpus-across-cores"
STRICT_RESERVATION: Final = "strict-cpu-reservation"
PREFER_UNCORE: Final = "prefer-align-cpus-by-uncorecache"

CPU_OPTIONS: Final = (
    FULL_PCPUS_ONLY,
    DISTRIBUTE_ACROSS_NUMA,
    ALIGN_BY_SOCKET,
    DISTRIBUTE_ACROSS_CORES,
    STRICT_RESERVATION,
    PREFER_UNCORE,
)
"""All options of the static policy; how mature each is, is the version's."""

_EXCLUSIVE: Final = (
    (FULL_PCPUS_ONLY, DISTRIBUTE_ACROSS_CORES),
    (DISTRIBUTE_ACROSS_NUMA, DISTRIBUTE_ACROSS_CORES),
    (PREFER_UNCORE, DISTRIBUTE_ACROSS_CORES),
    (PREFER_UNCORE, DISTRIBUTE_ACROSS_NUMA),
)

PREFER_CLOSEST: Final = "prefer-closest-numa-nodes"
MAX_NODES: Final = "max-allowable-numa-nodes"
DEFAULT_MAX_NODES: Final = 8
"""More nodes than this kubelet accepts only with an option, because its merge takes 2^n steps."""

TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""What Go's strconv.ParseBool accepts, and with it kubelet."""
_INT64_CHARACTERS: Final = 20


class ManagerConfigError(BayplanError):
    """A manager cannot work as configured. ``problems`` holds every reason, in kubelet's words, where kubelet
    would name one of them."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(self.problems)


class MemoryManagerPolicy(enum.Enum):
    """kubelet's Memory Manager policies, by their configuration names.

    NONE keeps no state. STATIC binds Guaranteed containers to the nodes that hold their memory. BEST_EFFORT,
    which kubelet has on Windows only, computes the same hints and keeps the same state, but binds no
    container and refuses none for which there is no room: such a container runs without an entry.
    """

    NONE = "None"
    STATIC = "Static"
    BEST_EFFORT = "BestEffort"


class CpuOptions(Struct, frozen=True):
    """The options of the static policy, by their kubelet names with underscores."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        alpha: bool = False,
        beta: bool = True,
        rules: KubeletRules = NEWEST,
    ) -> "CpuOptions":
        """Read option names and values as KubeletConfiguration's cpuManagerPolicyOptions has them.

        Args:
            options: the values by name.
            alpha: the feature gate CPUManagerPolicyAlphaOptions, off by default as in kubelet.
            beta: the feature gate CPUManagerPolicyBetaOptions, on by default as in kubelet.
            rules: of the kubelet; which option stands behind which gate changes from version to version.

        Raises:
            ManagerConfigError: an option is unknown, behind a gate or has a bad value, or two exclude each
                other.
        """
        problems = []
        values: dict[str, bool] = {}
        for name, text in sorted(options.items()):
            problem = unavailable_cpu_option(name, alpha=alpha, beta=beta, rules=rules)
            problem = problem or _no_boolean(name, text)
            if problem is not None:
                problems.append(problem)
            values[name] = text in TRUE
        problems += [
            f"static policy options {one} and {other} can not be used at the same time"
            for one, other in _EXCLUSIVE
            if values.get(one) and values.get(other)
        ]
        if problems:
            raise ManagerConfigError(*problems)
        return cls(**{name.replace("-", "_"): value for name, value in values.items()})

    def check(self, sockets: int, nodes: int, topology_policy: TopologyPolicy) -> None:
        """Check the options against a machine with so many sockets and NUMA nodes, and the Topology Manager's
        policy.

        Raises:
            ManagerConfigError: align-by-socket cannot be had with them.
        """
        problems = tuple(self._conflicts(sockets, nodes, topology_policy))
        if problems:
            raise ManagerConfigError(*problems)

    def _conflicts(self, sockets: int, nodes: int, topology_policy: TopologyPolicy) -> Iterator[str]:
        if not self.align_by_socket:
            return
        if topology_policy is TopologyPolicy.SINGLE_NUMA_NODE:
            yield (
                f"Topology manager {topology_policy.value} policy is incompatible with "
                f"CPUManager {ALIGN_BY_SOCKET} policy option"
            )
        if sockets > nodes:
            yield (
                "Align by socket is not compatible with hardware "
                "where number of sockets are more than number of NUMA"
            )


def unavailable_cpu_option(name: str, *, alpha: bool, beta: bool, rules: KubeletRules = NEWEST) -> str | None:
    """Why the option *name* cannot be used under these feature gates; None if it can."""
    if name not in CPU_OPTIONS:
        return f'unknown CPU Manager Policy option: "{name}"'
    level, is_open = ("Beta", beta) if name in rules.beta_options else ("Alpha", alpha)
    if is_open or name in rules.stable_options:
        return None
    return f'CPU Manager Policy {level}-level Options not enabled, but option "{name}" provided'


class Maturity(enum.Enum):
    """The feature gate that an option stands behind."""

    ALPHA = "alpha"
    BETA = "beta"
    STABLE = "stable"


def maturity(kubelet: KubeletRules) -> dict[str, Maturity]:
    """All options, and how mature they are for that version."""
    return {
        name: Maturity.BETA if name in kubelet.beta_options else Maturity.STABLE
        for name in (PREFER_CLOSEST, MAX_NODES)
    }


OPTIONS: Final[Mapping[str, Maturity]] = maturity(NEWEST)
"""All options, of the newest version."""


class OptionGates(Struct, frozen=True):
    """The feature gates TopologyManagerPolicyAlphaOptions and TopologyManagerPolicyBetaOptions, with their
    defaults. ``options`` says which option stands behind which."""

    alpha: bool = False
    beta: bool = True
    options: Mapping[str, Maturity] = field(default_factory=lambda: OPTIONS)

    def unavailable(self, name: str) -> str | None:
        """Why the option *name* cannot be used; None if it can."""
        maturity = self.options.get(name)
        if maturity is None:
            return f'unknown Topology Manager Policy option: "{name}"'
        if maturity is Maturity.ALPHA and not self.alpha:
            return f'topology manager policy alpha-level options not enabled, but option "{name}" provided'
        if maturity is Maturity.BETA and not self.beta:
            return f'topology manager policy beta-level options not enabled, but option "{name}" provided'
        return None


class TopologyOptions(Struct, frozen=True):
    """topologyManagerPolicyOptions. ``max_nodes`` changes nothing here: see `beyond_kubelet`."""

    prefer_closest: bool = False
    max_nodes: int = DEFAULT_MAX_NODES

    @classmethod
    def parse(cls, options: Mapping[str, str], gates: OptionGates | None = None) -> "TopologyOptions":
        """Read option names and values.

        Raises:
            ManagerConfigError: an option is unknown or behind a gate, or has a bad value.
        """
        gates = gates or OptionGates()
        problems = []
        for name, text in sorted(options.items()):
            problem = gates.unavailable(name) or _bad_value(name, text)
            if problem is not None:
                problems.append(problem)
        if problems:
            raise ManagerConfigError(*problems)
        return cls(
            prefer_closest=options.get(PREFER_CLOSEST) in TRUE,
            max_nodes=int(options.get(MAX_NODES, DEFAULT_MAX_NODES)),
        )

    def beyond_kubelet(self, nodes: int) -> str | None:
        """Why kubelet would not start on a machine with so many nodes; None if it would. Worth a remark to
        the operator, but no reason to refuse: this engine's merge does not list sets of nodes."""
        if nodes <= self.max_nodes:
            return None
        return f"unsupported on machines with more than {self.max_nodes} NUMA Nodes"


def _no_boolean(name: str, text: str) -> str | None:
    if text in TRUE | _FALSE:
        return None
    return f'bad value for option "{name}": strconv.ParseBool: parsing "{text}": invalid syntax'


def _bad_value(name: str, text: str) -> str | None:
    if name == PREFER_CLOSEST:
        return _no_boolean(name, text)
    if name == MAX_NODES:
        if re.fullmatch("[+-]?[0-9]+", text) is None:
            return (
                f'unable to convert policy option to integer "{name}": '
                f'strconv.Atoi: parsing "{text}": invalid syntax'
            )
        if len(text) > _INT64_CHARACTERS:
            return (
                f'unable to convert policy option to integer "{name}": '
                f'strconv.Atoi: parsing "{excerpt(text)}": value out of range'
            )
        if int(text) < DEFAULT_MAX_NODES:
            return f'the minimum value of "{name}" should not be less than {DEFAULT_MAX_NODES}'
    return None


class ManagerOptions(Struct, frozen=True):
    """kubelet's managers as configured. ``static_cpus`` False is the CPU Manager's policy none."""

    memory: MemoryManagerPolicy = MemoryManagerPolicy.STATIC
    static_cpus: bool = True
    cpu_options: CpuOptions = field(default=CpuOptions())
    scope: TopologyScope = TopologyScope.CONTAINER
    topology_options: TopologyOptions = field(default=TopologyOptions())


KEY: Final = "reservedMemory"


class ReservationProblem(NamedTuple):
    """A `Problem`, with kubelet's sentence about it; empty where kubelet says nothing."""

    path: str
    found: str
    expected: str
    kubelet: str = ""


class Reservation(NamedTuple):
    """What is kept from containers on one node, in bytes by resource. ``path`` is where it was configured."""

    node: int
    sizes: Amounts
    path: str = KEY


def in_words(problem: ReservationProblem) -> Problem:
    """The problem with kubelet's sentence at its end."""
    path, found, expected, kubelet = problem
    return Problem(path, found, f"{expected}; kubelet: {kubelet}" if kubelet else expected)


def check_values(reservations: Iterable[Reservation]) -> tuple[ReservationProblem, ...]:
    """What is wrong with reservations by themselves: types, zeros, duplicates."""
    problems = []
    known: dict[tuple[int, str], Reservation] = {}
    for each in reservations:
        for name, size in each.sizes.items():
            path = f"{each.path}.limits.{name}"
            where = f'for NUMA node {each.node} and resource "{name}"'
            if not is_memory(name):
                kubelet = (
                    f'invalid configuration: the limit type "{name}" for NUMA node {each.node} is not '
                    "supported, only [memory hugepages-<HugePageSize>] is accepted"
                )
                expected = "memory or hugepages-<size>"
                problems.append(ReservationProblem(path, "an unknown resource", expected, kubelet))
            if size == 0:
                kubelet = f"invalid configuration: reserved memory may not be zero {where}"
                problems.append(ReservationProblem(path, "0", "more than 0 bytes, or no entry", kubelet))
            first = known.setdefault((each.node, name), each)
            if first is not each:
                kubelet = f"invalid configuration: the reserved memory has a duplicate value {where}"
                expected = f"one amount of {name} for each node, there is {_quantity(first.sizes[name])}"
                found = f"a second amount, {_quantity(size)}"
                problems.append(ReservationProblem(path, found, expected, kubelet))
    return tuple(problems)


def check_machine(reservations: Iterable[Reservation], machine: Machine) -> tuple[ReservationProblem, ...]:
    """What is wrong with reservations on that machine: nodes and page sizes it does not have, and more than a
    node holds. Of these kubelet reports the nodes only."""
    problems = []
    for each in reservations:
        node = machine.node_by_id.get(each.node)
        if node is None:
            kubelet = (
                f"the reserved memory configuration references a NUMA node {each.node} "
                "that does not exist on this machine"
            )
            expected = f"a NUMA node of this machine ({machine.node_ids})"
            problems.append(ReservationProblem(each.path, f"NUMA node {each.node}", expected, kubelet))
            continue
        capacity = node.capacity_bytes()
        for name, size in sorted(each.sizes.items()):
            there_is = capacity.get(name)
            if there_is is None and is_memory(name):
                sizes = ", ".join(key for key in capacity if key != MEMORY) or "no huge pages"
                found = f"{name} on NUMA node {each.node}"
                expected = (
                    "hugepages-<page size>" if page_size_bytes(name) is None else f"what it has: {sizes}"
                )
                problems.append(ReservationProblem(each.path, found, expected))
            elif there_is is not None and size > there_is:
                found = f"{name}={_quantity(size)} on NUMA node {each.node}"
                expected = f"at most the {format_bytes(there_is)} that the node has"
                problems.append(ReservationProblem(each.path, found, expected))
    return tuple(problems)


def check_sums(
    reservations: Sequence[Reservation],
    node_allocatable: Mapping[str, int],
    worked_out: Mapping[str, str],
) -> tuple[ReservationProblem, ...]:
    """Whether the nodes' reservations add up to *node_allocatable*, what the node keeps from containers, for
    every resource of either. *worked_out* says by resource how that came about."""
    totals = sum_of(each.sizes for each in reservations)
    problems = []
    for name in sorted({*totals, *(name for name in node_allocatable if is_memory(name))}):
        total, needed = totals.get(name, 0), node_allocatable.get(name, 0)
        if total == needed:
            continue
        kubelet = (
            f'the total amount "{_quantity(total)}" of type "{name}" is not equal to the value '
            f'"{_quantity(needed)}" determined by Node Allocatable feature'
        )
        summed = " + ".join(
            f"node {each.node} {_quantity(each.sizes[name])}" for each in reservations if name in each.sizes
        )
        found = f"{_quantity(total)} of {name} in all ({summed or 'no reservation'})"
        expected = f"{_quantity(needed)} ({worked_out.get(name, 'nothing is reserved for the node')})"
        problems.append(ReservationProblem(KEY, found, expected, kubelet))
    return tuple(problems)


def of_nodes(reserved: Mapping[int, Amounts]) -> tuple[Reservation, ...]:
    """The reservations that bytes by node and resource stand for: the way back from `by_node`."""
    return tuple(Reservation(node, sizes) for node, sizes in sorted(reserved.items()) if sizes)


def by_node(reservations: Iterable[Reservation], machine: Machine) -> dict[int, dict[str, int]]:
    """Reserved bytes by node and resource, with an entry for every node of the machine."""
    reserved: dict[int, dict[str, int]] = {node.id: {} for node in machine.nodes}
    for each in reservations:
        reserved.setdefault(each.node, {}).update(each.sizes)
    return reserved


def _quantity(size_bytes: int) -> str:
    """Kubernetes' canonical binary form: the largest suffix that leaves a whole number, as for page sizes."""
    return format_page_size(size_bytes)
