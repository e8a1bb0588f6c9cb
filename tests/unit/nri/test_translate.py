"""NRI messages to values and back: what is set, what is not, and what cannot be read."""

import logging
from collections.abc import Iterable

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bayplan._proto.nri import api_pb2 as pb
from bayplan.errors import LocalProtocolError
from bayplan.model.decision import MemoryPolicyMode, MemoryPolicySetting
from bayplan.model.resources import Resources
from bayplan.model.workload import (
    Adjustment,
    Container,
    ContainerState,
    DeviceNode,
    DeviceType,
    Mount,
    Pod,
    Update,
)
from bayplan.nri.translate import (
    adjustment_to,
    container_from,
    encoded_updates,
    pod_from,
    resources_from,
    runtime_from,
)
from bayplan.sets import CpuSet, NodeSet
from support.workloads import make_container, make_pod

MIB = 1 << 20


def updates_to(updates: Iterable[Update]) -> list[pb.ContainerUpdate]:
    encoded = encoded_updates(updates, pb.StopContainerResponse.UPDATE_FIELD_NUMBER)
    return list(pb.StopContainerResponse.FromString(encoded).update)


def resources(**fields) -> pb.LinuxResources:
    message = pb.LinuxResources()
    for path, value in fields.items():
        group, _, field = path.partition("_")
        target = getattr(message, group)
        if field in {"cpus", "mems"}:
            setattr(target, field, value)
        else:
            getattr(target, field).value = value
    return message


def test_ids_of_any_length_share_the_encoding_of_what_is_the_same_for_all():
    ids = ["a", "b", "c" * 64, "d" * 127, "e" * 128, "é" * 100, "f" * 20_000]
    updates = [Update(one, cpuset_cpus=CpuSet([0, 2])) for one in ids]
    written = [
        (one.container_id, one.linux.resources.cpu.cpus, one.ignore_failure) for one in updates_to(updates)
    ]
    assert written == [(one, "0,2", True) for one in ids]


@pytest.mark.parametrize("mode", MemoryPolicyMode)
def test_memory_policies_go_out_by_the_kernels_names(mode):
    setting = MemoryPolicySetting(mode, NodeSet([0, 1, 3]), ("static_nodes", "relative_nodes"))
    written = adjustment_to("c1", Adjustment(memory_policy=setting)).linux.memory_policy
    assert pb.MpolMode.Name(written.mode) == f"MPOL_{mode.name}"
    assert written.nodes == "0-1,3"
    assert list(written.flags) == [pb.MPOL_F_STATIC_NODES, pb.MPOL_F_RELATIVE_NODES]


class TestPod:
    def test_everything_that_is_needed(self):
        message = pb.PodSandbox(
            id="p1",
            name="web",
            uid="u-1",
            namespace="shop",
            labels={"app": "web"},
            annotations={"bayplan.dev/memory-limit": "1Gi"},
        )
        message.linux.cgroup_parent = "/kubepods/burstable/podu-1"
        message.linux.pod_resources.memory.limit.value = 5 * MIB
        assert pod_from(message) == Pod(
            id="p1",
            name="web",
            namespace="shop",
            uid="u-1",
            annotations={"bayplan.dev/memory-limit": "1Gi"},
            labels={"app": "web"},
            cgroup_parent="/kubepods/burstable/podu-1",
            resources=Resources(memory_limit_bytes=5 * MIB),
        )

    def test_almost_empty_as_in_stop_and_remove(self):
        assert pod_from(pb.PodSandbox(id="p1")) == Pod("p1")

    def test_kubelets_wrappers_of_zero_mean_unset(self):
        pod = pod_from(make_pod())
        assert pod.resources.memory_limit_bytes is None
        assert pod.resources.cpu_quota_us is None


class TestDevices:
    """What a runtime shows of devices; most containers have none."""

    def test_device_nodes_with_their_numbers(self):
        message = make_container(make_pod())
        for path, kind, minor in (("/dev/vdb", "b", 16), ("/dev/rtc", "u", 0), ("/run/fifo", "p", 0)):
            message.linux.devices.add(path=path, type=kind, major=254, minor=minor)
        assert container_from(message).devices == (
            DeviceNode("/dev/vdb", DeviceType.BLOCK, 254, 16),
            DeviceNode("/dev/rtc", DeviceType.CHARACTER, 254, 0),
        )

    def test_of_all_mounts_those_that_can_be_about_devices(self):
        message = make_container(make_pod(), ballast_bytes=5000)
        message.mounts.add(destination="/dev", type="tmpfs", source="tmpfs")
        message.mounts.add(destination="/gpu", type="bind", source="/dev/dri/card0")
        message.mounts.add(destination="/data", type="ext4", source="/dev/vdc1")
        message.mounts.add(destination="/nic", type="bind", source="/sys/class/net/eth1")
        assert container_from(message).device_mounts == (
            Mount("/dev/dri/card0"),
            Mount("/dev/vdc1", "ext4"),
            Mount("/sys/class/net/eth1"),
        )

    def test_cdi_names_of_the_field_and_of_annotations_each_once(self):
        message = make_container(make_pod())
        message.CDI_devices.add(name="vendor.com/gpu=0")
        message.annotations["cdi.k8s.io/claim"] = "vendor.com/gpu=0, vendor.com/nic=a"
        assert container_from(message).cdi_devices == ("vendor.com/gpu=0", "vendor.com/nic=a")

    @pytest.mark.parametrize(
        ("rule", "every"),
        [
            (pb.LinuxDeviceCgroup(allow=True, access="rwm"), True),
            (pb.LinuxDeviceCgroup(allow=True, type="a", major={"value": -1}, access="rwm"), True),
            (pb.LinuxDeviceCgroup(allow=False, access="rwm"), False),
            (pb.LinuxDeviceCgroup(allow=True, type="c", access="m"), False),
            (pb.LinuxDeviceCgroup(allow=True, type="a", major={"value": 10}), False),
        ],
    )
    def test_whoever_may_use_every_device_shows_none(self, rule, every):
        message = make_container(make_pod())
        message.linux.devices.add(path="/dev/vdb", type="b", major=254, minor=16)
        message.linux.resources.devices.append(rule)
        found = container_from(message)
        assert len(found.devices) == (0 if every else 1)

    @pytest.mark.parametrize(
        ("namespaces", "pid", "path"),
        [
            ((("network", "/var/run/netns/cni-1"), ("ipc", "")), 7, "/var/run/netns/cni-1"),
            ((("network", ""),), 7, "/proc/7/ns/net"),
            ((("network", ""),), 0, ""),
            ((("ipc", "/proc/7/ns/ipc"),), 7, ""),
        ],
    )
    def test_the_pods_own_network_namespace(self, namespaces, pid, path):
        message = pb.PodSandbox(id="p1", pid=pid)
        for kind, where in namespaces:
            message.linux.namespaces.add(type=kind, path=where)
        assert pod_from(message).network_namespace == path


class TestContainer:
    def test_everything_that_is_needed(self):
        message = pb.Container(
            id="c1",
            pod_sandbox_id="p1",
            name="main",
            state=pb.CONTAINER_RUNNING,
            labels={"a": "b"},
            annotations={"c": "d"},
            pid=77,
            env=["SECRET=1"],
        )
        message.linux.cgroups_path = "kubepods.slice:cri-containerd:c1"
        message.linux.oom_score_adj.value = -997
        message.linux.resources.CopyFrom(
            resources(
                memory_limit=3 * MIB,
                cpu_shares=512,
                cpu_quota=50_000,
                cpu_period=100_000,
                cpu_cpus="0-1,8",
                cpu_mems="1",
            )
        )
        message.linux.resources.unified["memory.low"] = "4096"
        message.linux.resources.hugepage_limits.add(page_size="2MB", limit=4 * MIB)
        message.linux.resources.hugepage_limits.add(page_size="1GB", limit=0)
        assert container_from(message) == Container(
            id="c1",
            pod_id="p1",
            name="main",
            state=ContainerState.RUNNING,
            annotations={"c": "d"},
            labels={"a": "b"},
            resources=Resources(
                memory_limit_bytes=3 * MIB,
                cpu_shares=512,
                cpu_quota_us=50_000,
                cpu_period_us=100_000,
                cpuset_cpus=CpuSet([0, 1, 8]),
                cpuset_mems=NodeSet([1]),
                hugepage_limits_bytes={2 * MIB: 4 * MIB, 1 << 30: 0},
                unified={"memory.low": "4096"},
            ),
            oom_score_adj=-997,
            cgroups_path="kubepods.slice:cri-containerd:c1",
            pid=77,
        )

    def test_empty(self):
        assert container_from(pb.Container()) == Container("", "")

    def test_an_oom_score_adj_of_zero_is_not_none(self):
        message = pb.Container()
        assert container_from(message).oom_score_adj is None
        message.linux.oom_score_adj.SetInParent()
        assert container_from(message).oom_score_adj == 0

    @pytest.mark.parametrize(
        ("number", "state"),
        [(0, "unknown"), (1, "created"), (2, "paused"), (3, "running"), (4, "stopped"), (9, "unknown")],
    )
    def test_states(self, number, state):
        message = pb.Container.FromString(bytes([0x20, number]))
        assert container_from(message).state is ContainerState(state)


class TestResources:
    @pytest.mark.parametrize("field", ["memory_limit", "cpu_shares", "cpu_quota", "cpu_period"])
    def test_zero_means_unset(self, field):
        assert resources_from(resources(**{field: 0}), "it") == Resources()

    def test_an_unlimited_quota_and_an_unlimited_memory_are_explicitly_none(self):
        found = resources_from(resources(cpu_quota=-1, memory_limit=-1), "it")
        assert found.cpu_quota_us == -1
        assert (found.memory_limit_bytes, found.limit_bytes, found.quota_milli) == (-1, None, None)

    @pytest.mark.parametrize("text", ["0-", "a", "3-1", "99999999", "0-3:3/2"])
    def test_an_unreadable_cpuset_was_still_set_by_somebody(self, text, caplog):
        with caplog.at_level(logging.WARNING):
            found = resources_from(resources(cpu_cpus=text, cpu_mems=text), "container c1")
        assert found.cpuset_cpus == CpuSet()
        assert found.cpuset_mems == NodeSet()
        assert [record.owner for record in caplog.records] == ["container c1"] * 2
        assert text in caplog.records[0].problem

    def test_an_unreadable_page_size_is_left_out(self, caplog):
        message = pb.LinuxResources()
        message.hugepage_limits.add(page_size="huge", limit=1)
        message.hugepage_limits.add(page_size="2MB", limit=2 * MIB)
        assert resources_from(message, "it").hugepage_limits_bytes == {2 * MIB: 2 * MIB}
        assert "huge" in caplog.records[0].problem

    def test_an_unlimited_number_of_huge_pages_is_no_limit(self):
        message = pb.LinuxResources()
        message.hugepage_limits.add(page_size="2MB", limit=(1 << 64) - 1)
        assert resources_from(message, "it").hugepage_limits_bytes == {}

    def test_the_last_of_several_limits_counts(self):
        """containerd appends to the list at each update."""
        message = pb.LinuxResources()
        for limit in (0, 4 * MIB, 2 * MIB):
            message.hugepage_limits.add(page_size="2MB", limit=limit)
        assert resources_from(message, "it").hugepage_limits_bytes == {2 * MIB: 2 * MIB}


def test_runtime():
    message = pb.ConfigureRequest(
        config="memoryManagerPolicy: Static",
        runtime_name="containerd",
        runtime_version="v2.3.1",
        registration_timeout=5000,
        request_timeout=2000,
        NRI_version="v0.12.0",
    )
    runtime = runtime_from(message)
    assert (runtime.name, runtime.version, runtime.nri_version) == ("containerd", "v2.3.1", "0.12.0")
    assert runtime.config == "memoryManagerPolicy: Static"
    assert (runtime.registration_timeout_ms, runtime.request_timeout_ms) == (5000, 2000)
    assert runtime.capabilities.dedicated_rpcs
    assert not runtime.capabilities.safe_update_containers


class TestAdjustment:
    def test_nothing_is_no_bytes(self):
        assert adjustment_to("c1", Adjustment()).SerializeToString() == b""

    def test_everything(self):
        message = adjustment_to(
            "c1",
            Adjustment(
                cpuset_cpus=CpuSet([2, 3]),
                cpuset_mems=NodeSet([1]),
                memory_limit_bytes=MIB,
                oom_score_adj=-997,
                unified={"memory.oom.group": "1"},
            ),
        )
        assert message.linux.resources.cpu.cpus == "2-3"
        assert message.linux.resources.cpu.mems == "1"
        assert message.linux.resources.memory.limit.value == MIB
        assert message.linux.oom_score_adj.value == -997
        assert dict(message.linux.resources.unified) == {"memory.oom.group": "1"}

    def test_zero_is_written(self):
        message = adjustment_to("c1", Adjustment(oom_score_adj=0))
        assert message.SerializeToString() == bytes.fromhex("3202 2200")

    def test_only_what_is_set_is_claimed(self):
        linux = adjustment_to("c1", Adjustment(cpuset_mems=NodeSet([0]))).linux
        assert not linux.HasField("memory_policy")
        assert not linux.HasField("oom_score_adj")
        assert not linux.resources.HasField("memory")
        assert linux.resources.SerializeToString() == bytes.fromhex("1203 3a01 30")

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            (Adjustment(cpuset_cpus=CpuSet()), "cpuset.cpus"),
            (Adjustment(cpuset_mems=NodeSet()), "cpuset.mems"),
        ],
    )
    def test_an_empty_set_is_an_error(self, change, field):
        with pytest.raises(LocalProtocolError) as caught:
            adjustment_to("c1", change)
        assert caught.value.subject == f"container c1: {field}"


class TestUpdates:
    def test_one_message_per_container_in_the_order_of_mention(self):
        messages = updates_to(
            [
                Update("b", cpuset_cpus=CpuSet([1])),
                Update("a", memory_limit_bytes=MIB),
                Update("b", cpuset_cpus=CpuSet([2]), unified={"memory.low": "0"}),
            ]
        )
        assert [message.container_id for message in messages] == ["b", "a"]
        assert messages[0].linux.resources.cpu.cpus == "2"
        assert dict(messages[0].linux.resources.unified) == {"memory.low": "0"}
        assert messages[1].linux.resources.memory.limit.value == MIB

    def test_a_container_that_is_going_does_not_stop_another(self):
        assert all(message.ignore_failure for message in updates_to([Update("a", cpuset_mems=NodeSet([0]))]))

    def test_nothing_to_change_is_no_update(self):
        assert updates_to([Update("a")]) == []

    def test_what_many_are_told_is_told_to_each(self):
        shared = CpuSet([1, 2])
        own = Update("b", cpuset_cpus=shared, cpuset_mems=NodeSet([1]))
        messages = updates_to([Update("a", cpuset_cpus=shared), own, Update("c", cpuset_cpus=shared)])
        found = [
            (one.container_id, one.linux.resources.cpu.cpus, one.linux.resources.cpu.mems) for one in messages
        ]
        assert found == [("a", "1-2", ""), ("b", "1-2", "1"), ("c", "1-2", "")]

    def test_an_empty_set_is_an_error(self):
        with pytest.raises(LocalProtocolError, match=r"container a: cpuset\.cpus"):
            updates_to([Update("a", cpuset_cpus=CpuSet())])


# ---- Round trips: what we write is what we would read ------------------------------------------------

ids = st.sets(st.integers(0, 300), min_size=1)
unified = st.dictionaries(st.sampled_from(["memory.min", "memory.low", "memory.high"]), st.text(max_size=9))
changes = {
    "cpuset_cpus": st.none() | ids.map(CpuSet),
    "cpuset_mems": st.none() | ids.map(NodeSet),
    "memory_limit_bytes": st.none() | st.integers(1, (1 << 63) - 1),
    "unified": unified,
}


@given(
    st.builds(Adjustment, **changes, oom_score_adj=st.none() | st.integers(-1000, 1000)),
)
def test_adjustment_round_trip(adjustment):
    message = pb.ContainerAdjustment.FromString(adjustment_to("c1", adjustment).SerializeToString())
    linux = message.linux
    found = resources_from(linux.resources, "it")
    assert found.cpuset_cpus == adjustment.cpuset_cpus
    assert found.cpuset_mems == adjustment.cpuset_mems
    assert found.memory_limit_bytes == adjustment.memory_limit_bytes
    assert found.unified == adjustment.unified
    assert (linux.oom_score_adj.value if linux.HasField("oom_score_adj") else None) == (
        adjustment.oom_score_adj
    )


@given(st.lists(st.builds(Update, st.sampled_from("abc"), **changes), max_size=8))
def test_updates_never_claim_a_field_twice_and_never_a_huge_page(updates):
    messages = updates_to(updates)
    names = [message.container_id for message in messages]
    assert len(names) == len(set(names))
    assert not any(message.linux.resources.hugepage_limits for message in messages)
    for name in names:
        mine = [update for update in updates if update.container_id == name]
        found = resources_from(next(m for m in messages if m.container_id == name).linux.resources, "it")
        limits = [one.memory_limit_bytes for one in mine if one.memory_limit_bytes is not None]
        assert found.memory_limit_bytes == (limits[-1] if limits else None)


@given(st.binary(max_size=200))
def test_any_container_that_decodes_can_be_translated(payload):
    try:
        message = pb.Container.FromString(payload)
    except DecodeError:
        return
    container_from(message)


def test_a_realistic_container():
    pod = make_pod(qos="guaranteed")
    message = make_container(pod, memory_limit_bytes=64 * MIB, cpu_quota_us=200_000, ballast_bytes=10_000)
    assert message.ByteSize() >= 10_000
    container = container_from(message)
    assert container.pod_id == pod.id
    assert container.labels["io.kubernetes.pod.name"] == pod.name
    assert container.resources.memory_limit_bytes == 64 * MIB
