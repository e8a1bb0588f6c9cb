"""Names, values, gates and conflicts of the options of kubelet's managers."""

import pytest

from bayplan.kubelet.manager_options import (
    CpuOptions,
    ManagerConfigError,
    Maturity,
    OptionGates,
    TopologyOptions,
)
from bayplan.model.policy import TopologyPolicy


def test_values_are_those_that_go_reads_as_booleans():
    options = CpuOptions.parse({"full-pcpus-only": "T", "strict-cpu-reservation": "0"})

    assert options == CpuOptions(full_pcpus_only=True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"fast": "true"}, 'unknown CPU Manager Policy option: "fast"'),
        (
            {"full-pcpus-only": "yes"},
            'bad value for option "full-pcpus-only": strconv.ParseBool: parsing "yes": invalid syntax',
        ),
        (
            {"align-by-socket": "true"},
            'CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided',
        ),
    ],
)
def test_a_wrong_option_is_named_in_kubelets_words(options, problem):
    with pytest.raises(ManagerConfigError) as raised:
        CpuOptions.parse(options)

    assert str(raised.value) == problem


def test_beta_options_can_be_switched_off():
    with pytest.raises(ManagerConfigError, match="Beta-level Options not enabled"):
        CpuOptions.parse({"distribute-cpus-across-numa": "true"}, beta=False)


def test_all_problems_are_reported_together():
    with pytest.raises(ManagerConfigError) as raised:
        CpuOptions.parse({"fast": "true", "full-pcpus-only": "yes", "align-by-socket": "true"})

    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("full-pcpus-only", "distribute-cpus-across-cores"),
        ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
        ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
        ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
    ],
)
def test_options_that_exclude_each_other(one, other):
    with pytest.raises(ManagerConfigError, match=f"{one} and {other} can not be used"):
        CpuOptions.parse({one: "true", other: "true"}, alpha=True)
    CpuOptions.parse({one: "true", other: "false"}, alpha=True)


def test_align_by_socket_needs_sockets_that_hold_nodes_and_a_policy_that_allows_several():
    options = CpuOptions(align_by_socket=True)

    with pytest.raises(ManagerConfigError) as raised:
        options.check(2, 1, TopologyPolicy.SINGLE_NUMA_NODE)

    assert len(raised.value.problems) == 2
    CpuOptions().check(2, 1, TopologyPolicy.SINGLE_NUMA_NODE)


def test_every_wrong_option_is_named():
    with pytest.raises(ManagerConfigError) as raised:
        TopologyOptions.parse(
            {"prefer-closest-numa-nodes": "yes", "max-allowable-numa-nodes": "7", "nearest": "true"}
        )
    assert raised.value.problems == (
        'the minimum value of "max-allowable-numa-nodes" should not be less than 8',
        'unknown Topology Manager Policy option: "nearest"',
        'bad value for option "prefer-closest-numa-nodes": strconv.ParseBool: parsing "yes": invalid syntax',
    )


@pytest.mark.parametrize("maturity", [Maturity.ALPHA, Maturity.BETA])
def test_an_option_behind_a_closed_gate_is_refused_in_kubelets_words(maturity):
    """Not spelled like the CPU Manager's sentence. 1.36 has no such option; kubelet's tests add some."""
    gates = OptionGates(beta=False, options={"fancy": maturity})
    with pytest.raises(ManagerConfigError) as raised:
        TopologyOptions.parse({"fancy": "true"}, gates)
    assert str(raised.value) == (
        f'topology manager policy {maturity.value}-level options not enabled, but option "fancy" provided'
    )


def test_many_nodes_are_remarked_on_but_not_refused():
    options = TopologyOptions.parse({"max-allowable-numa-nodes": "16"})
    assert options.beyond_kubelet(16) is None
    assert options.beyond_kubelet(17) == "unsupported on machines with more than 16 NUMA Nodes"
