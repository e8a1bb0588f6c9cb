"""The PodResources service, read by the unmodified Go client of Kubernetes."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.pod_resources import KubeletPodResources, PodResourcesService
from bayplan.quantity import GIB, MIB
from support.kubelet_pod_resources import KubeletService
from support.snapshots import make_snapshot

sys.path.insert(0, str(Path(__file__).parent))

from testbed.errors import TestBedError
from testbed.gobuild import compiled

pytestmark = pytest.mark.interop

DEVICES = pb.ContainerDevices(
    resource_name="example.com/gpu",
    device_ids=["gpu-0"],
    topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=1)]),
)
CLAIM = pb.DynamicResource(
    claim_name="nic",
    claim_namespace="default",
    claim_resources=[
        pb.ClaimResource(
            cdi_devices=[pb.CDIDevice(name="example.com/nic=0")],
            driver_name="nic.example.com",
            pool_name="node-a",
            device_name="nic-0",
            share_id="",
        )
    ],
)
NGINX = pb.ContainerResources(name="nginx", devices=[DEVICES], dynamic_resources=[CLAIM])
DEVICES_JSON = {
    "resourceName": "example.com/gpu",
    "deviceIds": ["gpu-0"],
    "topology": {"nodes": [{"ID": "1"}]},
}


@pytest.fixture(scope="module")
def client() -> Path:
    try:
        return compiled(Path(__file__).parent / "podresources", "podresources")
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)


Ask = Callable[..., Any]


def with_service(directory: Path, client: Path, scenario: Callable[[Ask], Any]) -> None:
    async def run() -> None:
        path, kubelet_path = directory / "ours.sock", directory / "kubelet.sock"

        async def ask(*words: str) -> tuple[Any, str]:
            process = await asyncio.create_subprocess_exec(
                client,
                "-socket",
                path,
                *words,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            answer, problem = await process.communicate()
            return (json.loads(answer) if answer else None), problem.decode()

        kubelet_pods = pb.ListPodResourcesResponse(
            pod_resources=[pb.PodResources(namespace="default", name="web-0", containers=[NGINX])]
        )
        service = PodResourcesService(path, make_snapshot, KubeletPodResources(kubelet_path))
        async with KubeletService(
            kubelet_path, kubelet_pods, pb.AllocatableResourcesResponse(devices=[DEVICES])
        ):
            await service.start()
            try:
                await scenario(ask)
            finally:
                await service.close()

    asyncio.run(run())


def memory(kind: str, size_bytes: int, *nodes: int) -> dict[str, Any]:
    # protojson leaves out what is 0, and writes numbers of 64 bits as text.
    listed = [{"ID": str(node)} if node else {} for node in nodes]
    return {"memoryType": kind, "size": str(size_bytes), "topology": {"nodes": listed}}


def test_list_and_get(client: Path, tmp_path: Path) -> None:
    async def scenario(ask: Ask) -> None:
        listed, problem = await ask("list")
        assert not problem
        pods = {(pod["namespace"], pod["name"]): pod for pod in listed["podResources"]}
        assert list(pods) == [("default", "job"), ("default", "web-0"), ("kube-system", "agent")]
        (nginx,) = pods["default", "web-0"]["containers"]
        assert nginx == {
            "name": "nginx",
            "cpuIds": ["2", "3"],
            "memory": [memory("hugepages-2Mi", 4 * MIB, 0), memory("memory", GIB, 0)],
            "devices": [DEVICES_JSON],
            "dynamicResources": [
                {
                    "claimName": "nic",
                    "claimNamespace": "default",
                    "claimResources": [
                        {
                            "cdiDevices": [{"name": "example.com/nic=0"}],
                            "driverName": "nic.example.com",
                            "poolName": "node-a",
                            "deviceName": "nic-0",
                            "shareId": "",
                        }
                    ],
                }
            ],
        }
        assert (await ask("get", "default", "web-0"))[0] == {"podResources": pods["default", "web-0"]}

    with_service(tmp_path, client, scenario)


def test_a_pod_that_is_not_there_is_an_error(client: Path, tmp_path: Path) -> None:
    async def scenario(ask: Ask) -> None:
        answer, problem = await ask("get", "default", "gone")
        assert answer is None
        assert "code = NotFound desc = pod gone in namespace default not found" in problem

    with_service(tmp_path, client, scenario)


def test_allocatable(client: Path, tmp_path: Path) -> None:
    async def scenario(ask: Ask) -> None:
        answer, problem = await ask("allocatable")
        assert not problem
        total_bytes = 4 * GIB - 64 * MIB
        assert answer == {
            "devices": [DEVICES_JSON],
            "cpuIds": [str(number) for number in range(1, 8)],
            "memory": [
                memory("hugepages-2Mi", 64 * MIB, 0),
                memory("memory", total_bytes - GIB, 0),
                memory("memory", 4 * GIB, 1),
            ],
        }

    with_service(tmp_path, client, scenario)
