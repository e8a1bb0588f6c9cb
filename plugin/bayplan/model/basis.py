"""What a decision depends on, as one value: the machine, the operator's policy, the ledger, and the sizes of
requests that were seen lately; and what these leave to containers, worked out once.

Everything that decides takes it first. Invariant: what a basis says of the machine under the policy is what
both say, however often the ledger changed in between (`Basis.with_ledger`).

What was seen is learned from what the node decides about: containers that are confined to nodes by what they
claim, or have CPUs of their own; refused or not. Each counts once, by its name: a pod that is refused again
and again, or a container that is started again, is one request. What is kept follows from the decisions in
their order alone, so that the recorded history says the same after a restart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, Self

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.model.claims import is_claim_key
from bayplan.model.decision import QosClass, QosSource, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import MILLI_PER_CPU, counted, format_bytes
from bayplan.sets import CpuSet

MOST_REMEMBERED: Final = 64
"""Requests: on a node with 30 containers what came and went in twice the time that one lasts."""
MOST_SIZES: Final = 16
"""Sizes that decisions look at, the most frequent ones."""
MOST_READ: Final = 256
"""Decisions of the record from which it is learned again after a restart: three of four may be about
containers from which nothing is learned."""
_DIGITS: Final = 3
"""The number of binary digits of an amount that count, rounded up: sizes that differ by less than a quarter
are one."""


class SeenSize(Struct, frozen=True):
    """What ``count`` of the containers seen lately asked for: bytes by resource, and CPUs of their own."""

    amounts_bytes: Mapping[str, int]
    cpus: int = 0
    count: int = 1

    def text(self) -> str:
        """The size for people."""
        amounts = [
            f"{format_bytes(amount)}{'' if resource == MEMORY else f' of {resource}'}"
            for resource, amount in self.amounts_bytes.items()
        ]
        own = [counted(self.cpus, "CPU")] if self.cpus else []
        return f"{self.count} x {' and '.join([*amounts, *own])}"


class SeenRequests(Struct):
    """The requests that were seen, by the name of the container: the latest last. The owner of the node's
    state has it."""

    by_name: dict[str, tuple[tuple[tuple[str, int], ...], int]] = field(default_factory=dict)

    def see(self, request: Request) -> bool:
        """Remember *request*; whether that changed `sizes`."""
        if not is_learned_from(request):
            return False
        asked = {MEMORY: request.memory.high_bytes, **request.hugepages_bytes}
        amounts = tuple((name, rounded_up(amount)) for name, amount in sorted(asked.items()) if amount)
        size = (amounts, request.exclusive_cpus)
        before = self.by_name.pop(request.name, None)
        self.by_name[request.name] = size
        if len(self.by_name) > MOST_REMEMBERED:
            del self.by_name[next(iter(self.by_name))]
            return True
        return before != size

    @classmethod
    def of(cls, requests: Iterable[Request]) -> Self:
        """What is remembered of *requests*, the oldest first."""
        found = cls()
        for request in requests:
            found.see(request)
        return found

    def sizes(self) -> tuple[SeenSize, ...]:
        """The most frequent sizes, each with its number, in an order that follows from these alone."""
        found = Counter(self.by_name.values())
        most = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:MOST_SIZES]
        return tuple(SeenSize(dict(amounts), cpus, count) for (amounts, cpus), count in most)


def is_learned_from(request: Request) -> bool:
    """Whether *request* says what is to fit on nodes: neither a claim, which the scheduler gave its nodes,
    nor a container whose place others chose, nor one that may be anywhere."""
    if request.opted_out or request.pinned_cpus is not None or request.pinned_mems is not None:
        return False
    if is_claim_key(request.container_id):
        return False
    return request.exclusive_cpus > 0 or request.qos is QosClass.GUARANTEED


def rounded_up(amount: int) -> int:
    """*amount* with so many binary digits as count."""
    shift = max(0, amount.bit_length() - _DIGITS)
    return -(-amount // (1 << shift)) << shift


def sizes_text(sizes: Iterable[SeenSize], most: int = 3) -> str:
    """The most frequent of *sizes* for people, and how many there are beside these."""
    every: list[SeenSize] = list(sizes)
    rest = sum(one.count for one in every[most:])
    texts = [one.text() for one in every[:most]]
    return ", ".join([*texts, *([f"{rest} of other sizes"] if rest else [])])


class Allocatable(Struct, frozen=True, dict=True):
    """What containers may have of *machine* under *policy*, were there none yet."""

    machine: Machine
    policy: PlacementPolicy

    @cached_property
    def bytes_by_node(self) -> Mapping[int, Mapping[str, int]]:
        """Node id -> resource -> capacity less the reservation, never below 0."""
        reserved_bytes = self.policy.reserved_bytes
        return {
            node.id: {
                resource: max(0, amount - reserved_bytes.get(node.id, {}).get(resource, 0))
                for resource, amount in node.capacity_bytes().items()
            }
            for node in self.machine.nodes
        }

    @cached_property
    def reserved_cpus(self) -> CpuSet:
        """The CPUs that never become exclusive: the configured ones, else the lowest one, because the shared
        pool must not run empty (an empty cpuset.cpus cannot be written)."""
        online = self.machine.online_cpus
        configured = self.policy.reserved_cpus & online
        if configured or not online:
            return configured
        return CpuSet([next(iter(online - self.policy.isolated_cpus or online))])

    @cached_property
    def exclusive_cpus(self) -> CpuSet:
        """The CPUs that can become exclusive: all but the reserved and the isolated ones."""
        return self.machine.online_cpus - self.reserved_cpus - self.policy.isolated_cpus

    @cached_property
    def isolated_cpus(self) -> CpuSet:
        """The CPUs that can become exclusive to a container that wishes isolated ones."""
        return (self.policy.isolated_cpus & self.machine.online_cpus) - self.reserved_cpus


class Basis(Struct, frozen=True, dict=True):
    """See the module. ``seen`` is empty where no decision depends on it."""

    machine: Machine
    policy: PlacementPolicy
    ledger: Ledger
    seen: tuple[SeenSize, ...] = ()

    @cached_property
    def allocatable(self) -> Allocatable:
        """What containers may have, all of them together."""
        return Allocatable(self.machine, self.policy)

    @property
    def free_bytes(self) -> dict[int, dict[str, int]]:
        """Allocatable bytes that are not promised by node: node id -> resource -> bytes, never below 0.

        Claims on sets of nodes are not among these promises.
        """
        booked_bytes = self.ledger.booked_bytes
        return {
            node: {
                resource: max(0, amount - booked_bytes.get(node, {}).get(resource, 0))
                for resource, amount in resources.items()
            }
            for node, resources in self.allocatable.bytes_by_node.items()
        }

    def exclusive_candidates(self, *, isolated: bool = False, growing: str = "") -> CpuSet:
        """The CPUs that could become exclusive now to a container; *isolated* ones if it wishes such. They
        are not exclusive to another container, and not kept by the cpuset of another container that somebody
        else chose. Where named pools may still get CPUs of one kind of cores, so many of the last cores of
        that kind are left out, but not those for the pool that is *growing*."""
        allocatable, ledger = self.allocatable, self.ledger
        free = (allocatable.isolated_cpus if isolated else allocatable.exclusive_cpus) - ledger.exclusive_cpus
        for container_id in ledger.pinned_ids:
            free -= kept_by_pin(ledger.entries[container_id].decision.request, self.machine.online_cpus)
        for name, pool in self.policy.cpu_pools.items():
            growth = max(0, pool.maximum - len(ledger.pool_cpus(name)))
            of_kind = self.machine.cpus_by_kind.get(pool.cpu_kind)
            if of_kind is not None and growth and name != growing and not isolated:
                by_core = sorted(free & of_kind, key=self._core_and_id)
                free -= CpuSet(by_core[-growth:])
        return free

    def _core_and_id(self, cpu: int) -> tuple[int, int]:
        return self.machine.cpu_by_id[cpu].core_id, cpu

    def growth_of_pools(self, growing: str = "") -> int:
        """How many CPUs the named pools may still get together, but for the one that is *growing*."""
        return sum(
            max(0, pool.maximum - len(self.ledger.pool_cpus(name)))
            for name, pool in self.policy.cpu_pools.items()
            if name != growing
        )

    @cached_property
    def shared_cpus(self) -> CpuSet:
        """The CPUs of the containers that have none of their own."""
        return self.ledger.shared_cpus(self.machine, self.policy.withheld_cpus)

    def shared_cpus_minimum(self, more_milli: int = 0, growing: str = "") -> int:
        """How many CPUs are to stay in the shared pool for its own containers: as configured, else as many as
        those that are kubelet's request together, with *more_milli* of one that is about to come.

        What they request is no obstacle to a named pool that is *growing*, whose CPUs up to its maximum were
        kept for it there; a configured number is.

        kubelet admits no pod whose requests do not fit beside those of others, and exclusive CPUs are whole
        ones: by its arithmetic these are always left. What others write as shares is a weight, and promises
        nothing.
        """
        if self.policy.shared_cpus_minimum is not None:
            return self.policy.shared_cpus_minimum
        if growing:
            return 0
        requested_milli = self.ledger.shared_milli.get(QosSource.CGROUP_PARENT, 0)
        return -(-(requested_milli + more_milli) // MILLI_PER_CPU)

    def exclusive_room(self, more_milli: int = 0, growing: str = "") -> int:
        """How many CPUs of the shared pool may become exclusive, or go to the named pool that is *growing*,
        whichever they are, so that as many as must stay do, with *more_milli* as for `shared_cpus_minimum`,
        and all that the other pools may grow by; below 0 where there are fewer already."""
        least = self.shared_cpus_minimum(more_milli, growing)
        growth = self.growth_of_pools(growing) if self.policy.cpu_pools else 0
        if growth:
            # Reserved CPUs are for containers of the shared pool, and for no other.
            least = max(least, len(self.allocatable.reserved_cpus & self.shared_cpus))
        return self.shared_cpus.mask.bit_count() - least - growth

    def with_seen(self, seen: tuple[SeenSize, ...]) -> Self:
        """The same, with other requests seen lately."""
        after = replace(self, seen=seen)
        after.__dict__.update(self.__dict__)
        return after

    def with_ledger(self, ledger: Ledger) -> Self:
        """The same machine and policy, with another ledger."""
        after = replace(self, ledger=ledger)
        kept, known = after.__dict__, self.__dict__
        if "allocatable" in known:
            kept["allocatable"] = known["allocatable"]
        if "shared_cpus" in known and ledger.exclusive_cpus.mask == self.ledger.exclusive_cpus.mask:
            kept["shared_cpus"] = known["shared_cpus"]
        return after


def kept_by_pin(request: Request, all_cpus: CpuSet) -> CpuSet:
    """The CPUs that a container keeps from being exclusive to others, because somebody else chose them for
    it.

    A cpuset of more than half of the CPUs chooses none in particular. Outside of kubelet's tree a container
    with such a cpuset keeps none: one container could else keep out all pods of kubelet that are to have CPUs
    of their own.
    """
    pinned = request.pinned_cpus or CpuSet()
    wide = 2 * len(pinned & all_cpus) > len(all_cpus) and request.qos_source is not QosSource.CGROUP_PARENT
    return CpuSet() if wide else pinned
