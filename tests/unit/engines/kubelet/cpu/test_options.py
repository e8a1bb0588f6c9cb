"""Names, values, gates and conflicts of the static policy's options."""

import pytest

from bayplan.engines.kubelet.cpu.errors import CpuConfigError
from bayplan.engines.kubelet.cpu.options import CpuOptions
from bayplan.engines.kubelet.cpu.topology import CpuTopology, LogicalCpu
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
    with pytest.raises(CpuConfigError) as raised:
        CpuOptions.parse(options)

    assert str(raised.value) == problem


def test_beta_options_can_be_switched_off():
    with pytest.raises(CpuConfigError, match="Beta-level Options not enabled"):
        CpuOptions.parse({"distribute-cpus-across-numa": "true"}, beta=False)


def test_all_problems_are_reported_together():
    with pytest.raises(CpuConfigError) as raised:
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
    with pytest.raises(CpuConfigError, match=f"{one} and {other} can not be used"):
        CpuOptions.parse({one: "true", other: "true"}, alpha=True)
    CpuOptions.parse({one: "true", other: "false"}, alpha=True)


def test_align_by_socket_needs_sockets_that_hold_nodes_and_a_policy_that_allows_several():
    topology = CpuTopology.of_cpus(LogicalCpu(cpu, cpu, 0, cpu, 0) for cpu in range(2))
    options = CpuOptions(align_by_socket=True)

    with pytest.raises(CpuConfigError) as raised:
        options.check(topology, TopologyPolicy.SINGLE_NUMA_NODE)

    assert len(raised.value.problems) == 2
    CpuOptions().check(topology, TopologyPolicy.SINGLE_NUMA_NODE)
