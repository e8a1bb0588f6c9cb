"""A container's resources: what its spec or an update writes, what its cgroup has once the runtime is done,
who said it, and what that means on a machine.

The one reader, for NRI messages and OCI documents alike. Runtimes write the fields first and the keys of
``unified`` last (runc fs2.Manager.Set, crun update_cgroup_v2_resources), so that a key wins over its field.
On cgroup v1 they refuse a spec with ``unified``, so that there is nothing to distinguish. Zero and an empty
text are "unset", as kubelet, containerd and CRI-O write them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.model.machine import Machine, hugepages
from bayplan.printable import pattern
from bayplan.quantity import (
    MILLI_PER_CPU,
    UNLIMITED_BYTES,
    format_bytes,
    parse_cgroup_bytes,
    parse_page_size,
    whole_number,
)
from bayplan.sets import CpuSet, IdSet, NodeSet, is_open_ended

Ids = TypeVar("Ids", bound=IdSet)
Problems = dict[str, str]
"""What cannot be read, by its path below ``resources``."""

UNLIMITED: Final = -1
"""An explicit "no limit", of memory or of CPU time."""

MEMORY_MAX: Final = "memory.max"
MEMORY_MIN: Final = "memory.min"
MEMORY_LOW: Final = "memory.low"
MEMORY_HIGH: Final = "memory.high"
CPU_MAX: Final = "cpu.max"
CPU_WEIGHT: Final = "cpu.weight"
CPUSET_CPUS: Final = "cpuset.cpus"
CPUSET_MEMS: Final = "cpuset.mems"
RESERVATION: Final = "memory.reservation"
"""The field that runtimes write to memory.low (cgroup v1: memory.soft_limit_in_bytes)."""

_EXCLUSIVE_CPUS: Final = "cpuset.cpus.exclusive"
_PARTITION: Final = "cpuset.cpus.partition"

MIN_SHARES: Final = 2
DEFAULT_PERIOD_US: Final = 100_000
_CPU_IDLE: Final = "cpu.idle"
_CPU_WEIGHT_NICE: Final = "cpu.weight.nice"
_DEFAULT_WEIGHT: Final = 100
_DEFAULT_SHARES: Final = 1024
_MAX_WEIGHT: Final = 10_000
_NICE_SHARES: Final = (
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916,
    9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277,
    1024, 820, 655, 526, 423, 335, 272, 215, 172, 137,
    110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
)  # fmt: skip
"""The kernel's sched_prio_to_weight, from nice -20 to 19."""
_HUGETLB: Final = pattern(r"hugetlb\.([0-9]+[KMG]B)(\.rsvd)?\.max")
_HUGETLB_PREFIX: Final = "hugetlb."
_LARGEST_PART: Final = 2
"""No container outside of kubelet's tree is promised more than this part of the machine: 1 / 2."""


class WrittenResources(Struct, frozen=True):
    """``linux.resources`` as a spec or an update has it, in the units of the OCI specification, whatever way
    it came. None, zero and an empty text: not there."""

    memory_limit_bytes: int | None = None
    memory_reservation_bytes: int | None = None
    memory_swap_bytes: int | None = None
    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpu_idle: int | None = None
    cpus: str = ""
    mems: str = ""
    hugepage_limits: tuple[tuple[str, int], ...] = ()
    unified: Mapping[str, str] = field(default_factory=dict)


class FieldValues(Struct, frozen=True):
    """What either the fields of a spec or keys of ``unified`` say; None: nothing was said.

    ``memory_limit_bytes`` and ``cpu_quota_us`` of -1 are an explicit "unlimited"; ``hugepage_limits_bytes``
    maps page sizes.
    """

    memory_limit_bytes: int | None = None
    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpuset_cpus: CpuSet | None = None
    cpuset_mems: NodeSet | None = None
    hugepage_limits_bytes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, resources: "Resources") -> "FieldValues":
        """The values in *resources*."""
        return cls(**{name: getattr(resources, name) for name in cls.__struct_fields__})


class Resources(FieldValues, frozen=True):
    """What the cgroup has once the runtime is done.

    ``memory_reservation_bytes`` and ``memory_swap_bytes`` (memory and swap together) are fields of the spec;
    what protects and throttles beside them is in ``unified``, whose texts are all kept. ``fields`` are the
    values of the fields where a key of ``unified`` has another one. ``open_ended`` has the texts of cpusets
    that go up to the machine's last id. ``unreadable`` says what cannot be read, by its path below
    ``resources``: it counts as not there, but a cpuset as one of nobody knows which ids, the empty one.
    """

    unified: Mapping[str, str] = field(default_factory=dict)
    memory_reservation_bytes: int | None = None
    memory_swap_bytes: int | None = None
    open_ended: Mapping[str, str] = field(default_factory=dict)
    fields: FieldValues | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def limit_bytes(self) -> int | None:
        """The memory limit; None where there is none, explicitly or not."""
        limit_bytes = self.memory_limit_bytes
        return None if limit_bytes is None or limit_bytes < 0 else limit_bytes

    @property
    def quota_milli(self) -> int | None:
        """Thousandths of a CPU that the quota allows; None when there is no limit."""
        quota_us = self.cpu_quota_us
        return None if quota_us is None else milli_from_quota(quota_us, self.cpu_period_us)

    def protected_bytes(self, file: str) -> int:
        """What memory.min or memory.low protects, 0 for nothing. All there is (``max``) is no amount, and
        says nothing of how much is asked for."""
        if self.unified and self.line(file):
            return self.amount_bytes(file) or 0
        return max(0, self.memory_reservation_bytes or 0) if file == MEMORY_LOW else 0

    def amount_bytes(self, file: str) -> int | None:
        """The amount in a key of ``unified``; None where there is none, or none that can be read."""
        text = self.line(file) if self.unified else ""
        try:
            return parse_cgroup_bytes(text) if text else None
        except ParseError:
            return None

    def line(self, file: str) -> str:
        """What a key of ``unified`` leaves in its file, which is written line by line. Runtimes differ in
        what they make of an empty text, which is taken for unset."""
        return self.unified.get(file, "").strip().rpartition("\n")[2]

    @property
    def without_unified(self) -> "Resources":
        """The same as the fields of the spec say it, without what keys of ``unified`` override."""
        if self.fields is None:
            return self
        return replace(
            self, fields=None, **{name: getattr(self.fields, name) for name in FieldValues.__struct_fields__}
        )


NO_RESOURCES: Final = Resources()


def milli_from_quota(quota_us: int | None, period_us: int | None) -> int | None:
    """Thousandths of a CPU that a CFS quota allows; None when there is no limit."""
    if quota_us is None or quota_us <= 0:
        return None
    return -(-quota_us * MILLI_PER_CPU // (period_us or DEFAULT_PERIOD_US))


def read(written: WrittenResources) -> Resources:
    """The resources that *written* makes of a cgroup."""
    problems = Problems()
    limit_bytes, reserved_bytes = written.memory_limit_bytes, written.memory_reservation_bytes
    open_ended = dict[str, str]()
    fields = Resources(
        memory_limit_bytes=_limit(limit_bytes) if limit_bytes else None,
        cpu_shares=MIN_SHARES if written.cpu_idle else written.cpu_shares or None,
        cpu_quota_us=written.cpu_quota_us or None,
        cpu_period_us=written.cpu_period_us or None,
        cpuset_cpus=_ids(CpuSet, written.cpus, "cpu.cpus", problems, CPUSET_CPUS, open_ended)
        if written.cpus
        else None,
        cpuset_mems=_ids(NodeSet, written.mems, "cpu.mems", problems, CPUSET_MEMS, open_ended)
        if written.mems
        else None,
        hugepage_limits_bytes=_hugepages(written, problems) if written.hugepage_limits else {},
        memory_reservation_bytes=_limit(reserved_bytes) if reserved_bytes else None,
        memory_swap_bytes=written.memory_swap_bytes or None,
        open_ended=open_ended,
        unified=written.unified,
    )
    overrides = bool(written.unified) and _overrides(written.unified)
    found = _with_unified(fields, problems) if overrides else fields
    return replace(found, unreadable=problems) if problems else found


def changed_resources(spec: Resources, change: Resources) -> Resources:
    """*spec* with the amounts of *change* where it has some; cpusets are no amounts."""
    changed = replace(
        spec,
        memory_limit_bytes=_newer(change.memory_limit_bytes, spec.memory_limit_bytes),
        memory_reservation_bytes=_newer(change.memory_reservation_bytes, spec.memory_reservation_bytes),
        memory_swap_bytes=_newer(change.memory_swap_bytes, spec.memory_swap_bytes),
        cpu_shares=_newer(change.cpu_shares, spec.cpu_shares),
        cpu_quota_us=_newer(change.cpu_quota_us, spec.cpu_quota_us),
        cpu_period_us=_newer(change.cpu_period_us, spec.cpu_period_us),
        hugepage_limits_bytes={**spec.hugepage_limits_bytes, **change.hugepage_limits_bytes},
    )
    if change.unified:
        changed = replace(changed, unified={**spec.unified, **change.unified})
    if spec.fields is not None or change.fields is not None:
        fields = changed_resources(spec.without_unified, change.without_unified)
        changed = replace(changed, fields=FieldValues.of(fields))
    return changed


def limiting(resources: Resources, machine: Machine) -> Resources:
    """What of *resources* limits or protects anything on *machine*: what is at or above all that it has is
    as good as not there."""
    memory_bytes, cpus_milli = machine.memory_bytes, len(machine.online_cpus) * MILLI_PER_CPU
    limit_bytes, quota_milli = resources.limit_bytes, resources.quota_milli
    kept = {
        size: amount
        for size, amount in resources.hugepage_limits_bytes.items()
        if amount < _hugepages_of(machine, size)
    }
    everything = {key: "max" for key in _AMOUNTS if (resources.amount_bytes(key) or 0) >= memory_bytes}
    reservation_bytes = resources.memory_reservation_bytes
    return replace(
        resources,
        memory_limit_bytes=None if limit_bytes is None or limit_bytes >= memory_bytes else limit_bytes,
        memory_reservation_bytes=None if (reservation_bytes or 0) >= memory_bytes else reservation_bytes,
        cpu_quota_us=None if quota_milli is None or quota_milli >= cpus_milli else resources.cpu_quota_us,
        hugepage_limits_bytes=kept,
        unified={**resources.unified, **everything} if everything else resources.unified,
    )


def limiting_nothing(resources: Resources, machine: Machine) -> Iterator[str]:
    """The limits and reservations of *resources* that are none on *machine*, as sentences."""
    kept = limiting(resources, machine)
    has = format_bytes(machine.memory_bytes)
    for name, was, now in (
        ("memory limit", resources.limit_bytes, kept.limit_bytes),
        ("memory reservation", resources.memory_reservation_bytes, kept.memory_reservation_bytes),
        *((key, resources.amount_bytes(key), kept.amount_bytes(key)) for key in _AMOUNTS),
    ):
        if now is None and was is not None and was > 0:
            yield f"its {name} of {format_bytes(was)} limits nothing: the machine has {has}"
    if resources.quota_milli is not None and kept.quota_milli is None:
        cpus, asked = len(machine.online_cpus), resources.quota_milli / MILLI_PER_CPU
        yield f"its CPU quota of {asked:g} limits nothing: the machine has {cpus}"
    for size in resources.hugepage_limits_bytes.keys() - kept.hugepage_limits_bytes.keys():
        amount, pages = format_bytes(resources.hugepage_limits_bytes[size]), hugepages(size)
        pool = format_bytes(_hugepages_of(machine, size))
        yield f"its limit of {amount} of {pages} limits nothing: the machine has {pool}"


def pinned(resources: Resources, machine: Machine) -> tuple[CpuSet | None, NodeSet | None]:
    """The cpusets of *resources* as the kernel of *machine* reads them."""
    cpus, mems = resources.cpuset_cpus, resources.cpuset_mems
    if resources.open_ended:
        if text := resources.open_ended.get(CPUSET_CPUS):
            cpus = CpuSet.parse(text, machine.cpus[-1].id if machine.cpus else None)
        if text := resources.open_ended.get(CPUSET_MEMS):
            mems = NodeSet.parse(text, machine.nodes[-1].id if machine.nodes else None) & machine.node_ids
    return cpus, mems


def most_bytes(machine: Machine) -> int:
    """The most memory that one container outside of kubelet's tree is promised."""
    return machine.memory_bytes // _LARGEST_PART


def most_milli(machine: Machine) -> int:
    """The most thousandths of a CPU that one container outside of kubelet's tree is taken to ask for."""
    return len(machine.online_cpus) * MILLI_PER_CPU // _LARGEST_PART


def most_hugepages_bytes(machine: Machine, size_bytes: int) -> int:
    """The most huge pages of a size that one container outside of kubelet's tree is promised, in bytes of
    whole pages."""
    return _hugepages_of(machine, size_bytes) // _LARGEST_PART // size_bytes * size_bytes


def _hugepages_of(machine: Machine, size_bytes: int) -> int:
    """All huge pages of a size, in bytes."""
    return sum(node.hugepages_bytes.get(size_bytes, 0) for node in machine.nodes)


def overridden(resources: Resources, fields: FieldValues) -> Iterator[str]:
    """What keys of ``unified`` in *resources* say otherwise than the *fields* of the spec, with both
    values."""
    for key, name, theirs, ours in (
        (MEMORY_MAX, "memory.limit", resources.memory_limit_bytes, fields.memory_limit_bytes),
        (
            CPU_MAX,
            "cpu.quota",
            resources.quota_milli,
            milli_from_quota(fields.cpu_quota_us, fields.cpu_period_us),
        ),
        (CPU_WEIGHT, "cpu.shares", resources.cpu_shares, fields.cpu_shares),
        (CPUSET_CPUS, "cpu.cpus", resources.cpuset_cpus, fields.cpuset_cpus),
        (CPUSET_MEMS, "cpu.mems", resources.cpuset_mems, fields.cpuset_mems),
    ):
        if ours is not None and theirs != ours:
            shown = format_bytes(ours) if key == MEMORY_MAX and isinstance(ours, int) else str(ours)
            unit = "m" if key == CPU_MAX else ""
            yield f"its {key} of {resources.unified.get(key, theirs)!s} overrides its {name} of {shown}{unit}"


# ---- Reading -----------------------------------------------------------------------------------------

_AMOUNTS: Final = (MEMORY_MIN, MEMORY_LOW, MEMORY_HIGH)


def _limit(amount_bytes: int) -> int:
    """A memory limit or reservation: below zero, and above what any kernel counts, is none, explicitly."""
    return amount_bytes if 0 < amount_bytes < UNLIMITED_BYTES else UNLIMITED


def _newer(change: int | None, spec: int | None) -> int | None:
    return spec if change is None else change


def _ids(
    kind: type[Ids], text: str, path: str, problems: Problems, file: str, open_ended: dict[str, str]
) -> Ids | None:
    """A cpuset. White space and commas alone are the empty list, which sets nothing."""
    try:
        ids = kind.parse(text)
    except ParseError as error:
        problems[path] = str(error)
        return kind()
    if ids and is_open_ended(text):
        open_ended[file] = text
    return ids or None


def _hugepages(written: WrittenResources, problems: Problems) -> dict[int, int]:
    """Limits by page size, in whole pages as the kernel rounds them; of two for one size the last counts."""
    by_size = dict[int, int]()
    for number, (page_size, limit_bytes) in enumerate(written.hugepage_limits):
        try:
            size_bytes = parse_page_size(page_size)
        except ParseError as error:
            problems[f"hugepageLimits[{number}].pageSize"] = str(error)
            continue
        by_size.pop(size_bytes, None)
        if 0 <= limit_bytes < UNLIMITED_BYTES:
            by_size[size_bytes] = limit_bytes // size_bytes * size_bytes
    return by_size


def _overrides(unified: Mapping[str, str]) -> bool:
    """Whether any key of *unified* is one that counts."""
    return any(key in _READERS or key.startswith(_HUGETLB_PREFIX) for key in unified)


def _with_unified(fields: Resources, problems: Problems) -> Resources:
    """*fields* with what the keys of ``unified`` write after them."""
    resources = fields
    for key, reader in _READERS.items():
        line = fields.line(key)
        if not line:
            continue
        try:
            resources = reader(resources, line)
        except ParseError as error:
            problems[f"unified[{key}]"] = str(error)
            if key in (CPUSET_CPUS, _EXCLUSIVE_CPUS):
                resources = replace(resources, cpuset_cpus=CpuSet())
            elif key == CPUSET_MEMS:
                resources = replace(resources, cpuset_mems=NodeSet())
    resources = _with_hugetlb(resources, problems)
    return resources if resources == fields else replace(resources, fields=FieldValues.of(fields))


def _with_memory_max(found: Resources, text: str) -> Resources:
    """With a limit of 0 no container starts."""
    amount_bytes = parse_cgroup_bytes(text)
    return replace(found, memory_limit_bytes=UNLIMITED if amount_bytes is None else amount_bytes or None)


def _checked_amount(found: Resources, text: str) -> Resources:
    """What protects and throttles is read where it is needed; here, whether it can be."""
    parse_cgroup_bytes(text)
    return found


def _with_cpu_max(found: Resources, text: str) -> Resources:
    """``QUOTA [PERIOD]`` in us; without a period the one that was written before stays."""
    quota, *rest = text.split()
    quota_us = UNLIMITED if quota == "max" else whole_number(quota)
    period_us = whole_number(rest[0]) if rest else found.cpu_period_us or DEFAULT_PERIOD_US
    if not quota_us or not period_us:
        raise ParseError("CPU quota", text, "QUOTA or max, and perhaps a period, in microseconds")
    return replace(found, cpu_quota_us=quota_us, cpu_period_us=period_us)


def _with_cpu_weight(found: Resources, text: str) -> Resources:
    """The kernel's own conversion: the default weight of 100 is the default of 1024 shares."""
    weight = whole_number(text) or 0
    if not 1 <= weight <= _MAX_WEIGHT:
        raise ParseError("CPU weight", text, f"1 to {_MAX_WEIGHT}")
    shares = (weight * _DEFAULT_SHARES + _DEFAULT_WEIGHT // 2) // _DEFAULT_WEIGHT
    return replace(found, cpu_shares=max(MIN_SHARES, shares))


def _with_cpu_nice(found: Resources, text: str) -> Resources:
    number = whole_number(text.removeprefix("-"))
    nice = -number if number and text.startswith("-") else number
    middle = len(_NICE_SHARES) // 2
    if nice is None or not -middle <= nice < middle:
        raise ParseError("nice value of a CPU weight", text, f"{-middle} to {middle - 1}")
    return replace(found, cpu_shares=_NICE_SHARES[nice + middle])


def _with_cpu_idle(found: Resources, text: str) -> Resources:
    """SCHED_IDLE: the least that there is."""
    if text not in ("0", "1"):
        raise ParseError("cpu.idle", text, "0 or 1")
    return replace(found, cpu_shares=MIN_SHARES) if text == "1" else found


def _with_cpuset(found: Resources, key: str, text: str) -> Resources:
    ids = (CpuSet if key == CPUSET_CPUS else NodeSet).parse(text)
    open_ended = {file: list_text for file, list_text in found.open_ended.items() if file != key}
    if ids and is_open_ended(text):
        open_ended[key] = text
    if isinstance(ids, CpuSet):
        return replace(found, cpuset_cpus=ids or None, open_ended=open_ended)
    return replace(found, cpuset_mems=ids or None, open_ended=open_ended)


def _with_partition(found: Resources, text: str) -> Resources:
    """A partition root runs on its exclusive CPUs, whatever its cpuset.cpus; to others these say nothing."""
    is_root = found.line(_PARTITION) in ("root", "isolated")
    return _with_cpuset(found, CPUSET_CPUS, text) if is_root else found


def _with_hugetlb(resources: Resources, problems: Problems) -> Resources:
    """Limits on pages in use and on pages reserved. runc writes the field to both files and crun to the first
    one; a key that overrides it there is what was asked for."""
    in_use, reserved = dict(resources.hugepage_limits_bytes), dict[int, int]()
    keys = [key for key in resources.unified if key.startswith(_HUGETLB_PREFIX)]
    if not keys:
        return resources
    for key in keys:
        match, text = _HUGETLB.fullmatch(key), resources.line(key)
        if match is None or not text:
            continue
        try:
            size_bytes, amount_bytes = parse_page_size(match[1]), parse_cgroup_bytes(text)
        except ParseError as error:
            problems[f"unified[{key}]"] = str(error)
            continue
        limits = reserved if match[2] else in_use
        limits.pop(size_bytes, None)
        if amount_bytes is not None:
            limits[size_bytes] = amount_bytes // size_bytes * size_bytes
    both = {
        size: min(limits[size] for limits in (in_use, reserved) if size in limits)
        for size in sorted(in_use.keys() | reserved.keys())
    }
    return replace(resources, hugepage_limits_bytes=both)


_READERS: Final[Mapping[str, Callable[[Resources, str], Resources]]] = {
    MEMORY_MAX: _with_memory_max,
    MEMORY_MIN: _checked_amount,
    MEMORY_LOW: _checked_amount,
    MEMORY_HIGH: _checked_amount,
    CPU_MAX: _with_cpu_max,
    _CPU_WEIGHT_NICE: _with_cpu_nice,
    CPU_WEIGHT: _with_cpu_weight,
    _CPU_IDLE: _with_cpu_idle,
    CPUSET_CPUS: lambda found, text: _with_cpuset(found, CPUSET_CPUS, text),
    CPUSET_MEMS: lambda found, text: _with_cpuset(found, CPUSET_MEMS, text),
    _EXCLUSIVE_CPUS: _with_partition,
}
"""In a fixed order, as maps come in any."""
