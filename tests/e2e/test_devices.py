"""Devices steer: a disk in a container, a network card that CNI moved into a pod, on a machine with both."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from testbed.channel import LIMIT_S
from testbed.node import Node
from testbed.pods import Pod, guaranteed
from testbed.scenario import on
from testbed.topology import WITH_DEVICES

KUBELET = (
    "--engine=kubelet",
    "--topology-manager-policy=restricted",
    "--reserved-cpus=0",
    "--reserved-memory=0:memory=25Mi;1:memory=25Mi;2:memory=25Mi;3:memory=25Mi",
)
CNI = "/etc/cni/net.d/10-card.conflist"
LINKS = "/sys/class/net/*/device/uevent"


def start(node: Node) -> None:
    node.bayplan.start(*KUBELET)
    node.bayplan.await_synchronized()


def disk(node: Node, serial: str) -> str:
    """The device node of a disk."""
    found = node.guest.read_files("/sys/block/vd*/serial", pattern=True)
    (path,) = (path for path, text in found.items() if text.strip() == serial)
    return f"/dev/{path.split('/')[3]}"


def mems(node: Node, pod: Pod) -> frozenset[int]:
    """The nodes that the kernel gives to a new pod; that its memory is there."""
    running = node.launch(pod.touching("50Mi"))
    node.crictl.await_log(running, "touched")
    view = node.view(running)
    assert {place for place, amount in view.anon_bytes().items() if amount} <= view.mems_allowed
    return view.mems_allowed


def why(node: Node, name: str) -> str:
    """The reasons of the decision about a pod's container."""
    (entry,) = (one for one in node.bayplan.status()["containers"] if one["name"] == f"default/{name}/main")
    return "; ".join(reason["text"] for reason in entry["reasons"])


@contextmanager
def card_network(node: Node) -> Iterator[None]:
    """The only pod network: CNI moves the machine's network card into the pod, as it does with SR-IOV."""
    node.guest.run("modprobe", "virtio_net")
    (link,) = node.guest.read_files(LINKS, pattern=True)
    card = {
        "type": "host-device",
        "device": link.split("/")[4],
        "ipam": {"type": "static", "addresses": [{"address": "10.11.12.13/24"}]},
    }
    node.guest.write(CNI, json.dumps({"cniVersion": "0.4.0", "name": "card", "plugins": [card]}))
    deadline = time.monotonic() + LIMIT_S
    while "host-device" not in node.crictl("info").stdout:
        assert time.monotonic() < deadline, "containerd does not know the pod network"
        time.sleep(0.1)
    try:
        yield
    finally:
        node.crictl.remove_everything()
        node.guest.run("rm", CNI)


@on(WITH_DEVICES, "2.3")
def test_memory_goes_to_the_node_of_a_disk_and_two_disks_apart_are_refused(node: Node) -> None:
    start(node)
    near, far = disk(node, "bare-on-2"), disk(node, "bare-on-3")
    pod = guaranteed("near", 0.5, "100Mi").with_devices({"/dev/data": near})
    assert mems(node, pod) == {2}
    assert "/dev/data on node 2" in why(node, "near")
    two = replace(pod.with_devices({"/dev/data": near, "/dev/log": far}), name="two", uid="two")
    refusal = node.crictl.refused(two)
    assert "TopologyAffinityError: default/two/main: " in refusal
    assert "/dev/data, /dev/log: preferred on nodes 2-3" in refusal
    ignoring = {"bayplan.dev/ignore-device-hints": "/dev/data"}
    assert mems(node, replace(two, name="one", uid="one", annotations=ignoring)) == {3}
    ignoring = {"main.bayplan.dev/ignore-device-hints": "all"}
    assert mems(node, replace(two, name="none", uid="none", annotations=ignoring)) == {0}
    residents = {one["id"]: one["containers"] for one in node.bayplan.nodes()["nodes"]}
    assert [one["devices"] for one in residents[2]] == [["/dev/data"]]


@pytest.mark.matrix
@on(WITH_DEVICES, "2.3")
def test_memory_goes_to_the_node_of_a_network_card_in_the_pods_network(node: Node) -> None:
    start(node)
    pod = replace(guaranteed("card", 0.5, "100Mi"), host_network=False)
    with card_network(node):
        assert mems(node, pod) == {1}
        assert "net/eth0 on node 1" in why(node, "card")
        node.crictl.remove_everything()
        ignoring = {"bayplan.dev/ignore-device-hints": "net/eth0"}
        assert mems(node, replace(pod, name="ignored", uid="ignored", annotations=ignoring)) == {0}
        assert "net/eth0 on node 1" in why(node, "ignored")
