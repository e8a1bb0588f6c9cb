"""What a kernel shows in a container's cgroup after an OCI runtime has written ``linux.resources`` there.

Written from the kernel's documentation (admin-guide/cgroup-v2.rst, cgroup-v1/cpusets.rst, lib/cmdline.c,
lib/bitmap-str.c) and the order in which runc and crun write, on plain dictionaries and sets. Nothing here is
the product's. It is slow, and refuses what the kernel refuses with ``EINVAL``.
"""

from dataclasses import dataclass, field
from typing import Any

UNLIMITED_PAGES = ((1 << 63) - 1) // 4096
PAGE_SIZES = {"2MB": 2 << 20, "1GB": 1 << 30}
BALANCED = ("MPOL_BIND", "MPOL_PREFERRED_MANY")


class RefusedByKernelError(Exception):
    """EINVAL or ERANGE."""


@dataclass
class Cgroup:
    """The files' values as numbers; None is ``max``, an empty set is nothing written. ``shares`` are those of
    cgroup v1, None where neither shares nor weight were written."""

    cpus: set[int] = field(default_factory=set)
    mems: set[int] = field(default_factory=set)
    memory_max: int | None = None
    memory_high: int | None = None
    memory_low: int = 0
    memory_min: int = 0
    quota_us: int | None = None
    period_us: int = 100_000
    shares: int | None = None
    hugetlb: dict[str, int | None] = field(default_factory=dict)
    reserved_pages: dict[str, int | None] = field(default_factory=dict)


def memparse(text: str) -> int | None:
    """page_counter_memparse(): bytes, of which the kernel keeps whole pages; here the bytes stay."""
    text = text.strip()
    if text == "max":
        return None
    digits, base = text, 10
    if text[:2].lower() == "0x":
        digits, base = text[2:], 16
    elif text[:1] == "0" and len(text) > 1 and text[1].isdigit():
        base = 8
    number, rest = 0, digits
    while rest and rest[0] in "0123456789abcdefABCDEF"[: {8: 8, 10: 10, 16: 22}[base]]:
        number, rest = number * base + int(rest[0], 16), rest[1:]
    if rest == digits:
        raise RefusedByKernelError(text)
    if rest and rest[0] in "kKmMgGtTpPeE":
        number <<= 10 * ("kmgtpe".index(rest[0].lower()) + 1)
        rest = rest[1:]
    if rest:
        raise RefusedByKernelError(text)
    return None if number // 4096 >= UNLIMITED_PAGES or number >= 1 << 62 else number


class ListReader:
    """bitmap_parselist(), character by character, on a bitmap whose last bit is *last*."""

    def __init__(self, text: str, last: int) -> None:
        self.text, self.last, self.at = text.strip() + "\0", last, 0
        self.found: set[int] = set()

    @property
    def here(self) -> str:
        return self.text[self.at]

    def read(self) -> set[int]:
        while True:
            while self.here.isspace() or self.here == ",":
                self.at += 1
            if self.here == "\0":
                return self.found
            if not self.region():
                return self.found

    def number(self) -> int:
        if self.here == "N":
            self.at += 1
            return self.last
        start = self.at
        while self.here.isdigit():
            self.at += 1
        if start == self.at:
            raise RefusedByKernelError(self.text)
        return int(self.text[start : self.at])

    def region(self) -> bool:
        """One region; whether the kernel goes on behind it."""
        ends = ("\0", "\n")
        if self.text[self.at : self.at + 3].lower() == "all":
            first, last = 0, self.last
            self.at += 3
        else:
            first = last = self.number()
            if self.here in ends or self.here.isspace() or self.here == ",":
                self.put(first, last, last + 1, last + 1)
                return self.here not in ends
            if self.here != "-":
                raise RefusedByKernelError(self.text)
            self.at += 1
            last = self.number()
        if self.here in ends or self.here.isspace() or self.here == ",":
            self.put(first, last, last + 1, last + 1)
            return self.here not in ends
        if self.here != ":":
            raise RefusedByKernelError(self.text)
        self.at += 1
        used = self.number()
        if self.here != "/":
            raise RefusedByKernelError(self.text)
        self.at += 1
        self.put(first, last, used, self.number())
        return True

    def put(self, first: int, last: int, used: int, group: int) -> None:
        if first > last or group == 0 or used > group or last > self.last:
            raise RefusedByKernelError(self.text)
        for start in range(first, last + 1, group):
            self.found |= set(range(start, min(start + used, last + 1)))


def cgroup_after(resources: dict[str, Any], last_cpu: int, last_node: int) -> Cgroup:
    """The cgroup of a new container whose spec has *resources*: first the fields, then ``unified``."""
    cgroup = Cgroup()
    memory, cpu = resources.get("memory") or {}, resources.get("cpu") or {}
    files = {
        "memory.max": _signed(memory.get("limit")),
        "memory.low": _signed(memory.get("reservation"), below_zero="0"),
        "cpu.max": f"{_signed(cpu.get('quota')) or 'max'} {cpu.get('period') or 100_000}",
        "cpuset.cpus": cpu.get("cpus"),
        "cpuset.mems": cpu.get("mems"),
        **{
            f"hugetlb.{one['pageSize']}.max": str(one["limit"])
            for one in resources.get("hugepageLimits") or ()
        },
    }
    cgroup.shares = 2 if cpu.get("idle") else cpu.get("shares") or None
    for written in (files, resources.get("unified") or {}):
        for key, text in written.items():
            if text:
                _write(cgroup, key, text, {"cpus": last_cpu, "mems": last_node})
    unified = resources.get("unified") or {}
    if unified.get("cpu.idle") == "1":
        cgroup.shares = 2
    if unified.get("cpuset.cpus.exclusive") and unified.get("cpuset.cpus.partition") in ("root", "isolated"):
        # A valid partition root has its exclusive CPUs, whatever cpuset.cpus is.
        cgroup.cpus = ListReader(unified["cpuset.cpus.exclusive"], last_cpu).read()
    return cgroup


def _signed(number: int | None, below_zero: str = "max") -> str | None:
    """As the runtimes write a number: not at all if it is 0, below zero as ``max``."""
    if not number:
        return None
    return str(number) if number > 0 else below_zero


def _write(cgroup: Cgroup, key: str, text: str, last_ids: dict[str, int]) -> None:
    controller, _, name = key.partition(".")
    if key in ("memory.max", "memory.high"):
        setattr(cgroup, key.replace(".", "_"), memparse(text))
    elif key in ("memory.low", "memory.min"):
        setattr(cgroup, key.replace(".", "_"), memparse(text) or 0)
    elif controller == "cpuset" and name in last_ids:
        setattr(cgroup, name, ListReader(text, last_ids[name]).read())
    elif controller == "hugetlb":
        size, _, file = name.partition(".")
        (cgroup.reserved_pages if file == "rsvd.max" else cgroup.hugetlb)[size] = memparse(text)
    elif key == "cpu.max":
        quota, *rest = text.split()
        cgroup.quota_us = None if quota == "max" else int(quota)
        cgroup.period_us = int(rest[0]) if rest else cgroup.period_us
    elif key == "cpu.weight.nice":
        # sched_prio_to_weight: each step is a tenth of the CPU time, 1024 in the middle.
        cgroup.shares = max(2, round(1024 * 1.25 ** -int(text)))
    elif key == "cpu.weight":
        # cpu_weight_read_u64(): 100 is 1024 shares.
        cgroup.shares = max(2, round(int(text) * 1024 / 100))


def set_mempolicy_refuses(mode: str, nodes: set[int], flags: list[str], mems: set[int]) -> bool:
    """set_mempolicy(2) in a cpuset of *mems*: EINVAL if none of the policy's nodes is allowed. Relative nodes
    are folded into the allowed ones; MPOL_DEFAULT and MPOL_LOCAL take no nodes, MPOL_PREFERRED may have none.
    Of the flags static and relative exclude each other, and pages that follow a task must be bound.
    """
    placing = {"MPOL_F_STATIC_NODES", "MPOL_F_RELATIVE_NODES"} & set(flags)
    if len(placing) == 2 or ("MPOL_F_NUMA_BALANCING" in flags and mode not in BALANCED):
        return True
    if mode in ("MPOL_DEFAULT", "MPOL_LOCAL"):
        return bool(nodes or placing)
    if not nodes:
        return mode != "MPOL_PREFERRED" or bool(placing)
    return "MPOL_F_RELATIVE_NODES" not in flags and not nodes & mems
