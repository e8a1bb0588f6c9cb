"""A persistent map beside a dict to which the same changes are made."""

from hypothesis import given
from hypothesis import strategies as st

from bayplan.persistent_map import MOST_APART, PersistentMap

KEYS = st.integers(0, 3 * MOST_APART)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 2)), max_size=6 * MOST_APART)
FEW = st.dictionaries(KEYS, st.integers(0, 2))


def after(one: PersistentMap[int, int], key: int, value: int | None) -> PersistentMap[int, int]:
    return one.without(key) if value is None else one.with_item(key, value)


def unlike(one: dict[int, int], other: dict[int, int]) -> set[int]:
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


@given(FEW, CHANGES, KEYS)
def test_it_is_the_dict_that_the_same_changes_make(
    begin: dict[int, int], changes: list[tuple[int, int | None]], asked: int
) -> None:
    versions, dicts = [PersistentMap(begin)], [begin]
    for key, value in changes:
        expected = dict(dicts[-1])
        if value is None:
            expected.pop(key, None)
        else:
            expected[key] = value
        versions.append(after(versions[-1], key, value))
        dicts.append(expected)
    for version, expected in zip(versions, dicts, strict=True):
        assert list(version.items()) == list(expected.items())
        assert (list(version), list(version.values())) == (list(expected), list(expected.values()))
        assert (len(version), asked in version) == (len(expected), asked in expected)
        assert version.get(asked, 7) == expected.get(asked, 7)
        assert version == expected
    for one, other, first, second in zip(versions, versions[::-1], dicts, dicts[::-1], strict=True):
        assert one.differing_keys(other) == unlike(first, second)
        assert (one == other) == (first == second)
    for one, other, first, second in zip(versions, versions[1:], dicts, dicts[1:], strict=False):
        assert one.differing_keys(other) == other.differing_keys(one) == unlike(first, second)


@given(FEW, FEW)
def test_maps_that_have_nothing_in_common_are_compared_whole(
    first: dict[int, int], second: dict[int, int]
) -> None:
    one, other = PersistentMap(first), PersistentMap(second)
    assert one.differing_keys(other) == unlike(first, second)
    assert (one == other) == (first == second)


@given(st.lists(st.tuples(KEYS, st.integers(0, 2)), min_size=1, max_size=8))
def test_no_change_walks_what_stays_the_same(changes: list[tuple[int, int]]) -> None:
    before = one = PersistentMap(dict.fromkeys(range(100000), 0))
    for key, value in changes:
        one = one.without(key).with_item(key, value)
    assert one.parts.base is before.parts.base
    assert len(one.parts.apart) + len(one.parts.gone) <= 2 * len(changes)
    assert one.differing_keys(before) <= {key for key, _ in changes}
