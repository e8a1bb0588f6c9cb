"""Which CPUs handle interrupts: kept away from CPUs on which nobody wants them, and given back.

/proc/irq/*/smp_affinity_list and default_smp_affinity, which interrupts get that are requested later. What
they were is recorded before they are changed (`bayplan.host.changed_files`); what an administrator or
irqbalance sets meanwhile is what they were, from then on. Each interrupt goes to the CPUs that it may have
had without those; one that had no others, to all others.

The kernel refuses (EIO) for interrupts that it spreads over the CPUs itself, as for queues of NVMe: these
come only when a program on that CPU uses the device. It also does for a timer's.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.errors import HostError, ParseError
from bayplan.host.changed_files import ChangedFiles, Value
from bayplan.host.kernelfs import numbered_entries, parse_file, read_optional
from bayplan.printable import pattern
from bayplan.sets import CpuSet

RECORD: Final = "irq_affinity.json"
"""In the state directory."""

_IRQS: Final = "proc/irq"
_IRQ: Final = pattern(r"(\d{1,9})")
_LIST: Final = "smp_affinity_list"
_EFFECTIVE: Final = "effective_affinity_list"
_DEFAULT: Final = "default_smp_affinity"
_MASK: Final = pattern(r"[0-9a-f]{1,8}(,[0-9a-f]{8})*")
_WORD_DIGITS: Final = 8
"""Of a mask in /proc, between two commas."""


class Staying(Struct, frozen=True):
    """An interrupt that is still handled on CPUs which it was to leave, and what the kernel says."""

    irq: int
    cpus: CpuSet
    problem: str


class IrqAffinity:
    """The interrupts of the machine. All calls block, and come one after the other."""

    def __init__(self, directory: Path, root: Path = Path("/")) -> None:
        """The daemon's state *directory*, and where /proc is."""
        self._directory = root / _IRQS
        self._files = ChangedFiles(directory / RECORD, root)

    @property
    def is_changed(self) -> bool:
        """Whether any is not as others chose."""
        return bool(self._files.changes)

    def keep_away(self, cpus: CpuSet, others: CpuSet) -> tuple[Staying, ...]:
        """Have no interrupt on *cpus* (empty: on any CPU); *others* are for interrupts that have no other
        CPUs. The interrupts that stay on *cpus*.

        Raises:
            HostError: what they were cannot be recorded, so that nothing was changed.
        """
        values: dict[str, Value] = {
            self._list_of(irq): partial(_list_without, cpus, others - cpus) for irq in self._irqs()
        }
        values[str(self._directory / _DEFAULT)] = partial(_mask_without, cpus, others - cpus)
        return tuple(self._staying(cpus, self._files.set(values)))

    @property
    def to_restore(self) -> Mapping[str, str]:
        """What `restore` would write: the name in /proc/irq, and what it was."""
        return {self._name(path): before for path, before in self._files.to_restore.items()}

    def restore(self) -> Mapping[str, str]:
        """Have all as others chose; those that were not so, as `to_restore` has them."""
        before = self._files.to_restore
        problems = self._files.restore()
        return {self._name(path): text for path, text in before.items() if path not in problems}

    def _irqs(self) -> list[int]:
        return numbered_entries(str(self._directory), _IRQ)

    def _list_of(self, irq: int) -> str:
        return str(self._directory / str(irq) / _LIST)

    def _name(self, path: str) -> str:
        return str(Path(path).relative_to(self._directory))

    def _staying(self, cpus: CpuSet, problems: Mapping[str, HostError]) -> Iterable[Staying]:
        for irq in self._irqs() if problems else ():
            problem = problems.get(self._list_of(irq))
            if problem is None:
                continue
            # Where the kernel does not say which it uses of those that are allowed, it may use all.
            path = self._directory / str(irq) / _EFFECTIVE
            text = read_optional(str(path)) or read_optional(self._list_of(irq)) or ""
            used = parse_file(str(path), CpuSet.parse, text) & cpus
            if used:
                yield Staying(irq, used, problem.problem)


def _list_without(cpus: CpuSet, others: CpuSet, before: str) -> str:
    return _without(cpus, others, before, CpuSet.parse, str)


def _mask_without(cpus: CpuSet, others: CpuSet, before: str) -> str:
    return _without(cpus, others, before, _parse_mask, partial(_mask_text, len(before.replace(",", ""))))


def _without(
    cpus: CpuSet,
    others: CpuSet,
    before: str,
    parse: Callable[[str], CpuSet],
    text: Callable[[CpuSet], str],
) -> str:
    allowed = parse_file(f"/{_IRQS}", parse, before)
    if allowed.isdisjoint(cpus):
        return before
    left = allowed - cpus or others
    return text(left) if left else before


def _parse_mask(text: str) -> CpuSet:
    if _MASK.fullmatch(text) is None:
        raise ParseError("mask of CPUs", text, "hexadecimal words of 32 bits, with commas between them")
    return CpuSet.of_mask(int(text.replace(",", ""), 16))


def _mask_text(digits: int, cpus: CpuSet) -> str:
    """In as many *digits* as the kernel writes, one for four possible CPUs."""
    left, words = f"{cpus.mask:0{digits}x}", list[str]()
    while left:
        left, word = left[:-_WORD_DIGITS], left[-_WORD_DIGITS:]
        words.insert(0, word)
    return ",".join(words)
