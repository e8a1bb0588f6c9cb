"""Drift: seen twice, then repaired; at once when asked to; never what the ledger no longer says."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.control.cpusets import Cpusets
from bayplan.control.expectations import Expectation, Expected, expectations
from bayplan.control.verify import Verifier
from bayplan.host.cpu_partitions import CpuPartitions
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, Layout
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim, Decision, Outcome, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.origin import NRI, Hook
from bayplan.model.policy import PlacementPolicy
from bayplan.model.qos import OOM_GROUP
from bayplan.model.request import derive_request
from bayplan.model.workload import Adjustment, Container, Pod
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet
from support.controllers import here
from support.machines import container, machine, pod

FILES = {
    "cgroup.procs": "",
    "cpuset.cpus": "0-3",
    "cpuset.mems": "",
    "cpuset.cpus.effective": "0-3",
    "cpuset.mems.effective": "0-1",
    "memory.max": "max",
    "memory.high": "max",
    "memory.low": "0",
    "memory.min": "0",
    "memory.current": "4096",
    "memory.oom.group": "0",
}


@pytest.fixture
def hierarchy(tmp_path: Path) -> Hierarchy:
    directory = tmp_path / "kubepods" / "c1"
    directory.mkdir(parents=True)
    for name, text in FILES.items():
        (directory / name).write_text(f"{text}\n")
    mount = str(tmp_path)
    return Hierarchy(Layout.UNIFIED, {CPUSET: mount, MEMORY: mount}, {"": "/system.slice/bayplan.service"})


def expectation(name: str, cpus: str, mems: str | None = None) -> Expectation:
    nodes = None if mems is None else NodeSet.parse(mems)
    one = Container(name, "p", cgroups_path=f"/kubepods/{name}")
    return Expectation(one, "", f"default/p/{name}", CpuSet.parse(cpus), nodes)


def verifying(
    hierarchy: Hierarchy, expected: Expected, grounds: Callable[[], tuple[object, ...]] | None = None
) -> Verifier:
    cpusets = Cpusets(hierarchy, expected, here)
    return Verifier(hierarchy, cpusets, expected, here, grounds=grounds or object_of_its_own, most_files=99)


def object_of_its_own() -> tuple[object, ...]:
    """Grounds that are other ones each time."""
    return (object(),)


def written(hierarchy: Hierarchy) -> tuple[str, str]:
    directory = Path(hierarchy.mounts[CPUSET]) / "kubepods" / "c1"
    return (directory / "cpuset.cpus").read_text().strip(), (directory / "cpuset.mems").read_text().strip()


def write(hierarchy: Hierarchy, cpus: str) -> None:
    """As somebody else does it, and as the kernel then shows it."""
    directory = Path(hierarchy.mounts[CPUSET]) / "kubepods" / "c1"
    (directory / "cpuset.cpus.effective").write_text(f"{cpus}\n")


async def test_a_difference_is_repaired_when_it_is_seen_twice(hierarchy: Hierarchy) -> None:
    verifier = verifying(hierarchy, lambda *_: [expectation("c1", "2", "1")])
    assert await verifier.verify(at_once=False) == ()
    assert written(hierarchy) == ("0-3", "")
    (drift,) = await verifier.verify(at_once=False)
    assert str(drift) == "default/p/c1: cpus is 0-3, decided was 2; mems is 0-1, decided was 1"
    assert verifier.drift == (drift,)
    assert written(hierarchy) == ("2", "1")


async def test_an_update_that_is_due_is_written_at_once_and_is_no_drift(hierarchy: Hierarchy) -> None:
    verifier = verifying(hierarchy, lambda *_: [expectation("c1", "2")])
    assert await verifier.verify(at_once=True) == ()
    assert written(hierarchy) == ("2", "")
    assert verifier.drift == ()


async def test_what_was_right_in_between_is_no_drift(hierarchy: Hierarchy) -> None:
    """An owner of CPUs came and went since the last look: what its start had us write is out of date."""

    wanted = [expectation("c1", "0-3")]
    cpusets = Cpusets(hierarchy, lambda *_: wanted, here)
    verifier = Verifier(hierarchy, cpusets, lambda *_: wanted, here, grounds=object_of_its_own, most_files=99)
    assert await verifier.verify(at_once=False) == ()
    wanted[:] = [expectation("c1", "2-3")]
    await cpusets.sync()
    write(hierarchy, "2-3")
    wanted[:] = [expectation("c1", "0-3")]
    assert await verifier.verify(at_once=True) == ()
    assert written(hierarchy) == ("0-3", "")


async def test_what_somebody_undid_is_named_also_where_updates_are_due(
    hierarchy: Hierarchy, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [expectation("c1", "0-3", "0-1")]
    verifier = verifying(hierarchy, lambda *_: wanted)
    assert await verifier.verify(at_once=False) == ()
    # An operator's `runc update --cpuset-cpus`, and a decision about somebody else right after it.
    write(hierarchy, "2-3")
    (drift,) = await verifier.verify(at_once=True)
    assert verifier.drift == (drift,)
    assert written(hierarchy) == ("0-3", "")
    # What is due now was never in force: nobody undid it.
    write(hierarchy, "0-3")
    assert await verifier.verify(at_once=False) == ()
    wanted[:] = [expectation("c1", "1", "0-1")]
    assert await verifier.verify(at_once=True) == ()
    assert written(hierarchy) == ("1", "")
    (warning,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert warning.__dict__["difference"] == "default/p/c1: cpus is 2-3, decided was 0-3"
    assert "bayplan.dev/opt-out=true" in warning.__dict__["hint"]


async def test_cpus_that_the_kernel_has_otherwise_are_known_until_they_are_repaired(
    hierarchy: Hierarchy,
) -> None:
    wanted = [expectation("c1", "2")]
    verifier = verifying(hierarchy, lambda *_: wanted)
    await verifier.verify(at_once=False)
    assert verifier.kernel_cpus() == {"c1": CpuSet(range(4))}
    # It was to be repaired, and the kernel shows what it did before.
    await verifier.verify(at_once=False)
    assert verifier.kernel_cpus() == {"c1": CpuSet(range(4))}
    # What is known is of that decision.
    wanted[:] = [expectation("c1", "1")]
    assert verifier.kernel_cpus() == {}
    write(hierarchy, "1")
    await verifier.verify(at_once=False)
    assert verifier.kernel_cpus() == {}
    # Before a container runs its runtime is still about to write its cpuset.
    wanted[:] = [replace(expectation("c1", "2"), starting=True)]
    await verifier.verify(at_once=False)
    assert verifier.kernel_cpus() == {}
    # Somebody else decides: there is nothing to check, and something to see.
    wanted[:] = [replace(expectation("c1", "1"), cpus=None)]
    assert await verifier.verify(at_once=False) == ()
    assert verifier.kernel_cpus() == {"c1": CpuSet([1])}


async def test_managers_that_fight_for_a_cpuset_do_not_fill_the_log(
    hierarchy: Hierarchy, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = [expectation("c1", "2")]
    verifier = verifying(hierarchy, lambda *_: wanted)
    await verifier.verify(at_once=False)
    for _ in range(10):
        # The fake kernel shows what it did before, whatever is written.
        assert len(await verifier.verify(at_once=False)) == 1
    # Another value is another line, and so is the same one after a restart of the container.
    write(hierarchy, "0-1")
    await verifier.verify(at_once=False)
    wanted.clear()
    await verifier.verify(at_once=False)
    wanted.append(expectation("c1", "2"))
    for _ in range(2):
        await verifier.verify(at_once=False)
    warnings = [one.__dict__ for one in caplog.records if one.levelname == "WARNING"]
    assert [(one["difference"].split()[3], one["times"]) for one in warnings] == [
        ("0-3,", 1),
        ("0-3,", 2),
        ("0-3,", 4),
        ("0-3,", 8),
        ("0-1,", 1),
        ("0-1,", 1),
    ]


async def test_only_what_the_kernel_has_afterwards_is_repaired_and_the_rest_is_tried_less_and_less_often(
    hierarchy: Hierarchy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    wanted = [expectation("c1", "2")]
    verifier = verifying(hierarchy, lambda *_: wanted)
    attempts, directory = [], Path(hierarchy.mounts[CPUSET], "kubepods/c1")
    for look in range(30):
        # The fake kernel takes what is written, and shows what it did before.
        (directory / "cpuset.cpus").write_text("0-3\n")
        assert await verifier.verify(at_once=False) == verifier.drift
        if written(hierarchy)[0] == "2":
            attempts.append(look)
    assert attempts == [1, 2, 4, 8, 16]
    assert [one.times for one in verifier.unrepaired.values()] == [verifier.failed] == [5]
    assert verifier.unrepaired["c1"].drift.cpus == CpuSet(range(4))
    assert "repaired" not in caplog.messages
    # Another decision is not made to wait, and once the kernel follows it is repaired.
    wanted[:] = [expectation("c1", "3")]
    (directory / "cpuset.cpus.effective").unlink()
    (directory / "cpuset.cpus.effective").symlink_to("cpuset.cpus")
    await verifier.verify(at_once=True)
    assert (written(hierarchy)[0], verifier.unrepaired, verifier.failed) == ("3", {}, 5)
    assert caplog.messages.count("repaired") == 1


@pytest.mark.root
async def test_a_container_with_cpusets_of_its_own_within_is_repaired_on_cgroup_v1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As docker makes them within a container, on the kernel that runs the tests."""
    caplog.set_level("INFO")
    real = Hierarchy.detect()
    mount = Path(real.mounts[CPUSET])
    online = CpuSet() if real.unified else CpuSet.parse((mount / "cpuset.cpus").read_text())
    if len(online) == 1 or real.unified:
        pytest.skip("takes cgroup v1, where cpusets within do not follow by themselves, and two CPUs")
    outer, memory = (
        mount / f"bayplan-test-{os.getpid()}",
        Path(real.mounts[MEMORY], f"bayplan-test-{os.getpid()}"),
    )
    made = [memory, outer, outer / "docker", outer / "docker" / "inner"]
    with contextlib.ExitStack() as stack:
        for directory in made:
            directory.mkdir()
            stack.callback(directory.rmdir)
            if directory != memory:
                (directory / "cpuset.cpus").write_text(str(online))
                (directory / "cpuset.mems").write_text("0")
        wanted = Expectation(
            Container("c1", "p", cgroups_path=f"/{outer.name}"),
            "",
            "default/p/c1",
            CpuSet([min(online)]),
            None,
        )
        verifier = verifying(real, lambda *_: [wanted])
        for _ in range(3):
            await verifier.verify(at_once=False)
        assert caplog.messages.count("repaired") == 1
        assert "cannot set cpusets" not in caplog.messages
        for directory in made[1:]:
            assert (directory / "cpuset.effective_cpus").read_text().strip() == str(min(online))
        # What the kernel refuses is not repaired: the cgroup above does not have it.
        wanted = replace(wanted, cpus=online)
        (outer / "below").mkdir()
        stack.callback((outer / "below").rmdir)
        (outer / "below/cpuset.cpus").write_text(str(min(online)))
        path = f"/{outer.name}/below"
        (memory / "below").mkdir()
        stack.callback((memory / "below").rmdir)
        wanted = replace(wanted, container=replace(wanted.container, cgroups_path=path))
        for _ in range(3):
            await verifier.verify(at_once=False)
        assert caplog.messages.count("repaired") == 1
        assert f"{path}/cpuset.cpus" in verifier.unrepaired["c1"].problem


async def test_what_is_as_decided_or_gone_is_left_alone(hierarchy: Hierarchy) -> None:
    wanted = [expectation("c1", "0-3", "0-1"), expectation("gone", "1")]
    verifier = verifying(hierarchy, lambda *_: wanted)
    for _ in range(2):
        assert await verifier.verify(at_once=False) == ()
    assert written(hierarchy) == ("0-3", "")


async def test_a_decision_that_changed_meanwhile_is_not_written(hierarchy: Hierarchy) -> None:
    answers = iter([[expectation("c1", "2")], [expectation("c1", "3")]])
    verifier = verifying(hierarchy, lambda *_: next(answers))
    await verifier.verify(at_once=True)
    assert written(hierarchy) == ("0-3", "")


def test_nothing_is_expected_of_cpus_and_nodes_that_are_gone_but_shared_cpus_of_who_lost_all() -> None:
    whole = machine(2, cpus_per_node=2)
    owner = pod("p")
    one = container("c1", owner, memory_bytes=1, milli_cpus=2000)
    decision = Decision(
        derive_request(owner, one, whole),
        Outcome.PLACED,
        Placement(NodeSet([0, 1]), CpuSet([1, 2])),
    )
    ledger = Ledger.of([Entry(decision)])
    half = Machine(whole.nodes[:1], tuple(replace(cpu, online=cpu.node_id == 0) for cpu in whole.cpus))
    other = Machine(
        (replace(whole.nodes[0], memory_bytes=0),),
        tuple(replace(cpu, online=cpu.id == 0) for cpu in whole.cpus),
    )

    def expected(of: Machine) -> list[tuple[CpuSet | None, NodeSet | None]]:
        found = expectations(Basis(of, PlacementPolicy(), ledger), {owner.id: owner}, [one])
        return [(each.cpus, each.mems) for each in found]

    assert expected(whole) == [(CpuSet([1, 2]), NodeSet([0, 1]))]
    assert expected(half) == [(CpuSet([1]), NodeSet([0]))]
    assert expected(other) == [(CpuSet([0]), None)]


def test_slow_memory_that_came_later_is_not_for_containers_that_were_left_free() -> None:
    before = machine(2)
    slow = replace(before.nodes[0], id=5, cpus=CpuSet(), tier=1)
    after = Machine((*(replace(node, tier=0) for node in before.nodes), slow), before.cpus)
    owner = pod("p")
    one = container("c1", owner)
    request = derive_request(owner, one, before)

    def mems(decided: Decision, of: Machine) -> list[NodeSet | None]:
        ledger = Ledger.of([Entry(decided)])
        return [
            each.mems for each in expectations(Basis(of, PlacementPolicy(), ledger), {owner.id: owner}, [one])
        ]

    free = Decision(request, Outcome.PLACED, Placement(claim=Claim(NodeSet([0, 1]))))
    assert mems(free, before) == [None]
    assert mems(free, after) == [NodeSet([0, 1])]
    assert mems(replace(free, request=replace(request, pinned_mems=NodeSet([5]))), after) == [None]
    assert mems(replace(free, request=replace(request, opted_out=True)), after) == [None]
    assert mems(replace(free, outcome=Outcome.ADOPTED), after) == [None]
    kubelets = replace(free, placement=Placement())
    assert mems(kubelets, after) == [None]


class TestAmounts:
    """What we set for a container that came through a hook, beside its cpusets."""

    APPLIED = Adjustment(
        memory_limit_bytes=GIB,
        oom_score_adj=-997,
        unified={
            "memory.high": "4096",
            "memory.low": "8192",
            "memory.min": "4096",
            "memory.oom.group": "1",
        },
    )

    @pytest.fixture
    def verifier(self, hierarchy: Hierarchy, tmp_path: Path) -> Verifier:
        (tmp_path / "proc/42").mkdir(parents=True)
        (tmp_path / "proc/42/stat").write_text(f"42 (a) S {'0 ' * 18}7 0")
        (tmp_path / "proc/42/oom_score_adj").write_text("100\n")
        one = Container("c1", "p", pid=42, oom_score_adj=100)
        paths = {CPUSET: "/kubepods/c1", MEMORY: "/kubepods/c1"}
        origin = Hook(Pod("p"), one, cgroups=paths, start_ticks=7, applied=self.APPLIED)
        wanted = Expectation(one, "", "default/p/c1", None, None, origin)
        return verifying(replace(hierarchy, root=tmp_path), lambda *_: [wanted])

    def directory(self, hierarchy: Hierarchy) -> Path:
        return Path(hierarchy.mounts[CPUSET]) / "kubepods" / "c1"

    async def test_the_kernels_defaults_mean_that_somebody_undid_them(
        self, verifier: Verifier, hierarchy: Hierarchy, tmp_path: Path
    ) -> None:
        await verifier.verify(at_once=False)
        (drift,) = await verifier.verify(at_once=False)
        assert str(drift) == (
            "default/p/c1: memory.max is max, decided was 1073741824; "
            "oom_score_adj is 100, decided was -997; memory.high is max, decided was 4096; "
            "memory.low is 0, decided was 8192; memory.min is 0, decided was 4096; "
            "memory.oom.group is 0, decided was 1"
        )
        assert await verifier.verify(at_once=False) == ()
        shown = {name: (self.directory(hierarchy) / name).read_text() for name in FILES}
        assert shown["memory.max"] == str(GIB)
        assert {name: shown[name] for name in self.APPLIED.unified} == self.APPLIED.unified
        assert shown["cpuset.cpus"].strip() == "0-3"
        assert (tmp_path / "proc/42/oom_score_adj").read_text() == "-997"

    async def test_what_somebody_else_chose_stays(
        self, verifier: Verifier, hierarchy: Hierarchy, tmp_path: Path
    ) -> None:
        chosen = {
            "memory.max": "1048576",
            "memory.high": "12288",
            "memory.low": "4096",
            "memory.min": "12288",
        }
        for name, text in {**chosen, "memory.oom.group": "1"}.items():
            (self.directory(hierarchy) / name).write_text(f"{text}\n")
        (tmp_path / "proc/42/oom_score_adj").write_text("500\n")

        for _ in range(3):
            assert await verifier.verify(at_once=False) == ()
        assert (self.directory(hierarchy) / "memory.max").read_text() == "1048576\n"
        assert (tmp_path / "proc/42/oom_score_adj").read_text() == "500\n"

    async def test_a_repair_writes_nothing_but_what_was_undone(
        self, verifier: Verifier, hierarchy: Hierarchy
    ) -> None:
        for name, text in {**self.APPLIED.unified, "memory.high": "max", "memory.max": "1048576"}.items():
            (self.directory(hierarchy) / name).write_text(f"{text}\n")

        await verifier.verify(at_once=True)
        assert (self.directory(hierarchy) / "memory.high").read_text() == "4096"
        assert (self.directory(hierarchy) / "memory.max").read_text() == "1048576\n"


async def test_oom_group_of_a_container_of_nri_is_set_again_and_nothing_else(hierarchy: Hierarchy) -> None:
    wanted = replace(expectation("c1", "0-3"), oom_group=True)
    verifier = verifying(hierarchy, lambda *_: [wanted])
    await verifier.verify(at_once=False)
    (drift,) = await verifier.verify(at_once=False)
    assert drift.differences.keys() == {OOM_GROUP}
    directory = Path(hierarchy.mounts[MEMORY]) / "kubepods" / "c1"
    assert {name: (directory / name).read_text().strip() for name in FILES} == {
        **FILES,
        "memory.oom.group": "1",
    }

    async def test_what_outlives_the_first_process_is_still_held_to_the_decision(
        self, verifier: Verifier, hierarchy: Hierarchy, tmp_path: Path
    ) -> None:
        (tmp_path / "proc/42/stat").write_text(f"42 (somebody else) S {'0 ' * 18}8 0")

        await verifier.verify(at_once=True)
        assert (self.directory(hierarchy) / "memory.max").read_text() == str(GIB)
        assert (tmp_path / "proc/42/oom_score_adj").read_text() == "100\n"


class Counted:
    """Expectations, and how often they were asked for: a comparison asks, and nothing else does."""

    def __init__(self, *wanted: Expectation) -> None:
        self.wanted = list(wanted)
        self.times = 0

    def __call__(self, *_: object) -> list[Expectation]:
        self.times += 1
        return self.wanted

    async def compared(self, verifier: Verifier) -> bool:
        """Whether the next verification compares."""
        before = self.times
        await verifier.verify(at_once=False)
        return self.times > before


LIMITED = Hook(Pod("p"), Container("c1", "p"), applied=Adjustment(memory_limit_bytes=GIB))


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("cpuset.cpus.effective", "0", "cpus is 0, decided was 0-3"),
        ("cpuset.mems.effective", "1", "mems is 1, decided was 0-1"),
        ("memory.oom.group", "0", "memory.oom.group is 0, decided was 1"),
        ("memory.max", "max", f"memory.max is max, decided was {GIB}"),
    ],
)
async def test_what_agreed_is_compared_again_when_it_shows_something_else(
    hierarchy: Hierarchy, name: str, text: str, found: str
) -> None:
    directory = Path(hierarchy.mounts[CPUSET]) / "kubepods/c1"
    (directory / "memory.oom.group").write_text("1\n")
    (directory / "memory.max").write_text(f"{GIB}\n")
    origin = LIMITED if name == "memory.max" else NRI
    one = replace(expectation("c1", "0-3", "0-1"), origin=origin, oom_group=origin is NRI)
    expected, grounds = Counted(one), (object(),)
    verifier = verifying(hierarchy, expected, lambda: grounds)
    assert await expected.compared(verifier)
    for _ in range(3):
        assert not await expected.compared(verifier)
    (directory / name).write_text(f"{text}\n")
    assert await expected.compared(verifier)
    assert [str(drift) for drift in await verifier.verify(at_once=False)] == [f"default/p/c1: {found}"]


async def test_what_agreed_is_compared_again_by_other_grounds_or_when_asked_for(hierarchy: Hierarchy) -> None:
    expected, grounds = Counted(expectation("c1", "0-3")), [(object(),)]
    verifier = verifying(hierarchy, expected, lambda: grounds[0])
    assert await expected.compared(verifier)
    assert not await expected.compared(verifier)
    grounds[0] = (object(),)
    assert await expected.compared(verifier)
    assert not await expected.compared(verifier)
    before = expected.times
    await verifier.verify(at_once=True)
    assert expected.times > before
    assert await expected.compared(verifier)
    assert not await expected.compared(verifier)


async def test_a_container_that_comes_later_is_compared(hierarchy: Hierarchy) -> None:
    late = Expectation(Container("late", "q"), "/kubepods/q", "default/q/late", CpuSet([1]), None)
    expected, grounds = Counted(expectation("c1", "0-3"), late), (object(),)
    verifier = verifying(hierarchy, expected, lambda: grounds)
    assert await expected.compared(verifier)
    assert not await expected.compared(verifier)
    directory = Path(hierarchy.mounts[CPUSET]) / "kubepods/q"
    directory.mkdir()
    # As long as there is its pod, and not the container, it may come.
    for _ in range(2):
        assert await expected.compared(verifier)
    (directory / "late").mkdir()
    for name, text in FILES.items():
        (directory / "late" / name).write_text(f"{text}\n")
    assert await expected.compared(verifier)
    (drift,) = await verifier.verify(at_once=False)
    assert str(drift) == "default/q/late: cpus is 0-3, decided was 1"


async def test_what_cannot_be_compared_is_tried_each_time(hierarchy: Hierarchy) -> None:
    expected, grounds = Counted(expectation("c1", "0-3")), (object(),)
    verifier = verifying(hierarchy, expected, lambda: grounds)
    (Path(hierarchy.mounts[CPUSET]) / "kubepods/c1/cpuset.cpus.effective").unlink()
    for _ in range(3):
        assert await expected.compared(verifier)


async def test_more_files_than_may_be_open_are_compared_each_time(hierarchy: Hierarchy) -> None:
    expected, grounds = Counted(*(expectation("c1", "0-3") for _ in range(100))), (object(),)
    verifier = verifying(hierarchy, expected, lambda: grounds)
    for _ in range(3):
        assert await expected.compared(verifier)


async def test_a_partition_that_somebody_ended_is_drift_and_made_again(
    hierarchy: Hierarchy, tmp_path: Path
) -> None:
    directory = tmp_path / "kubepods" / "c1"
    (tmp_path / "kubepods/cpuset.cpus.exclusive").write_text("\n")
    for name, text in (("cpus.exclusive", ""), ("cpus.partition", "member"), ("cpus.effective", "2")):
        (directory / f"cpuset.{name}").write_text(f"{text}\n")
    wanted = [replace(expectation("c1", "2"), isolated=True)]
    grounds = (object(),)
    partitions = CpuPartitions.recorded(str(tmp_path), tmp_path, tmp_path)
    own = {"c1": CpuSet([2])}
    cpusets = Cpusets(hierarchy, lambda *_: wanted, here, partitions=partitions, isolated=lambda: own)
    verifier = Verifier(hierarchy, cpusets, lambda *_: wanted, here, grounds=lambda: grounds, most_files=99)
    state = directory / "cpuset.cpus.partition"
    assert await verifier.verify(at_once=True) == ()
    assert state.read_text().strip() == "isolated"
    assert await verifier.verify(at_once=False) == ()
    # What is watched is looked at again once it shows something else.
    state.write_text("isolated invalid (Parent is not a partition root)\n")
    assert await verifier.verify(at_once=False) == ()
    (drift,) = await verifier.verify(at_once=False)
    assert set(drift.differences) == {"partition"}
    assert state.read_text().strip() == "isolated"
    # What is refused is told with the file.
    (directory / "cpuset.cpus.exclusive").unlink()
    state.write_text("member\n")
    for _ in "ab":
        await verifier.verify(at_once=False)
    (unrepaired,) = verifier.unrepaired.values()
    assert "cpuset.cpus.exclusive" in unrepaired.problem


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("partitions", [False, True], ids=["v1", "v2"])
def test_a_partition_is_expected_of_who_asks_for_it_where_there_are_some(
    *, beside: bool, partitions: bool
) -> None:
    owner = pod("g")
    one = container("c1", owner)
    request = replace(derive_request(owner, one, machine(2)), partition=True)
    others = CpuSet([4, 5]) if beside else CpuSet()
    placement = Placement(NodeSet([0]), CpuSet([1, 2]), beside_cpus=others)
    ledger = Ledger().with_entry(Entry(Decision(request, Outcome.PLACED, placement)))
    pods = {owner.id: owner}
    (found,) = expectations(Basis(machine(2), PlacementPolicy(), ledger), pods, [one], partitions=partitions)
    assert found.isolated == (partitions and not beside)
