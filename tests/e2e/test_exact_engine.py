"""The engine `exact` in the kernel: sets that overlap, others that move over and back, resizes, and refusals
whose text says what is in the way.
"""

import json
from itertools import product
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import NamedTuple

import pytest
from testbed.containerd import NRI_SOCKET
from testbed.crictl import Running
from testbed.errors import CommandError
from testbed.memory_load import install, kills, let_go, using, varying
from testbed.node import Node
from testbed.pods import MIB, Pod, best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import FOUR_NODES

ELSEWHERE = """
import sys
sys.path.insert(0, "/opt/bayplan/lib")
from bayplan.host.page_moves import migrate_pages
from bayplan.sets import NodeSet
assert migrate_pages(int(sys.argv[1]), NodeSet([0]), NodeSet([1])) == 0
"""
# With what the kernel would drop for whoever needs a page: that is all the room there is.
ROOM_ON_0 = """
echo 3 >/proc/sys/vm/drop_caches
awk '/MemFree|ctive.file|SReclaimable/ {kib += $4} END {print kib}' /sys/devices/system/node/node0/meminfo
"""
# Which containers may run on the same CPUs, in how many of its looks; of those here one alone has none of its
# own. What is no container's program, or not yet, does not count.
ALONE_PATH, ALONE_LOG = "/run/testbed/alone.py", "/run/testbed/alone.log"
ALONE = """
import collections, glob, itertools, json, re, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
looks, together = 0, collections.Counter()
def cpus(text):
    parts = [part.partition("-") for part in text.split(",")]
    return {cpu for low, _, high in parts for cpu in range(int(low), int(high or low) + 1)}
def look():
    found = {}
    for process in glob.glob("/proc/[0-9]*"):
        try:
            name = open(process + "/comm").read().strip()
            cgroup = open(process + "/cgroup").read().strip()
            status = open(process + "/status").read()
        except OSError:
            continue
        if "kubepods" in cgroup and name != "pause" and not name.startswith("runc"):
            allowed = re.search("Cpus_allowed_list:(.*)", status)[1].strip()
            found.setdefault(re.search("pod(?:uid-)?([^/]*)", cgroup)[1], set()).update(cpus(allowed))
    return found
print("looking", flush=True)
try:
    while True:
        looks += 1
        for (one, some), (other, more) in itertools.combinations(sorted(look().items()), 2):
            if some & more:
                together[f"{one} and {other}: {sorted(some & more)}"] += 1
        time.sleep(0.005)
finally:
    print(json.dumps({"looks": looks, "together": together}))
"""
KILL_AT = Path(__file__).parent / "testbed/programs/kill_at.py"
KILL_AT_PATH, KILL_AT_LOG = "/run/testbed/kill_at.py", "/run/testbed/kill_at.log"
KILL_AT_SOCKET, STEP_FILE = "/run/testbed/nri.sock", "/run/testbed/step"
MOVING = ("--topology-manager-policy", "single-numa-node", "--defragment", "move")
LATE = guaranteed("late", 1, "550Mi").touching("500Mi")
STEPS = ("request", "writing", "record", "cpusets", "reply", "start")
RELIEF_STEPS = ("pages", "slowed")
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"


def requiring(nodes: str, name: str, memory: str) -> Pod:
    return guaranteed(name, 0.5, memory, annotations={"bayplan.dev/required-nodes": nodes})


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_overlapping_sets_are_promised_what_they_hold_together_and_no_more(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    first = node.launch(requiring("0-1", "first", "1200Mi"))
    second = node.launch(requiring("1-2", "second", "800Mi"))
    assert node.view(first).mems_allowed == {0, 1}
    assert node.view(second).mems_allowed == {1, 2}
    # Its set crosses the other one, so that its processes start on the node that holds most of it.
    spec = json.loads(node.guest.read(f"{BUNDLES}/{second.container_id}/config.json"))
    spread = node.bayplan.decided(second.container_id)["bookedBytes"]
    main = max(spread, key=lambda place: spread[place]["memory"])
    assert spec["linux"]["memoryPolicy"] == {
        "mode": "MPOL_PREFERRED",
        "nodes": main,
        "flags": ["MPOL_F_STATIC_NODES"],
    }
    # Nodes 1 and 2 alone have room for it. Nodes 0 to 2 do not, and nobody of them can go elsewhere.
    refusal = node.crictl.refused(requiring("1-2", "third", "850Mi"))
    assert "TopologyAffinityError: default/third/main: " in refusal
    in_the_way = ("850Mi", "nodes 0-2", "2000Mi", "default/first/main", "default/second/main")
    assert [fact for fact in in_the_way if fact not in refusal] == []
    fourth = node.launch(requiring("1-2", "fourth", "400Mi"))
    assert node.view(fourth).mems_allowed == {1, 2}
    promised = [node.bayplan.decided(pod.container_id)["bookedBytes"] for pod in (first, second, fourth)]
    sums = [sum(row["memory"] for row in spread.values()) for spread in promised]
    assert sums == [1200 * MIB, 800 * MIB, 400 * MIB]
    for view in node.bayplan.nodes()["nodes"]:
        amounts = view["resources"]["memory"]
        here = sum(spread.get(str(view["id"]), {}).get("memory", 0) for spread in promised)
        assert here == amounts["bookedBytes"] <= amounts["allocatableBytes"]


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_a_flexible_container_moves_over_in_the_reply_and_goes_back(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    flexible = node.launch(guaranteed("flexible", 0.5, "600Mi").touching("300Mi"))
    node.crictl.await_log(flexible, "touched")
    assert node.view(flexible).mems_allowed == {0}
    late = node.launch(requiring("0", "late", "500Mi"))
    assert node.view(late).mems_allowed == {0}
    assert node.view(flexible).mems_allowed == {0, 1}
    explained = node.bayplan.command("explain", "default/late").stdout
    assert "default/flexible/main from node 0 to nodes 0-1" in explained
    # After a restart it is still known where everybody is, and where they belong.
    node.bayplan.restart()
    node.bayplan.await_synchronized()
    assert node.view(flexible).mems_allowed == {0, 1}
    node.crictl.stop(late.container_id)
    back_on_node_0(node, flexible)


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_a_container_goes_elsewhere_with_its_cpus_and_pages_so_that_another_fits(node: Node) -> None:
    """The daemon is killed after its reply and while pages are under way; the newcomer starts while it is
    down."""
    node.bayplan.start(*MOVING)
    node.bayplan.await_synchronized()
    pieces = in_pieces(node)
    node.guest.write(ALONE_PATH, ALONE)
    node.guest.start("alone", "python3", ALONE_PATH, log=ALONE_LOG)
    node.guest.await_text(ALONE_LOG, "looking")
    # Recorded, told to the runtime, and nobody is left to look after it.
    sandbox = node.crictl.run_sandbox(LATE)
    late = node.crictl.create(sandbox, LATE, LATE.containers[0])
    node.bayplan.kill()
    node.crictl.start(late)
    view, moved = node.view(late), node.view(pieces.db)
    assert (view.mems_allowed, view.cpus_allowed) == ({0}, {1})
    assert len(moved.cpus_allowed - {0, 1}) == len(moved.cpus_allowed) == 1
    for _ in range(3):
        # Pages are under way.
        since = node.bayplan.log_position()
        node.bayplan.start_again()
        node.bayplan.await_synchronized(since=since)
        node.bayplan.kill()
    node.bayplan.start_again()
    node.bayplan.await_synchronized()
    all_are_where_they_were_promised(node, pieces, late)
    assert node.view(pieces.db).cpus_allowed == moved.cpus_allowed
    node.guest.signal("alone", SIGTERM)
    seen = json.loads(node.guest.read(ALONE_LOG).splitlines()[-1])
    assert seen["looks"] > 100
    assert seen["together"] == {}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("step", "mode"), [*product(STEPS, ("off", "relieve")), *product(RELIEF_STEPS, ("relieve",))]
)
@on(FOUR_NODES, "2.3")
def test_a_daemon_that_is_killed_while_it_moves_somebody_leaves_every_promise_true(
    node: Node, step: str, mode: str
) -> None:
    """Without an answer containerd creates the newcomer all the same, and it takes memory from wherever it
    runs."""
    node.guest.write(KILL_AT_PATH, KILL_AT.read_text())
    words = (KILL_AT_SOCKET, NRI_SOCKET, STEP_FILE)
    node.guest.start("kill-at", "python3", KILL_AT_PATH, *words, log=KILL_AT_LOG)
    try:
        node.guest.await_text(KILL_AT_LOG, "listening")
        node.bayplan.start(*MOVING, "--nri-socket", KILL_AT_SOCKET, "--memory-pressure", mode)
        node.bayplan.await_synchronized()
        pieces = in_pieces(node)
        sandbox = node.crictl.run_sandbox(LATE)
        node.guest.write(STEP_FILE, step)
        late = node.crictl.create(sandbox, LATE, LATE.containers[0])
        node.crictl.start(late)
        node.guest.await_text(KILL_AT_LOG, f"killed at {step}")
        node.guest.await_text("/var/log/pods/late/main.log", "touched")
        since = node.bayplan.log_position()
        node.bayplan.start_again()
        node.bayplan.await_synchronized(since=since)
        if "created-without-us" in str(node.bayplan.decided(late)):
            # There is no record: it is where it is, and all others are where they were.
            assert step in ("request", "writing")
            assert node.view(pieces.db).mems_allowed == {0}
            assert "relocated" not in str(node.bayplan.decided(pieces.db.container_id))
        else:
            assert step != "request"
            all_are_where_they_were_promised(node, pieces, late)
    finally:
        node.guest.signal("kill-at", SIGKILL)


class Pieces(NamedTuple):
    """A node in pieces: who would have to go so that `LATE` fits, and the others."""

    db: Running
    others: tuple[Running, ...]


def in_pieces(node: Node) -> Pieces:
    """No node has room for `LATE`, and node 0 has once "db" is on another one; CPU 0 is reserved. All use
    what they were promised, "db" always other pages of it."""
    install(node)
    first = node.launch(requiring("0", "first", "100Mi").touching("80Mi"))
    db = node.launch(using(guaranteed("db", 1, "300Mi"), varying(150, 220, 10)))
    let_go(node)
    assert (node.view(db).mems_allowed, node.view(db).cpus_allowed) == ({0}, {1})
    holders = []
    for place in "123":
        wish = {"bayplan.dev/required-nodes": place}
        holder = guaranteed(f"holder-{place}", 1, "400Mi", annotations=wish)
        holders.append(node.launch(holder.touching("350Mi")))
    for one in (first, *holders):
        node.crictl.await_log(one, "touched")
    return Pieces(db, (first, *holders))


def all_are_where_they_were_promised(node: Node, pieces: Pieces, late: str) -> None:
    """The container "db" has gone elsewhere with its CPU and its pages, *late* is on node 0 with all of its
    own, and nobody was killed for it."""
    (cpu,) = node.view(pieces.db).cpus_allowed
    home = {cpu // 2}
    assert home != {0}
    node.await_view(pieces.db, lambda view: view.mems_allowed == home)
    assert set(node.view(pieces.db).anon_bytes()) == home
    node.guest.await_text("/var/log/pods/late/main.log", "touched")
    view = node.await_view(late, lambda view: set(view.anon_bytes()) == {0})
    assert (view.mems_allowed, view.cpus_allowed) == ({0}, {1})
    everybody = [one.container_id for one in (pieces.db, *pieces.others)] + [late]
    assert [node.crictl.state(one) for one in everybody] == ["CONTAINER_RUNNING"] * 6
    assert [kill for kill in kills(node) if kill.of_a_claim] == []
    node.launch(best_effort("next"))
    told = node.crictl.inspect(pieces.db.container_id)["status"]["resources"]["linux"]
    assert told["cpusetMems"] == "".join(map(str, home))
    assert "relocated" in str(node.bayplan.decided(pieces.db.container_id))


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_a_flexible_container_stays_wide_until_its_pages_have_room(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    flexible = node.launch(guaranteed("flexible", 0.5, "600Mi").touching("300Mi"))
    node.crictl.await_log(flexible, "touched")
    late = node.launch(requiring("0", "late", "500Mi"))
    # Its memory is on the other node by now, and on its own there is no room for all of it.
    node.guest.run("python3", "-c", ELSEWHERE, str(node.view(flexible).pid))
    assert node.view(flexible).anon_bytes()[1] > 290 * MIB
    room_kib = int(node.guest.run("sh", "-c", ROOM_ON_0).stdout)
    mount = f"mkdir -p /held && mount -t tmpfs -o size={room_kib}k,mpol=bind:0 held /held"
    node.guest.run("sh", "-c", f"{mount} && head -c {room_kib - 150 * 1024}K /dev/zero >/held/file")
    try:
        node.crictl.stop(late.container_id)
        node.bayplan.await_log("stays on more nodes than it needs")
        view = node.view(flexible)
        # Pages come first: some of them are back, and the kernel still allows both nodes.
        assert view.mems_allowed == {0, 1}
        assert 0 < view.anon_bytes()[1] < 290 * MIB < sum(view.anon_bytes().values())
        reason = node.bayplan.decided(flexible.container_id)["reasons"][-1]
        assert reason["code"] == "stays-wide"
        assert reason["text"] in node.bayplan.command("explain", "default/flexible").stdout
    finally:
        node.guest.run("umount", "/held")
    node.crictl.stop(node.launch(guaranteed("brief", 0.1, "10Mi")).container_id)
    back_on_node_0(node, flexible)
    assert "stays-wide" not in str(node.bayplan.decided(flexible.container_id))


def back_on_node_0(node: Node, flexible: Running) -> None:
    """Wait until the container has only node 0, and its pages are there; the runtime hears of it with the
    next reply."""
    view = node.await_view(flexible, lambda view: view.mems_allowed == {0})
    assert set(view.anon_bytes()) == {0}
    assert view.anon_bytes()[0] > 290 * MIB
    node.launch(best_effort("next"))
    told = node.crictl.inspect(flexible.container_id)["status"]["resources"]["linux"]
    assert told["cpusetMems"] == "0"


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_a_resize_is_granted_on_more_nodes_or_refused_and_then_nothing_changes(node: Node) -> None:
    node.bayplan.start("--topology-manager-policy", "restricted")
    node.bayplan.await_synchronized()
    neighbour = node.launch(guaranteed("neighbour", 0.5, "400Mi"))
    grown = node.launch(guaranteed("grown", 0.5, "400Mi"))
    assert node.view(neighbour).mems_allowed == node.view(grown).mems_allowed == {0}
    node.crictl.update(grown.container_id, memory=1000 * MIB)
    view = node.view(grown)
    assert (view.mems_allowed, view.memory_max_bytes) == ({0, 1}, 1000 * MIB)
    before = node.bayplan.decided(grown.container_id)
    with pytest.raises(CommandError, match="default/grown/main"):
        node.crictl.update(grown.container_id, memory=4000 * MIB)
    view = node.view(grown)
    assert (view.mems_allowed, view.memory_max_bytes) == ({0, 1}, 1000 * MIB)
    assert node.bayplan.decided(grown.container_id) == before
    node.crictl.update(grown.container_id, memory=300 * MIB)
    view = node.await_view(grown, lambda view: view.mems_allowed == {0})
    assert view.memory_max_bytes == 300 * MIB
