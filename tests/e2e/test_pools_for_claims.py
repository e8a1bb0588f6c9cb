"""A resource claim of huge pages on a kernel whose pool is too small for it by then: kubelet, scheduler and
API server are played here, with the agent; the daemon, its kernel and containerd are the guest's."""

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import grpc
import pytest
from testbed.agent import GROUP
from testbed.channel import LIMIT_S
from testbed.node import Node
from testbed.pods import MIB, best_effort
from testbed.scenario import on
from testbed.topology import FOUR_NODES, THIS_MACHINE

from support.dra_node import DraNode, result
from support.fake_api_server import FakeApiServer
from support.observers import Observers, observed

PAGES = "hugepages-2Mi"
UID = "0b1c2d3e-0000-4000-8000-000000000001"
POLL_S = 0.5


class Pools(NamedTuple):
    """What is there: the pages of each node, where the claim is, and a cgroup's limit, if it has one."""

    before: dict[int, int]
    place: int
    limit: str = ""


async def all_see(one: Observers, pages: dict[int, int]) -> None:
    """Wait until slices, topology and PodResources have pools of so many pages."""
    wanted = {node: count * 2 * MIB for node, count in pages.items() if count}
    deadline = time.monotonic() + LIMIT_S
    while (seen := await views(one)) != [wanted] * 3:
        assert time.monotonic() < deadline, seen
        await asyncio.sleep(POLL_S)


async def views(one: Observers) -> list[dict[int, int]]:
    """What each sees of the pools; a reader that is told that the daemon is away sees nothing."""
    try:
        read = await one.of_pod_resources(PAGES)
    except grpc.aio.AioRpcError:
        read = {}
    return [one.of_slices(PAGES), one.of_topology(PAGES, "capacity"), read]


async def a_claim_has_its_pages(node: Node, driver: DraNode, pools: Pools) -> None:
    """The claim is of 40Mi more than the pool has, and its container touches all but a page of it."""
    do, grown = asyncio.to_thread, pools.before | {pools.place: pools.before[pools.place] + 20}
    claimed_mib = grown[pools.place] * 2
    async with observed(driver) as one:
        await all_see(one, pools.before)
        pod = best_effort("owner")
        pages = result(pools.place, memory="64Mi", hugepages2Mi=f"{claimed_mib}Mi")
        assert await one.prepare(UID, pages, pod=pod.uid) == ""
        assert await do(node.kernel.hugepages_of_nodes) == grown
        await all_see(one, grown)
        refused = await one.prepare("large", result(pools.place, hugepages2Mi="500Mi"))
        assert "it could have" in refused
        (container,) = pod.touching(f"{claimed_mib - 2}Mi", hugepages="2Mi").containers
        having = replace(container, cdi_devices=one.cdi_devices[UID])
        sandbox = await do(node.crictl.run_sandbox, pod)
        if pools.limit:
            # As kubelet leaves it that started before the pool grew.
            await do(node.guest.write, f"/sys/fs/cgroup/kubepods/{pools.limit}", str(20 * MIB))
        owner = await do(node.crictl.create, sandbox, pod, having)
        await do(node.crictl.start, owner)
        await do(node.guest.await_text, f"/var/log/pods/{pod.name}/main.log", "touched")
        assert (await do(node.view, owner)).mems_allowed == {pools.place}
        pool = f"/sys/devices/system/node/node{pools.place}/hugepages/hugepages-2048kB"
        assert await do(node.guest.read, f"{pool}/free_hugepages") == "1\n"
        # It is the kernel that has them: a daemon that comes anew finds pool and claim.
        await do(node.bayplan.kill)
        await do(node.bayplan.start_again)
        await do(node.bayplan.await_synchronized)
        await all_see(one, grown)
        await do(node.crictl.remove_sandbox, sandbox)
        deadline = time.monotonic() + LIMIT_S
        while await one.release(UID):
            assert time.monotonic() < deadline
            await asyncio.sleep(POLL_S)
        await all_see(one, pools.before)
        assert await do(node.kernel.hugepages_of_nodes) == pools.before


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_a_pool_of_huge_pages_grows_for_a_claim_and_all_see_it(node: Node) -> None:
    """Each node has 32 pages of 2Mi; the scheduler saw more than that."""
    before = dict.fromkeys(range(4), 32)
    play(node, Pools(before, 1, "hugetlb.2MB.max"), "0-3:hugepages-2Mi=64Mi-512Mi")


@on(THIS_MACHINE, "2.4-nri")
def test_a_pool_grows_for_a_claim_from_nothing(node: Node) -> None:
    """On this machine's kernel, which has one node here."""
    play(node, Pools({0: 0}, 0), "0:hugepages-2Mi=0-64Mi")


def play(node: Node, pools: Pools, flag: str) -> None:
    node.bayplan.start("--hugepage-pools", flag, "--agent-group", GROUP)
    node.bayplan.await_synchronized()
    api = FakeApiServer()
    with ExitStack() as serving:
        directory = Path(serving.enter_context(TemporaryDirectory(prefix="claims")))
        serving.enter_context(api.serving())
        (directory / "agent.sock").symlink_to(node.guest.forwarded("/run/bayplan/agent.sock"))
        asyncio.run(a_claim_has_its_pages(node, DraNode(directory, api), pools))
