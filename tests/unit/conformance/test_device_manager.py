"""Devices: kubelet's recorded answers, and hints against the way kubelet counts them."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.kubelet.topology_hints import Hint
from bayplan.kubelet.pod import ContainerSpec, PodSpec
from bayplan.sets import NodeSet
from conformance.device_manager import (
    Device,
    DeviceManager,
    DeviceRequestChangedError,
    Devices,
    DeviceShortageError,
    DeviceState,
)
from conformance.sections import Folder
from conformance.sections.device import SECTIONS
from conformance.vectors import run

VECTORS = Folder(Path(__file__).parents[2] / "data" / "vectors")
GPU = "example.com/gpu"


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_answers_as_kubelet_does(section):
    result = run(section, VECTORS)
    assert result.cases
    assert not result.failures, result.failures[0]


def machine(*nodes):
    """One device for each argument: the nodes that it is attached to, or None."""
    devices = {f"gpu{i}": Device(None if where is None else NodeSet(where)) for i, where in enumerate(nodes)}
    return DeviceManager({GPU: devices})


def pod(*counts, init=(), sidecars=()):
    containers = tuple(ContainerSpec(f"app{i}", limits={GPU: n}) for i, n in enumerate(counts))
    first = tuple(ContainerSpec(f"init{i}", limits={GPU: n}) for i, n in enumerate(init))
    side = tuple(ContainerSpec(f"side{i}", limits={GPU: n}, restartable=True) for i, n in enumerate(sidecars))
    return PodSpec("pod", containers, first + side)


def admitted(manager, state, spec, nodes=None):
    for container in spec.all_containers:
        state = manager.allocate(state, spec, container, nodes)
    return state


def counted(devices, usable, reusable, count):
    """Kubelet's hints, mask by mask."""
    ground = sorted({node for nodes in devices.values() for node in nodes or ()})
    masks = [NodeSet(m) for size in range(1, len(ground) + 1) for m in combinations(ground, size)]

    def inside(names, mask):
        return sum(not mask.isdisjoint(NodeSet(devices[name] or ())) for name in names)

    able = [len(mask) for mask in masks if inside(devices, mask) >= count]
    smallest = min(able, default=len(ground))
    placed = [name for name in reusable if devices[name] is not None]
    return {
        Hint(mask, len(mask) == smallest)
        for mask in masks
        if inside(placed, mask) == len(placed) and inside(usable | reusable, mask) >= count
    }


@given(st.data())
def test_hints_are_those_of_counting_every_mask(data):
    where = st.one_of(st.none(), st.frozensets(st.integers(0, 4), min_size=1, max_size=3))
    devices = {f"gpu{i}": nodes for i, nodes in enumerate(data.draw(st.lists(where, min_size=1, max_size=6)))}
    names = sorted(devices)
    reusable = data.draw(st.frozensets(st.sampled_from(names)))
    used = reusable | data.draw(st.frozensets(st.sampled_from(names)))
    count = data.draw(st.integers(1, len(names)))
    spec = pod(count, init=(1,))
    state = DeviceState({"pod": {"init0": {GPU: used}}}, {"pod": {GPU: reusable}})
    found = machine(*devices.values()).hints(state, spec, spec.containers[0])[GPU]
    free = frozenset(names) - used
    if not any(devices.values()):
        assert found is None
    elif len(free | reusable) < count:
        assert not found.listed()
    else:
        assert set(found.listed()) == counted(devices, free, reusable, count)


def test_an_init_container_leaves_its_devices_to_the_next_containers():
    manager, spec = machine([0], [0], [1]), pod(1, 1, init=(2,))
    state = admitted(manager, DeviceState(), spec, NodeSet([0]))
    assert state.of("pod", "init0", GPU) == {"gpu0", "gpu1"}
    assert state.of("pod", "app0", GPU) == {"gpu0"}
    assert state.of("pod", "app1", GPU) == {"gpu1"}


def test_a_sidecar_keeps_its_devices():
    manager, spec = machine([0], [0], [1]), pod(1, sidecars=(1,))
    state = admitted(manager, DeviceState(), spec, NodeSet([0]))
    assert state.of("pod", "side0", GPU).isdisjoint(state.of("pod", "app0", GPU))


def test_what_another_pod_holds_is_not_available():
    manager = machine([0], [1])
    state = admitted(manager, DeviceState(), pod(1), NodeSet([0]))
    other = PodSpec("other", (ContainerSpec("app", limits={GPU: 1}),))
    state = manager.allocate(state, other, other.containers[0], NodeSet([0]))
    assert state.of("other", "app", GPU) == {"gpu1"}
    with pytest.raises(DeviceShortageError) as raised:
        manager.allocate(state, PodSpec("third", other.containers), other.containers[0], None)
    assert str(raised.value) == (
        "requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0"
    )


def test_allocation_is_done_once():
    manager, spec = machine([0], [1]), pod(1)
    state = admitted(manager, DeviceState(), spec)
    assert admitted(manager, state, spec) == state
    with pytest.raises(DeviceRequestChangedError) as raised:
        admitted(manager, state, pod(2))
    assert str(raised.value) == (
        'pod "pod" container "app0" changed request for resource "example.com/gpu" from 1 to 2'
    )


def test_unhealthy_devices_are_not_given_but_count_for_the_preferred_size():
    devices = {
        "gpu0": Device(NodeSet([0]), healthy=False),
        "gpu1": Device(NodeSet([0])),
        "gpu2": Device(NodeSet([1])),
    }
    manager, spec = DeviceManager({GPU: devices}), pod(2)
    hints = manager.hints(DeviceState(), spec, spec.containers[0])[GPU]
    assert hints.listed() == (Hint(NodeSet([0, 1]), preferred=False),)


def test_a_removed_container_gives_its_devices_back():
    manager, spec = machine([0]), pod(1)
    state = admitted(manager, DeviceState(), spec).without("pod", "app0")
    assert manager.available(state, GPU) == Devices({"gpu0"})
    assert state.without("pod", "app0") is state
