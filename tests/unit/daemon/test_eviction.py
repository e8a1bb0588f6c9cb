"""Thresholds of a node are met while the machine has room: it is relieved, and then somebody goes, the right
one, once, recorded; or nobody."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.admin.questions import recorded_questions
from bayplan.admin.snapshot_source import snapshot_of
from bayplan.agent_protocol import Evicted, EvictionAnswer, EvictionOutcome, EvictPod
from bayplan.config.settings import MemoryPressure
from bayplan.daemon.eviction import (
    BUDGET_NS,
    KUBELET_S,
    RELIEF_NS,
    ContainerUsage,
    EvictionManager,
    PressureSignals,
)
from bayplan.daemon.memory_pressure import PressureWatch
from bayplan.daemon.shadow import Parts
from bayplan.errors import PlacementError
from bayplan.host.eviction_signals import FileSystems, read_signals
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.page_moves import PagesMoved
from bayplan.host.shadow_mode import shadow_mode
from bayplan.kubelet.eviction_manager import NodeCondition, SignalObservation, Threshold, ThresholdValue
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_requests import (
    Amounts,
    ContainerFacts,
    ContainerKind,
    ContainerResources,
    PodFacts,
)
from bayplan.model.kubelet_version import KubeletRules
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, Pod
from bayplan.quantity import GIB, KIB, MIB
from support.conditions import until
from support.controllers import Controlled, controlled, here
from support.live_nodes import LiveNodes
from support.machines import container, pod
from support.oci_node import OciNode

S = 1_000_000_000
NODE = Threshold("node0.memory.available", ThresholdValue(200 * MIB), min_reclaim=ThresholdValue(50 * MIB))
SOFT = Threshold("node0.memory.available", ThresholdValue(200 * MIB), 30 * S)
MACHINE_WIDE = Threshold("memory.available", ThresholdValue(200 * MIB))
EVICT = MemoryPressure.EVICT


def best_effort(name: str) -> tuple[Pod, Container]:
    owner = pod(name, QosClass.BEST_EFFORT)
    one = container(name, owner, resources=Resources(cpu_shares=2), oom_score_adj=1000)
    return owner, replace(one, cgroups_path=f"{owner.cgroup_parent}/{name}")


LARGE, SMALL = best_effort("large"), best_effort("small")
OWNER = pod("db", QosClass.GUARANTEED, {"bayplan.dev/required-nodes": "0"})
DB = replace(
    container("db", OWNER, memory_bytes=600 * MIB, milli_cpus=500), cgroups_path=f"{OWNER.cgroup_parent}/db"
)
BURST = pod("burst", QosClass.BURSTABLE)
BURSTY = replace(
    container("burst", BURST, resources=Resources(cpu_shares=256), oom_score_adj=900),
    cgroups_path=f"{BURST.cgroup_parent}/burst",
)


@dataclass
class Around:
    one: Controlled
    live: LiveNodes
    watch: PressureWatch
    thresholds: tuple[Threshold, ...] = (NODE,)
    now_s: float = 1000.0
    movable: bool = False
    """Whether pages can be moved."""
    slow: bool = False
    """Whether that is tried, and takes for ever."""
    ended: list[tuple[list[str], float]] = field(default_factory=list)
    disk_available_bytes: int = GIB
    left: str = ""
    """What stays of who is ended."""
    answers: list[EvictionAnswer | None] = field(default_factory=list)
    """What the API server says, one after the other; then there is no agent."""
    asked: list[EvictPod] = field(default_factory=list)
    kubelet_ends: bool = True
    """Whether kubelet ends what the API server deletes."""
    waited: list[float] = field(default_factory=list)
    manager: EvictionManager = field(init=False)

    def __post_init__(self) -> None:
        hierarchy = self.live.node.hierarchy
        signals = PressureSignals(
            self.one.controller.state,
            hierarchy,
            FileSystems(str(self.live.node.root)),
            here,
            self.watch,
            thresholds=lambda: self.thresholds,
            transition_ns=lambda: 60 * S,
            clock_ns=lambda: int(self.now_s * S),
            read=self.signals,
        )
        usage = ContainerUsage(
            self.one.controller.state, hierarchy, self.watch, image_fs=False, clock_s=lambda: self.now_s
        )
        self.manager = EvictionManager(
            self.one.controller.state,
            hierarchy,
            here,
            self.watch,
            signals,
            usage,
            Parts.of_process().pod_end(hierarchy, here, self.end, self.wait),
        )
        self.manager.pod_end.ask_agent = self.ask_agent

    def signals(
        self, hierarchy: Hierarchy, disks: FileSystems, kubelet: KubeletRules
    ) -> dict[str, SignalObservation]:
        """What the files say, but of disks what the scenario says."""
        found = read_signals(hierarchy, disks, kubelet)
        disk = {"nodefs.available": SignalObservation(self.disk_available_bytes, GIB)}
        return {name: one for name, one in found.items() if "fs." not in name} | disk

    def end(self, _: Hierarchy, cgroups: Sequence[str], grace_s: float) -> str:
        self.ended.append((list(cgroups), grace_s))
        if not self.left:
            self.gone(cgroups)
        return self.left

    async def ask_agent(self, asked: EvictPod, _: float) -> EvictionAnswer | None:
        if not self.answers:
            return None
        self.asked.append(asked)
        return self.answers.pop(0)

    def wait(self, _: Hierarchy, cgroups: Sequence[str], limit_s: float) -> bool:
        self.waited.append(limit_s)
        if self.kubelet_ends:
            self.gone(cgroups)
        return self.kubelet_ends

    def gone(self, cgroups: Sequence[str]) -> None:
        """The processes have ended."""
        for path in cgroups:
            self.hold(path, {})
            (self.live.node.directory(path) / "cgroup.procs").write_text("")

    def hold(self, path: str, amounts: dict[int, int]) -> None:
        self.live.hold(path, amounts)
        directory = self.live.node.directory(path)
        (directory / "memory.current").write_text(str(sum(amounts.values())))
        (directory / "memory.stat").write_text("anon 0\ninactive_file 0\n")
        self.machine(sum(sum(row.values()) for row in self.live.held.values()))

    def pod_holds(self, owner: Pod, amounts: dict[int, int]) -> None:
        """What the cgroup of a pod is charged for."""
        directory = self.live.node.directory(owner.cgroup_parent)
        (directory / "memory.current").write_text(str(sum(amounts.values())))
        (directory / "memory.stat").write_text("anon 0\ninactive_file 0\n")
        columns = " ".join(f"N{node}={amount}" for node, amount in amounts.items())
        rows = (f"inactive_anon {columns}", "active_anon N0=0", "unevictable N0=0")
        (directory / "memory.numa_stat").write_text("\n".join(rows) + "\n")

    def machine(self, used_bytes: int) -> None:
        """What the machine as a whole uses."""
        root = self.live.node.root
        (root / "proc/meminfo").write_text(f"MemTotal: {2 * GIB // KIB} kB\n")
        mount = Path(self.live.node.hierarchy.mounts["memory"])
        mount.mkdir(parents=True, exist_ok=True)
        (mount / "memory.stat").write_text(f"anon {used_bytes}\nfile 0\ninactive_file 0\n")

    async def create(self, owner: Pod, one: Container, held: dict[int, int]) -> None:
        await self.one.controller.create_container(owner, one)
        self.hold(one.cgroups_path, held)

    async def look(self, times: int = 1) -> list[str]:
        """Let time pass, and look at nodes and signals; who was evicted."""
        found = []
        for _ in range(times):
            self.now_s += 2
            for _ in range(9):
                if not await self.watch.look():
                    break
            evicted = await self.manager.look()
            found += [] if evicted is None else [evicted.pod.name]
        return found


@asynccontextmanager
async def around(tmp_path: Path, mode: MemoryPressure = EVICT) -> AsyncIterator[Around]:
    """Two nodes of 1 GiB."""
    live = LiveNodes(OciNode(tmp_path / "root"), {0: GIB, 1: GIB})
    async with controlled(tmp_path / "state") as one:

        def moved(
            cgroup: str, source: int, target: int, wanted: int, go_on: Callable[[int], bool]
        ) -> PagesMoved:
            if made.slow:
                return PagesMoved()
            if not made.movable:
                return PagesMoved(obstacle="pinned", exhausted=True)
            return PagesMoved(live.move(cgroup, source, target, wanted), exhausted=True)

        relief = Parts.of_process().relief(live.node.hierarchy, GIB, move=moved, clock_s=lambda: made.now_s)
        promised = one.promised_nodes(live.node.hierarchy, lambda: made.now_s)
        watch = PressureWatch(
            one.controller.state,
            live.node.hierarchy,
            here,
            mode,
            relief,
            promised,
            clock_s=lambda: made.now_s,
        )
        made = Around(one, live, watch)
        one.admission.append(made.manager.admitted)
        made.machine(0)
        yield made


async def test_a_node_is_relieved_and_nobody_has_to_go(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.movable = True
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(5) == []
        assert it.live.held[LARGE[1].cgroups_path][1] > 0
        # What is outstanding does not count; min reclaim does.
        assert it.live.free(0) >= 250 * MIB
        assert (it.manager.problems(), it.ended) == ((), [])


async def test_signals_are_looked_at_again_at_once_where_a_threshold_is_near_or_nodes_lost_much(
    tmp_path: Path,
) -> None:
    async with around(tmp_path) as it:
        await it.create(*LARGE, {0: 600 * MIB})
        await it.look()
        assert not it.manager.signals.is_any_near()
        it.watch.looked.clear()
        following = asyncio.create_task(it.manager.follow(pause_s=0, far_pause_s=3600))
        try:
            it.hold(LARGE[1].cgroups_path, {0: 750 * MIB})
            await it.watch.look()
            await until(it.manager.signals.is_any_near)
            assert not it.manager.signals.pressure.since_ns
            # Nobody else looks meanwhile.
            it.hold(LARGE[1].cgroups_path, {0: 900 * MIB})
            await until(lambda: bool(it.manager.signals.pressure.since_ns))
        finally:
            following.cancel()


async def test_who_is_largest_there_goes_once_and_all_is_recorded(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        await it.create(*LARGE, {0: 500 * MIB, 1: 10 * MIB})
        await it.create(*SMALL, {0: 400 * MIB, 1: 600 * MIB})
        # The other one uses most of the machine, and is first: both hold enough on the node.
        # Relief tries the pages of both before anybody goes.
        assert await it.look(5) == []
        assert await it.look() == ["small"]
        assert it.ended == [([SMALL[1].cgroups_path], 1.0)]
        assert await it.look(10) == []
        controller = it.one.controller
        assert controller.state.counters["evicted:node0.memory.available:BestEffort"] == 1
        (record,) = await controller.state.recorder.evictions(10, "small")
        assert (record.threshold, record.available) == (200 * MIB, 124 * MIB)
        assert (record.used, record.request, record.priority) == (1000 * MIB, 0, 0)
        for told in ("200Mi", "124Mi", "small-name", "1000Mi"):
            assert told in record.message
        for verb, expected in (("history", "evicted"), ("explain", "evictions")):
            question = recorded_questions(controller.state.recorder)[verb]
            said = await question(snapshot_of(controller.state, 0, ()), {"subject": "small"})
            assert expected in str(said)


@pytest.mark.parametrize("below", ["small", "crio-small.scope/container"])
async def test_what_an_ended_container_left_in_memory_counts_for_its_pod(tmp_path: Path, below: str) -> None:
    async with around(tmp_path) as it:
        await it.create(*LARGE, {0: 500 * MIB})
        owner, small = SMALL
        small = replace(small, cgroups_path=f"{owner.cgroup_parent}/{below}")
        await it.create(owner, small, {0: 100 * MIB})
        it.hold("/outside", {0: 300 * MIB})
        # The files of a container that has ended are charged to the pod.
        it.pod_holds(owner, {0: 700 * MIB})
        assert await it.look(6) == ["small"]
        (record,) = await it.one.controller.state.recorder.evictions(10, "small")
        assert record.used == 700 * MIB


async def test_the_next_one_waits_until_the_end_of_the_last_one_is_seen(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.left = "process 7 does not end"
        await it.create(*LARGE, {0: 500 * MIB})
        await it.create(*SMALL, {0: 400 * MIB})
        assert await it.look(6) == ["large"]
        assert await it.look(4) == []
        # It did not end: the only thing to do is to try it again.
        assert await it.look() == ["large"]


async def test_one_at_a_time_and_no_more_than_is_needed(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        for number, (owner, one) in enumerate(map(best_effort, "abcd")):
            await it.create(owner, one, {0: (210 + number) * MIB})
        assert await it.look(20) == ["d"]
        # 391 MiB are available by now. Then it is 221: above the threshold, and not begun for it.
        it.hold("/outside", {0: 170 * MIB})
        assert await it.look(12) == []
        it.hold("/outside", {0: 230 * MIB})
        assert await it.look(12) == ["c"]
        assert len(it.ended) == 2


async def test_nobody_within_its_promise_goes(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        await it.create(OWNER, DB, {0: 600 * MIB})
        await it.create(BURST, BURSTY, {0: 400 * MIB})
        assert await it.look(10) == []
        (met, why) = [one for one in it.manager.problems() if "node0" in one]
        assert met == "eviction threshold met: node0.memory.available is 24Mi, the hard threshold 200Mi"
        assert why.startswith("nobody may be evicted for node0.memory.available (")
        # kubelet's word makes one of them known; a request that the spec disproves does not.
        kubelet = it.one.controller.state.kubelet_pods
        kubelet.update(burst_facts(1))
        assert await it.look(6) == []


def burst_facts(request_bytes: int) -> PodFacts:
    resources = ContainerResources(Amounts(memory_bytes=request_bytes))
    one = ContainerFacts("burst-name", ContainerKind.MAIN, resources)
    return PodFacts(BURST.uid, BURST.namespace, BURST.name, QosClass.BURSTABLE, (one,), priority=0)


@pytest.mark.parametrize("mode", [MemoryPressure.RELIEVE, MemoryPressure.OBSERVE, MemoryPressure.OFF])
async def test_nobody_goes_where_that_is_not_switched_on(tmp_path: Path, mode: MemoryPressure) -> None:
    async with around(tmp_path, mode) as it:
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(5) == []
        assert bool(it.manager.problems()) == (mode is not MemoryPressure.OFF)


async def test_a_soft_threshold_waits_for_its_grace_period(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (SOFT,)
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(15) == []
        assert await it.look() == ["large"]
        assert it.ended == [([LARGE[1].cgroups_path], 30.0)]


async def test_the_machine_as_a_whole_without_a_kubelet(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (MACHINE_WIDE,)
        await it.create(*LARGE, {0: 900 * MIB, 1: 950 * MIB})
        assert await it.look(2) == []  # kubelet's cgroup is there: the containers are in it.
        assert "nobody is evicted: that is left to kubelet" in it.manager.problems()
        it.live.node.directory("/kubepods").rename(it.live.node.directory("/pods"))
        await it.look()
        assert it.manager.signals.conditions() == (NodeCondition.MEMORY_PRESSURE,)


async def test_who_was_evicted_does_not_come_back_while_the_node_has_that_condition(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(6) == ["large"]
        controller, (owner, one) = it.one.controller, LARGE
        await controller.stop_container(owner, one)
        again = replace(one, id="large-2")
        with pytest.raises(PlacementError, match="the pod was evicted, and MemoryPressure lasts"):
            await controller.create_container(owner, again)
        other_owner, other = SMALL
        await controller.create_container(other_owner, other)
        assert await it.look(25) == []
        with pytest.raises(PlacementError):
            await controller.create_container(owner, again)
        await it.look(6)
        await controller.create_container(owner, again)


async def test_shadow_mode_records_each_once_and_ends_nobody(tmp_path: Path) -> None:
    with shadow_mode():
        async with around(tmp_path) as it:
            await it.create(OWNER, DB, {0: 100 * MIB})
            # Bound to the node, so that it cannot be relieved.
            owner = pod("bound", QosClass.BEST_EFFORT, {"bayplan.dev/keep-pages": "true"})
            one = container("bound", owner, resources=Resources(cpu_shares=2), oom_score_adj=1000)
            path = f"{owner.cgroup_parent}/bound"
            await it.create(owner, replace(one, cgroups_path=path), {0: 800 * MIB})
            assert await it.look(20) == ["bound"]
            assert it.ended == []
            (record,) = await it.one.controller.state.recorder.evictions(10, None)
            assert "shadow mode" in record.obstacle
            assert f"it was not ended: {record.obstacle}" in str(record)


async def test_relief_that_does_not_suffice_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.slow = True
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(int(RELIEF_NS / S / 2)) == []
        assert await it.look() == ["large"]


async def test_who_does_not_end_is_said(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.left = "process 7 does not end"
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(6) == ["large"]
        assert it.one.controller.state.counters["evictions_failed"] == 1


def answer(outcome: EvictionOutcome, problem: str = "") -> EvictionAnswer:
    return EvictionAnswer(LARGE[0].uid, outcome, problem)


ACCEPTED = answer(EvictionOutcome.ACCEPTED)
NOT_NOW = answer(EvictionOutcome.LATER, "it would violate the pod's disruption budget")


async def test_the_api_server_deletes_the_pod_and_kubelet_ends_it(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.answers = [ACCEPTED]
        await it.create(*LARGE, {0: 900 * MIB})
        controller = it.one.controller
        position = controller.state.changes.position
        assert await it.look(6) == ["large"]
        owner, one = LARGE
        assert it.asked == [EvictPod(owner.uid, owner.namespace, owner.name, 1)]
        assert (it.waited, it.ended) == ([1 + KUBELET_S], [])
        assert controller.state.counters["evicted_by_api_server"] == 1
        # For the event on the pod.
        (told,) = controller.state.changes.since(position) or ()
        assert isinstance(told, Evicted)
        assert told.record.container_id == one.id
        assert told.annotations["starved_resource"] == "memory"


async def test_what_kubelet_does_not_end_is_ended_here(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        # Or an agent that only says so.
        it.answers, it.kubelet_ends = [ACCEPTED], False
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(6) == ["large"]
        assert it.ended == [([LARGE[1].cgroups_path], 1.0)]


@pytest.mark.parametrize("refused", [answer(EvictionOutcome.REFUSED, "403: forbidden"), NOT_NOW])
async def test_a_hard_threshold_does_not_wait_for_an_api_server_that_refuses(
    tmp_path: Path, refused: EvictionAnswer
) -> None:
    async with around(tmp_path) as it:
        it.answers = [refused]
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(6) == ["large"]
        assert it.ended == [([LARGE[1].cgroups_path], 1.0)]
        assert it.one.controller.state.counters["evicted_by_api_server"] == 0
        # Once, whatever the API server says.
        assert len(it.asked) == 1


async def test_for_a_soft_threshold_a_disruption_budget_is_heeded_and_the_next_one_goes(
    tmp_path: Path,
) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (SOFT,)
        it.answers = [NOT_NOW]
        await it.create(*LARGE, {0: 500 * MIB})
        await it.create(*SMALL, {0: 400 * MIB})
        assert await it.look(16) == []
        (_, why) = [one for one in it.manager.problems() if "node0" in one]
        assert "large" in why
        assert NOT_NOW.problem in why
        records = await it.one.controller.state.recorder.evictions(10, "large")
        assert [one.obstacle for one in records] == [NOT_NOW.problem, ""]
        assert it.one.controller.state.counters["evicted:node0.memory.available:BestEffort"] == 0
        # It may still run.
        owner, one = LARGE
        await it.one.controller.create_container(owner, replace(one, id="large-2"))
        assert await it.look(6) == ["small"]
        assert it.ended == [([SMALL[1].cgroups_path], 30.0)]


async def test_who_is_kept_by_a_budget_is_asked_about_again(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (SOFT,)
        it.answers = [NOT_NOW, ACCEPTED]
        await it.create(*LARGE, {0: 900 * MIB})
        assert await it.look(16 + BUDGET_NS // S // 2 - 1) == []
        assert len(it.asked) == 1
        assert await it.look() == ["large"]
        assert it.waited == [30 + KUBELET_S]


PIDS = Threshold("pid.available", ThresholdValue(share=0.5))
NOT_HERE = Threshold("allocatableMemory.available", ThresholdValue(MIB))


def without_kubelet(it: Around) -> None:
    """The containers' cgroups are elsewhere than kubelet has them."""
    it.live.node.directory("/kubepods").rename(it.live.node.directory("/pods"))


def running_threads(it: Around, number: int) -> None:
    proc = it.live.node.root / "proc"
    (proc / "sys/kernel").mkdir(parents=True, exist_ok=True)
    for name in ("pid_max", "threads-max"):
        (proc / "sys/kernel" / name).write_text("1000\n")
    (proc / "loadavg").write_text(f"0.1 0.1 0.1 1/{number} 1\n")


def outside(name: str) -> tuple[Pod, Container]:
    """A container that no kubelet has made."""
    owner, one = best_effort(name)
    return owner, replace(one, cgroups_path=f"/pods/{name}")


async def test_who_has_most_processes_goes_where_they_run_out(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (PIDS,)
        running_threads(it, 900)
        for name, threads in (("forks", 700), ("modest", 3)):
            owner, one = outside(name)
            await it.create(owner, one, {0: MIB})
            (it.live.node.directory(one.cgroups_path) / "pids.current").write_text(f"{threads}\n")
        assert await it.look() == ["forks"]
        assert it.manager.signals.conditions() == (NodeCondition.PID_PRESSURE,)
        (record,) = await it.one.controller.state.recorder.evictions(10, None)
        assert (record.threshold, record.available, record.used) == (500, 100, 700)
        assert "resource: pids." in record.message
        assert str(record).endswith("was using 700 and requests 0")
        # Their end is seen, and nobody else has to go.
        running_threads(it, 200)
        assert await it.look(20) == []
        assert len(it.ended) == 1


async def test_who_has_just_started_goes_if_it_has_most(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (PIDS,)
        running_threads(it, 100)
        for name, threads in (("modest", 3), ("forks", 700)):
            owner, one = outside(name)
            await it.create(owner, one, {0: MIB})
            (it.live.node.directory(one.cgroups_path) / "pids.current").write_text(f"{threads}\n")
            if name == "modest":
                assert await it.look() == []
        running_threads(it, 900)
        evicted = await it.manager.look()
        assert evicted is not None
        assert evicted.pod.name == "forks"


async def test_processes_and_disks_of_a_node_with_a_kubelet_are_left_to_it(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (PIDS, FULL)
        running_threads(it, 900)
        await it.create(*LARGE, {0: 500 * MIB})
        assert await it.look(20) == []
        assert "nobody is evicted for the machine: that is left to kubelet" in it.manager.problems()
        # It says nothing of the memory of nodes, which kubelet does not look at.
        it.thresholds = (PIDS, NODE)
        it.hold(LARGE[1].cgroups_path, {0: 900 * MIB})
        assert await it.look(6) == ["large"]


FULL = Threshold("nodefs.available", ThresholdValue(100 * MIB))


async def writes(it: Around, name: str, pid: int, amount_bytes: int) -> Path:
    """A running container without a kubelet that has written so much; where to."""
    owner, one = outside(name)
    await it.create(owner, one, {0: MIB})
    layer = it.live.node.root / "var/lib/layers" / name
    layer.mkdir(parents=True)
    (layer / "file").write_bytes(bytes(amount_bytes))
    it.live.node.make_process(pid, one.cgroups_path)
    (it.live.node.root / f"proc/{pid}/mountinfo").write_text(
        f"57 22 0:50 / / rw - overlay overlay rw,lowerdir=/a,upperdir=/var/lib/layers/{name},workdir=/w\n"
    )
    return layer


async def test_who_wrote_most_goes_where_the_disk_is_full(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (FULL,)
        it.disk_available_bytes = 90 * MIB
        layer = await writes(it, "writes", 300, 3 * MIB)
        await writes(it, "modest", 301, MIB)
        assert await it.look() == ["writes"]
        assert it.manager.signals.conditions() == (NodeCondition.DISK_PRESSURE,)
        (record,) = await it.one.controller.state.recorder.evictions(10, None)
        assert record.message.partition("resource: ")[2].startswith("ephemeral-storage. ")
        assert "Container writes-name was using " in record.message
        assert 3 * MIB <= record.used < 4 * MIB
        # What it left there would not do.
        assert layer.is_dir()
        assert await it.look(6) == ["modest"]


async def test_nobody_goes_for_a_disk_where_what_ended_pods_left_would_do(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds, it.disk_available_bytes = (FULL,), 95 * MIB
        await writes(it, "writes", 300, 8 * MIB)
        await writes(it, "modest", 301, MIB)
        assert await it.look() == ["writes"]
        assert await it.look(30) == []
        (problem,) = (one for one in it.manager.problems() if "left" in one)
        assert problem == (
            "what ended pods left would do for nodefs.available: remove their containers (default/writes)"
        )
        # The condition is over: it may come back, and what it wrote is no reason to wait any more.
        it.disk_available_bytes = GIB
        assert await it.look(40) == []
        it.disk_available_bytes = 95 * MIB
        assert await it.look() == ["modest"]


async def test_who_else_goes_once_what_was_left_is_removed(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds, it.disk_available_bytes = (FULL,), 95 * MIB
        layer = await writes(it, "writes", 300, 8 * MIB)
        await writes(it, "modest", 301, MIB)
        assert await it.look() == ["writes"]
        assert await it.look(30) == []
        # Somebody has removed it, and the disk is full all the same.
        (layer / "file").unlink()
        layer.rmdir()
        assert await it.look(6) == ["modest"]


async def test_what_no_overlay_holds_is_not_known_and_nobody_goes_for_it(tmp_path: Path) -> None:
    async with around(tmp_path) as it:
        it.thresholds, it.disk_available_bytes = (FULL,), 0
        owner, one = outside("elsewhere")
        await it.create(owner, one, {0: MIB})
        assert await it.look(20) == []
        assert any("default/elsewhere" in problem for problem in it.manager.problems())


async def test_what_cannot_be_observed_is_named_once_and_what_cannot_be_read_is_a_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with around(tmp_path) as it:
        it.thresholds = (NOT_HERE, NODE)
        await it.create(*LARGE, {0: 900 * MIB})
        await it.look(3)
        named = [one for one in caplog.records if "cannot be observed here" in one.getMessage()]
        assert [one.signals for one in named] == [["allocatableMemory.available"]]
        # Nobody goes by numbers of an earlier look; those of nodes are from elsewhere.
        it.thresholds = (MACHINE_WIDE,)
        it.machine(2 * GIB - MIB)
        await it.look()
        assert it.manager.signals.pressure.due == (MACHINE_WIDE,)
        (it.live.node.root / "proc/meminfo").write_text("garbage\n")
        assert await it.look(3) == []
        assert it.manager.signals.pressure.due == ()
        (problem,) = it.manager.problems()
        assert problem.startswith("eviction signals cannot be read: ")
        it.thresholds = (NODE,)
        assert await it.look(6) == ["large"]
