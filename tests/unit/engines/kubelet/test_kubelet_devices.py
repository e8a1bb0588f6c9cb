"""Devices in the `kubelet` engine: the hints of kubelet's Device Manager for one device each."""

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.engines.kubelet.managers import AttachedDevices
from bayplan.engines.kubelet.topology_hints import HintSet
from bayplan.kubelet.manager_options import ManagerOptions
from bayplan.kubelet.pod import ContainerSpec, PodSpec
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, DeviceHint, Outcome, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.model.request import derive_request
from bayplan.model.resources import Resources
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from conformance.device_manager import Device, DeviceManager, DeviceState
from support.machines import container, machine, pod

FOUR = machine(4, memory_bytes=GIB)
RESTRICTED = PlacementPolicy(topology=TopologyPolicy.RESTRICTED, reserved_cpus=CpuSet([0]))
SINGLE = replace(RESTRICTED, topology=TopologyPolicy.SINGLE_NUMA_NODE)
BEST_EFFORT = replace(RESTRICTED, topology=TopologyPolicy.BEST_EFFORT)
NONE = replace(RESTRICTED, topology=TopologyPolicy.NONE)
DISK = DeviceHint("/dev/vdb", NodeSet([2]))
NIC = DeviceHint("net/eth0", NodeSet([3]))
SHARED = DeviceHint("/dev/dm-0", NodeSet([1, 2]))


def decide(
    policy: PlacementPolicy,
    *hints: DeviceHint,
    memory_bytes: int = 100 * MIB,
    qos: QosClass = QosClass.GUARANTEED,
    managers: ManagerOptions | None = None,
    hardware: Machine = FOUR,
    ledger: Ledger = Ledger(),
    **spec: object,
) -> Decision:
    home = pod("p", qos)
    one = container("c", home, memory_bytes=memory_bytes, milli_cpus=500)
    one = replace(one, resources=replace(one.resources, **spec))  # type: ignore[arg-type]  # keywords of several types
    request = derive_request(home, one, hardware, hints=hints)
    return KubeletEngine(managers).decide(Basis(hardware, policy, ledger), request)


@pytest.mark.parametrize("nodes", [NodeSet([2]), NodeSet([0, 3])])
def test_the_hints_are_those_of_the_device_manager_for_one_device(nodes: NodeSet) -> None:
    """Among devices on every node, as the resources of a machine usually are."""
    others = {f"other-{node}": Device(NodeSet([node])) for node in range(4)}
    manager = DeviceManager({"r": {"mine": Device(nodes), **others}})
    taken = DeviceState({"elsewhere": {"c": {"r": frozenset(others)}}})
    one = ContainerSpec("c", {"r": 1}, {"r": 1})
    spec = PodSpec("p", (one,))
    expected = manager.hints(taken, spec, one)
    attached = AttachedDevices("c", (DeviceHint("r", nodes),), FOUR.node_ids).hints(taken, spec, one)
    assert expected is not None
    assert attached is not None
    assert isinstance(found := attached["r"], HintSet)
    assert isinstance(wanted := expected["r"], HintSet)
    assert found.listed() == wanted.listed()


def test_memory_goes_where_the_device_is() -> None:
    assert str(decide(RESTRICTED).placement.mems) == "0"
    for policy in (RESTRICTED, SINGLE, BEST_EFFORT):
        placed = decide(policy, DISK)
        assert (placed.outcome, str(placed.placement.mems)) == (Outcome.PLACED, "2")
    assert str(decide(RESTRICTED, DISK, SHARED).placement.mems) == "2"
    assert str(decide(RESTRICTED, SHARED).placement.mems) == "1"
    assert str(decide(NONE, DISK).placement.mems) == "0"


def test_exclusive_cpus_go_there_too() -> None:
    placed = decide(RESTRICTED, DISK, cpu_quota_us=200_000, cpu_shares=2048)
    assert placed.placement.exclusive_cpus == CpuSet([8, 9])


def test_devices_too_far_apart_are_refused_by_the_strict_policies_and_named() -> None:
    for policy in (RESTRICTED, SINGLE):
        refused = decide(policy, DISK, NIC)
        assert (refused.outcome, refused.refused_as) == (Outcome.REFUSED, "TopologyAffinityError")
        assert "/dev/vdb: preferred on node 2; net/eth0: preferred on node 3" in refused.explanation()
        assert "the exact engine would not" not in refused.explanation()
        wide = decide(RESTRICTED, DISK, NIC, memory_bytes=1500 * MIB)
        assert "nodes 2-3 have all of it free; only kubelet's rules refuse it" in wide.explanation()
    # kubelet's merge ends on the lowest node that is common to any of the sets, though no device is there.
    placed = decide(BEST_EFFORT, DISK, NIC)
    assert (placed.outcome, str(placed.placement.mems)) == (Outcome.DEGRADED, "0")


GPUS = tuple(DeviceHint(f"gpu{n}", NodeSet([n // 4]), kind="vendor.com/gpu") for n in range(8))


def test_devices_of_one_kind_are_one_resource_as_when_kubelet_chose_them() -> None:
    """All GPUs of a machine, with memory of as many nodes: nothing better is conceivable."""
    placed = decide(RESTRICTED, *GPUS, memory_bytes=1500 * MIB)
    assert (placed.outcome, str(placed.placement.mems)) == (Outcome.PLACED, "0-1")
    assert decide(RESTRICTED, *GPUS, qos=QosClass.BURSTABLE).outcome is Outcome.PLACED
    refused = decide(RESTRICTED, *GPUS)
    assert ", gpu7: preferred on nodes 0-1;" in refused.explanation()
    assert decide(SINGLE, *GPUS, memory_bytes=1500 * MIB).outcome is Outcome.REFUSED
    other = replace(GPUS[7], kind="vendor.com/nic")
    assert decide(RESTRICTED, *GPUS[:4], other, memory_bytes=1500 * MIB).outcome is Outcome.REFUSED


@pytest.mark.parametrize("count", [1, 2, 4, 5, 8])
def test_a_kind_gives_the_hints_that_the_device_manager_gives_for_all_that_there_are(count: int) -> None:
    ids = {hint.device: Device(hint.nodes) for hint in GPUS[:count]}
    manager = DeviceManager({"r": {**ids, "far": Device(NodeSet([1, 2, 3]), healthy=False)}})
    one = ContainerSpec("c", {"r": count}, {"r": count})
    spec = PodSpec("p", (one,))
    expected = manager.hints(DeviceState(), spec, one)
    attached = AttachedDevices("c", GPUS[:count], FOUR.node_ids).hints(DeviceState(), spec, one)
    assert expected is not None
    assert attached is not None
    ((_, found),) = attached.items()
    assert isinstance(found, HintSet)
    assert isinstance(wanted := expected["r"], HintSet)
    assert found.listed() == wanted.listed()


def test_a_full_node_refuses_what_its_device_holds_there() -> None:
    full = decide(RESTRICTED, DISK, memory_bytes=900 * MIB)
    full = replace(full, request=replace(full.request, container_id="full", pod_id="other"))
    ledger = Ledger().with_entry(Entry(full))
    refused = decide(RESTRICTED, DISK, memory_bytes=200 * MIB, ledger=ledger)
    assert refused.refused_as == "TopologyAffinityError"
    assert str(decide(RESTRICTED, memory_bytes=200 * MIB, ledger=ledger).placement.mems) == "0"


def test_under_the_scope_pod_the_devices_of_the_first_container_align_the_pod() -> None:
    sums = Resources(memory_limit_bytes=700 * MIB, cpu_quota_us=100_000, cpu_period_us=100_000)
    home = replace(pod("p", QosClass.GUARANTEED), resources=sums)
    one = container("c", home, memory_bytes=300 * MIB, milli_cpus=500)
    request = derive_request(home, one, FOUR, hints=(DISK,))
    engine = KubeletEngine(ManagerOptions(scope=TopologyScope.POD))
    placed = engine.decide(Basis(FOUR, RESTRICTED, Ledger()), request)
    assert str(placed.placement.mems) == "2"
    other = derive_request(home, replace(one, id="d"), FOUR)
    ledger = Ledger().with_entry(Entry(placed))
    assert str(engine.decide(Basis(FOUR, RESTRICTED, ledger), other).placement.mems) == "2"


@pytest.mark.parametrize("qos", [QosClass.BURSTABLE, QosClass.BEST_EFFORT])
def test_the_devices_of_other_classes_are_aligned_and_nothing_else_of_them(qos: QosClass) -> None:
    placed = decide(RESTRICTED, DISK, SHARED, qos=qos)
    assert (placed.reasons[0].code, placed.placement.mems) == ("shared-pool", None)
    assert decide(RESTRICTED, DISK, NIC, qos=qos).refused_as == "TopologyAffinityError"
    assert decide(BEST_EFFORT, DISK, NIC, qos=qos).outcome is Outcome.PLACED
    assert decide(NONE, DISK, NIC, qos=qos).outcome is Outcome.PLACED


def test_what_somebody_pinned_is_not_refused_for_its_devices() -> None:
    assert decide(RESTRICTED, DISK, NIC, cpuset_mems=NodeSet([0])).reasons[0].code == "pinned"


def test_a_device_on_a_node_that_is_gone_says_nothing() -> None:
    assert str(decide(RESTRICTED, DeviceHint("/dev/old", NodeSet([9]))).placement.mems) == "0"


def test_many_devices_on_few_nodes_cost_no_more_than_few() -> None:
    hints = [DeviceHint(f"/dev/sd{number}", NodeSet([number % 2])) for number in range(500)]
    assert decide(RESTRICTED, *hints).outcome is Outcome.REFUSED
    assert str(decide(RESTRICTED, *hints[1::2]).placement.mems) == "1"


def test_the_narrowest_engine_prefers_the_nodes_of_devices() -> None:
    home = pod("p", QosClass.GUARANTEED)
    one = container("c", home, memory_bytes=100 * MIB, milli_cpus=500)
    request = derive_request(home, one, FOUR, hints=(DISK, NIC, SHARED))
    assert str(ExactEngine().decide(Basis(FOUR, BEST_EFFORT, Ledger()), request).placement.mems) == "2"
