"""Pools of huge pages that grow and shrink, as kubelet and schedulers see them: by ResourceSlices, by the
NodeResourceTopology and by PodResources each is what the kernel has, whoever it grew for."""

import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest

from bayplan._proto.dra import api_pb2 as dra
from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.cluster.pods import AwaitedPods
from bayplan.agent.cluster.publisher import TopologyPublisher
from bayplan.agent.pod_resources import KubeletPodResources, PodResourcesService
from bayplan.backoff import Backoff
from bayplan.control.resource_claims import ResourceClaims
from bayplan.daemon.pool_growth import IDLE_S
from bayplan.errors import PlacementError
from bayplan.host.devices import ClaimSpecs
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY
from bayplan.quantity import MIB, parse_bytes
from support.agents import serving
from support.conditions import running, until
from support.controllers import Controlled, here
from support.dra_kubelet import DraKubelet, registered
from support.dra_node import DraNode, resource_claim, result
from support.fake_api_server import NODE, TOPOLOGY, FakeApiServer
from support.pool_nodes import PAGES, SIZE, PoolNode, pool_kernel, pool_node
from support.slice_rules import pool_devices

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
ROOM = f"{TOPOLOGY}/v1alpha2/noderesourcetopologies/{NODE}"
NODES = (0, 1)
AMOUNTS = ("capacity", "allocatable", "available")


class PoolDraNode(DraNode):
    """The daemon of such a node has pools that may grow."""

    pools: PoolNode

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[Controlled]:
        async with pool_node(self.directory / "state", pool_kernel(self.directory)) as self.pools:
            made = self.pools.made
            claims = ResourceClaims(
                made.controller.state, made.controller.placements, ClaimSpecs(self.specs), here
            )
            async with serving(made, self.directory / "agent.sock", claims=claims):
                yield made


class Seen:
    """What others see of the pools of a node."""

    def __init__(self, node: PoolDraNode, kubelet: DraKubelet, channel: Any) -> None:
        self.node, self.kubelet, self._channel = node, kubelet, channel

    async def prepare(self, uid: str, *devices: dict[str, Any]) -> str:
        """Have kubelet prepare a claim for which the scheduler allocated *devices*; the problem with it."""
        self.node.api.objects[f"{CLAIMS}/{uid}"] = resource_claim(*devices, uid=uid)
        claim = dra.Claim(namespace="default", uid=uid, name=uid)
        return (await self.kubelet.prepare(claim))[uid].error

    async def release(self, uid: str) -> str:
        claim = dra.Claim(namespace="default", uid=uid, name=uid)
        return (await self.kubelet.unprepare(claim))[uid]

    def of_slices(self, resource: str) -> dict[int, int] | None:
        """What claims hold and can still have."""
        devices = pool_devices(self.node.api.slices())
        key = f"bayplan.dev/{resource.replace('-', '')}"
        if not devices:
            return None
        return {one: parse_bytes(devices[f"numa-{one}"]["capacity"][key]["value"]) for one in NODES}

    def of_topology(self, resource: str, amount: str) -> dict[int, int] | None:
        if ROOM not in self.node.api.objects:
            return None
        found = {
            int(zone["name"].removeprefix("node-")): int(one[amount])
            for zone in self.node.api.objects[ROOM]["zones"]
            for one in zone["resources"]
            if one["name"] == resource
        }
        # What a node has nothing of is not listed.
        return dict.fromkeys(NODES, 0) | found

    async def of_pod_resources(self, resource: str) -> dict[int, int]:
        call = self._channel.unary_unary(
            "/v1.PodResourcesLister/GetAllocatableResources",
            request_serializer=pb.AllocatableResourcesRequest.SerializeToString,
            response_deserializer=pb.AllocatableResourcesResponse.FromString,
        )
        found = dict.fromkeys(NODES, 0)
        for block in (await call(pb.AllocatableResourcesRequest())).memory:
            if block.memory_type == resource:
                found[block.topology.nodes[0].ID] += block.size
        return found

    async def is_what_the_kernel_has(self) -> None:
        """Wait until everybody says of pools and memory what the kernel has."""
        kernel, state = self.node.pools.kernel, self.node.pools.controller.state
        pools = {one: kernel.pages(one, SIZE) * SIZE for one in NODES}
        memory = {one.id: one.memory_bytes - pools[one.id] for one in state.basis.machine.nodes}
        held, claimed = pages_of(state.ledger.entries), pages_of(state.ledger.retained)
        # The scheduler subtracts from a slice what it has allocated to claims.
        for_claims = {one: pools[one] - held[one] for one in NODES}
        await until(lambda: self.of_slices(PAGES) == for_claims)
        free = {one: for_claims[one] - claimed[one] for one in NODES}
        await until(
            lambda: (
                [self.of_topology(PAGES, one) for one in AMOUNTS] == [pools, pools, free]
                and self.of_topology(MEMORY, "allocatable") == memory
            )
        )
        assert await self.of_pod_resources(PAGES) == pools
        assert await self.of_pod_resources(MEMORY) == memory
        self.node.pools.check()


def pages_of(entries: Mapping[str, Entry]) -> dict[int, int]:
    """The bytes of huge pages that *entries* hold on each node, all of them on one."""
    held = dict.fromkeys(NODES, 0)
    for entry in entries.values():
        for nodes, amounts in entry.decision.placement.promise.claimed_parts:
            if PAGES in amounts:
                (one,) = nodes
                held[one] += amounts[PAGES]
    return held


@pytest.fixture
def node() -> Iterator[PoolDraNode]:
    api = FakeApiServer()
    # A socket's path has 107 bytes.
    with api.serving(), TemporaryDirectory(prefix="pools") as directory:
        yield PoolDraNode(Path(directory), api)


@asynccontextmanager
async def seen(node: PoolDraNode) -> AsyncIterator[Seen]:
    """The node with all who look at it."""
    quick = Backoff(lambda: 0.0, first_s=0.01, limit_s=0.01)
    async with AsyncExitStack() as parts:
        await parts.enter_async_context(node.daemon())
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
        yield Seen(node, kubelet, channel)


async def test_pools_are_seen_as_they_are_when_they_grow_for_claims_and_shrink(node: PoolDraNode) -> None:
    async with seen(node) as one:
        await one.is_what_the_kernel_has()
        assert one.of_slices(PAGES) == {0: 0, 1: 0}
        kernel = node.pools.kernel
        # The scheduler saw pages that were given back since.
        problem = await one.prepare("first", result(1, memory="64Mi", hugepages2Mi="200Mi"))
        assert problem == ""
        assert (kernel.pages(0, SIZE), kernel.pages(1, SIZE)) == (0, 100)
        await one.is_what_the_kernel_has()
        assert one.of_slices(PAGES) == {0: 0, 1: 200 * MIB}
        # What a container grew a pool for is in it, and no claim can have it.
        await node.pools.place("owner", 50)
        await one.is_what_the_kernel_has()
        assert sum(kernel.pages(place, SIZE) for place in NODES) == 150
        refused = await one.prepare("large", result(0, hugepages2Mi="3Gi"))
        assert "it could have" in refused
        await one.is_what_the_kernel_has()
        assert await one.release("first") == ""
        await node.pools.end("owner")
        await node.pools.pass_time(IDLE_S)
        assert (kernel.pages(0, SIZE), kernel.pages(1, SIZE)) == (0, 0)
        await one.is_what_the_kernel_has()


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_pools_grow_for_all_say_the_same_of_them(node: PoolDraNode, seed: int) -> None:
    draw, containers, claims = random.Random(seed), list[str](), list[str]()
    async with seen(node) as one:
        for number in range(25):
            what = draw.choice(["come", "come", "go", "prepare", "prepare", "release", "time", "short"])
            if what == "come":
                try:
                    await node.pools.place(
                        f"c{number}", draw.choice([0, 10, 100, 400]), draw.choice([64, 900]) * MIB
                    )
                except PlacementError:
                    continue
                containers.append(f"c{number}")
            elif what == "go" and containers:
                await node.pools.end(containers.pop(draw.randrange(len(containers))))
            elif what == "prepare":
                size = f"{draw.choice([2, 50, 300, 900])}Mi"
                device = result(draw.choice(NODES), memory=f"{draw.choice([0, 64])}Mi", hugepages2Mi=size)
                if not await one.prepare(f"claim-{number}", device):
                    claims.append(f"claim-{number}")
            elif what == "release" and claims:
                assert await one.release(claims.pop(draw.randrange(len(claims)))) == ""
            elif what == "time":
                await node.pools.pass_time(draw.choice([1.0, IDLE_S]))
            elif what == "short":
                node.pools.kernel.free_bytes[draw.choice(NODES)] = draw.choice([100, 1000]) * MIB
            await one.is_what_the_kernel_has()
        assert node.pools.kernel.writes
