"""A mapping that is changed by making another one, without a copy of what stays the same.

A map is a dict that many versions share and nobody changes, and the few keys that this version has otherwise.
Once these are more than `MOST_APART` they are merged into a dict of its own. So a change costs the same
beside ten keys and beside thousands, but for one copy in so many changes; and what differs between two
versions is looked for among the keys that either has apart. Invariant: iteration is in the order of a dict to
which the same changes were made.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import chain, compress
from operator import is_not
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

Key = TypeVar("Key")
Value = TypeVar("Value")
Default = TypeVar("Default")

MOST_APART: Final = 64
"""Copied with each change, half of it on average: a microsecond. A copy of 4,000 is a tenth of a millisecond
and more, as the count of references of each object is written."""

_ABSENT: Final[Any] = object()


class _Parts(NamedTuple, Generic[Key, Value]):
    """A version: *apart* has what is new or otherwise than in *base*, *gone* the keys of *base* that were
    removed, perhaps to come again in *apart*. *merged*: the keys in which *base* differs from the one before,
    *earlier*, that it was made of; empty for none."""

    base: dict[Key, Value]
    apart: dict[Key, Value]
    gone: frozenset[Key]
    earlier: dict[Key, Value]
    merged: frozenset[Key]

    def whole(self) -> dict[Key, Value]:
        """Everything as one dict."""
        if not self.gone:
            return {**self.base, **self.apart} if self.apart else self.base
        merged = dict(self.base)
        for key in self.gone:
            del merged[key]
        merged.update(self.apart)
        return merged

    def keys_unlike(self, before: "_Parts[Key, Value]") -> Iterable[Key] | None:
        """Keys that include all in which the two differ; None if they have nothing by which to tell."""
        unlike = self.gone ^ before.gone
        unlike |= {key for key, value in self.apart.items() if before.apart.get(key, _ABSENT) is not value}
        unlike |= before.apart.keys() - self.apart.keys()
        if self.base is before.base:
            return unlike
        if self.earlier is not before.base:
            return None
        return chain(self.merged, self.apart, self.gone, before.apart, before.gone)


class PersistentMap(Mapping[Key, Value], Generic[Key, Value]):
    """See the module. Equal to every mapping with the same items."""

    __slots__ = ("_length", "_whole", "parts")
    _length: int
    _whole: dict[Key, Value] | None
    parts: _Parts[Key, Value]

    def __init__(self, items: Mapping[Key, Value] = {}) -> None:
        self.parts, self._length, self._whole = _unchanged(dict(items)), len(items), None

    def with_item(self, key: Key, value: Value) -> "PersistentMap[Key, Value]":
        """This map with *value* for *key*: in its place if it has the key, else at the end."""
        base, apart, gone, _, _ = self.parts
        known = key in apart or (key in base and key not in gone)
        return self._with({**apart, key: value}, gone, self._length if known else self._length + 1)

    def without(self, key: Key) -> "PersistentMap[Key, Value]":
        """This map without *key*; the same map if it has none."""
        if key not in self:
            return self
        apart = {one: value for one, value in self.parts.apart.items() if one != key}
        gone = self.parts.gone
        return self._with(apart, gone | {key} if key in self.parts.base else gone, self._length - 1)

    def _with(
        self, apart: dict[Key, Value], gone: frozenset[Key], length: int
    ) -> "PersistentMap[Key, Value]":
        base, _, _, earlier, merged = self.parts
        parts = _Parts(base, apart, gone, earlier, merged)
        if len(apart) + len(gone) > MOST_APART:
            parts = _Parts(parts.whole(), {}, frozenset(), base, gone.union(apart))
        after: PersistentMap[Key, Value] = PersistentMap.__new__(PersistentMap)
        after.parts, after._length, after._whole = parts, length, None
        return after

    def differing_keys(self, other: "PersistentMap[Key, Value]") -> set[Key]:
        """The keys for which the two have different values, or only one of them has any."""
        return set(self.unlike(other))

    def unlike(self, other: "PersistentMap[Key, Value]") -> dict[Key, Value | None]:
        """The values of those keys here, None of those that only the other has."""
        keys = self.parts.keys_unlike(other.parts)
        if keys is None:
            keys = other.parts.keys_unlike(self.parts)
        if keys is None:
            # In C for all, as most values are the same objects.
            others = map(other.parts.whole().get, self)
            unlike = compress(self, map(is_not, self.values(), others))
            keys = chain(unlike, other.keys() - self.keys())
        both = ((key, self.get(key, _ABSENT), other.get(key, _ABSENT)) for key in keys)
        return {
            key: None if mine is _ABSENT else mine
            for key, mine, theirs in both
            if mine is not theirs and mine != theirs
        }

    def __getitem__(self, key: Key) -> Value:
        base, apart, gone, _, _ = self.parts
        if key in apart:
            return apart[key]
        if key in gone:
            raise KeyError(key)
        return base[key]

    @overload
    def get(self, key: Key, /) -> Value | None: ...

    @overload
    def get(self, key: Key, /, default: Value | Default) -> Value | Default: ...

    def get(self, key: Key, /, default: Any = None) -> Any:
        """The value of *key*, else *default*."""
        base, apart, gone, _, _ = self.parts
        if key in apart:
            return apart[key]
        return default if key in gone else base.get(key, default)

    def __contains__(self, key: object) -> bool:
        base, apart, gone, _, _ = self.parts
        return key in apart or (key in base and key not in gone)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Key]:
        """All keys, in order; who takes the first few has only those looked at."""
        base, apart, gone, _, _ = self.parts
        if not apart and not gone:
            return iter(base)
        new = (key for key in apart if key not in base or key in gone)
        return chain((key for key in base if key not in gone), new)

    def keys(self) -> KeysView[Key]:
        """All keys, in order."""
        return self._dict().keys()

    def values(self) -> ValuesView[Value]:
        """All values, in the order of their keys."""
        return self._dict().values()

    def items(self) -> ItemsView[Key, Value]:
        """All keys with their values, in order."""
        return self._dict().items()

    def _dict(self) -> dict[Key, Value]:
        """Everything as one dict, which must not be changed. Made once for a version; by two threads at once
        it is made twice, and alike."""
        if self._whole is None:
            self._whole = self.parts.whole()
        return self._whole

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PersistentMap):
            return len(self) == len(other) and not self.differing_keys(other)
        return self._dict() == other

    __hash__ = None  # type: ignore[assignment]  # as a dict

    def __repr__(self) -> str:
        return repr(self._dict())


def _unchanged(items: dict[Key, Value]) -> _Parts[Key, Value]:
    return _Parts(items, {}, frozenset(), {}, frozenset())
