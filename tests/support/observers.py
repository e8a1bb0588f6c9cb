"""Who looks at a node from outside: a kubelet with a DRA driver, a scheduler by ResourceSlices and by the
NodeResourceTopology, and a reader of PodResources. Each says what a NUMA node has of a resource."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import grpc

from bayplan._proto.dra import api_pb2 as dra
from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.cluster.pods import AwaitedPods
from bayplan.agent.cluster.publisher import TopologyPublisher
from bayplan.agent.pod_resources import KubeletPodResources, PodResourcesService
from bayplan.backoff import Backoff
from bayplan.quantity import parse_bytes
from support.conditions import running, until
from support.dra_kubelet import DraKubelet, registered
from support.dra_node import DraNode, resource_claim
from support.fake_api_server import NODE, TOPOLOGY
from support.slice_rules import pool_devices

CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
ROOM: Final = f"{TOPOLOGY}/v1alpha2/noderesourcetopologies/{NODE}"


class Observers:
    """What they see; a node that has nothing of a resource is left out."""

    def __init__(self, node: DraNode, kubelet: DraKubelet, channel: Any) -> None:
        self.node, self._kubelet, self._channel = node, kubelet, channel
        self.cdi_devices: dict[str, tuple[str, ...]] = {}
        """By claim, what its containers are to have."""

    async def prepare(self, uid: str, *devices: dict[str, Any], pod: str = "web") -> str:
        """Have kubelet prepare a claim for which the scheduler allocated *devices*; the problem with it."""
        self.node.api.objects[f"{CLAIMS}/{uid}"] = resource_claim(*devices, uid=uid, pods=(pod,))
        claim = dra.Claim(namespace="default", uid=uid, name=uid)
        answer = (await self._kubelet.prepare(claim))[uid]
        self.cdi_devices[uid] = tuple(name for one in answer.devices for name in one.cdi_device_ids)
        return answer.error

    async def release(self, uid: str) -> str:
        """Have kubelet release the claim; the problem with it."""
        claim = dra.Claim(namespace="default", uid=uid, name=uid)
        return (await self._kubelet.unprepare(claim))[uid]

    def of_slices(self, resource: str) -> dict[int, int]:
        """What claims hold and can still have."""
        found = {
            int(name.removeprefix("numa-")): parse_bytes(one["capacity"][key]["value"])
            for name, one in (pool_devices(self.node.api.slices()) or {}).items()
            if (key := f"bayplan.dev/{resource.replace('-', '')}") in one["capacity"]
        }
        return {node: amount for node, amount in found.items() if amount}

    def of_topology(self, resource: str, amount: str) -> dict[int, int]:
        """Its capacity, or what is allocatable or available."""
        zones = self.node.api.objects.get(ROOM, {}).get("zones", ())
        found = {
            int(zone["name"].removeprefix("node-")): int(one[amount])
            for zone in zones
            for one in zone["resources"]
            if one["name"] == resource
        }
        return {node: size for node, size in found.items() if size}

    async def of_pod_resources(self, resource: str) -> dict[int, int]:
        """What containers can be assigned in all."""
        call = self._channel.unary_unary(
            "/v1.PodResourcesLister/GetAllocatableResources",
            request_serializer=pb.AllocatableResourcesRequest.SerializeToString,
            response_deserializer=pb.AllocatableResourcesResponse.FromString,
        )
        found = Counter[int]()
        for block in (await call(pb.AllocatableResourcesRequest())).memory:
            if block.memory_type == resource:
                found[block.topology.nodes[0].ID] += block.size
        return dict(found)


@asynccontextmanager
async def observed(node: DraNode) -> AsyncIterator[Observers]:
    """The agent of *node*, whose daemon runs, and all who look."""
    quick = Backoff(lambda: 0.0, first_s=0.01, limit_s=0.01)
    async with AsyncExitStack() as parts:
        mirror = await parts.enter_async_context(node.agent())
        publisher = TopologyPublisher(node.api.api(), mirror, AwaitedPods(), NODE, None, 0.01, 3600, quick)
        await parts.enter_async_context(running(publisher))
        socket = node.directory / "pod-resources.sock"
        service = PodResourcesService(socket, lambda: mirror.snapshot, KubeletPodResources(None))
        await service.start()
        parts.push_async_callback(service.close)
        channel = await parts.enter_async_context(grpc.aio.insecure_channel(f"unix:{socket}"))
        kubelet = await parts.enter_async_context(registered(node.registry))
        await until(lambda: mirror.connected)
        yield Observers(node, kubelet, channel)
