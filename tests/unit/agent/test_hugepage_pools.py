"""Pools of huge pages that grow and shrink, as kubelet and schedulers see them: by ResourceSlices, by the
NodeResourceTopology and by PodResources each is what the kernel has, whoever it grew for."""

import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bayplan.control.resource_claims import ResourceClaims
from bayplan.daemon.pool_growth import IDLE_S
from bayplan.errors import PlacementError
from bayplan.host.devices import ClaimSpecs
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY
from bayplan.quantity import MIB
from support.agents import serving
from support.conditions import until
from support.controllers import Controlled, here
from support.dra_node import DraNode, result
from support.fake_api_server import FakeApiServer
from support.observers import Observers, observed
from support.pool_nodes import PAGES, SIZE, PoolNode, pool_kernel, pool_node

NODES = (0, 1)
AMOUNTS = ("capacity", "allocatable", "available")


class PoolDraNode(DraNode):
    """A DRA node whose daemon has pools that may grow."""

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


@pytest.fixture
def node() -> Iterator[PoolDraNode]:
    api = FakeApiServer()
    # A socket's path has 107 bytes.
    with api.serving(), TemporaryDirectory(prefix="pools") as directory:
        yield PoolDraNode(Path(directory), api)


def pages_of(entries: Mapping[str, Entry]) -> dict[int, int]:
    """The bytes of huge pages that *entries* hold on each node, all of them on one."""
    held = dict.fromkeys(NODES, 0)
    for entry in entries.values():
        for nodes, amounts in entry.decision.placement.promise.claimed_parts:
            if PAGES in amounts:
                (one,) = nodes
                held[one] += amounts[PAGES]
    return held


def some(amounts: Mapping[int, int]) -> dict[int, int]:
    """Without those of nothing."""
    return {node: amount for node, amount in amounts.items() if amount}


async def all_say_what_the_kernel_has(one: Observers, node: PoolNode) -> None:
    """Wait until everybody says of pools and memory what the kernel has."""
    state = node.controller.state
    pools = {place: node.kernel.pages(place, SIZE) * SIZE for place in NODES}
    memory = {here.id: here.memory_bytes - pools[here.id] for here in state.basis.machine.nodes}
    held, claimed = pages_of(state.ledger.entries), pages_of(state.ledger.retained)
    # The scheduler subtracts from a slice what it has allocated to claims.
    for_claims = {place: pools[place] - held[place] for place in NODES}
    free = {place: for_claims[place] - claimed[place] for place in NODES}
    wanted = [some(pools), some(pools), some(free)]
    await until(lambda: one.of_slices(PAGES) == some(for_claims))
    await until(lambda: one.of_topology(MEMORY, "allocatable") == memory)
    await until(lambda: [one.of_topology(PAGES, amount) for amount in AMOUNTS] == wanted)
    assert await one.of_pod_resources(PAGES) == some(pools)
    assert await one.of_pod_resources(MEMORY) == memory
    node.check()


async def test_pools_are_seen_as_they_are_when_they_grow_for_claims_and_shrink(node: PoolDraNode) -> None:
    async with node.daemon(), observed(node) as one:
        pools, kernel = node.pools, node.pools.kernel
        await all_say_what_the_kernel_has(one, pools)
        assert one.of_slices(PAGES) == {}
        # The scheduler saw pages that were given back since.
        problem = await one.prepare("first", result(1, memory="64Mi", hugepages2Mi="200Mi"))
        assert problem == ""
        assert (kernel.pages(0, SIZE), kernel.pages(1, SIZE)) == (0, 100)
        await all_say_what_the_kernel_has(one, pools)
        assert one.of_slices(PAGES) == {1: 200 * MIB}
        # What a container grew a pool for is in it, and no claim can have it.
        await pools.place("owner", 50)
        await all_say_what_the_kernel_has(one, pools)
        assert sum(kernel.pages(place, SIZE) for place in NODES) == 150
        refused = await one.prepare("large", result(0, hugepages2Mi="3Gi"))
        assert "it could have" in refused
        await all_say_what_the_kernel_has(one, pools)
        assert await one.release("first") == ""
        await pools.end("owner")
        await pools.pass_time(IDLE_S)
        assert (kernel.pages(0, SIZE), kernel.pages(1, SIZE)) == (0, 0)
        await all_say_what_the_kernel_has(one, pools)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_pools_grow_for_all_say_the_same_of_them(node: PoolDraNode, seed: int) -> None:
    draw, containers, claims = random.Random(seed), list[str](), list[str]()
    async with node.daemon(), observed(node) as one:
        pools = node.pools
        for number in range(15):
            what = draw.choice(["come", "come", "go", "prepare", "prepare", "release", "time", "short"])
            if what == "come":
                pages, memory = draw.choice([0, 10, 100, 400]), draw.choice([64, 900]) * MIB
                try:
                    await pools.place(f"c{number}", pages, memory)
                except PlacementError:
                    continue
                containers.append(f"c{number}")
            elif what == "go" and containers:
                await pools.end(containers.pop(draw.randrange(len(containers))))
            elif what == "prepare":
                size = f"{draw.choice([2, 50, 300, 900])}Mi"
                device = result(draw.choice(NODES), memory=f"{draw.choice([0, 64])}Mi", hugepages2Mi=size)
                if not await one.prepare(f"claim-{number}", device):
                    claims.append(f"claim-{number}")
            elif what == "release" and claims:
                assert await one.release(claims.pop(draw.randrange(len(claims)))) == ""
            elif what == "time":
                await pools.pass_time(draw.choice([1.0, IDLE_S]))
            elif what == "short":
                pools.kernel.free_bytes[draw.choice(NODES)] = draw.choice([100, 1000]) * MIB
            await all_say_what_the_kernel_has(one, pools)
        assert pools.kernel.writes
