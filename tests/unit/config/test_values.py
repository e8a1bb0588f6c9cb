"""Readers of single values."""

import pytest

from bayplan.config.values import InvalidValueError, kubelet_minor, some_of


@pytest.mark.parametrize(
    ("text", "minor"),
    [
        ("1.37", 37),
        ("v1.37.2", 37),
        (" v1.36.3\n", 36),
        ("v1.35.1-gke.1256000", 35),
        ("v1.34.2+k3s1", 34),
        ("v1.33.5-eks-113cf36", 33),
        ("1.38.0-alpha.1", 38),
    ],
)
def test_a_version_is_read_as_vendors_write_it(text: str, minor: int) -> None:
    assert kubelet_minor("kubeletVersion", text) == minor


@pytest.mark.parametrize("text", ["", "v2.0", "1", "1.x", "37", "Kubernetes v1.37.2", "1.37.2.1", "1.1000"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(InvalidValueError, match="kubeletVersion"):
        kubelet_minor("kubeletVersion", text)


@pytest.mark.parametrize(
    ("value", "found"),
    [("a,b", {"a", "b"}), (["b", "b"], {"b"}), ("none", set()), ("", set()), (["none"], set()), ([], set())],
)
def test_some_of_what_there_is(value: object, found: set[str]) -> None:
    assert some_of(("a", "b"))("key", value) == found


@pytest.mark.parametrize("value", ["c", "a b", ["a", "c"], ["none", "a"], 1, {"a": True}, [["a"]]])
def test_nothing_else_is_some_of_it(value: object) -> None:
    with pytest.raises(InvalidValueError, match="some of a, b"):
        some_of(("a", "b"))("key", value)
