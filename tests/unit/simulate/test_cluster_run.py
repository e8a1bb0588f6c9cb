"""Runs of a cluster: what scheduler and nodes agree on at the end, where they differ, and the rules."""

import random
from pathlib import Path

import pytest

from bayplan.errors import ConfigError
from bayplan.model.decision import QosClass
from bayplan.quantity import GIB
from bayplan.simulate.cluster_nodes import ClusterNode, NodeKind, NodeSoftware, read_cluster, software_of
from bayplan.simulate.cluster_run import ClusterRun, overcommit_bytes, run_view
from bayplan.simulate.cluster_schedulers import SCHEDULERS, ClaimScheduler, feasible_to_find, scheduler_named
from bayplan.simulate.machine_file import described_machine
from bayplan.simulate.pod_trace import TimedPod

MACHINE = {
    "threadsPerCore": 2,
    "distances": {"remote": 21},
    "nodes": [{"count": 2, "cpus": 8, "memory": "16Gi"}],
}
KUBELET = {"engine": ["kubelet"], "cpuManagerPolicy": ["static"], "memoryManagerPolicy": ["Static"]}


def kind(count: int = 4, **resources: int) -> NodeKind:
    return NodeKind("n", count, described_machine(MACHINE), resources=resources)


def software(one: NodeKind, engine: str = "exact", policy: str = "restricted") -> NodeSoftware:
    flags = KUBELET if engine == "kubelet" else {"engine": [engine]}
    return software_of(one, (), {**flags, "topologyManagerPolicy": [policy]})


def trace(seed: int, count: int = 120) -> list[TimedPod]:
    rng = random.Random(seed)
    pods = []
    for number in range(count):
        qos = rng.choice([QosClass.GUARANTEED, QosClass.GUARANTEED, QosClass.BURSTABLE])
        cpus = rng.choice([500, 1000, 2000, 4000, 10_000])
        size_bytes = rng.randint(1, 18) * GIB
        lasts_s = rng.choice([20.0, 200.0, 1000.0])
        pods.append(TimedPod(f"p{number}", rng.uniform(0, 1200), cpus, size_bytes, lasts_s, qos=qos))
    return sorted(pods, key=lambda pod: pod.arrives_s)


def played(
    scheduler: str, engine: str, policy: str = "restricted", seed: int = 0, resync_s: float = 0
) -> ClusterRun:
    one = kind()
    run = ClusterRun([one], [software(one, engine, policy)], scheduler, seed=seed, resync_s=resync_s)
    for _ in run.play(trace(seed)):
        pass
    return run


@pytest.mark.parametrize("engine", ["exact", "kubelet"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("policy", ["single-numa-node", "restricted"])
def test_both_sides_of_every_node_have_the_same_pods(scheduler: str, engine: str, policy: str) -> None:
    run = played(scheduler, engine, policy)
    quality = run.quality
    assert quality.started + quality.never_started == quality.pods
    for node in run.nodes:
        used = node.pods.values()
        assert node.software.milli_cpus - node.free_milli == sum(pod.milli_cpus for pod in used)
        assert node.software.memory_bytes - node.free_bytes == sum(pod.memory_bytes for pod in used)
        assert min(node.free_milli, node.free_bytes, node.free_pods) >= 0
        if not isinstance(run.scheduler, ClaimScheduler):
            booked = {
                entry.decision.request.name.split("/")[1] for entry in node.rehearsal.ledger.entries.values()
            }
            held = {place.pod.name for place in run.held_on(node)}
            assert booked == set(node.pods) - held
            assert overcommit_bytes(node) <= 0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_same_seed_gives_the_same_result(scheduler: str) -> None:
    def result(seed: int) -> dict[str, object]:
        view = run_view(played(scheduler, "exact", seed=seed))
        del view["speed"]
        return view

    assert result(3) == result(3)


@pytest.mark.parametrize("engine", ["exact", "kubelet"])
def test_who_asks_is_not_refused_and_who_does_not_is(engine: str) -> None:
    blind, asking = (played(one, engine, "single-numa-node").quality for one in ("least-allocated", "ask"))
    assert blind.refusals > 0
    assert asking.refusals == 0


def test_claims_are_never_refused_and_never_more_than_there_is() -> None:
    run = played("dra", "exact")
    assert run.quality.refusals == 0
    assert isinstance(run.scheduler, ClaimScheduler)
    for node in run.nodes:
        rooms = run.scheduler.rooms_left(node)
        assert all(room.cpus >= 0 and room.memory_bytes >= 0 for room in rooms.values())


def test_a_topology_that_is_known_late_lets_refusals_through() -> None:
    """Without a cache what was just bound is not seen for a second; with one every NUMA node has less."""
    burst = [TimedPod(f"p{number}", 0.0, 1000, 9 * GIB, 60.0) for number in range(8)]
    counts = {}
    for resync_s in (0.0, 5.0):
        one = kind(2)
        run = ClusterRun([one], [software(one, "exact", "single-numa-node")], "nrt", resync_s=resync_s)
        for _ in run.play(burst):
            pass
        counts[resync_s] = run.quality.refusals
    assert counts[0.0] > counts[5.0] == 0


def test_the_controller_of_a_pod_that_kubelet_refuses_waits_longer_each_time() -> None:
    one = kind(1)
    wide = TimedPod("wide", 0.0, 1000, 20 * GIB, 10.0)
    other = TimedPod("long", 0.0, 1000, GIB, 1000.0)
    run = ClusterRun([one], [software(one, "kubelet", "single-numa-node")], "least-allocated")
    for _ in run.play([wide, other]):
        pass
    # 10, 20, 40, 80, 160, 320 and 360 s apart: at 0, 10, 30, 70, 150, 310, 630 and 990 s.
    assert (run.quality.refusals, run.quality.never_started) == (8, 1)


def test_a_pod_that_a_plugin_refuses_stays_and_starts_when_its_node_changes() -> None:
    one = kind(1)
    # One on each NUMA node; what is left of both together would suffice.
    pods = [TimedPod("first", 0.0, 1000, 9 * GIB, 100.0), TimedPod("second", 0.0, 1000, 9 * GIB, 100.0)]
    pods += [TimedPod("third", 1.0, 1000, 10 * GIB, 500.0)]
    run = ClusterRun([one], [software(one, "exact", "single-numa-node")], "least-allocated")
    for _ in run.play(pods):
        pass
    assert (run.quality.refusals, run.quality.started) == (1, 3)
    assert run.quality.wait_s == pytest.approx(109.0)  # at 100 s, and kubelet's 10 s later


def test_a_group_and_extended_resources_are_the_schedulers() -> None:
    one = kind(2, gpu=1)
    runs = ClusterRun([one], [software(one)], "least-allocated")
    gpus = [TimedPod(f"g{number}", 0.0, 1000, GIB, None, resources={"gpu": 1}) for number in range(3)]
    alone = [TimedPod(f"a{number}", 0.0, 1000, GIB, None, group="a", most_per_node=1) for number in range(3)]
    for _ in runs.play([*gpus, *alone, TimedPod("end", 10.0, 100, GIB, 1.0)]):
        pass
    assert runs.quality.never_started == 2


@pytest.mark.parametrize(("name", "resync_s"), [*((name, 0.0) for name in SCHEDULERS), ("nrt", 5.0)])
@pytest.mark.parametrize("policy", ["single-numa-node", "best-effort"])
def test_what_is_remembered_of_nodes_changes_no_choice(name: str, policy: str, resync_s: float) -> None:
    """Beside a scheduler that forgets everything before each choice."""
    one = kind(40, gpu=2)
    runs = software(one, "exact", policy)
    nodes = [ClusterNode(index, one, runs) for index in range(one.count)]
    remembering, forgetting = (scheduler_named(name, nodes, 7, resync_s) for _ in range(2))
    placed: list[tuple[ClusterNode, TimedPod]] = []
    rng, none_fits = random.Random(f"{name} {policy}"), 0
    for number in range(250):
        milli, size_bytes = rng.choice([500, 2000, 5000, 9000]), rng.choice([GIB, 6 * GIB, 11 * GIB])
        qos = rng.choice([QosClass.GUARANTEED, QosClass.GUARANTEED, QosClass.BURSTABLE])
        pod = TimedPod(
            f"p{number}", 0.0, milli, size_bytes, qos=qos, resources={"gpu": rng.randrange(2)}, group="g",
            most_per_node=rng.choice([0, 2]),
        )  # fmt: skip
        for node in nodes:
            forgetting.changed(node)
        among = rng.choice([None, rng.sample(nodes, 3)])
        chosen = remembering.choose(pod, among)
        assert forgetting.choose(pod, among) is chosen
        none_fits += chosen is None
        changed = rng.choice(nodes)
        if chosen is not None:
            chosen.bind(pod)
            chosen.admit(pod)
            placed.append((chosen, pod))
            changed = chosen
        gone = placed.pop(rng.randrange(len(placed))) if placed and rng.random() < 0.4 else None
        if gone is not None:
            gone[0].leave(gone[1])
        for scheduler in (remembering, forgetting):
            if chosen is not None:
                scheduler.bound(chosen, pod)
            if gone is not None:
                scheduler.left(*gone)
            if number % 3 == 0:
                scheduler.published(changed)
            if number % 7 == 0:
                scheduler.tick()
    assert 0 < none_fits < 200


def test_how_many_feasible_nodes_are_enough() -> None:
    assert [feasible_to_find(count) for count in (50, 100, 250, 1000, 5000, 20_000)] == [
        50,
        100,
        120,
        420,
        500,
        1000,
    ]


def test_a_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("[[nodes]]\ncount = 2\ncpus = 4\nmemory = '8Gi'\n")
    path = tmp_path / "cluster.toml"
    path.write_text("[[nodes]]\ncount = 3\ntopology = 'm.toml'\nresources = { gpu = 8 }\n")
    (found,) = read_cluster(path)
    assert (found.count, len(found.machine.nodes), found.resources, found.max_pods) == (3, 2, {"gpu": 8}, 110)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", ["nodes"]),
        ("nodes = 3\n", ["nodes"]),
        ("[[nodes]]\ncount = 0\ntopology = 'missing.toml'\n", ["nodes[0].count", "nodes[0].topology"]),
        ("[[nodes]]\ncount = 1\n", ["nodes[0]"]),
        ("[[nodes]]\ncpus = 4\nmachine = 3\n", ["nodes[0].cpus", "nodes[0].machine"]),
        ("[[nodes]]\ncount = true\n[nodes.machine]\n[[nodes.machine.nodes]]\nmemory = 'x'\n", None),
    ],
)
def test_what_is_wrong_in_a_cluster_file_is_named_at_once(
    tmp_path: Path, text: str, where: list[str] | None
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_cluster(path)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == where if where is not None else len(paths) > 1
