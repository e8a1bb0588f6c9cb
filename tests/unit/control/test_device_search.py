"""The search for devices: what is looked at, once, for how long, and what becomes of failures."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.control.device_search import DeviceSearch
from bayplan.engines.device_hints import NOTHING_FOUND
from bayplan.errors import HostError
from bayplan.host.devices import HostDevices
from bayplan.host.netlink import Interface
from bayplan.model.decision import DeviceHint
from bayplan.model.workload import Container, DeviceNode, DeviceType, Pod
from bayplan.sets import NodeSet
from support.machines import machine
from support.sysfs import SysfsTree

POD = Pod("p", network_namespace="/run/netns/p")
DISK = Container("c", "p", devices=(DeviceNode("/dev/vdb", DeviceType.BLOCK, 254, 16),))
PLAIN = Container("c", "p")
NIC = Interface("eth0", "pci", "0000:c1:00.0")
ON_NODE_1 = DeviceHint("/dev/vdb", NodeSet([1]), names=("/dev/vdb", "0000:41:00.0"), kind="b 254")
ON_NODE_3 = DeviceHint("net/eth0", NodeSet([3]), names=("net/eth0", "0000:c1:00.0"), kind="net")


@pytest.fixture
def devices(tmp_path: Path) -> HostDevices:
    tree = SysfsTree(machine(4))
    tree.add_device("pci0000:40/0000:41:00.0", node=1)
    tree.add_device("pci0000:40/0000:41:00.0/virtio1/block/vdb", numbers="block/254:16")
    tree.add_device("pci0000:c0/0000:c1:00.0", node=3, bus="pci")
    return HostDevices(tree.write(tmp_path))


class Kernel:
    """Answers about interfaces, and counts what it was asked."""

    def __init__(self, *interfaces: Interface, error: Exception | None = None) -> None:
        self.interfaces, self.error = interfaces, error
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, namespace: str) -> tuple[Interface, ...]:
        self.asked.append(namespace)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return self.interfaces


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


async def test_devices_and_interfaces_together(devices: HostDevices) -> None:
    search = DeviceSearch(devices, at_once, 10, Kernel(NIC))
    assert (await search.find(POD, DISK)).hints == (ON_NODE_1, ON_NODE_3)


async def test_nothing_is_looked_at_where_there_is_nothing(devices: HostDevices) -> None:
    async def never(_: Callable[[], Any]) -> Any:
        raise AssertionError

    kernel = Kernel()
    search = DeviceSearch(devices, never, 10, kernel)
    assert await search.find(Pod("host-network"), PLAIN) is NOTHING_FOUND
    assert await search.find(POD, PLAIN) == NOTHING_FOUND
    assert kernel.asked == ["/run/netns/p"]


async def test_a_pod_is_looked_at_once_from_its_start_to_its_end(devices: HostDevices) -> None:
    kernel = Kernel(NIC)
    search = DeviceSearch(devices, at_once, 10, kernel)
    search.pod_started(POD)
    for _ in range(3):
        assert (await search.find(POD, PLAIN)).hints == (ON_NODE_3,)
    assert len(kernel.asked) == 1
    search.pod_gone("p")
    search.pod_gone("never-seen")
    await search.find(POD, PLAIN)
    search.keep({"p"})
    await search.find(POD, PLAIN)
    assert len(kernel.asked) == 2
    search.keep(set())
    await search.find(POD, PLAIN)
    assert len(kernel.asked) == 3


async def test_a_late_answer_is_no_hint_and_counts_for_the_next_container(
    devices: HostDevices, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = Kernel(NIC)
    kernel.open.clear()
    search = DeviceSearch(devices, at_once, 0.02, kernel)
    found = await search.find(POD, DISK)
    assert found.hints == (ON_NODE_1,)
    assert found.problems == ("the pod's interfaces were not found within 20 ms",)
    kernel.open.set()
    search.deadline_s = 10
    assert (await search.find(POD, DISK)).hints == (ON_NODE_1, ON_NODE_3)
    assert len(kernel.asked) == 1
    assert caplog.messages == ["no device hint"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HostError("/run/netns/p", "not permitted"), "/run/netns/p: not permitted"),
        (ZeroDivisionError("oh"), "the devices could not be looked at: ZeroDivisionError('oh')"),
    ],
)
async def test_failures_are_said_and_logged_and_the_rest_counts(
    devices: HostDevices, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    caplog.set_level(logging.WARNING)

    search = DeviceSearch(devices, at_once, 10, Kernel(error=error))
    found = await search.find(POD, DISK)
    assert (found.hints, found.problems) == ((ON_NODE_1,), (said,))
    assert len(caplog.messages) == 1


async def test_cdi_specs_are_read_ahead(
    devices: HostDevices, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = DeviceSearch(devices, at_once, 10)
    await search.prepare()
    assert caplog.messages == []
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/cdi").write_text("not a directory")
    await search.prepare()
    assert caplog.messages == ["the CDI specs cannot be read"]
