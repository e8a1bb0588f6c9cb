"""Cpusets that follow the ledger: of those that start after others got CPUs of their own, and of all."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from bayplan.control.cpusets import Cpusets
from bayplan.control.expectations import Expectation
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, Layout
from bayplan.model.workload import Container
from bayplan.sets import CpuSet
from support.controllers import here

TOLD, DECIDED = "0-3", "0,2-3"
LIMIT_S = 60


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - files tell nobody that they change
            await asyncio.sleep(0)


async def test_who_does_not_run_yet_leaves_the_cpus_of_others_whenever_its_runtime_makes_its_cgroup(
    tmp_path: Path,
) -> None:
    mounts = {CPUSET: str(tmp_path), MEMORY: str(tmp_path)}
    hierarchy = Hierarchy(Layout.UNIFIED, mounts, {"": "/system.slice/bayplan.service"})
    cgroup = tmp_path / "kubepods" / "c1"
    one = Container("c1", "p", cgroups_path="/kubepods/c1")
    starting = Expectation(one, "", "default/p/c1", CpuSet.parse(DECIDED), None, starting=True)
    shown = [starting]
    asked: list[Collection[str] | None] = []

    def expected(container_ids: Collection[str] | None = None) -> list[Expectation]:
        asked.append(container_ids)
        return [found for found in shown if container_ids is None or found.container.id in container_ids]

    def runtime_writes() -> None:
        (cgroup / "cgroup.procs").write_text("")
        (cgroup / "cpuset.mems.effective").write_text("0\n")
        (cgroup / "cpuset.cpus").write_text(f"{TOLD}\n")
        (cgroup / "cpuset.cpus.effective").write_text(f"{TOLD}\n")

    def is_settled() -> bool:
        return (cgroup / "cpuset.cpus").read_text() != f"{TOLD}\n"

    cpusets = Cpusets(hierarchy, expected, here)
    following = asyncio.create_task(cpusets.follow_starting())
    # Somebody got CPUs of its own. The other one has no cgroup: what it was told cannot be taken back.
    await cpusets.sync()
    await until(lambda: asked[-1] is not None)
    cgroup.mkdir(parents=True)
    for _ in "ab":  # When it makes the cgroup, and when it sets all that was asked for.
        runtime_writes()
        await until(is_settled)
        assert (cgroup / "cpuset.cpus").read_text().strip() == DECIDED
    # Once it runs, its cpuset is verification's.
    shown[:] = [replace(starting, starting=False)]
    before = len(asked)
    await until(lambda: len(asked) > before)
    runtime_writes()
    assert not is_settled()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following


async def test_changes_that_follow_each_other_are_written_together_and_the_last_one_counts(
    tmp_path: Path,
) -> None:
    mounts = {CPUSET: str(tmp_path), MEMORY: str(tmp_path)}
    hierarchy = Hierarchy(Layout.UNIFIED, mounts, {"": "/system.slice/bayplan.service"})
    cgroup = tmp_path / "kubepods" / "c1"
    cgroup.mkdir(parents=True)
    for name, text in (("cgroup.procs", ""), ("cpuset.cpus", TOLD), ("cpuset.mems.effective", "0")):
        (cgroup / name).write_text(f"{text}\n")
    (cgroup / "cpuset.cpus.effective").symlink_to("cpuset.cpus")
    wanted = [CpuSet.parse(DECIDED)]
    looks = 0

    def expected(_: Collection[str] | None = None) -> list[Expectation]:
        nonlocal looks
        looks += 1
        one = Container("c1", "p", cgroups_path="/kubepods/c1")
        return [Expectation(one, "", "default/p/c1", wanted[-1], None)]

    cpusets = Cpusets(hierarchy, expected, here)
    for cpus in ("0", "1", "2"):
        wanted.append(CpuSet.parse(cpus))
        cpusets.sync_soon()
    await until(lambda: (cgroup / "cpuset.cpus").read_text().strip() == "2")
    one_comparison = looks
    wanted.append(CpuSet.parse("3"))
    cpusets.sync_soon()
    await until(lambda: (cgroup / "cpuset.cpus").read_text().strip() == "3")
    assert looks == 2 * one_comparison
