"""Devices over real NRI messages: the runtime describes them, its answer has the nodes they are on."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
from msgspec.structs import replace

from bayplan.admin.snapshot_source import snapshot_of
from bayplan.control.controller import Controller
from bayplan.control.device_search import DeviceSearch
from bayplan.control.placements import Placements
from bayplan.control.recorder import Recorder
from bayplan.control.state import Current, NodeState
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import HostError
from bayplan.host.devices import HostDevices
from bayplan.host.netlink import Interface
from bayplan.model.ledger import Ledger
from bayplan.model.origin import Hook
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.workload import Container, Pod
from bayplan.nri import UnixSocket
from bayplan.sets import CpuSet
from bayplan.state import Store
from bayplan.views.status import nodes_view, status_view
from support.controllers import NoKernel, announced, consistent
from support.flavors import ALL, CONTAINERD_2_3
from support.machines import machine
from support.plugin import serving
from support.plugin_calls import OperationError
from support.runtime import FakeRuntime
from support.sysfs import SysfsTree
from support.workloads import GUARANTEED, make_container, make_pod

MACHINE = machine(4)
RESTRICTED = PlacementPolicy(topology=TopologyPolicy.RESTRICTED, reserved_cpus=CpuSet([0]))
SINGLE = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
BEST_EFFORT = replace(RESTRICTED, topology=TopologyPolicy.BEST_EFFORT)
NAMESPACE = "/var/run/netns/cni-1"
MIB = 1 << 20


async def in_this_thread(work):
    return work()


asked = []


async def interfaces(namespace):
    asked.append(namespace)
    if namespace != NAMESPACE:
        raise HostError(namespace, "cannot be entered")
    return (Interface("eth0", "virtio", "virtio7"),)


async def unused(*_):
    raise AssertionError


@asynccontextmanager
async def daemon(runtime, directory, engine=None):
    """A controller with the engine kubelet, a disk on node 2 and a network card on node 3."""
    asked.clear()
    tree = SysfsTree(MACHINE)
    tree.add_device("pci0000:80/0000:81:00.0", node=2)
    tree.add_device("pci0000:80/0000:81:00.0/virtio1/block/vdb", numbers="block/254:16")
    tree.add_device("pci0000:c0/0000:c1:00.0", node=3)
    tree.add_device("pci0000:c0/0000:c1:00.0/virtio7", bus="virtio")
    search = DeviceSearch(HostDevices(tree.write(directory / "root")), in_this_thread, 10, interfaces)
    recorder = await Recorder.open(partial(Store.open, directory))
    basis = Current(MACHINE, RESTRICTED, Ledger(), engine=engine or KubeletEngine())
    state = NodeState(basis, recorder, became=consistent)
    no_kernel = NoKernel()
    controller = Controller(
        state,
        Placements(state, cgroup_v2=True, devices=search, cpusets=no_kernel),
        write_oom_score_adj=unused,
        cpusets=no_kernel,
        verify_soon=lambda: None,
        has_process=unused,
        devices=search,
    )
    path = directory / "nri.sock"
    await runtime.listen(path)
    try:
        async with serving(controller, UnixSocket(str(path))):
            await runtime.synchronized()
            yield controller
    finally:
        await runtime.stop()
        await recorder.close()


def pod_with(name="web", namespace="", **annotations):
    keys = {f"bayplan.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    pod = make_pod(name, qos=GUARANTEED, annotations=keys)
    if namespace:
        pod.linux.namespaces.add(type="network", path=namespace)
    return pod


def container_of(pod, *, disk=False):
    made = make_container(pod, memory_limit_bytes=64 * MIB, cpu_quota_us=50_000, oom_score_adj=-997)
    if disk:
        made.linux.devices.add(path="/dev/disk", type="b", major=254, minor=16)
    return made


def hints(controller, container):
    request = controller.state.ledger.entries[container.id].decision.request
    return {hint.device: str(hint.nodes) for hint in request.hints}


def reasons(controller, container):
    return {
        reason.code: reason.text for reason in controller.state.ledger.entries[container.id].decision.reasons
    }


async def place(runtime, pod, *, disk=False):
    """The nodes in the spec of a container of *pod*."""
    await runtime.run_pod(pod)
    made = container_of(pod, disk=disk)
    await runtime.create_container(pod, made)
    return runtime.containers[made.id].linux.resources.cpu.mems


@pytest.mark.parametrize("flavor", ALL, ids=str)
async def test_memory_goes_to_the_node_of_a_disk_or_an_interface(flavor, tmp_path):
    runtime = FakeRuntime(flavor)
    async with daemon(runtime, tmp_path) as controller:
        assert await place(runtime, pod_with("plain")) == "0"
        assert await place(runtime, pod_with("disk"), disk=True) == "2"
        networked = pod_with("nic", NAMESPACE)
        assert await place(runtime, networked) == "3"
        assert hints(controller, container_of(networked)) == {"net/eth0": "3"}
    assert runtime.logged == []


async def test_the_default_engine_goes_where_the_devices_are(tmp_path):
    runtime = FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path, ExactEngine()) as controller:
        assert await place(runtime, pod_with("disk"), disk=True) == "2"
        assert await place(runtime, pod_with("nic", NAMESPACE)) == "3"
        assert await place(runtime, pod_with("both", NAMESPACE), disk=True) == "2-3"
        controller.state.schedule(lambda turn: turn.accept(policy=SINGLE))
        with pytest.raises(OperationError) as caught:
            await place(runtime, pod_with("apart", NAMESPACE), disk=True)
        assert all(one in str(caught.value) for one in ("/dev/disk", "net/eth0"))
        controller.state.schedule(lambda turn: turn.accept(policy=BEST_EFFORT))
        apart = pod_with("apart", NAMESPACE)
        mems = await place(runtime, apart, disk=True)
        assert mems in {"2", "3"}
        far = "net/eth0" if mems == "2" else "/dev/disk"
        assert far in reasons(controller, container_of(apart))["devices-elsewhere"]


async def test_a_pod_is_asked_for_its_interfaces_once_and_forgotten_when_it_is_gone(tmp_path):
    runtime = FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path) as controller:
        pod = pod_with("nic", NAMESPACE)
        for _ in range(2):
            assert await place(runtime, pod) == "3"
            await runtime.remove_container(container_of(pod).id)
        assert asked == [NAMESPACE]
        await runtime.remove_pod(pod.id)
        assert await place(runtime, pod) == "3"
        assert asked == [NAMESPACE] * 2
        alone, own = Pod("alone", network_namespace=NAMESPACE), Container("one", "alone")
        for _ in range(2):
            # No event tells of the end of a pod that came without NRI: it goes with its container.
            await announced(controller, alone, own, Hook.of(alone, own))
            await controller.stop_container(alone, own)
        assert asked == [NAMESPACE] * 4


async def test_devices_apart_refuse_and_annotations_undo_it(tmp_path):
    runtime = FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path) as controller:
        with pytest.raises(OperationError) as caught:
            await place(runtime, pod_with("apart", NAMESPACE), disk=True)
        assert "TopologyAffinityError: default/apart/main" in str(caught.value)
        assert all(one in str(caught.value) for one in ("/dev/disk", "net/eth0"))
        chosen = pod_with("chosen", NAMESPACE, ignore_device_hints="/dev/disk")
        assert await place(runtime, chosen, disk=True) == "3"
        assert "/dev/disk" in reasons(controller, container_of(chosen))["device-hints-ignored"]
        assert hints(controller, container_of(chosen)) == {"net/eth0": "3"}
        assert await place(runtime, pod_with("none", NAMESPACE, ignore_device_hints="all"), disk=True) == "0"
        assert await place(runtime, pod_with("other", replace_device_hints="gpu=1"), disk=True) == "1"
        assert await place(runtime, pod_with("added", add_device_hints="gpu=1")) == "1"
        wrong = pod_with("wrong", add_device_hints="gpu=7")
        assert await place(runtime, wrong) == "0"
        assert "gpu=7" in reasons(controller, container_of(wrong))["wrong-annotation"]


async def test_what_cannot_be_found_out_is_said_and_refuses_nobody(tmp_path):
    runtime = FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path) as controller:
        pod = pod_with("odd", "/run/netns/gone")
        made = container_of(pod)
        made.CDI_devices.add(name="vendor.com/gpu=0")
        await runtime.run_pod(pod)
        await runtime.create_container(pod, made)
        said = [
            reason.text
            for reason in controller.state.ledger.entries[made.id].decision.reasons
            if reason.code == "no-device-hint"
        ]
    assert [text.split(":")[0] for text in said] == ["vendor.com/gpu=0", "/run/netns/gone"]


async def test_status_and_nodes_show_the_hints(tmp_path):
    runtime = FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path) as controller:
        await place(runtime, pod_with("disk"), disk=True)
        snapshot = snapshot_of(controller.state, 0, ())
    (entry,) = status_view(snapshot)["containers"]
    assert entry["deviceHints"] == [{"device": "/dev/disk", "nodes": "2"}]
    residents = {node["id"]: node["containers"] for node in nodes_view(snapshot)["nodes"]}
    assert [one["devices"] for one in residents[2]] == [["/dev/disk"]]
    assert residents[0] == []


async def test_a_restart_keeps_the_hints(tmp_path):
    runtime = FakeRuntime(CONTAINERD_2_3)
    async with daemon(runtime, tmp_path) as controller:
        await place(runtime, pod_with("disk"), disk=True)
        [recorded] = (await controller.state.recorder.ledger()).entries.values()
    assert [str(hint.nodes) for hint in recorded.decision.request.hints] == ["2"]
