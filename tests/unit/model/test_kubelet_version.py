"""The rules of the versions of kubelet: the rows of the table."""

import itertools

from bayplan.model.kubelet_version import KUBELET_RULES, NEWEST, rules_of


def test_older_and_newer_versions_get_the_ends_of_the_table() -> None:
    assert rules_of(20) is KUBELET_RULES[0]
    assert rules_of(99) is NEWEST
    assert [rules_of(rules.minor) for rules in KUBELET_RULES] == list(KUBELET_RULES)


def test_an_option_only_ever_matures() -> None:
    for older, newer in itertools.pairwise(KUBELET_RULES):
        assert older.stable_options <= newer.stable_options
        assert older.beta_options <= newer.beta_options | newer.stable_options
