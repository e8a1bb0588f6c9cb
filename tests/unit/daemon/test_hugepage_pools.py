"""Pools of huge pages that grow for containers and shrink when idle, on a kernel: promises, kernel and what
decisions see agree after every step, also after one in which the daemon was killed.

Two nodes of 4 GiB without huge pages, whose pools of 2Mi may grow to 2 GiB.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.admin.questions import rehearsing
from bayplan.admin.snapshot_source import snapshot_of
from bayplan.control.resource_claims import ResourceClaims
from bayplan.daemon.pool_growth import IDLE_S, HugepagePools
from bayplan.engines.exact.engine import ExactEngine
from bayplan.errors import PlacementError
from bayplan.host import shadow_mode
from bayplan.host.devices import ClaimSpecs
from bayplan.host.hugepage_files import HugepageFiles
from bayplan.model.decision import MOVES_WAIT, Decision, QosClass
from bayplan.model.machine import MEMORY
from bayplan.model.policy import Defragment, PoolBounds, TopologyPolicy
from bayplan.model.sentences import pages_to_be_had, pools_grown, stays_scattered
from bayplan.nri import Event
from bayplan.placement.hugepage_pools import POOL_GROWN, POOL_LIMIT
from bayplan.placement.resource_claims import CLAIMED
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.controllers import by_hook, full_disk, here
from support.hugepage_kernel import KilledError
from support.machines import pod
from support.pool_nodes import FREE, PAGES, SETTINGS, SIZE, PoolNode, pool_kernel, pool_node, with_pages
from support.resource_claims import claim, device


def codes(decision: Decision) -> set[str]:
    return {reason.code for reason in decision.reasons}


async def test_a_pool_grows_for_a_container_by_what_it_lacks(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        first = await one.place("first", 100)
        assert POOL_GROWN in codes(first)
        assert one.kernel.pages(0, SIZE) + one.kernel.pages(1, SIZE) == 100
        await one.place("second", 50)
        assert one.kernel.pages(0, SIZE) == 150
        assert one.controller.state.counters["hugepage_pools_grown"] == 2
        one.check()


async def test_memory_that_is_promised_becomes_no_huge_page(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        for name in "abcd":
            await one.place(name, 0, 1800 * MIB)
        with pytest.raises(PlacementError, match=PAGES):
            await one.place("pages", 300)
        assert one.kernel.writes == []
        await one.place("fewer", 200)
        one.check()


async def test_a_pool_grows_to_its_greatest_size_and_the_refusal_says_what_could_be_had(
    tmp_path: Path,
) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        with pytest.raises(PlacementError) as refused:
            await one.place("large", 1025)
        assert "2Gi on each of nodes 0-1" in str(refused.value)
        assert one.kernel.writes == []
        await one.place("largest", 1024)
        one.check()


async def test_a_kernel_that_gives_fewer_pages_leads_to_a_refusal_that_names_them(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path, {0: 300 * MIB, 1: 300 * MIB})) as one:
        with pytest.raises(PlacementError) as refused:
            await one.place("large", 200)
        assert f"{PAGES} on node 0" in str(refused.value)
        assert one.kernel.pages(0, SIZE) == 150
        one.check()
        assert one.controller.state.counters["hugepage_pools_short"] == 1
        # It has those that came, and whoever asks for them next does.
        await one.place("smaller", 150)
        assert one.kernel.pages(1, SIZE) == 0
        one.check()


@pytest.mark.parametrize("compaction", [True, False])
async def test_memory_is_made_free_in_large_blocks_first(tmp_path: Path, compaction: bool) -> None:
    there = pool_kernel(tmp_path, {0: 0, 1: 0}, FREE, compaction=compaction)
    async with pool_node(tmp_path, there) as one:
        if compaction:
            await one.place("first", 100)
            assert there.writes[0].endswith("compact 1")
        else:
            with pytest.raises(PlacementError):
                await one.place("first", 100)
            assert one.pools.problems == (stays_scattered(0),)
            there.free_bytes[0] = GIB
            there.show_blocks()
            await one.place("second", 100)
            assert one.pools.problems == ()
        one.check()


async def resize(one: PoolNode, name: str, pages: int, memory: int = 64 * MIB) -> Decision:
    owner = pod(name, QosClass.GUARANTEED)
    change = replace(with_pages(name, pages, memory).resources, hugepage_limits_bytes={SIZE: pages * SIZE})
    await one.controller.update_container(owner, one.controller.state.known.containers[name], change)
    return one.controller.state.ledger.entries[name].decision


async def test_a_pool_grows_for_a_resize_where_the_container_is(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        await one.place("other", 0, 3 * GIB)
        before = await one.place("first", 10)
        assert before.placement.mems is not None
        (home,) = before.placement.mems
        more = await resize(one, "first", 200)
        assert POOL_GROWN in codes(more)
        assert more.placement.mems == before.placement.mems
        assert one.kernel.pages(home, SIZE) == 200
        assert more.placement.claimed.amounts_bytes[PAGES] == 200 * SIZE
        assert one.controller.state.counters["hugepage_pools_grown"] == 2
        one.check()
        less = await resize(one, "first", 20)
        assert less.placement.claimed.amounts_bytes[PAGES] == 20 * SIZE
        await one.pass_time(IDLE_S)
        assert one.kernel.pages(home, SIZE) == 20
        one.check()


async def test_a_refused_resize_says_what_could_be_had_and_changes_nothing(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        before = await one.place("first", 10)
        with pytest.raises(PlacementError) as refused:
            await resize(one, "first", 1025)
        assert "2Gi on each of nodes 0-1" in str(refused.value)
        assert one.controller.state.ledger.entries["first"].decision == before
        one.check()


async def test_a_resize_takes_no_memory_that_the_container_holds_until_then(tmp_path: Path) -> None:
    """It gives back memory and asks for pages: until that is recorded it may keep the memory."""
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        await one.place("other", 0, 4 * GIB)
        before = await one.place("first", 10, 3 * GIB)
        written = len(one.kernel.writes)
        with pytest.raises(PlacementError):
            await resize(one, "first", 900, GIB)
        assert len(one.kernel.writes) == written
        assert one.controller.state.ledger.entries["first"].decision == before
        await resize(one, "first", 10, GIB)
        await resize(one, "first", 900, GIB)
        one.check()


@pytest.mark.parametrize("killed_at", range(3))
async def test_a_daemon_that_is_killed_in_a_resize_keeps_what_was_promised(
    tmp_path: Path, killed_at: int
) -> None:
    there = pool_kernel(tmp_path)
    async with pool_node(tmp_path, there) as one:
        await one.place("other", 0, 4 * GIB)
        before = await one.place("first", 10, 2 * GIB)
        there.killed_at = 2 * len(there.writes) + killed_at
        with pytest.raises(KilledError):
            await resize(one, "first", 500, GIB)
    there.killed_at = None
    async with pool_node(tmp_path, there) as one:
        one.check()
        assert one.controller.state.ledger.entries["first"].decision.own_bytes == before.own_bytes
        await one.controller.synchronize(
            [pod(name, QosClass.GUARANTEED) for name in ("first", "other")],
            [with_pages("first", 10, 2 * GIB), with_pages("other", 0, 4 * GIB)],
        )
        await resize(one, "first", 500, GIB)
        assert there.pages(1, SIZE) == 500
        one.check()


async def test_a_pool_that_shrank_since_the_scheduler_saw_it_grows_for_a_claim(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        state, specs = one.controller.state, ClaimSpecs(tmp_path / "cdi")
        claims = ResourceClaims(state, one.controller.placements, specs, here)
        held = await claims.prepare(claim(device(1, 64, hugepages_2Mi=200), device(0, hugepages_2Mi=50)))
        assert (one.kernel.pages(0, SIZE), one.kernel.pages(1, SIZE)) == (25, 100)
        entry = state.ledger.retained[held.claim.key]
        assert {CLAIMED, POOL_GROWN} <= codes(entry.decision)
        one.check()
        await one.pass_time(IDLE_S)
        assert (one.kernel.pages(0, SIZE), one.kernel.pages(1, SIZE)) == (25, 100)
        with pytest.raises(PlacementError) as refused:
            await claims.prepare(claim(device(1, hugepages_2Mi=2000), uid="large", pod="other"))
        assert "1848Mi on node 1" in str(refused.value)
        assert await claims.release(held.claim.uid)
        await one.pass_time(IDLE_S)
        assert (one.kernel.pages(0, SIZE), one.kernel.pages(1, SIZE)) == (0, 0)
        one.check()


async def test_a_claim_that_lacks_something_else_changes_no_pool(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        claims = ResourceClaims(
            one.controller.state, one.controller.placements, ClaimSpecs(tmp_path / "cdi"), here
        )
        with pytest.raises(PlacementError):
            await claims.prepare(claim(device(1, 5000, hugepages_2Mi=20)))
        with pytest.raises(PlacementError):
            await claims.prepare(claim(device(1, 64, cpus=9, hugepages_2Mi=20)))
        assert one.kernel.writes == []


async def test_what_nobody_needs_for_a_minute_is_memory_again(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        await one.place("first", 100)
        await one.place("second", 50)
        await one.end("first")
        await one.pass_time(IDLE_S - 1)
        assert one.kernel.pages(0, SIZE) == 150
        await one.place("third", 20)
        await one.pass_time(2)
        assert one.kernel.pages(0, SIZE) == 70
        one.kernel.use(0, SIZE, 60)
        for name in ("second", "third"):
            await one.end(name)
        await one.pass_time(IDLE_S)
        assert one.kernel.pages(0, SIZE) == 60
        one.check()


async def test_a_pool_is_never_below_its_minimum(tmp_path: Path) -> None:
    bounds = {0: {SIZE: PoolBounds(64 * MIB, GIB)}, 1: {SIZE: PoolBounds(0, 0)}}
    async with pool_node(tmp_path, pool_kernel(tmp_path), replace(SETTINGS, hugepage_pools=bounds)) as one:
        await one.pools.look()
        assert one.kernel.pages(0, SIZE) == 32
        await one.place("first", 100)
        await one.end("first")
        await one.pass_time(IDLE_S)
        assert (one.kernel.pages(0, SIZE), one.kernel.pages(1, SIZE)) == (32, 0)
        one.check()


async def test_pools_that_nobody_configured_stay(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path), replace(SETTINGS, hugepage_pools={})) as one:
        with pytest.raises(PlacementError):
            await one.place("first", 1)
        await one.pass_time(IDLE_S)
        assert one.kernel.writes == []


async def test_shadow_mode_changes_no_pool(tmp_path: Path) -> None:
    there = pool_kernel(tmp_path)
    with shadow_mode.shadow_mode():
        async with pool_node(tmp_path, there) as one:
            with pytest.raises(PlacementError):
                await one.place("first", 10)
            await one.pass_time(IDLE_S)
    assert there.writes == []


async def test_a_kernel_that_refuses_is_a_problem_that_status_names(tmp_path: Path) -> None:
    there = pool_kernel(tmp_path)
    there.refuses = "Read-only file system"
    async with pool_node(tmp_path, there) as one:
        with pytest.raises(PlacementError):
            await one.place("first", 10)
        assert "nr_hugepages" in one.pools.problems[0]
        there.refuses = ""
        await one.place("first", 10)
        assert one.pools.problems == ()


async def test_a_promise_that_the_disk_does_not_take_leaves_an_idle_pool(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        owner = pod("first", QosClass.GUARANTEED)
        with full_disk(one.controller.state.recorder), pytest.raises(Exception, match="full"):
            await by_hook(one.controller, owner, with_pages("first", 100, 64 * MIB))
        assert one.kernel.pages(0, SIZE) == 100
        one.check()
        await one.pass_time(IDLE_S)
        assert one.kernel.pages(0, SIZE) == 0
        one.check()


async def test_a_cancelled_creation_waits_for_the_kernel_and_begins_no_new_portion(tmp_path: Path) -> None:
    """Nobody is promised anything while a pool is being changed."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(work: Callable[[], object]) -> object:
        if getattr(getattr(work, "func", None), "__name__", "") == "resize":
            begun.set()
            await go_on.wait()
        return work()

    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        files = HugepageFiles(one.kernel.root, one.kernel.write)
        pools = HugepagePools(one.controller.state, one.hardware, files, slowly, here, 1.0)  # type: ignore[arg-type]  # of any result
        one.made.grow_pools = pools.grow
        creating = asyncio.create_task(one.place("first", 800))
        await begun.wait()
        other = asyncio.create_task(one.place("other", 0, 3 * GIB))
        creating.cancel()
        await asyncio.sleep(0.01)
        assert not creating.done()
        assert not other.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await creating
        await other
        assert one.kernel.writes == []
        one.check()


@pytest.mark.parametrize("killed_at", range(9))
async def test_a_daemon_that_is_killed_in_any_step_finds_the_pools_as_they_are(
    tmp_path: Path, killed_at: int
) -> None:
    """Growth by 900 pages takes eight writes, each of which the daemon sees done or not."""
    there = pool_kernel(tmp_path)
    async with pool_node(tmp_path, there) as one:
        await one.place("memory", 0, 3 * GIB)
        there.killed_at = killed_at
        try:
            await one.place("first", 900)
        except KilledError:
            pass
        else:
            pytest.fail("the growth took fewer steps")
    there.killed_at = None
    async with pool_node(tmp_path, there) as one:
        one.check()
        assert set(one.controller.state.ledger.entries) == {"memory"}
        await one.place("first", 900)
        one.check()
        await one.end("first")
        there.killed_at = 2 * len(there.writes) + killed_at % 6
        with pytest.raises(KilledError):
            await one.pass_time(IDLE_S)
    there.killed_at = None
    async with pool_node(tmp_path, there) as one:
        one.check()
        await one.pass_time(IDLE_S)
        assert there.pages(0, SIZE) == there.pages(1, SIZE) == 0
        # All of it is memory again.
        assert (await one.place("other", 0, 4 * GIB)).placement.mems == NodeSet([1])
        one.check()


async def test_a_reading_of_the_machine_that_a_growth_overtook_is_made_again(tmp_path: Path) -> None:
    there, held = pool_kernel(tmp_path), asyncio.Event()
    async with pool_node(tmp_path, there) as one:
        seen: list[int] = []

        async def overtaken(work: Callable[[], object]) -> object:
            found = work()
            seen.append(1)
            await held.wait()
            return found

        one.hardware._in_thread = overtaken  # type: ignore[assignment]  # a thread that is late
        reading = asyncio.create_task(one.hardware.reread(frozenset({"memory"})))
        await asyncio.sleep(0)
        await one.place("first", 100)
        held.set()
        await reading
        assert len(seen) == 2
        one.check()


async def test_all_memory_can_be_had_beside_the_pages(tmp_path: Path) -> None:
    async with pool_node(tmp_path, pool_kernel(tmp_path)) as one:
        await one.place("first", 512)
        await one.place("second", 0, 3 * GIB)
        with pytest.raises(PlacementError):
            await one.place("third", 0, 4 * GIB + SIZE)
        free = one.controller.state.basis.allocatable.bytes_by_node[0]
        assert (free[MEMORY], free[PAGES]) == (3 * GIB, GIB)


async def test_the_limit_is_said_where_a_container_is_placed_all_the_same(tmp_path: Path) -> None:
    settings = replace(SETTINGS, topology=TopologyPolicy.BEST_EFFORT)
    async with pool_node(tmp_path, pool_kernel(tmp_path), settings) as one:
        decision = await one.place("both", 1500)
        assert decision.placement.mems == NodeSet([0, 1])
        assert POOL_GROWN in codes(decision)
        assert POOL_LIMIT in codes(await one.place("more", 1000))
        one.check()


def test_what_became_of_pools_of_huge_pages() -> None:
    grown = "the pool of hugepages-2Mi on node 1 grew by"
    assert pools_grown(PAGES, 1, 20 * MIB, 20 * MIB) == f"{grown} 20Mi for it"
    fewer = pools_grown(PAGES, 1, 20 * MIB, 6 * MIB)
    assert fewer == f"{grown} 6Mi for it, of 20Mi: the kernel gave no more in time"
    possible = "with all that pools may grow by it could have"
    by_node = {0: 8 * MIB, 1: 8 * MIB, 2: 16 * MIB, 3: 0}
    assert pages_to_be_had({PAGES: by_node, "hugepages-1Gi": {0: 0}}) == (
        f"{possible} 16Mi on node 2 and 8Mi on each of nodes 0-1 of hugepages-2Mi, nothing of hugepages-1Gi"
    )


async def test_what_if_says_of_moves_and_pools_together_what_the_daemon_does(tmp_path: Path) -> None:
    """The moves that make room become known once the pool has grown, and no more may go this hour."""
    settings = replace(SETTINGS, defragment=Defragment.MOVE)
    async with pool_node(tmp_path, pool_kernel(tmp_path), settings) as one:
        one.made.relocations_per_hour = 0
        for name, memory in (("a", 2000 * MIB), ("b", 2000 * MIB), ("c", 1000 * MIB)):
            await one.place(name, 0, memory)
            owner, started = pod(name, QosClass.GUARANTEED), with_pages(name, 0, memory)
            await one.controller.state_changed(Event.POST_START_CONTAINER, owner, started)
        await one.end("b")
        placements = one.controller.placements
        what_if = rehearsing(ExactEngine, placements.policy_ability, placements.moves_obstacle)
        sizes = {"name": "new", "memory": "3000Mi", "cpus": "500m", "hugepages": "2Mi=200Mi"}
        said = await what_if(snapshot_of(one.controller.state, 0, ()), {"sizes": sizes})
        (foretold,) = said["pods"][0]["containers"]
        with pytest.raises(PlacementError):
            await one.place("new", 100, 3000 * MIB)
        ((_, refused),) = await one.controller.state.recorder.history(1, "new")
        assert foretold["outcome"] == refused.outcome.value
        assert (MOVES_WAIT in codes(refused), foretold["plan"] is None) == (True, refused.plan is None)
