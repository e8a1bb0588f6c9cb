"""What the agent says of requests: used at the creation, or corrected later; never a reason for anything
else."""

import asyncio
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.control.known_containers import NOT_USED
from bayplan.control.placements import ExactRequests
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import StateError
from bayplan.model.decision import OVERCOMMITTED, QosClass, Request
from bayplan.model.kubelet_requests import BY_KUBELET, ContainerKind, PodFacts
from bayplan.model.machine import MEMORY
from bayplan.model.resources import Resources
from bayplan.model.workload import Pod
from bayplan.nri import Event
from bayplan.quantity import GIB, MIB
from support.controllers import MACHINE, Controlled, begun, controlled, full_disk
from support.kubelet_pods import amounts, asked, facts, kubelet_pod, sandbox
from support.machines import container, pod

CAPACITY = MACHINE.memory_bytes
ONE = kubelet_pod(facts("a", 101 * MIB, GIB))
TWO = kubelet_pod(facts("a", 51 * MIB, kind=ContainerKind.SIDECAR), facts("b", 333 * MIB))


async def create(one: Controlled, described: PodFacts, *names: str) -> None:
    for name in names:
        await begun(one.controller, sandbox(described), asked(described, name, CAPACITY))


def say(one: Controlled, described: PodFacts) -> None:
    one.controller.state.kubelet_pods.update(described)


def request(one: Controlled, name: str = "a") -> Request:
    return one.controller.state.ledger.entries[name].decision.request


def claimed(one: Controlled, name: str = "a") -> int:
    claim = one.controller.state.ledger.entries[name].decision.placement.claim
    assert claim is not None
    return claim.amounts_bytes.get(MEMORY, 0)


def codes(one: Controlled, name: str = "a") -> list[str]:
    return [reason.code for reason in one.controller.state.ledger.entries[name].decision.reasons]


async def test_what_is_known_before_the_creation_is_used_there(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        say(one, TWO)
        await create(one, TWO, "a", "b")
        assert (claimed(one, "a"), claimed(one, "b")) == (51 * MIB, 333 * MIB)
        assert request(one, "a").memory.source == BY_KUBELET


@pytest.mark.parametrize("engine", [ExactEngine(), KubeletEngine()])
async def test_what_comes_later_corrects_the_claim_and_moves_nothing(tmp_path: Path, engine: Engine) -> None:
    async with controlled(tmp_path, engine=engine) as one:
        await create(one, TWO, "a", "b")
        before = {key: entry.decision.placement for key, entry in one.controller.state.ledger.entries.items()}
        exact = ExactRequests(one.controller.state)
        say(one, TWO)
        await exact.correct()
        assert request(one, "a").memory.high_bytes == 51 * MIB
        assert request(one, "b").memory.high_bytes == 333 * MIB
        for key, entry in one.controller.state.ledger.entries.items():
            placement = entry.decision.placement
            assert placement.mems == before[key].mems
            assert placement.exclusive_cpus == before[key].exclusive_cpus
            if placement.claim is not None:
                assert placement.claim.nodes == before[key].claim.nodes  # type: ignore[union-attr]  # exact always claims
                assert claimed(one, key) == request(one, key).memory.high_bytes
        assert one.controller.state.counters["requests_corrected"] == 2
        await exact.correct()
        assert one.controller.state.counters["requests_corrected"] == 2


async def test_a_correction_outlives_the_daemon_and_the_agent(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await create(one, ONE, "a")
        exact = ExactRequests(one.controller.state)
        say(one, ONE)
        await exact.correct()
    async with controlled(tmp_path) as again:
        assert request(again).memory.source == BY_KUBELET
        listed = asked(ONE, "a", CAPACITY)
        await again.controller.synchronize([sandbox(ONE)], [listed])
        assert claimed(again) == 101 * MIB


async def test_what_was_said_before_the_runtime_lists_its_containers_is_used_then(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        exact = ExactRequests(one.controller.state)
        say(one, ONE)
        await exact.correct()
        await one.controller.synchronize([sandbox(ONE)], [asked(ONE, "a", CAPACITY)])
        await exact.correct()
        assert claimed(one) == 101 * MIB


async def test_a_claim_that_grows_beyond_the_room_is_promised_as_far_as_there_is_some(tmp_path: Path) -> None:
    """The rest is promised once somebody else is gone; nothing moves for it meanwhile."""
    hidden = kubelet_pod(facts("a", 900 * MIB))
    critical = replace(asked(hidden, "a", CAPACITY), oom_score_adj=-997)  # a node-critical pod has no score
    async with controlled(tmp_path) as one:
        await begun(one.controller, sandbox(hidden), critical)
        guaranteed = pod("g", QosClass.GUARANTEED)
        holders = [container(f"h{n}", guaranteed, memory_bytes=800 * MIB, milli_cpus=100) for n in range(2)]
        for holder in holders:
            await begun(one.controller, guaranteed, holder)
        exact = ExactRequests(one.controller.state)
        say(one, hidden)
        await exact.correct()
        assert claimed(one) == CAPACITY - 1600 * MIB
        assert OVERCOMMITTED in codes(one)
        await one.controller.stop_container(guaranteed, holders[0])
        assert claimed(one) == 900 * MIB
        assert OVERCOMMITTED not in codes(one)


async def test_a_lie_is_counted_said_and_changes_nothing(tmp_path: Path) -> None:
    lie = kubelet_pod(facts("a", 700 * MIB, GIB))
    heard: list[tuple[str, str, str]] = []
    async with controlled(tmp_path) as one:
        one.controller.state.kubelet_pods.not_used = lambda *found: heard.append(found)
        say(one, lie)
        await create(one, ONE, "a")
        assert NOT_USED in codes(one)
        before = one.controller.state.ledger
        exact = ExactRequests(one.controller.state)
        say(one, replace(lie, priority=1))
        await exact.correct()
        assert one.controller.state.ledger is before
        assert one.controller.state.counters["agent_requests_not_used"] == 2
        assert [found[:2] for found in heard] == [("web", "a-name")] * 2
        say(one, ONE)
        await exact.correct()
        assert claimed(one) == 101 * MIB


async def test_a_resize_takes_kubelets_word_whether_it_comes_before_or_after(tmp_path: Path) -> None:
    resizing = kubelet_pod(
        facts("a", 101 * MIB, GIB, desired=amounts(207 * MIB, GIB + MIB, 200)), resized=True
    )
    change = Resources(memory_limit_bytes=GIB + MIB, cpu_shares=204)
    spec = asked(ONE, "a", CAPACITY)
    for first in (True, False):
        async with controlled(tmp_path / str(first)) as one:
            say(one, ONE)
            await create(one, ONE, "a")
            exact = ExactRequests(one.controller.state)
            if first:
                say(one, resizing)
                await exact.correct()
                assert claimed(one) == 101 * MIB
            await one.controller.update_container(sandbox(ONE), spec, change)
            if not first:
                assert claimed(one) == 101 * MIB
                say(one, resizing)
                await exact.correct()
            assert claimed(one) == 207 * MIB
            assert one.controller.state.counters["agent_requests_not_used"] == 0


async def test_an_update_of_something_else_is_no_occasion_to_use_the_agents_word(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await create(one, ONE, "a")
        before = one.controller.state.ledger
        say(one, ONE)
        await one.controller.update_container(sandbox(ONE), asked(ONE, "a", CAPACITY), Resources())
        assert one.controller.state.ledger is before


async def test_a_full_disk_leaves_the_promise_and_the_correction_comes_later(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await create(one, ONE, "a")
        before = claimed(one)
        exact = ExactRequests(one.controller.state)
        say(one, ONE)
        with full_disk(one.controller.state.recorder), pytest.raises(StateError):
            await exact.correct()
        assert claimed(one) == before
        await exact.correct()
        assert claimed(one) == 101 * MIB


async def test_what_is_said_while_a_correction_is_recorded_is_not_forgotten(tmp_path: Path) -> None:
    later = kubelet_pod(facts("a", 155 * MIB, GIB), resized=True)
    async with controlled(tmp_path) as one:
        await create(one, ONE, "a")
        exact = ExactRequests(one.controller.state)
        say(one, ONE)
        disk = threading.Event()
        one.controller.state.recorder._thread.submit(disk.wait)
        correcting = asyncio.create_task(exact.correct())
        while not one.controller.state._lock.locked():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        say(one, later)
        disk.set()
        await correcting
        assert claimed(one) == 155 * MIB


async def test_the_agent_is_asked_about_each_pod_that_starts_or_changes(tmp_path: Path) -> None:
    wanted: list[Pod] = []
    async with controlled(tmp_path) as one:
        one.controller.state.kubelet_pods.wanted = wanted.append
        await one.controller.state_changed(Event.RUN_POD_SANDBOX, sandbox(ONE), None)
        assert wanted == [sandbox(ONE)]
        await create(one, ONE, "a")
        change = Resources(memory_limit_bytes=GIB + MIB)
        await one.controller.update_container(sandbox(ONE), asked(ONE, "a", CAPACITY), change)
        assert wanted == [sandbox(ONE)] * 2


async def test_corrections_come_by_themselves(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await create(one, ONE, "a")
        exact = ExactRequests(one.controller.state)
        following = asyncio.create_task(exact.follow(pause_s=0))
        say(one, ONE)
        while claimed(one) != 101 * MIB:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
