"""Sets of NUMA node ids and of logical CPU ids: bitmasks, one small type each.

Ids are sparse and may exceed 63; those that no kernel has are refused in text, because the time and the
memory that a set takes grow with its largest id. The text form is the kernel's list format (``0-3,8``), as in
cpuset.cpus, cpuset.mems and /sys/devices/system/node/online. Values are immutable and hashable; they
iterate in ascending order, so that nothing which walks them depends on hashing.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import ClassVar, Final, Self, final

from bayplan.errors import ParseError
from bayplan.printable import pattern


class IdSet:
    """A finite set of small non-negative ids. Use the subclasses, which never mix. ``text`` is its list
    format, worked out when it is first asked for: most sets of a decision are those of the one before."""

    __slots__ = ("mask", "text")
    mask: int
    text: str
    kind = "id list"
    max_id: ClassVar[int]
    """Largest id accepted in text."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        mask = 0
        for number in ids:
            if number < 0:
                raise ParseError(self.kind, str(number), "ids of 0 or more")
            mask |= 1 << number
        _set_mask(self, mask)

    @classmethod
    def of_mask(cls, mask: int) -> Self:
        """The set whose members are the set bits of *mask*."""
        self = _new(cls)
        _set_mask(self, mask)
        return self

    @classmethod
    def parse(cls, text: str, last_id: int | None = None) -> Self:
        """Read the kernel's list format (bitmap_parselist()): numbers and rising ranges ``a-b``, with commas
        or white space between them, and of ranges perhaps ``a-b:used/group``, the first *used* of every
        *group*; ``all``, and ``N`` for the last id, *last_id* on that machine. The empty string is the empty
        set.

        Raises:
            ParseError: a part is none of these, or an id is above ``max_id``.
        """
        mask = 0
        if not text.isascii():
            raise ParseError(cls.kind, text, _EXPECTED)
        # The kernel stops reading where a line ends that does not end in a separator.
        line = text if "\n" not in text else _END_OF_LIST.split(text.strip(), 1)[0]
        for part in line.replace(",", " ").split():
            first, dash, last = part.partition("-")
            if len(part) > _USUAL_LENGTH or not (first.isdigit() and (last.isdigit() or not dash)):
                mask |= cls._unusual(text, part, cls.max_id if last_id is None else last_id)
                continue
            low, high = int(first), int(last if dash else first)
            if not low <= high <= cls.max_id:
                raise ParseError(cls.kind, text, f"rising ranges of ids up to {cls.max_id}")
            mask |= ((1 << (high - low + 1)) - 1) << low
        return cls.of_mask(mask)

    @classmethod
    def parse_mask(cls, text: str) -> Self:
        """Read the kernel's mask format (bitmap_parse()): groups of up to 32 bits in hexadecimal, the highest
        first, with commas between them.

        Raises:
            ParseError: it is none, or has a bit above ``max_id``.
        """
        groups = text.strip().split(",")
        if not all(_MASK_GROUP.fullmatch(group) for group in groups):
            raise ParseError(cls.kind, text, "a mask such as 00000000,000000ff")
        mask = int("".join(group.zfill(8) for group in groups), 16)
        if mask.bit_length() > cls.max_id + 1:
            raise ParseError(cls.kind, text, f"a mask of ids up to {cls.max_id}")
        return cls.of_mask(mask)

    @classmethod
    def _unusual(cls, text: str, part: str, last_id: int) -> int:
        """The mask of a *part* of the list *text*. After a ``:used/group`` the kernel needs no comma."""
        mask = 0
        while part:
            found = _REGION.match(part)
            if found is None or (found.end() < len(part) and found["group"] is None):
                raise ParseError(cls.kind, text, _EXPECTED)
            part = part[found.end() :]
            first, last = ("0", _LAST) if found["all"] else (found["first"], found["last"])
            low, high = (last_id if one == _LAST else int(one) for one in (first, last or first))
            if not low <= high <= cls.max_id:
                raise ParseError(cls.kind, text, f"rising ranges of ids up to {cls.max_id}")
            used, group = (
                last_id if one == _LAST else int(one)
                for one in (found["used"] or str(high + 1), found["group"] or str(high + 1))
            )
            if not group or used > group:
                raise ParseError(cls.kind, text, "after a range :USED/GROUP, with USED at most GROUP")
            for start in range(low, high + 1, group):
                mask |= ((1 << min(high - start + 1, used)) - 1) << start
        return mask

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __getattr__(self, name: str) -> str:
        if name != "text":
            raise AttributeError(f"{type(self).__name__} has no {name}")
        text = _list_text(self.mask)
        _set_text(self, text)
        return text

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return (type(self).of_mask, (self.mask,))

    def __contains__(self, number: int) -> bool:
        return number >= 0 and self.mask >> number & 1 == 1

    def __iter__(self) -> Iterator[int]:
        mask = self.mask
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __bool__(self) -> bool:
        return self.mask != 0

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.mask == self.mask

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.mask))

    def __or__(self, other: Self) -> Self:
        found = _new(type(self))
        _set_mask(found, self.mask | other.mask)
        return found

    def __and__(self, other: Self) -> Self:
        found = _new(type(self))
        _set_mask(found, self.mask & other.mask)
        return found

    def __sub__(self, other: Self) -> Self:
        found = _new(type(self))
        _set_mask(found, self.mask & ~other.mask)
        return found

    def __le__(self, other: Self) -> bool:
        """Whether every member is also in *other*."""
        return self.mask & ~other.mask == 0

    def isdisjoint(self, other: Self) -> bool:
        """Whether no member is shared with *other*."""
        return self.mask & other.mask == 0

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


@lru_cache(4096)
def _list_text(mask: int) -> str:
    """The kernel's list format; a machine has the same few sets in all its entries."""
    parts, base = [], 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        base += skip
        run = (~mask & (mask + 1)).bit_length() - 1
        parts.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
        mask >>= run
        base += run
    return ",".join(parts)


_new: Final = object.__new__
_set_mask: Final = IdSet.__dict__["mask"].__set__
_set_text: Final = IdSet.__dict__["text"].__set__
"""Past the `__setattr__` that refuses; each is written once, and never again."""


@final
class NodeSet(IdSet):
    """A set of NUMA node ids."""

    __slots__ = ()
    kind = "NUMA node list"
    max_id = 1023
    """The kernel's MAX_NUMNODES tops out at 1024."""


@final
class CpuSet(IdSet):
    """A set of logical CPU ids."""

    __slots__ = ()
    kind = "CPU list"
    max_id = 8191
    """The kernel's NR_CPUS tops out at 8192."""


def cpus_text(cpus: CpuSet) -> str:
    """``CPU 3`` or ``CPUs 3-5``, as it stands in sentences."""
    return f"CPU{'' if len(cpus) == 1 else 's'} {cpus}"


def nodes_text(nodes: NodeSet) -> str:
    """``node 0`` or ``nodes 0-1``, as it stands in sentences."""
    return f"node{'' if len(nodes) == 1 else 's'} {nodes}"


_LAST: Final = "N"
_END_OF_LIST: Final = pattern(r"(?<![,\s])\n")
_USUAL_LENGTH: Final = 20
_MASK_GROUP: Final = pattern("[0-9a-fA-F]{1,8}")
_DIGITS: Final = "N|[0-9]{1,40}"
"""int() refuses thousands of digits with an error of its own."""
_REGION: Final = pattern(
    rf"(?:(?P<all>(?i:all))|(?P<first>{_DIGITS})(?:-(?P<last>{_DIGITS}))?)"
    rf"(?:(?(last)|(?(all)|(?!))):(?P<used>{_DIGITS})/(?P<group>{_DIGITS}))?"
)
"""A region of bitmap_parselist(): only ``all`` and ranges have a pattern."""
_EXPECTED: Final = "a list such as 0-3,8"


def is_open_ended(text: str) -> bool:
    """Whether a list goes up to the last id of the machine, ``all`` or ``N``."""
    return "N" in text or "all" in text.lower()


def set_to_text(value: object) -> str:
    """The text of a set, for encoders of documents that hold sets (msgspec's ``enc_hook``)."""
    if isinstance(value, IdSet):
        return value.text
    raise NotImplementedError(f"no text form for {type(value).__name__}")


def text_to_set(kind: type, text: object) -> object:
    """The set of *kind* that `set_to_text` wrote as *text* (msgspec's ``dec_hook``)."""
    if issubclass(kind, IdSet) and isinstance(text, str):
        return kind.parse(text)
    raise ValueError(f"expected a list of ids, found {text!r}")
