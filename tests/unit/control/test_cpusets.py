"""Cpusets that follow the ledger: of those that start after others got CPUs of their own, and of all."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from bayplan.control.cpusets import Cpusets
from bayplan.control.expectations import Expectation, cgroup_of
from bayplan.host.cpu_partitions import CpuPartitions
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, Layout
from bayplan.model.workload import Container
from bayplan.sets import CpuSet
from support.controllers import here
from support.coroutines import PATIENCE_S

TOLD, DECIDED = "0-3", "0,2-3"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - files tell nobody that they change
            await asyncio.sleep(0)


async def test_who_has_cpus_of_its_own_gets_them_once_the_others_have_left(tmp_path: Path) -> None:
    mounts = {CPUSET: str(tmp_path), MEMORY: str(tmp_path)}
    hierarchy = Hierarchy(Layout.UNIFIED, mounts, {"": "/system.slice/bayplan.service"})
    shown = [
        Expectation(Container(name, "p", cgroups_path=f"/{name}"), "", name, cpus, None, apart=apart)
        for name, cpus, apart in (("own", CpuSet([1]), True), ("shared", CpuSet([0, 2]), False))
    ]
    asked: list[str] = []

    def expected(container_ids: Collection[str] | None = None) -> list[Expectation]:
        asked.extend(container_ids or ())
        return [found for found in shown if container_ids is None or found.container.id in container_ids]

    await Cpusets(hierarchy, expected, here).sync()
    assert asked == ["shared", "own"]


async def test_each_container_goes_by_what_is_expected_at_that_moment(tmp_path: Path) -> None:
    mounts = {CPUSET: str(tmp_path), MEMORY: str(tmp_path)}
    hierarchy = Hierarchy(Layout.UNIFIED, mounts, {"": "/system.slice/bayplan.service"})
    before, after = CpuSet([0, 1]), CpuSet([0])
    files = {name: tmp_path / name / "cpuset.cpus" for name in "abc"}
    for file in files.values():
        file.parent.mkdir()
        for name in ("cgroup.procs", "cpuset.mems.effective"):
            (file.parent / name).write_text("\n")
        (file.parent / "cpuset.cpus.effective").write_text("0-3\n")
        file.write_text("\n")
    versions = iter([before, before, after, after])
    asked: list[str] = []

    def expected(container_ids: Collection[str] | None = None) -> list[Expectation]:
        asked.extend(container_ids or ())
        cpus = after if container_ids else before
        return [
            Expectation(Container(name, "p", cgroups_path=f"/{name}"), "", name, cpus, None)
            for name in container_ids or files
        ]

    await Cpusets(hierarchy, expected, here, version=lambda: next(versions)).sync()
    assert asked == ["b", "c"]
    assert [file.read_text().strip() for file in files.values()] == ["0-1", "0", "0"]


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


class Isolating:
    """Cgroups of containers with CPUs of their own, and what the ledger says of them."""

    def __init__(self, root: Path) -> None:
        mounts = {CPUSET: str(root / "cgroup"), MEMORY: str(root / "cgroup")}
        self.root = root
        self.hierarchy = Hierarchy(Layout.UNIFIED, mounts, {"": "/system.slice/bayplan.service"})
        self.own: dict[str, str] = {}
        self.isolated = set[str]()
        self.listed = True
        (root / "cgroup/kubepods").mkdir(parents=True)
        (root / "cgroup/kubepods/cpuset.cpus.exclusive").write_text("\n")

    def make(self, name: str, cpus: str) -> None:
        directory = self.root / "cgroup/kubepods" / name
        directory.mkdir()
        texts = {"cgroup.procs": "", "cpuset.cpus": "0-7", "cpuset.mems.effective": "0"}
        texts |= {"cpuset.cpus.exclusive": "", "cpuset.cpus.partition": "member"}
        for file, text in texts.items():
            (directory / file).write_text(f"{text}\n")
        (directory / "cpuset.cpus.effective").symlink_to("cpuset.cpus")
        self.own[name] = cpus
        self.isolated.add(name)

    def expected(self, container_ids: Collection[str] | None = None) -> list[Expectation]:
        return [
            Expectation(
                Container(name, "p", cgroups_path=f"/kubepods/{name}"),
                "",
                f"default/p/{name}",
                CpuSet.parse(cpus),
                None,
                isolated=name in self.isolated,
            )
            for name, cpus in self.own.items()
            if self.listed and (container_ids is None or name in container_ids)
        ]

    def wanted(self) -> dict[str, CpuSet]:
        return {name: CpuSet.parse(cpus) for name, cpus in self.own.items() if name in self.isolated}

    def cpusets(self) -> Cpusets:
        """Those of a daemon that starts now."""
        partitions = CpuPartitions.recorded(self.hierarchy.mounts[CPUSET], self.root, self.root)
        return Cpusets(self.hierarchy, self.expected, here, partitions=partitions, isolated=self.wanted)

    def shown(self, name: str) -> tuple[str, ...]:
        directory = self.root / "cgroup/kubepods" / name
        files = ("cpuset.cpus", "cpuset.cpus.exclusive", "cpuset.cpus.partition")
        return tuple((directory / file).read_text().strip() for file in files)

    def above(self) -> str:
        return (self.root / "cgroup/kubepods/cpuset.cpus.exclusive").read_text().strip()


async def test_partitions_follow_the_ledger(tmp_path: Path) -> None:
    node = Isolating(tmp_path)
    cpusets = node.cpusets()
    node.make("c1", "2-3")
    node.make("c2", "4")
    await cpusets.sync(("c1",))
    assert (node.shown("c1"), node.above()) == (("2-3", "2-3", "isolated"), "2-3")
    await cpusets.sync()
    assert (node.shown("c2"), node.above()) == (("4", "4", "isolated"), "2-4")
    assert cpusets.partitioned() == {"c1", "c2"}
    # One gets the CPU of another, which gets others: nobody is written onto a partition's.
    node.own |= {"c1": "4", "c2": "6-7"}
    await cpusets.sync()
    assert (node.shown("c1"), node.shown("c2")) == (("4", "4", "isolated"), ("6-7", "6-7", "isolated"))
    node.isolated.remove("c2")
    await cpusets.sync(("c1",))
    assert (node.shown("c2"), node.above()) == (("6-7", "", "member"), "4")
    del node.own["c1"]
    await cpusets.sync(())
    assert (node.shown("c1"), node.above()) == (("4", "", "member"), "")
    assert cpusets.partitioned() == frozenset()


async def test_a_daemon_that_knows_no_container_yet_leaves_the_partitions_of_the_one_before(
    tmp_path: Path,
) -> None:
    node = Isolating(tmp_path)
    node.make("c1", "2-3")
    node.make("c2", "4")
    await node.cpusets().sync()
    node.listed = False
    cpusets = node.cpusets()
    await cpusets.sync()
    assert (node.above(), cpusets.partitioned()) == ("2-4", {"c1", "c2"})
    del node.own["c2"]
    await cpusets.sync()
    assert (node.above(), cpusets.partitioned()) == ("2-3", {"c1"})


async def test_what_the_kernel_takes_back_is_drift_and_made_again(tmp_path: Path) -> None:
    node = Isolating(tmp_path)
    node.make("c1", "2-3")
    cpusets = node.cpusets()
    await cpusets.sync()
    state = tmp_path / "cgroup/kubepods/c1/cpuset.cpus.partition"
    state.write_text("isolated invalid (Cpu list in cpuset.cpus not exclusive)\n")
    (one,) = node.expected()
    with cgroup_of(node.hierarchy, one) as cgroup:
        assert cgroup.partition() == state.read_text().strip()
    await cpusets.sync()
    assert state.read_text().strip() == "isolated"


async def test_what_the_kernel_takes_back_is_made_again_as_soon_as_it_says_so(tmp_path: Path) -> None:
    node = Isolating(tmp_path)
    node.make("c1", "2-3")
    cpusets = node.cpusets()
    # One of an earlier daemon is heard of as well.
    await cpusets.sync()
    cpusets = node.cpusets()
    heard: list[str] = []
    following = asyncio.create_task(cpusets.follow_partitions(lambda: heard.append("changed")))
    await asyncio.sleep(0)
    await cpusets.sync()
    state = tmp_path / "cgroup/kubepods/c1/cpuset.cpus.partition"
    for _ in range(3):
        state.write_text("isolated invalid (Cpu list in cpuset.cpus not exclusive)\n")
        await until(lambda: state.read_text().strip() == "isolated")
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    await cpusets.sync()
    assert cpusets.partitioned() == {"c1"}
    assert heard


async def test_one_that_cannot_be_made_is_a_refusal_and_the_cpus_are_set(tmp_path: Path) -> None:
    node = Isolating(tmp_path)
    node.make("c1", "2-3")
    (tmp_path / "cgroup/kubepods/c1/cpuset.cpus.exclusive").unlink()
    cpusets = node.cpusets()
    await cpusets.sync()
    assert "6.7" in cpusets.refusals["c1"]
    state = tmp_path / "cgroup/kubepods/c1"
    assert (state / "cpuset.cpus").read_text().strip() == "2-3"
    assert (state / "cpuset.cpus.partition").read_text().strip() == "member"
    assert node.above() == ""
