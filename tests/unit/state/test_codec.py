"""Whatever the domain can express comes back from the disk as it was."""

import types
import typing
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from bayplan.errors import ParseError
from bayplan.model.ledger import Entry
from bayplan.sets import CpuSet, IdSet, NodeSet
from bayplan.state.record import decode_entry, encode

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def anything(kind: type) -> st.SearchStrategy:
    """Values of *kind* with every field drawn, those with defaults too (st.from_type may leave them out)."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{one: anything(hints[one]) for one in kind.__struct_fields__})
    if isinstance(kind, type) and issubclass(kind, IdSet):
        return st.sets(st.integers(0, kind.max_id), max_size=8).map(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([anything(one) for one in arguments])
    if origin is Mapping:
        return st.dictionaries(anything(arguments[0]), anything(arguments[1]), max_size=3)
    if origin is tuple:
        return st.lists(anything(arguments[0]), max_size=3).map(tuple)
    known = {int: INTEGERS, str: TEXT, type(None): st.none()}
    return known[kind] if kind in known else st.from_type(kind)


@given(anything(Entry))
def test_every_entry_comes_back_as_it_was(entry: Entry) -> None:
    again = decode_entry(encode(entry))
    assert again == entry
    assert encode(again) == encode(entry)


def test_the_types_of_sets_come_back_too(entry: Callable[..., Entry]) -> None:
    again = decode_entry(encode(entry("c1")))
    assert type(again.notified_cpus) is CpuSet
    assert type(again.decision.placement.mems) is NodeSet
    assert list(again.decision.placement.booked_bytes) == [0]


def test_an_unknown_field_of_a_later_version_is_ignored(entry: Callable[..., Entry]) -> None:
    document = encode(entry("c1"))
    assert decode_entry(document[:-1] + b',"colour":"red"}') == entry("c1")


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"null",
        b"\xff\xfe",
        b'{"decision":7}',
        b'{"colour":' + b"[" * 100_000,
        b'{"decision":{"request":{},"outcome":"placed"}}',
    ],
)
def test_what_is_no_entry_is_named(document: bytes) -> None:
    with pytest.raises(ParseError, match="recorded entry"):
        decode_entry(document)


@pytest.mark.parametrize("wrong", ["3-1", "x", "99999999"])
def test_a_wrong_set_is_named(entry: Callable[..., Entry], wrong: str) -> None:
    document = encode(entry("c1")).replace(b'"told_cpus":"2-3"', f'"told_cpus":"{wrong}"'.encode())
    with pytest.raises(ParseError, match=wrong):
        decode_entry(document)


def test_the_set_of_another_type_than_text_is_refused(entry: Callable[..., Entry]) -> None:
    document = encode(entry("c1")).replace(b'"told_cpus":"2-3"', b'"told_cpus":[2,3]')
    with pytest.raises(ParseError, match="told_cpus"):
        decode_entry(document)
