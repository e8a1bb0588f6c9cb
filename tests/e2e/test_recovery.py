"""What happens when somebody dies: the daemon, the runtime, the state database."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from testbed.bayplan import CONFIG, DATABASE, STATE_DIRECTORY
from testbed.crictl import Running
from testbed.node import Node
from testbed.pods import MIB, best_effort, burstable, guaranteed
from testbed.scenario import on
from testbed.topology import FOUR_NODES, THIS_MACHINE, TWO_NODES

from bayplan.model.wishes import DECISION_ANNOTATION
from bayplan.state.database import VERSION

CROWD = 50
LATE_S = 1.0
"""Less than a runtime waits for the answer to Synchronize."""
CURRENT = "SELECT count(*) FROM decisions WHERE current"


@on(FOUR_NODES)
def test_a_killed_daemon_comes_back_and_nothing_moves(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    exclusive = node.launch(guaranteed("exclusive", 1, "100Mi"))
    shared = node.launch(best_effort("shared"))
    before = [placement(node, pod) for pod in (exclusive, shared)]
    nodes = node.bayplan.nodes()["nodes"]
    node.bayplan.kill()

    lost = node.launch(guaranteed("while-down", 0.5, "100Mi"))
    assert node.view(lost).mems_allowed == {0, 1, 2, 3}
    node.bayplan.start()
    node.bayplan.await_synchronized()
    assert [placement(node, pod) for pod in (exclusive, shared)] == before
    after = node.bayplan.nodes()["nodes"]
    assert [one["cpus"] for one in after] == [one["cpus"] for one in nodes]
    status = node.bayplan.status()
    assert [one["name"] for one in status["unmanaged"]] == ["default/while-down/main"]
    assert node.bayplan.decided(lost.container_id)["outcome"] == "adopted"
    # Found, reported, and kept off the exclusive CPUs; its memory stays where it is.
    assert node.view(lost).cpus_allowed == before[1][0]

    node.crictl.stop(exclusive.container_id)
    node.await_view(shared, lambda view: view.cpus_allowed == set(range(8)))


@pytest.mark.matrix
@on(THIS_MACHINE, "2.4-nri")
def test_none_is_lost_while_the_runtime_lists_what_runs(node: Node) -> None:
    """Pods are created while the daemon connects again and again and answers late."""
    created: list[str] = []

    def launch(number: int) -> None:
        created.append(node.launch(best_effort(f"crowd-{number}")).container_id)

    with ThreadPoolExecutor(4) as workers:
        launched = [workers.submit(launch, number) for number in range(CROWD)]
        node.bayplan.start()
        while not all(one.done() for one in launched):
            node.bayplan.kill()
            node.bayplan.start_again()
            node.bayplan.pause()
            time.sleep(LATE_S)
            node.bayplan.resume()
        for one in launched:
            one.result()
    ended_s = time.monotonic()
    node.bayplan.await_known(created)
    print(f"all {len(created)} known {time.monotonic() - ended_s:.1f} s after the last one was created")


@on(FOUR_NODES)
def test_a_restarted_runtime_is_found_again(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    before = node.launch(guaranteed("before", 1, "100Mi"))
    placed = placement(node, before)
    position = node.bayplan.log_position()
    node.containerd.restart(how=signal.SIGKILL)
    node.bayplan.await_synchronized(since=position)
    assert placement(node, before) == placed
    after = node.launch(guaranteed("after", 1, "100Mi"))
    assert placement(node, after)[0].isdisjoint(placed[0])
    assert node.bayplan.status()["unmanaged"] == []


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_sigterm_leaves_everything_as_it_is(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    pod = node.launch(guaranteed("stays", 1, "100Mi"))
    placed = placement(node, pod)
    assert node.bayplan.stop() == 0
    assert placement(node, pod) == placed
    assert node.crictl.state(pod.container_id) == "CONTAINER_RUNNING"


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_a_damaged_database_never_stops_the_start(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    exclusive = node.launch(guaranteed("exclusive", 1, "100Mi"))
    shared = node.launch(best_effort("shared"))
    before = [placement(node, pod) for pod in (exclusive, shared)]
    node.bayplan.stop()
    node.guest.write(f"{STATE_DIRECTORY}/state.db", "this is not a database\n" * 1000)
    position = node.bayplan.log_position()
    node.bayplan.start()
    assert "state.db.corrupt" in node.bayplan.await_synchronized(since=position)
    assert [placement(node, pod) for pod in (exclusive, shared)] == before
    second = node.launch(guaranteed("second", 1, "100Mi"))
    assert placement(node, second)[0].isdisjoint(before[0][0])
    assert node.view(shared).cpus_allowed.isdisjoint(placement(node, second)[0])


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_a_rollback_moves_nobody_and_keeps_what_the_later_version_wrote(node: Node) -> None:
    """A later version wrote the database, then this one is installed again."""
    node.bayplan.start()
    node.bayplan.await_synchronized()
    exclusive = node.launch(guaranteed("exclusive", 1, "100Mi"))
    shared = node.launch(best_effort("shared"))
    before = [placement(node, pod) for pod in (exclusive, shared)]
    known = [known_of(node, pod) for pod in (exclusive, shared)]
    node.bayplan.stop()
    later = VERSION + 1
    statements = f"PRAGMA user_version = {later}; CREATE TABLE of_later (x);"
    write = f"import sqlite3; sqlite3.connect({DATABASE!r}).executescript({statements!r})"
    node.guest.run("python3", "-c", write)
    position = node.bayplan.log_position()
    node.bayplan.start()
    assert "was written by a later bayplan" in node.bayplan.await_synchronized(since=position)
    assert [placement(node, pod) for pod in (exclusive, shared)] == before
    assert [known_of(node, pod) for pod in (exclusive, shared)] == known
    assert node.bayplan.status()["unmanaged"] == []
    second = node.launch(guaranteed("second", 1, "100Mi"))
    assert placement(node, second)[0].isdisjoint(before[0][0])
    node.bayplan.stop()
    read = f"import sqlite3; print(sqlite3.connect('{DATABASE}.v{later}').execute('{CURRENT}').fetchone())"
    assert node.guest.run("python3", "-c", read).stdout.strip() == "(2,)"


@pytest.mark.matrix
@on(FOUR_NODES)
def test_an_emptied_state_directory_is_rebuilt_from_the_containers(node: Node) -> None:
    """Containers of all classes run; one ends, another is resized, and the runtime is restarted as well,
    before the daemon comes back with nothing. One is created meanwhile that brings another's annotation."""
    node.bayplan.start()
    node.bayplan.await_synchronized()
    gone = node.launch(guaranteed("gone", 1, "50Mi"))
    pods = [
        node.launch(guaranteed("exclusive", 1, "100Mi")),
        node.launch(guaranteed("confined", 0.5, "100Mi")),
        node.launch(burstable("burstable", node_memory_bytes=4 << 30)),
        *(node.launch(best_effort(f"shared-{number}")) for number in range(2)),
    ]
    node.crictl.stop(gone.container_id)
    node.crictl.update(pods[1].container_id, memory=150 * MIB)
    before = [placement(node, pod) for pod in pods]
    known = [known_of(node, pod) for pod in pods]
    node.bayplan.stop()
    node.guest.run("find", STATE_DIRECTORY, "-mindepth", "1", "-delete")
    node.containerd.restart(how=signal.SIGKILL)
    spec = node.crictl.inspect(pods[0].container_id)["info"]["runtimeSpec"]
    sly = best_effort("sly")
    taken_over = replace(
        sly.containers[0], annotations={DECISION_ANNOTATION: spec["annotations"][DECISION_ANNOTATION]}
    )
    forged = node.launch(sly.with_containers(taken_over))

    position = node.bayplan.log_position()
    node.bayplan.start()
    assert "recorded again from the containers" in node.bayplan.await_synchronized(since=position)
    assert [placement(node, pod) for pod in pods] == before
    assert [known_of(node, pod) for pod in pods] == known
    assert [one["name"] for one in node.bayplan.status()["unmanaged"]] == ["default/sly/main"]
    assert placement(node, forged)[0].isdisjoint(before[0][0])
    later = node.launch(guaranteed("later", 1, "100Mi"))
    assert placement(node, later)[0].isdisjoint(before[0][0])
    assert all(node.view(pod).cpus_allowed.isdisjoint(placement(node, later)[0]) for pod in pods[1:])


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_a_second_daemon_is_refused(node: Node) -> None:
    node.bayplan.start()
    ended = node.bayplan.start_refused()
    assert ended.exit_code == 3
    assert ", pid " in ended.stderr


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_a_cgroup_changed_behind_our_back_is_repaired(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    pod = node.launch(guaranteed("drifts", 1, "100Mi"))
    view = node.view(pod)
    position = node.bayplan.log_position()
    node.guest.write(f"/sys/fs/cgroup{view.cgroup}/cpuset.cpus", "0-3")
    node.bayplan.await_log("the kernel differs from the decision", since=position, limit_s=90)
    node.bayplan.await_log("repaired", since=position, limit_s=90)
    assert node.view(pod).cpus_allowed == view.cpus_allowed


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_changed_settings_are_taken_over_on_sighup_and_wrong_ones_are_not(node: Node) -> None:
    node.bayplan.start(config='topologyManagerPolicy = "best-effort"\n')
    node.bayplan.await_synchronized()
    stays = node.launch(guaranteed("stays", 1, "100Mi"))
    placed = placement(node, stays)
    node.guest.write(CONFIG, 'topologyManagerPolicy = "somehow"\n')
    node.bayplan.reload()
    node.bayplan.await_log("'somehow'")
    node.guest.write(CONFIG, 'topologyManagerPolicy = "single-numa-node"\n')
    node.bayplan.reload()
    node.bayplan.await_log("settings taken over")
    assert "TopologyAffinityError" in node.crictl.refused(guaranteed("too-wide", 0.5, "1500Mi"))
    assert placement(node, stays) == placed


def placement(node: Node, pod: Running) -> tuple[frozenset[int], frozenset[int], int]:
    view = node.view(pod)
    return view.cpus_allowed, view.mems_allowed, view.oom_score_adj


def known_of(node: Node, pod: Running) -> dict[str, object]:
    """What the daemon says of a container, without what comes and goes."""
    entry = node.bayplan.decided(pod.container_id)
    assert entry is not None
    fields = ("qosClass", "qosSource", "outcome", "mems", "cpus", "cpusExclusive", "memory", "bookedBytes")
    return {key: entry[key] for key in fields}
