"""All managers together: recorded sequences of whole machines, and what no record shows."""

import copy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.creation import HINT, REFUSED, ROOM, reasons
from bayplan.engines.kubelet.state_files import start
from bayplan.engines.kubelet.topology_manager import TopologyManager
from bayplan.kubelet.manager_options import CpuOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodSpec
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.sets import CpuSet, NodeSet
from conformance.device_manager import Device, DeviceManager, ManagersWithDevices, StateWithDevices
from conformance.endings import without_pod
from conformance.sections import Folder, MismatchError
from conformance.sections.sequences import SECTIONS
from conformance.vectors import run

VECTORS = Folder(Path(__file__).parents[3] / "data" / "vectors")
GIB = 1 << 30
GPU = "example.com/gpu"
RESERVED = {0: {"memory": GIB}}
NODES, CPUS_PER_NODE = 4, 4


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_answers_as_kubelet_does(section):
    result = run(section, VECTORS)
    assert result.cases
    assert not result.failures, result.failures[0]


def test_where_kubelet_hung_the_rest_of_the_record_does_not_count():
    """CPUs handed out later, and with them kubelet's state file, depend on an answer that it never gave."""
    (section,) = SECTIONS
    case = copy.deepcopy(next(case for case in section.cases(VECTORS) if "cpu" in case))
    case["final"]["cpu_state_file"] = "{}"
    with pytest.raises(MismatchError, match="CPU state file"):
        section.check(case, VECTORS)
    first = next(operation for operation in case["ops"] if operation["op"] == "admit")
    first["message"] = "failed: zz-hang-balance"
    section.check(case, VECTORS)


def written_pod(uid, milli_cpus, gib):
    amounts = {"cpu_milli": milli_cpus, "memory": gib * GIB}
    own = {"name": "c", "requests": amounts, "limits": amounts, "sidecar": False}
    return {"uid": uid, "qos": "Guaranteed", "init": [], "containers": [own]}


def written_operation(held, *nodes, cpus=None, **rest):
    """One operation of a record, with the books after it: what each pod holds as (nodes, GiB), and of each
    node the number of assignments, the group, and GiB reserved of 8."""
    return {
        **rest,
        "cpu_after": {
            "assignments": {} if cpus is None else {"single": {"c": cpus}},
            "default": "0-3" if cpus is None else "0,2-3",
        },
        "mem_after": {
            "assignments": {uid: {"c": [["memory", where, gib * GIB]]} for uid, (where, gib) in held.items()},
            "nodes": {
                str(node): [count, group, {"memory": [gib * GIB, (8 - gib) * GIB]}]
                for node, (count, group, gib) in enumerate(nodes)
            },
        },
    }


def written_admission(pod, hint, *books, **rest):
    words = {"admit": True, "reason": "", "message": "", "affinity": {"c": hint}}
    return written_operation(*books, op="admit", pod=pod, **words, **rest)


def test_kubelets_contradiction_may_show_after_it_is_over():
    """A container bound to one node of a group, which has all of the machine's CPUs: when the group goes,
    kubelet takes that container's memory for the group's, and only then are its groups right again."""
    small, single = ([0, 1], 2), ([0], 1)
    tables = {"systemReserved": 0, "allocatable": 8 * GIB, "reserved": 0, "free": 8 * GIB}
    distances = {"hugepages_kb": {}, "distances": [10, 10]}
    case = {
        "machine": {
            "nodes": [
                {"id": 0, "memory": 9 * GIB, "cores": [[0, 0, [cpu]] for cpu in range(4)], **distances},
                {"id": 1, "memory": 8 * GIB, "cores": [], **distances},
            ],
        },
        "tm": {"policy": "best-effort", "scope": "container", "options": {}},
        "cpu": {
            "options": {},
            "num_reserved": 1,
            "reserved_list": "0",
            "reserved_effective": "0",
            "initial": {"assignments": {}, "default": "0-3"},
        },
        "memory": {
            "reserved": {"0": {"memory": GIB}, "1": {}},
            "initial_tables": {
                "0": {"memory": {**tables, "total": 9 * GIB, "systemReserved": GIB}},
                "1": {"memory": {**tables, "total": 8 * GIB}},
            },
        },
        "ops": [
            written_admission(
                written_pod("wide", 500, 12), [[0, 1], True],
                {"wide": ([0, 1], 12)}, (1, [0, 1], 8), (1, [0, 1], 4),
            ),
            written_admission(
                written_pod("small", 500, 2), [[0, 1], False],
                {"wide": ([0, 1], 12), "small": small}, (2, [0, 1], 8), (2, [0, 1], 6),
            ),
            written_operation({"small": small}, (1, [0, 1], 0), (1, [0, 1], 2), op="remove_pod", uid="wide"),
            written_admission(
                written_pod("single", 1000, 1), [[0], False],
                {"small": small, "single": single}, (2, [0], 1), (1, [0, 1], 2), cpus="1",
            ),
            written_operation(
                {"single": single}, (1, [0], 0), (0, [1], 1), cpus="1", op="remove_pod", uid="small"
            ),
        ],
        "final": {},
    }  # fmt: skip
    (section,) = SECTIONS
    section.check(case, VECTORS)
    del case["ops"][2:]
    case["ops"][1]["mem_after"]["nodes"]["1"][2]["memory"] = [5 * GIB, 3 * GIB]
    with pytest.raises(MismatchError, match="nodes"):
        section.check(case, VECTORS)


@pytest.mark.parametrize(
    ("options", "reserved", "first", "second", "same"),
    [
        ({"distribute-cpus-across-numa": "true"}, "0", "4-7", "1", True),
        ({"distribute-cpus-across-numa": "true"}, "0", "6-7", "1", False),
        ({}, "0", "4-7", "1", False),
        ({"distribute-cpus-across-numa": "true"}, "4-7", "0-3", "", True),
        ({"distribute-cpus-across-numa": "true"}, "0-1,6-7", "2-5", "", True),
        ({}, "4-7", "0-3", "", False),
    ],
)
def test_cpus_spread_over_four_nodes_may_be_others(options, reserved, first, second, same):
    """So may those of the pod's next container then, on however many nodes, and the reserved ones."""
    given = {name: cpus for name, cpus in (("first", first), ("second", second)) if cpus}
    amounts = [
        {"name": name, "requests": wants, "limits": wants, "sidecar": False}
        for name, cpus in given.items()
        for wants in [{"cpu_milli": len(CpuSet.parse(cpus)) * 1000, "memory": GIB}]
    ]
    left = CpuSet(range(8))
    for cpus in given.values():
        left -= CpuSet.parse(cpus)
    words = {"admit": True, "reason": "", "message": "", "affinity": {name: [None, False] for name in given}}
    case = {
        "machine": {
            "nodes": [
                {
                    "id": node, "memory": GIB, "hugepages_kb": {}, "distances": [10] * 8,
                    "cores": [[0, 0, [node]]],
                }
                for node in range(8)
            ],
        },
        "tm": {"policy": "none", "scope": "container", "options": {}},
        "cpu": {
            "options": options,
            "num_reserved": len(CpuSet.parse(reserved)),
            "reserved_list": "",
            "reserved_effective": reserved,
            "initial": {"assignments": {}, "default": "0-7"},
        },
        "ops": [
            {
                "op": "admit",
                "pod": {"uid": "pod", "qos": "Guaranteed", "init": [], "containers": amounts},
                **words,
                "cpu_after": {"assignments": {"pod": given}, "default": str(left)},
            },
        ],
        "final": {},
    }  # fmt: skip
    (section,) = SECTIONS
    if same:
        section.check(case, VECTORS)
    else:
        with pytest.raises(MismatchError, match="CPUs"):
            section.check(case, VECTORS)


def machine():
    """Four nodes with 4 CPUs (2 cores) and 8 GiB each; of the first, 1 GiB and CPUs 0 and 1 are reserved."""
    cpus = [Cpu(cpu, cpu & ~1, 0, cpu // CPUS_PER_NODE, None) for cpu in range(NODES * CPUS_PER_NODE)]
    nodes = []
    for node in range(NODES):
        own = CpuSet(range(node * CPUS_PER_NODE, (node + 1) * CPUS_PER_NODE))
        nodes.append(
            Node(node, own, 8 * GIB, distances={other: 10 + 10 * (node != other) for other in range(NODES)})
        )
    return Machine(tuple(nodes), tuple(cpus))


def engine(policy, scope=TopologyScope.CONTAINER):
    hardware = machine()
    cpus = StaticCpuPolicy.reserving(CpuTopology.of_machine(hardware), CpuOptions(), 2)
    gpus = {f"gpu{node}": Device(NodeSet([node])) for node in range(NODES)}
    together = ManagersWithDevices(
        TopologyManager.of(hardware, policy, scope), cpus, devices=DeviceManager({GPU: gpus})
    )
    memory = start(MemoryManagerPolicy.STATIC, hardware, RESERVED, FeatureGates())
    return together, StateWithDevices(cpus.start(CpuState()), memory)


def container(name, cpus, gib, gpus=0):
    amounts = {"cpu": int(cpus * 1000), "memory": gib * GIB}
    return ContainerSpec(name, amounts, amounts | ({GPU: gpus} if gpus else {}))


def pod(uid, *containers, init=()):
    return PodSpec(uid, tuple(containers), tuple(init))


def test_cpus_memory_and_devices_end_up_on_the_same_node():
    together, state = engine(TopologyPolicy.SINGLE_NUMA_NODE)
    first = pod("first", container("app", 3, 4, gpus=1))
    admission = together.admit(state, first)
    assert admission.admitted
    assert admission.hint("app").nodes == NodeSet([1])
    assert admission.state.memory.mems("first", "app") == NodeSet([1])
    assert admission.state.cpus.of("first", "app") == CpuSet([4, 5, 6])
    assert admission.state.devices.of("first", "app", GPU) == {"gpu1"}


def test_a_refused_pod_is_taken_back_without_a_trace():
    together, state = engine(TopologyPolicy.RESTRICTED)
    refused = pod("refused", container("a", 2, 1, gpus=1), container("b", 4, 40))
    admission = together.admit(state, refused)
    assert not admission.admitted
    assert admission.state != state
    left = without_pod(admission.state, refused)
    assert replace(left, cpus=replace(left.cpus, reusable={}), devices=state.devices) == state
    assert not left.devices.assignments


def test_the_explanation_says_that_there_was_room():
    """Memory on nodes 0 and 1 becomes one group; a pod that fits on node 1 alone may not use it any more."""
    together, state = engine(TopologyPolicy.RESTRICTED)
    state = together.admit(state, pod("wide", container("app", 5, 10))).state
    for name in ("one", "two"):
        state = together.admit(state, pod(name, container("app", 1, 6))).state
    last = pod("last", container("app", 0.5, 3))
    admission = together.admit(state, last)
    assert not admission.admitted
    found = {reason.code: reason.text for reason in reasons(together, last, admission)}
    assert set(found) >= {REFUSED, ROOM}
    assert found[ROOM].startswith("node 1 ")


def test_the_explanation_does_not_promise_room_where_there_is_none():
    together, state = engine(TopologyPolicy.SINGLE_NUMA_NODE)
    large = pod("large", container("app", 1, 9))
    admission = together.admit(state, large)
    assert not admission.admitted
    assert [reason.code for reason in reasons(together, large, admission)] == [REFUSED, HINT, HINT]
    small = pod("small", container("app", 1, 1))
    assert reasons(together, small, together.admit(state, small)) == ()


SIZES = st.tuples(st.integers(1, 9), st.integers(1, 20), st.integers(0, 2))


@given(
    st.sampled_from(TopologyPolicy),
    st.sampled_from(TopologyScope),
    st.lists(st.tuples(st.lists(SIZES, min_size=1, max_size=2), st.lists(SIZES, max_size=1)), max_size=8),
    st.randoms(use_true_random=False),
)
def test_nothing_is_promised_twice_and_everything_comes_back(policy, scope, sizes, order):
    together, fresh = engine(policy, scope)
    state, pods = fresh, []
    for number, (apps, inits) in enumerate(sizes):
        spec = pod(
            f"pod{number}",
            *(container(f"app{i}", *size) for i, size in enumerate(apps)),
            init=[container(f"init{i}", *size) for i, size in enumerate(inits)],
        )
        admission = together.admit(state, spec)
        state = admission.state if admission.admitted else without_pod(admission.state, spec)
        pods += [spec] if admission.admitted else []
        start(MemoryManagerPolicy.STATIC, machine(), RESERVED, FeatureGates(), state.memory.state)
        together.cpus.start(state.cpus)
        held = [devices for uid in state.devices.assignments for devices in [state.devices.of_pod(uid, GPU)]]
        assert sum(len(devices) for devices in held) == len(state.devices.in_use(GPU))
    order.shuffle(pods)
    for spec in pods:
        state = without_pod(state, spec)
    assert state.memory == fresh.memory
    assert state.cpus.shared == fresh.cpus.shared
    assert not state.devices.assignments
