"""Containers whose end nobody told: released when the kernel has nothing of them, kept as long as it has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bayplan.errors import UnavailableError
from bayplan.model.decision import QosClass
from bayplan.model.origin import Form, Origin
from bayplan.model.workload import Container
from bayplan.oci.stale_entries import CRIO, PATIENCE_S, StaleEntries
from bayplan.quantity import GIB
from support.controllers import Controlled, announced, controlled, full_disk, here
from support.machines import container, pod
from support.oci_node import OciNode

OWNER = pod("g", QosClass.GUARANTEED)
PATH = "/kubepods/podg/crio-x"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def entered(one: Controlled, form: Form, **changes: Any) -> None:
    asked = container("x", OWNER, memory_bytes=GIB // 2, milli_cpus=1000)
    origin = Origin.of(form, OWNER, replace(asked, cgroups_path=PATH))
    known: Container = replace(origin.container, pid=changes.pop("pid", 0))
    await announced(one.controller, OWNER, asked, replace(origin, container=known, **changes))


def nobody() -> dict[str, bool]:
    raise UnavailableError("/run/crio.sock", "nobody listens")


def stale_entries(
    one: Controlled, node: OciNode, clock: Clock, listing: Callable[[], dict[str, bool]] = nobody
) -> StaleEntries:
    async def release(entry: Any) -> None:
        await one.controller.stop_container(OWNER, Container(entry.container_id, OWNER.id))

    return StaleEntries(one.controller, node.hierarchy, here, release, listing, clock)


async def test_a_hooks_container_is_released_with_its_last_process(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=None) as one:
        node.make_cgroup(PATH)
        node.make_process(42, PATH)
        await entered(one, Form.HOOK, pid=42, start_ticks=1000, cgroups={"cpuset": PATH, "memory": PATH})
        look = stale_entries(one, node, Clock()).release_ended
        await look()
        assert set(one.controller.ledger.entries) == {"x"}
        # Its first process is gone, but one that it left in the same cgroup is not.
        node.make_process(43, PATH)
        for file in (node.root / "proc/42").iterdir():
            file.unlink()
        await look()
        assert set(one.controller.ledger.entries) == {"x"}
        (node.directory(PATH) / "cgroup.procs").write_text("")
        await look()
        assert one.controller.ledger.entries == {}
        assert one.controller.counters["oci_gone"] == 1


async def test_what_is_gone_is_released_also_when_that_cannot_be_recorded(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=None) as one:
        await entered(one, Form.HOOK, pid=42, start_ticks=1000, cgroups={"cpuset": PATH, "memory": PATH})
        with full_disk(one.controller.recorder):
            await stale_entries(one, node, Clock()).release_ended()
        assert one.controller.ledger.entries == {}
        assert one.controller.counters["oci_gone"] == 1


async def test_another_process_with_its_pid_does_not_keep_it(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=None) as one:
        node.make_process(42, "/elsewhere", start_ticks=2000)
        await entered(one, Form.HOOK, pid=42, start_ticks=1000, cgroups={"cpuset": PATH, "memory": PATH})
        await stale_entries(one, node, Clock()).release_ended()
        assert one.controller.ledger.entries == {}


async def test_a_rewritten_spec_has_time_to_become_a_container_and_none_after_that(tmp_path: Path) -> None:
    node, clock = OciNode(tmp_path / "root"), Clock()
    async with controlled(tmp_path / "state", nri=None) as one:
        await entered(one, Form.PRECREATE)
        look = stale_entries(one, node, clock).release_ended
        for _ in range(2):
            await look()
            assert set(one.controller.ledger.entries) == {"x"}
            clock.now_s += PATIENCE_S - 1
        clock.now_s -= PATIENCE_S - 1
        node.make_cgroup(PATH)
        node.make_process(42, PATH)
        await look()
        assert set(one.controller.ledger.entries) == {"x"}
        node.end(42)
        await look()
        assert one.controller.ledger.entries == {}

        await entered(one, Form.PRECREATE)
        await look()
        clock.now_s += PATIENCE_S
        await look()
        assert one.controller.ledger.entries == {}


async def test_a_bundle_that_is_gone_becomes_no_container(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state", nri=None) as one:
        bundle = tmp_path / "bundle"
        bundle.mkdir()
        await entered(one, Form.WRAPPER, bundle=str(bundle))
        look = stale_entries(one, OciNode(tmp_path / "root"), Clock()).release_ended
        await look()
        assert set(one.controller.ledger.entries) == {"x"}
        bundle.rmdir()
        await look()
        assert one.controller.ledger.entries == {}


async def test_what_came_over_nri_is_not_looked_for(tmp_path: Path) -> None:
    async with controlled(tmp_path / "state") as one:
        await one.controller.create_container(OWNER, container("x", OWNER, milli_cpus=1000))
        await stale_entries(one, OciNode(tmp_path / "root"), Clock()).release_ended()
        assert set(one.controller.ledger.entries) == {"x"}


async def test_crio_knows_better_what_it_made(tmp_path: Path) -> None:
    listing = {"x": True}
    async with controlled(tmp_path / "state", nri=None) as one:
        node = OciNode(tmp_path / "root")
        look = stale_entries(one, node, Clock(), lambda: listing).release_ended
        # The process of a container that CRI-O lists is in a place that we cannot see.
        await entered(one, Form.HOOK, pid=42, start_ticks=1000, engine=CRIO)
        await look()
        assert set(one.controller.ledger.entries) == {"x"}
        listing["x"] = False
        await look()
        assert one.controller.ledger.entries == {}
        # One whose spec was rewritten may still come if CRI-O has not heard of it, and not if it ended.
        await entered(one, Form.WRAPPER, engine=CRIO)
        listing.clear()
        await look()
        assert set(one.controller.ledger.entries) == {"x"}
        listing["x"] = False
        await look()
        assert one.controller.ledger.entries == {}


async def test_crio_is_asked_only_about_its_own(tmp_path: Path) -> None:
    asked = []

    def listing() -> dict[str, bool]:
        asked.append(1)
        return {}

    async with controlled(tmp_path / "state", nri=None) as one:
        look = stale_entries(one, OciNode(tmp_path / "root"), Clock(), listing).release_ended
        await entered(one, Form.PRECREATE, engine="libpod")
        await look()
        assert asked == []
        await entered(one, Form.PRECREATE, engine=CRIO)
        await look()
        assert asked == [1]
