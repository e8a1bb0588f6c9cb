"""Versions of kubelet: what is read as one, and the rows of the table."""

import itertools

import pytest

from bayplan.errors import ParseError
from bayplan.model.kubelet_version import KUBELET_RULES, NEWEST, parse_kubelet_version, rules_of


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
    assert parse_kubelet_version(text) == minor


@pytest.mark.parametrize("text", ["", "v2.0", "1", "1.x", "37", "Kubernetes v1.37.2", "1.37.2.1", "1.1000"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ParseError, match="kubelet version"):
        parse_kubelet_version(text)


def test_older_and_newer_versions_get_the_ends_of_the_table() -> None:
    assert rules_of(20) is KUBELET_RULES[0]
    assert rules_of(99) is NEWEST
    assert [rules_of(rules.minor) for rules in KUBELET_RULES] == list(KUBELET_RULES)


def test_an_option_only_ever_matures() -> None:
    for older, newer in itertools.pairwise(KUBELET_RULES):
        assert older.stable_options <= newer.stable_options
        assert older.beta_options <= newer.beta_options | newer.stable_options
