"""Devices that other drivers allocated: from the claim and its driver's slice to the hint of a container."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from bayplan.agent.cluster.pods import ApiPodWatch, AwaitedPods
from bayplan.agent.dra.claimed_devices import ClaimedDevices, place_of, wanted_of
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.backoff import Backoff
from bayplan.control.device_search import DeviceSearch
from bayplan.control.resource_claims import ResourceClaims
from bayplan.host.devices import ClaimSpecs, HostDevices
from bayplan.model.claims import ClaimedDevice
from bayplan.model.workload import Container, Pod
from bayplan.sets import NodeSet
from support.agents import serving
from support.conditions import running, until
from support.controllers import controlled, here
from support.fake_api_server import NODE, SLICES, FakeApiServer
from support.machines import machine
from support.sysfs import SysfsTree

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SANDBOX = Pod("sandbox", "web", "default", "web-uid")
TRAIN, SIDE = Container("c", "sandbox", "train"), Container("d", "sandbox", "side")


def slice_of(driver: str, *devices: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": driver},
        "spec": {"driver": driver, "nodeName": NODE, "pool": pool, "devices": list(devices)},
    }


def device(name: str, **attributes: Any) -> dict[str, Any]:
    """*attributes* with ``__`` for a domain of the driver's own, else of Kubernetes'."""
    named = {
        key.removeprefix("own__") if key.startswith("own__") else f"resource.kubernetes.io/{key}": value
        for key, value in attributes.items()
    }
    return {"name": name, "attributes": named}


def claim(*results: tuple[str, str, str]) -> dict[str, Any]:
    rows = [
        {"request": request, "driver": driver, "pool": NODE, "device": one}
        for request, driver, one in results
    ]
    return {"metadata": {"uid": "u"}, "status": {"allocation": {"devices": {"results": rows}}}}


def pod(**more: Any) -> dict[str, Any]:
    """A pod whose container train has a GPU by a template, and of a NIC's claim one request; side has the
    other request."""
    refs = [{"name": "gpu"}, {"name": "nics", "request": "fast"}]
    return {
        "metadata": {"uid": "web-uid", "name": "web", "namespace": "default"},
        "spec": {
            "containers": [
                {"name": "train", "resources": {"claims": refs}},
                {"name": "side", "resources": {"claims": [{"name": "nics", "request": "slow"}]}},
            ],
            "resourceClaims": [
                {"name": "gpu", "resourceClaimTemplateName": "one-gpu"},
                {"name": "nics", "resourceClaimName": "nics"},
            ],
        },
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "web-gpu-x7k2"}], **more},
    }


@pytest.fixture
def api() -> Iterator[FakeApiServer]:
    one = FakeApiServer()
    one.objects |= {
        f"{SLICES}/gpu": slice_of("gpu.example.com", device("gpu-3", pcieRoot={"string": "pci0000:40"})),
        f"{SLICES}/gpu-old": slice_of("gpu.example.com", device("gpu-3", numaNode={"int": 0}), generation=0),
        f"{SLICES}/nic": slice_of(
            "dra.net",
            device("eth1", pciBusID={"string": "0000:c1:00.0"}, numaNode={"int": 0}),
            device("eth2", own__numaNode={"int": 2}),
        ),
        f"{CLAIMS}/web-gpu-x7k2": claim(("gpu", "gpu.example.com", "gpu-3")),
        f"{CLAIMS}/nics": claim(
            ("fast/best", "dra.net", "eth1"), ("slow", "dra.net", "eth2"), ("slow", "bayplan.dev", "numa-0")
        ),
    }
    with one.serving():
        yield one


@pytest.fixture
def search(tmp_path: Path) -> DeviceSearch:
    tree = SysfsTree(machine(4))
    tree.add_device("pci0000:40/0000:41:00.0", node=1)
    tree.add_device("pci0000:c0/0000:c1:00.0", node=3, bus="pci")
    return DeviceSearch(HostDevices(tree.write(tmp_path)), here, 10)


@asynccontextmanager
async def agent(
    api: FakeApiServer, search: DeviceSearch, directory: Path, again: Backoff | None = None
) -> AsyncIterator[Mirror]:
    quick = Backoff(lambda: 0.0, first_s=0.01, limit_s=0.01)
    mirror, asked = Mirror(), api.api()
    link = DaemonLink(directory / "agent.sock", mirror, backoff=quick)
    devices = ClaimedDevices(asked, link, NODE, again or quick)
    watch = ApiPodWatch(asked, NODE, link, AwaitedPods(), backoff=quick, objects=devices)
    async with controlled(directory / "state") as one, AsyncExitStack() as parts:
        claims = ResourceClaims(
            one.controller.state, one.controller.placements, ClaimSpecs(directory / "cdi"), here
        )
        await parts.enter_async_context(
            serving(one, directory / "agent.sock", claims=claims, know=search.know_claimed)
        )
        for part in (link, devices, watch):
            await parts.enter_async_context(running(part))
        yield mirror


async def test_a_container_is_near_what_it_claimed_of_others(
    api: FakeApiServer, search: DeviceSearch
) -> None:
    with TemporaryDirectory(prefix="dra") as directory:
        async with agent(api, search, Path(directory)):
            api.put_pod(pod())
            await until(lambda: search.may_have(SANDBOX, TRAIN))
            found = await search.find(SANDBOX, TRAIN)
            assert found.problems == ()
            # The kernel knows better than the driver where a PCI address is.
            assert [(hint.device, hint.nodes) for hint in found.hints] == [
                ("gpu.example.com/gpu-3", NodeSet([1])),
                ("dra.net/eth1", NodeSet([3])),
            ]
            (side,) = (await search.find(SANDBOX, SIDE)).hints
            assert (side.device, side.nodes, side.required) == ("dra.net/eth2", NodeSet([2]), False)
        search.know_claimed("web-uid", {})
        # A daemon that comes back is told again.
        async with agent(api, search, Path(directory)):
            await until(lambda: bool(search._claimed["web-uid"]))


async def test_what_is_not_there_yet_is_waited_for(api: FakeApiServer, search: DeviceSearch) -> None:
    allocated = api.objects[f"{CLAIMS}/web-gpu-x7k2"]
    api.objects[f"{CLAIMS}/web-gpu-x7k2"] = {"metadata": {"uid": "u"}}
    api.forbidden.add(("GET", SLICES))
    search.know_claimed("another", {})
    cdi = Container("c", "sandbox", "train", cdi_devices=("k8s.gpu.example.com/claim=u-gpu-3",))
    with TemporaryDirectory(prefix="dra") as directory:
        async with agent(api, search, Path(directory)):
            api.put_pod(pod())
            finding = asyncio.create_task(search.find(SANDBOX, cdi))
            await asyncio.sleep(0.05)
            assert not finding.done()
            api.objects[f"{CLAIMS}/web-gpu-x7k2"] = allocated
            await asyncio.sleep(0.05)
            api.forbidden.clear()
            assert [hint.device for hint in (await finding).hints] == [
                "gpu.example.com/gpu-3",
                "dra.net/eth1",
            ]
    # The wait has an end.
    search.deadline_s = 0.02
    assert not (await search.find(Pod("other", uid="never"), cdi)).hints


async def test_nobody_waits_for_a_pod_whose_claim_cannot_be_read(
    api: FakeApiServer, search: DeviceSearch
) -> None:
    seldom = Backoff(lambda: 0.0, first_s=3600, limit_s=3600)
    stuck = pod()
    stuck["metadata"] = {**stuck["metadata"], "uid": "stuck"}
    stuck["status"]["resourceClaimStatuses"][0]["resourceClaimName"] = "nobody's"
    with TemporaryDirectory(prefix="dra") as directory:
        async with agent(api, search, Path(directory), seldom):
            api.put_pod(stuck)
            await until(lambda: ("GET", f"{CLAIMS}/nobody's") in api.requests)
            api.put_pod(pod())
            await until(lambda: "web-uid" in search._claimed)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_of_a_pod_that_has_ended_nobody_is_asked(
    api: FakeApiServer, search: DeviceSearch, phase: str
) -> None:
    """Its claims are gone, and the pod of a job stays."""
    ended = pod(phase=phase)
    ended["metadata"] = {**ended["metadata"], "uid": "ended"}
    ended["status"]["resourceClaimStatuses"][0]["resourceClaimName"] = "gone"
    api.put_pod(ended)
    assert wanted_of(ended) is None
    with TemporaryDirectory(prefix="dra") as directory:
        async with agent(api, search, Path(directory)) as mirror:
            api.put_pod(pod())
            await until(lambda: "web-uid" in search._claimed)
            asked = api.requests.count(("GET", f"{CLAIMS}/nics"))
            api.put_pod(pod(phase=phase))
            await until(lambda: mirror.connected)
        # A daemon that comes back is told of nobody.
        async with agent(api, search, Path(directory)):
            api.put_pod({**pod(), "metadata": {**pod()["metadata"], "uid": "next"}})
            await until(lambda: "next" in search._claimed)
    assert ("GET", f"{CLAIMS}/gone") not in api.requests
    assert api.requests.count(("GET", f"{CLAIMS}/nics")) == asked + 1


def test_extended_resources_are_claims_too() -> None:
    mapped = [{"containerName": "train", "resourceName": "example.com/gpu", "requestName": "container-0"}]
    plain = {"metadata": {"uid": "x", "namespace": "n"}, "spec": {"containers": [{"name": "train"}]}}
    assert wanted_of(plain) is None
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "x-gpu", "requestMappings": mapped}}
    found = wanted_of({**plain, "status": status})
    assert found is not None
    assert found.rows == (("train", "x-gpu", "container-0"),)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"resource.kubernetes.io/numaNode": {"int": 1}, "dra.net/numaNode": {"int": 2}}, (1, "", "")),
        ({"dra.net/numaNode": {"int": 2}}, (2, "", "")),
        # With DRAListTypeAttributes: its own node, then the next ones of the socket.
        ({"resource.kubernetes.io/numaNode": {"ints": [1, 0]}}, (1, "", "")),
        ({"resource.kubernetes.io/numaNode": {"int": -1}}, None),
        ({"resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"}}, (None, "", "pci0000:3a")),
        ({"pciBusID": {"string": "0000:3b:00.0"}, "numaNode": {"int": 1}}, (1, "0000:3b:00.0", "")),
        ({"dra.net/pciAddress": {"string": "0101:00:00.0"}}, (None, "0101:00:00.0", "")),
        ({"dra.cpu/numaNodeID": {"int": 0}}, (0, "", "")),
        ({"numaNode": {"string": "1"}, "model": {"string": "x"}}, (1, "", "")),
        ({"numaNode": {"string": "numa-1"}}, None),
        ({}, None),
        # As in public manifests: Azure's of dranet, dra-driver-cpu#114, dranet#154, gpu.deckhouse.io, IBM's
        # Spyre, dra-driver-sriov, rbln-k8s-dra-driver.
        (
            {"dra.net/numaNode": {"int": 1}, "dra.net/pciAddress": {"string": "0101:00:00.0"}},
            (1, "0101:00:00.0", ""),
        ),
        (
            {"numaNodeId": {"int": 2}, "resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:80"]}},
            (2, "", "pci0000:80"),
        ),
        ({"pciRoot": {"string": "pci0000:3a"}, "numa_node": {"int": 3}}, (3, "", "pci0000:3a")),
        ({"gpu.deckhouse.io/pciAddress": {"string": "0000:65:00.0"}}, (None, "0000:65:00.0", "")),
        (
            {
                "pciAddress": {"string": "0000:1a:00.0"},
                "pfPciAddress": {"string": "0000:19:00.0"},
                "numaInfo": {"string": "1"},
            },
            (1, "0000:1a:00.0", ""),
        ),
        (
            {
                "dra.net/numaNode": {"int": 1},
                "sriovnetwork.k8snetworkplumbingwg.io/pciAddress": {"string": "0000:08:00.1"},
                "sriovnetwork.k8snetworkplumbingwg.io/pfPciAddress": {"string": "0000:08:00.0"},
                "resource.kubernetes.io/pciBusID": {"string": "0000:08:00.1"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            },
            (1, "0000:08:00.1", "pci0000:00"),
        ),
        (
            {
                "resource.kubernetes.io/pciBusID": {"string": "0000:51:00.0"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:50"},
                "resource.kubernetes.io/numaNode": {"int": 0},
            },
            (0, "0000:51:00.0", "pci0000:50"),
        ),
        ({"pciRoot": {"strings": [1]}, "pciAddr": {"version": "1.0.0"}}, None),
    ],
)
def test_what_attributes_say(attributes: dict[str, Any], expected: tuple[Any, ...] | None) -> None:
    found = place_of("one", "x.dev", attributes)
    assert found == (None if expected is None else ClaimedDevice("x.dev/one", *expected))


def test_what_is_not_known_is_said(search: DeviceSearch, tmp_path: Path) -> None:
    devices = HostDevices(tmp_path)
    absent = (
        ClaimedDevice("x.dev/a", pci_address="0000:99:00.0"),
        ClaimedDevice("x.dev/b", pcie_root="../../../etc"),
        ClaimedDevice("x.dev/c"),
        ClaimedDevice("x.dev/d", pci_address="../../0000:41:00.0", numa_node=2),
    )
    found = devices.claimed(absent)
    assert [hint.device for hint in found.hints] == ["x.dev/d"]
    assert len(found.problems) == 3
