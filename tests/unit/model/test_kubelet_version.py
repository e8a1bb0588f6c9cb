"""The rules of the versions of kubelet: the rows of the table."""

import itertools
import json
from pathlib import Path

import pytest

from bayplan.kubelet.manager_options import CPU_OPTIONS, OPTIONS
from bayplan.model.kubelet_version import KUBELET_RULES, NEWEST, rules_of
from bayplan.quantity import parse_nano_cpus

AMOUNTS = json.loads((Path(__file__).parents[2] / "data/reserved_cpu_amounts.json").read_text())["cases"]


def test_older_and_newer_versions_get_the_ends_of_the_table() -> None:
    assert rules_of(20) is KUBELET_RULES[0]
    assert rules_of(99) is NEWEST
    assert [rules_of(rules.minor) for rules in KUBELET_RULES] == list(KUBELET_RULES)


def test_an_option_only_ever_matures() -> None:
    for older, newer in itertools.pairwise(KUBELET_RULES):
        assert older.stable_options <= newer.stable_options
        assert older.beta_options <= newer.beta_options | newer.stable_options


@pytest.mark.parametrize("version", ["v1.36.3", "v1.37.2"])
def test_reserved_cpu_amounts_are_rounded_as_kubelet_of_that_version_does(version: str) -> None:
    rules = rules_of(int(version.split(".")[1]))
    for case in AMOUNTS:
        amounts = [parse_nano_cpus(case[key]) for key in ("kubeReserved", "systemReserved")]
        milli = rules.reserved_milli_cpus(amounts)
        assert [milli, -(-milli // 1000)] == case[version], case


def test_the_options_of_all_versions_are_known_to_the_engine() -> None:
    for rules in KUBELET_RULES:
        assert rules.stable_options | rules.beta_options <= {*CPU_OPTIONS, *OPTIONS}
        assert not rules.stable_options & rules.beta_options
