"""Every configuration that the documentation of kubelet's managers warns of has an error of its own.

One row for each warning on the pages about the Memory Manager, the CPU Manager (node resource managers), the
Topology Manager and reserved resources. "Drain the node first" is about kubelet's state files, which this
program does not start from; reading such a file checks it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.config.kubelet_documents import KUBELETS_API
from bayplan.config.kubelet_rules import remarks_on_machine
from bayplan.config.load import load_settings
from bayplan.config.reservations import resolve_policy
from bayplan.errors import ConfigError
from bayplan.model.policy import TopologyPolicy
from bayplan.quantity import GIB, MIB
from support.machines import machine

GOOD = {
    "apiVersion": KUBELETS_API,
    "kind": "KubeletConfiguration",
    "memoryManagerPolicy": "Static",
    "cpuManagerPolicy": "static",
    "topologyManagerPolicy": "restricted",
    "reservedSystemCPUs": '"0"',
    "systemReserved": "{memory: 924Mi}",
    "reservedMemory": "[{numaNode: 0, limits: {memory: 512Mi}}, {numaNode: 1, limits: {memory: 512Mi}}]",
}
ALPHA = "{CPUManagerPolicyAlphaOptions: true}"
MACHINE = machine(2, 4, memory_bytes=2 * GIB, hugepages_bytes={2 * MIB: 64 * MIB})


def on_node_0(limits: str) -> str:
    return f"[{{numaNode: 0, limits: {limits}}}, {{numaNode: 1, limits: {{memory: 512Mi}}}}]"


def options(*names: str) -> str:
    return "{" + ", ".join(f'{name}: "true"' for name in names) + "}"


ROWS = [
    # --- Memory Manager: reserved memory ---
    pytest.param(
        {"reservedMemory": None},
        "reservedMemory: found 0 of memory in all (no reservation)",
        id="static needs reserved memory",
    ),
    pytest.param(
        {"reservedMemory": on_node_0("{memory: 412Mi}")},
        "reservedMemory: found 924Mi of memory in all (node 0 412Mi + node 1 512Mi)",
        id="the default eviction threshold of 100Mi forgotten",
    ),
    pytest.param(
        {
            "reservedMemory": on_node_0("{memory: 512Mi}")[:-1] + ", {numaNode: 0, limits: {memory: 256Mi}}]",
        },
        "reservedMemory[2].limits.memory: found a second amount, 256Mi",
        id="one node and type twice",
    ),
    pytest.param(
        {"reservedMemory": on_node_0("{memory: 512Mi, hugepages-2Mi: 0}")},
        "reservedMemory[0].limits.hugepages-2Mi: found 0",
        id="a limit of zero",
    ),
    pytest.param(
        {
            "reservedMemory": on_node_0("{memory: 512Mi}").replace("numaNode: 1", "numaNode: 7"),
        },
        "reservedMemory: found NUMA node 7",
        id="a node that the machine lacks",
    ),
    pytest.param(
        {"reservedMemory": on_node_0("{memory: 512Mi, disk: 1Gi}")},
        "reservedMemory[0].limits.disk: found an unknown resource",
        id="a type that is neither memory nor huge pages",
    ),
    pytest.param(
        {
            "reservedMemory": on_node_0("{memory: 512Mi, hugepages-1Gi: 1Gi}"),
            "kubeReserved": "{hugepages-1Gi: 1Gi}",
        },
        "reservedMemory: found hugepages-1Gi on NUMA node 0, expected what it has: hugepages-2Mi",
        id="a huge page size that the machine lacks",
    ),
    pytest.param(
        {"reservedMemory": on_node_0("{memory: 512Mi, hugepages-2Mi: 2Mi}")},
        "reservedMemory: found 2Mi of hugepages-2Mi in all (node 0 2Mi)",
        id="the sum of huge pages",
    ),
    pytest.param(
        {"memoryManagerPolicy": "Statical"},
        "memoryManagerPolicy: found 'Statical', expected None or Static or BestEffort",
        id="an unknown memory policy",
    ),
    # --- CPU Manager ---
    pytest.param(
        {"reservedSystemCPUs": None},
        "cpuManagerPolicy: found 'static'",
        id="static needs reserved CPUs",
    ),
    pytest.param(
        {"reservedSystemCPUs": None, "kubeReserved": "{cpu: '0'}"},
        "cpuManagerPolicy: found 'static'",
        id="a CPU reservation of zero",
    ),
    pytest.param(
        {"reservedSystemCPUs": '"0,99"'},
        "reservedSystemCPUs: found 0,99 (no CPU 99)",
        id="reserved CPUs that the machine lacks",
    ),
    pytest.param(
        {"systemReservedCgroup": "/system", "enforceNodeAllocatable": "[pods, system-reserved]"},
        "reservedSystemCPUs: found '0' beside systemReservedCgroup",
        id="an explicit list of CPUs with a cgroup for the system",
    ),
    pytest.param(
        {"cpuManagerPolicy": "dynamic"},
        "cpuManagerPolicy: found 'dynamic', expected static or none",
        id="an unknown CPU policy",
    ),
    pytest.param(
        {"cpuManagerPolicy": "none", "cpuManagerPolicyOptions": options("full-pcpus-only")},
        "None policy: received unsupported options",
        id="options without the static policy",
    ),
    pytest.param(
        {"cpuManagerPolicyOptions": options("full-cores-only")},
        "cpuManagerPolicyOptions.full-cores-only: found an unknown key",
        id="an unknown CPU option",
    ),
    pytest.param(
        {"cpuManagerPolicyOptions": '{full-pcpus-only: "yes"}'},
        "cpuManagerPolicyOptions: found full-pcpus-only,",
        id="a CPU option that is neither true nor false",
    ),
    pytest.param(
        {"cpuManagerPolicyOptions": options("align-by-socket")},
        "cpuManagerPolicyOptions: found align-by-socket,",
        id="an alpha option behind its gate",
    ),
    pytest.param(
        {
            "cpuManagerPolicyOptions": options("distribute-cpus-across-numa"),
            "featureGates": "{CPUManagerPolicyBetaOptions: false}",
        },
        "cpuManagerPolicyOptions: found distribute-cpus-across-numa,",
        id="a beta option behind its gate",
    ),
    *(
        pytest.param(
            {"cpuManagerPolicyOptions": options(first, second), "featureGates": ALPHA},
            f"cpuManagerPolicyOptions: found {','.join(sorted((first, second)))},",
            id=f"{first} with {second}",
        )
        for first, second in (
            ("full-pcpus-only", "distribute-cpus-across-cores"),
            ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
            ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
            ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
        )
    ),
    pytest.param(
        {
            "cpuManagerPolicyOptions": options("align-by-socket"),
            "featureGates": ALPHA,
            "topologyManagerPolicy": "single-numa-node",
        },
        "Topology manager single-numa-node policy",
        id="align-by-socket with single-numa-node",
    ),
    # --- Topology Manager ---
    pytest.param(
        {"topologyManagerPolicy": "strict"},
        "topologyManagerPolicy: found 'strict'",
        id="an unknown topology policy",
    ),
    pytest.param(
        {"topologyManagerScope": "node"},
        "topologyManagerScope: found 'node', expected container or pod",
        id="an unknown scope",
    ),
    pytest.param(
        {"topologyManagerPolicyOptions": options("prefer-near-numa-nodes")},
        "topologyManagerPolicyOptions.prefer-near-numa-nodes: found an unknown key",
        id="an unknown topology option",
    ),
    pytest.param(
        {"topologyManagerPolicyOptions": '{max-allowable-numa-nodes: "4"}'},
        "topologyManagerPolicyOptions: found max-allowable-numa-nodes,",
        id="fewer allowable nodes than eight",
    ),
    pytest.param(
        {"topologyManagerPolicyOptions": '{max-allowable-numa-nodes: "many"}'},
        'unable to convert policy option to integer "max-allowable-numa-nodes"',
        id="allowable nodes that are no number",
    ),
    # --- reserved resources ---
    pytest.param(
        {"evictionHard": "{memory.available: '0'}"},
        "eviction threshold memory.available must be positive: 0",
        id="an eviction threshold of zero",
    ),
    pytest.param(
        {"evictionHard": "{memory.available: '120%'}"},
        "evictionHard.\"memory.available\": found '120%', expected a percentage from 0% to 100%",
        id="an eviction threshold above 100%",
    ),
    pytest.param(
        {"evictionHard": "{memory.free: 1Gi}"},
        'evictionHard."memory.free": found an unknown key',
        id="an unknown eviction signal",
    ),
    pytest.param(
        {"evictionSoft": "{memory.available: 1Gi}"},
        "evictionSoft: found memory.available",
        id="a soft eviction threshold with no grace period",
    ),
    pytest.param(
        {"evictionSoftGracePeriod": "{memory.available: -30s}"},
        "evictionSoftGracePeriod.\"memory.available\": found '-30s'",
        id="a negative grace period",
    ),
    pytest.param(
        {"evictionMinimumReclaim": "{memory.available: -300Mi}"},
        "evictionMinimumReclaim.\"memory.available\": found '-300Mi'",
        id="a negative minimum to reclaim",
    ),
    pytest.param(
        {"systemReserved": "{memory: '-1Gi'}"},
        "systemReserved.memory: found '-1Gi'",
        id="a negative reservation",
    ),
]

Problems = Callable[[dict[str, str | None]], list[str]]


@pytest.fixture
def problems(tmp_path: Path) -> Problems:
    """What is wrong with kubelet's own file that differs from a good one in some keys, on MACHINE."""

    def found(changes: dict[str, str | None]) -> list[str]:
        path = tmp_path / "kubelet.yaml"
        lines = [f"{key}: {value}" for key, value in {**GOOD, **changes}.items() if value is not None]
        path.write_text("\n".join(lines) + "\n")
        try:
            resolve_policy(load_settings([path], {"engine": ["kubelet"]}), MACHINE)
        except ConfigError as error:
            return [str(problem) for problem in error.problems]
        return []

    return found


def test_the_file_that_the_rows_change_is_good(problems: Problems) -> None:
    assert problems({}) == []


@pytest.mark.parametrize(("changes", "expected"), ROWS)
def test_a_configuration_to_avoid_has_its_own_error(
    problems: Problems, changes: dict[str, str | None], expected: str
) -> None:
    (problem,) = problems(changes)
    assert expected in problem


def test_no_two_of_them_share_an_error(problems: Problems) -> None:
    said = [problems(row.values[0])[0] for row in ROWS]  # type: ignore[arg-type]  # what the test hands over on purpose
    assert len(set(said)) == len(said)


def test_all_of_them_at_once_are_reported_at_once(problems: Problems) -> None:
    changes = {
        "reservedSystemCPUs": None,
        "reservedMemory": on_node_0("{memory: 1Gi}"),
        "topologyManagerPolicyOptions": options("prefer-closest-numa-nodes"),
    }
    assert len(problems(changes)) == 2


@pytest.mark.parametrize(
    ("threshold", "node_0"), [("0%", "412Mi"), ("100%", "412Mi"), ("50%", "2460Mi"), ("200Mi", "612Mi")]
)
def test_thresholds_count_as_in_kubelet(problems: Problems, threshold: str, node_0: str) -> None:
    """0% and 100% are no threshold: 924Mi remain to be reserved. Half of 4Gi is 2Gi."""
    changes = {"evictionHard": f"{{memory.available: '{threshold}'}}"}
    if threshold == "50%":
        changes["reservedMemory"] = (
            "[{numaNode: 0, limits: {memory: 1486Mi}}, {numaNode: 1, limits: {memory: 1486Mi}}]"
        )
    else:
        changes["reservedMemory"] = on_node_0(f"{{memory: {node_0}}}")
    assert problems(changes) == []


@pytest.mark.parametrize(("merge", "node_0"), [("false", "412Mi"), ("true", "512Mi")])
def test_other_thresholds_switch_the_one_for_memory_off_unless_merged(
    problems: Problems, merge: str, node_0: str
) -> None:
    changes = {
        "evictionHard": "{nodefs.available: 10%}",
        "mergeDefaultEvictionSettings": merge,
        "reservedMemory": on_node_0(f"{{memory: {node_0}}}"),
    }
    assert problems(changes) == []


def test_more_nodes_than_kubelet_takes_are_worth_a_remark(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.yaml"
    many = machine(9, 2, memory_bytes=GIB)

    def remarks(policy: str, options: str = "{}", engine: str = "kubelet") -> tuple[str, ...]:
        path.write_text(
            f"apiVersion: {KUBELETS_API}\nkind: KubeletConfiguration\n"
            f"topologyManagerPolicy: {policy}\ntopologyManagerPolicyOptions: {options}\n"
        )
        return remarks_on_machine(load_settings([path], {"engine": [engine]}), many)

    (remark,) = remarks("restricted")
    for word in ("topologyManagerPolicy restricted", "9 NUMA nodes", "max-allowable-numa-nodes"):
        assert word in remark
    assert remarks("restricted", '{max-allowable-numa-nodes: "9"}') == ()
    assert remarks(TopologyPolicy.NONE.value) == ()
    assert remarks("restricted", engine="exact") == ()
    assert remarks_on_machine(load_settings([path], {"engine": ["kubelet"]}), MACHINE) == ()


def test_spreading_is_worth_a_remark_with_the_engine_that_keeps_kubelets_preferences() -> None:
    for engine, count in (("kubelet", 1), ("exact", 0)):
        settings = load_settings([], {"engine": [engine], "placementStrategy": ["spread"]}, Path("/nowhere"))
        remarks = remarks_on_machine(settings, MACHINE)
        assert len(remarks) == count
        assert all("placementStrategy" in remark for remark in remarks)
