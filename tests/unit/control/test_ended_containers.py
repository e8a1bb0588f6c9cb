"""Containers whose end nobody told: released when the kernel has nothing of them, kept as long as it has."""

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bayplan.control.ended_containers import ASK_AFTER_S, CRIO, PATIENCE_S, EndedContainers
from bayplan.errors import UnavailableError
from bayplan.host.container_processes import Occupancy
from bayplan.model.decision import QosClass
from bayplan.model.life import Phase
from bayplan.model.origin import Hook, Precreate, WithoutNri, Wrapper
from bayplan.model.workload import Container
from bayplan.nri import Event
from bayplan.oci.unmanaged_containers import failed_creations
from bayplan.placement.reconcile import AFTER_ITS_END
from bayplan.quantity import GIB
from support.controllers import Controlled, announced, begun, controlled, full_disk, here, runtime
from support.machines import container, pod
from support.oci_node import OciNode

OWNER = pod("g", QosClass.GUARANTEED)
PATH = "/kubepods/podg/crio-x"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def entered(one: Controlled, form: type[WithoutNri], **changes: Any) -> None:
    asked = container("x", OWNER, memory_bytes=GIB // 2, milli_cpus=1000)
    origin = form.of(OWNER, replace(asked, cgroups_path=PATH))
    known: Container = replace(origin.container, pid=changes.pop("pid", 0))
    await announced(one.controller, OWNER, asked, replace(origin, container=known, **changes))


def nobody(runtime: str) -> dict[str, bool]:
    raise UnavailableError(runtime, "nobody listens")


def ended_containers(
    one: Controlled, node: OciNode, clock: Clock, listing: Callable[[str], dict[str, bool]] = nobody
) -> EndedContainers:
    def forget_start(_: str) -> None:
        """No start is expected."""

    occupancy, failed = Occupancy(node.hierarchy, 16), partial(failed_creations, node.root)
    return EndedContainers(one.controller, occupancy, here, listing, failed, forget_start, clock)


async def test_a_hooks_container_is_released_with_its_last_process(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=None) as one:
        node.make_cgroup(PATH)
        node.make_process(42, PATH)
        await entered(one, Hook, pid=42, start_ticks=1000, cgroups={"cpuset": PATH, "memory": PATH})
        look = ended_containers(one, node, Clock()).release_ended
        await look()
        assert set(one.controller.state.ledger.entries) == {"x"}
        # Its first process is gone, but one that it left in the same cgroup is not.
        node.make_process(43, PATH)
        for file in (node.root / "proc/42").iterdir():
            file.unlink()
        await look()
        assert set(one.controller.state.ledger.entries) == {"x"}
        (node.directory(PATH) / "cgroup.procs").write_text("")
        await look()
        assert one.controller.state.ledger.entries == {}
        assert one.controller.state.counters["oci_gone"] == 1


async def test_what_is_gone_is_released_also_when_that_cannot_be_recorded(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=None) as one:
        await entered(one, Hook, pid=42, start_ticks=1000, cgroups={"cpuset": PATH, "memory": PATH})
        with full_disk(one.controller.state.recorder):
            await ended_containers(one, node, Clock()).release_ended()
        assert one.controller.state.ledger.entries == {}
        assert one.controller.state.counters["oci_gone"] == 1


async def test_another_process_with_its_pid_does_not_keep_it(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=None) as one:
        node.make_process(42, "/elsewhere", start_ticks=2000)
        await entered(one, Hook, pid=42, start_ticks=1000, cgroups={"cpuset": PATH, "memory": PATH})
        await ended_containers(one, node, Clock()).release_ended()
        assert one.controller.state.ledger.entries == {}


async def test_a_rewritten_spec_has_time_to_become_a_container_and_none_after_that(tmp_path: Path) -> None:
    node, clock = OciNode(tmp_path / "root"), Clock()
    async with controlled(tmp_path / "state", nri=None) as one:
        await entered(one, Precreate)
        look = ended_containers(one, node, clock).release_ended
        for _ in range(2):
            await look()
            assert set(one.controller.state.ledger.entries) == {"x"}
            clock.now_s += PATIENCE_S - 1
        clock.now_s -= PATIENCE_S - 1
        node.make_cgroup(PATH)
        node.make_process(42, PATH)
        await look()
        assert set(one.controller.state.ledger.entries) == {"x"}
        node.end(42)
        await look()
        assert one.controller.state.ledger.entries == {}

        await entered(one, Precreate)
        await look()
        clock.now_s += PATIENCE_S
        await look()
        assert one.controller.state.ledger.entries == {}


async def test_a_bundle_that_is_gone_becomes_no_container(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state", nri=None) as one:
        bundle = tmp_path / "bundle"
        bundle.mkdir()
        await entered(one, Wrapper, bundle=str(bundle))
        look = ended_containers(one, OciNode(tmp_path / "root"), Clock()).release_ended
        await look()
        assert set(one.controller.state.ledger.entries) == {"x"}
        bundle.rmdir()
        await look()
        assert one.controller.state.ledger.entries == {}


async def test_crio_knows_better_what_it_made(tmp_path: Path) -> None:
    listing = {"x": True}
    async with controlled(tmp_path / "state", nri=None) as one:
        node = OciNode(tmp_path / "root")
        look = ended_containers(one, node, Clock(), lambda _: listing).release_ended
        # The process of a container that CRI-O lists is in a place that we cannot see.
        await entered(one, Hook, pid=42, start_ticks=1000, engine=CRIO)
        await look()
        assert set(one.controller.state.ledger.entries) == {"x"}
        listing["x"] = False
        await look()
        assert one.controller.state.ledger.entries == {}
        # One whose spec was rewritten may still come if CRI-O has not heard of it, and not if it ended.
        await entered(one, Wrapper, engine=CRIO)
        listing.clear()
        await look()
        assert set(one.controller.state.ledger.entries) == {"x"}
        listing["x"] = False
        await look()
        assert one.controller.state.ledger.entries == {}


async def test_crio_is_asked_only_about_its_own(tmp_path: Path) -> None:
    asked = []

    def listing(_: str) -> dict[str, bool]:
        asked.append(1)
        return {}

    async with controlled(tmp_path / "state", nri=None) as one:
        look = ended_containers(one, OciNode(tmp_path / "root"), Clock(), listing).release_ended
        await entered(one, Precreate, engine="libpod")
        await look()
        assert asked == []
        await entered(one, Precreate, engine=CRIO)
        await look()
        assert asked == [1]


# ---- Of NRI --------------------------------------------------------------------------------------------


OURS = replace(container("n", OWNER, memory_bytes=GIB // 4, milli_cpus=1000), cgroups_path=PATH)


async def test_who_had_a_process_and_has_none_has_ended_although_no_event_says_so(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state") as one:
        one.kernel = node.hierarchy
        look = ended_containers(one, node, Clock()).release_ended
        await one.controller.create_container(OWNER, OURS)
        await one.controller.state_changed(Event.POST_CREATE_CONTAINER, OWNER, OURS)
        await look()
        assert one.controller.state.ledger.exclusive_cpus
        node.make_cgroup(PATH)
        node.make_process(42, PATH)
        await one.controller.state_changed(Event.START_CONTAINER, OWNER, OURS)
        node.end(42)
        await look()
        assert one.controller.state.ledger.entries == {}
        assert one.controller.state.counters["nri_gone"] == 1
        # The events come all the same.
        await one.controller.state_changed(Event.POST_START_CONTAINER, OWNER, OURS)
        await one.controller.stop_container(OWNER, OURS)
        assert one.controller.state.ledger.entries == {}
        assert one.controller.state.counters["reported_after_end"] == 1
        assert one.controller.state.counters["found_containers"] == 0


async def test_the_runtime_is_asked_about_those_that_never_had_one(tmp_path: Path) -> None:
    node, clock, asked = OciNode(tmp_path / "root"), Clock(), list[float]()
    listing = {"n": True}

    def listed(runtime: str) -> dict[str, bool]:
        assert runtime == "containerd"
        asked.append(clock.now_s - 1000)
        return listing

    async with controlled(tmp_path / "state") as one:
        look = ended_containers(one, node, clock, listed).release_ended
        await one.controller.create_container(OWNER, OURS)
        await one.controller.state_changed(Event.POST_CREATE_CONTAINER, OWNER, OURS)
        for _ in range(100):
            await look()
            clock.now_s += ASK_AFTER_S
        # It may be started at any time, however long that takes; it is asked ever more seldom.
        assert set(one.controller.state.ledger.entries) == {"n"}
        assert asked == [10, 30, 70, 150, 310, 610, 910]
        # Its start failed, of which containerd has no event.
        listing["n"] = False
        clock.now_s += PATIENCE_S
        await look()
        assert one.controller.state.ledger.entries == {}


async def test_without_an_answer_it_has_so_long_and_is_found_when_it_starts_later(tmp_path: Path) -> None:
    node, clock = OciNode(tmp_path / "root"), Clock()
    async with controlled(tmp_path / "state") as one:
        one.kernel = node.hierarchy
        look = ended_containers(one, node, clock).release_ended
        await one.controller.create_container(OWNER, OURS)
        for _ in range(2):
            await look()
            assert set(one.controller.state.ledger.entries) == {"n"}
            clock.now_s += PATIENCE_S - 1
        await look()
        assert one.controller.state.ledger.entries == {}
        await one.controller.state_changed(Event.POST_CREATE_CONTAINER, OWNER, OURS)
        assert one.controller.state.ledger.entries == {}
        node.make_cgroup(PATH)
        node.make_process(42, PATH)
        await one.controller.state_changed(Event.START_CONTAINER, OWNER, OURS)
        (entry,) = one.controller.state.ledger.entries.values()
        assert [reason.code for reason in entry.decision.reasons] == [AFTER_ITS_END]


async def test_what_crio_gave_up_creating_is_released(tmp_path: Path) -> None:
    """Of which it has no event and no list: but it removes its directory from its storage."""
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=None) as one:
        one.controller.connected(replace(runtime("0.11.0"), name=CRIO))
        look = ended_containers(one, node, Clock(), lambda _: {}).release_ended
        await one.controller.create_container(OWNER, OURS)
        # A storage in which nothing of the pod is is not CRI-O's.
        node.bundle("other").mkdir(parents=True)
        await look()
        assert set(one.controller.state.ledger.entries) == {"n"}
        for container_id in (OWNER.id, "n"):
            node.bundle(container_id).mkdir(parents=True)
        await look()
        assert set(one.controller.state.ledger.entries) == {"n"}
        shutil.rmtree(node.bundle("n").parent)
        await look()
        assert one.controller.state.ledger.entries == {}
        assert one.controller.state.counters["nri_gone"] == 1


async def test_where_the_kernel_shows_nobody_nothing_follows_from_it(tmp_path: Path) -> None:
    """A runtime of a test, or a daemon that does not see the host's cgroups: what runs keeps what it has."""
    node, clock = OciNode(tmp_path / "root"), Clock()
    other = replace(OURS, id="o", cgroups_path="/kubepods/podg/o")
    async with controlled(tmp_path / "state") as one:
        one.kernel = node.hierarchy
        look = ended_containers(one, node, clock).release_ended
        for each in (OURS, other):
            await begun(one.controller, OWNER, each)
        for _ in range(3):
            await look()
            clock.now_s += PATIENCE_S
        assert set(one.controller.state.ledger.entries) == {"n", "o"}
        node.make_cgroup(other.cgroups_path)
        node.make_process(42, other.cgroups_path)
        await look()
        await look()
        assert set(one.controller.state.ledger.entries) == {"o"}


async def test_what_was_reported_since_the_look_counts(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state") as one:
        node.make_cgroup(PATH)
        node.make_process(42, PATH)
        await begun(one.controller, OWNER, OURS)
        ended = ended_containers(one, node, Clock())
        await ended.release_ended()
        node.end(42)
        async with one.controller.state.transaction():
            looking = asyncio.create_task(ended.release_ended())
            while not one.controller.state._lock._waiters:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            one.controller.state.lives.begin("n", Phase.RUNNING)
        await looking
        assert set(one.controller.state.ledger.entries) == {"n"}
