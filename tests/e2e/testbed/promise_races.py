"""Promises that are touched at once while others' pages are in the way, with the kernel's own settings.

Each race is one row of `relief_under_load.py`: containers are created and started at the same moment, touch
nine tenths of what they were promised as fast as they can, and it is told who was killed. Nothing here
judges. A race goes by what the nodes have, and can be run on any of `TOPOLOGIES`.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from signal import SIGTERM

from testbed.crictl import Running
from testbed.crio import CrioNode
from testbed.memory_load import Kill, install, kills
from testbed.node import Node
from testbed.pods import MIB, Pod, best_effort, burstable, guaranteed
from testbed.topology import FOUR_NODES, SIX_NODES, UNEQUAL

LIMIT_S = 240.0
POLL_S = 0.5
TOUCHED = 0.9
MEASURED_S = 32.0
"""What is held outside of containers is measured every 30 s, and more is held since the sandboxes run."""
MEASURED_MIB = 24
"""And what it may rise by until the last container is created."""
SAMPLES = Path(__file__).parent / "programs" / "race_samples.py"
SAMPLED = "race-samples"
SAMPLES_LOG = "/run/testbed/race-samples.log"
RELIEVE, OFF = "relieve", "off"
FILES = "/run/testbed/files"
FILES_MIB = 450
PROCESSES = 4
# Each of an owner's processes has its part, and the last one says so.
FORKS = """
for one in {numbers}; do /bin/workload touch {bytes} >/dev/shm/$one & done
until test $(cat /dev/shm/[0-9]* | grep -c touched) = {count}; do sleep 0.1; done
echo touched; wait
"""
# All that can be read of a node's programs, again and again: page cache wherever it comes to lie.
STREAM = "while true; do find /files -xdev -type f -exec cat {} + >/dev/null 2>&1; done"
KILLED_AFTER_S = (1.0, 3.0)
_CONTAINER_ID = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Raced:
    """Who was killed though it is within its claim, by the pod's name or the program's, with the nodes of who
    asked; how many others; containers that have not touched what they were to touch; MiB that were free when
    somebody was killed, or at the end; how long it took; and what the daemon counted. ``sampled`` are the
    lines of `programs/race_samples.py`, then the containers' names."""

    killed_within_claims: list[str]
    killed_others: int
    unfinished: list[str]
    free_mib: int
    seconds: float
    counted: Mapping[str, int] = field(default_factory=dict)
    sampled: str = field(default="", repr=False)


class CrioServes(CrioNode):
    """A node on which CRI-O serves with NRI once it is clean, as containerd does on others."""

    def prepare(self) -> None:
        super().prepare()
        self.crio.start(nri=True, driver="cgroupfs")


def allocatable_mib(node: Node) -> dict[int, int]:
    """What can be promised on each node."""
    return {
        one["id"]: int(one["resources"]["memory"]["allocatableBytes"]) // MIB - MEASURED_MIB
        for one in node.bayplan.nodes()["nodes"]
    }


def beside_burstable(node: Node, mode: str, part: float, pause_s: float = 0.0) -> Raced:
    """Four Burstable containers have touched nine tenths of their requests; then Guaranteed ones are promised
    five of six nodes, and *part* of all that can be promised is promised."""
    begin(node, mode)
    there = run_burstable(node, part)
    return raced(node, lambda: owners_of_five(node, part), there, pause_s)


def in_the_way(node: Node, rate: str) -> list[Running]:
    """The same, of nine tenths, up to the start of the Guaranteed containers; pages move that slowly."""
    begin(node, RELIEVE, "--page-move-rate", rate)
    run_burstable(node, 0.9)
    return all_created(node, lambda: owners_of_five(node, 0.9))


def run_burstable(node: Node, part: float) -> list[Running]:
    """See `beside_burstable`: they may lie anywhere, and request as much as *part* of the last node."""
    has = allocatable_mib(node)
    total = node.kernel.memory_total_bytes()
    request = int(has[max(has)] * part) // 4 - 4
    pods = [burstable(f"web-{number}", node_memory_bytes=total, memory=f"{request}Mi") for number in range(4)]
    running = [node.launch(pod.touching(f"{int(request * TOUCHED)}Mi")) for pod in pods]
    for one in running:
        node.crictl.await_log(one, "touched")
    return running


def owners_of_five(node: Node, part: float) -> list[Pod]:
    """The Guaranteed ones, by what can be promised on the nodes now."""
    has = allocatable_mib(node)
    return [
        guaranteed(
            f"owner-{place}",
            0.2,
            f"{int(has[place] * part)}Mi",
            annotations={"bayplan.dev/required-nodes": str(place)},
        ).touching(f"{int(has[place] * part * TOUCHED)}Mi")
        for place in sorted(has)[:-1]
    ]


def bound(node: Node, parent: str = "kubepods") -> list[str]:
    """The cgroups below *parent* with a memory.high."""
    script = f"grep -L max $(find /sys/fs/cgroup/{parent} -name memory.high)"
    return node.guest.run("sh", "-c", script, check=False).stdout.split()


def start_all(node: Node, created: Sequence[Running]) -> None:
    """Start them at the same moment."""
    with ThreadPoolExecutor(len(created)) as pool:
        list(pool.map(lambda one: node.crictl.start(one.container_id), created))


def of_processes(pod: Pod) -> Pod:
    """The same pod, whose memory is touched by several processes of its container."""
    (container,) = pod.containers
    part = int(container.command[2]) // PROCESSES
    numbers = " ".join(map(str, range(PROCESSES)))
    script = FORKS.format(numbers=numbers, bytes=part, count=PROCESSES)
    return pod.with_containers(replace(container, command=("/bin/sh", "-c", script)))


def of_forking_owners(node: Node, mode: str) -> Raced:
    """All is promised, and each owner has several processes that touch memory at once."""
    begin(node, mode)
    there = run_burstable(node, 1.0)
    return raced(node, lambda: [of_processes(pod) for pod in owners_of_five(node, 1.0)], there)


def beside_a_stream(node: Node, mode: str) -> Raced:
    """All is promised, and a BestEffort container reads files all the time."""
    begin(node, mode)
    there = run_burstable(node, 1.0)
    stream = best_effort("stream")
    (container,) = stream.containers
    reading = replace(container, command=("/bin/sh", "-c", STREAM), mounts={"/files": "/usr"})
    return raced(node, lambda: owners_of_five(node, 1.0), there, beside=[stream.with_containers(reading)])


def with_a_daemon_that_dies(node: Node, mode: str) -> Raced:
    """All is promised, and the daemon is killed twice meanwhile."""
    begin(node, mode)
    there = run_burstable(node, 1.0)
    return raced(node, lambda: owners_of_five(node, 1.0), there, killed_after_s=KILLED_AFTER_S)


def beside_a_tmpfs(node: Node, mode: str, containers: int = 1) -> Raced:
    """BestEffort containers fill a tmpfs; then six Guaranteed ones touch theirs, wherever they were
    placed."""
    begin(node, mode)
    node.guest.run("sh", "-c", f"mkdir -p {FILES}; mount -t tmpfs -o size=1g tmpfs {FILES}")
    try:
        for number in range(containers):
            batch = best_effort(f"batch-{number}")
            (container,) = batch.containers
            amount = FILES_MIB * MIB // containers
            command = ("/bin/workload", "tmpfs", f"/files/filled-{number}", str(amount))
            mounts = {"/files": FILES}
            node.launch(batch.with_containers(replace(container, command=command, mounts=mounts)))
        await_that(lambda: files_mib(node) >= FILES_MIB)
        return raced(node, lambda: owners_beside_files(node))
    finally:
        node.crictl.remove_everything()
        node.guest.run("sh", "-c", f"umount {FILES}")


def owners_beside_files(node: Node) -> list[Pod]:
    """Six that may lie wherever they are placed, with 85 % of what is left in all."""
    has = allocatable_mib(node)
    each = (sum(has.values()) - FILES_MIB) * 85 // 100 // 6
    amounts = [min(each, amount) for amount in has.values()]
    return [
        guaranteed(f"owner-{number}", 0.2, f"{amount}Mi").touching(f"{int(amount * TOUCHED)}Mi")
        for number, amount in enumerate(amounts)
    ]


def beside_hogs(node: Node, mode: str) -> Raced:
    """BestEffort containers take all there is, beside Guaranteed ones."""
    begin(node, mode)
    total_mib = sum(allocatable_mib(node).values())
    hogs = [best_effort(f"hog-{number}").touching(f"{total_mib}Mi") for number in range(2)]
    return raced(node, lambda: owners_of_seven_tenths(node), beside=hogs)


def owners_of_seven_tenths(node: Node) -> list[Pod]:
    """One on each node."""
    return [
        guaranteed(
            f"owner-{place}",
            0.2,
            f"{int(amount * 0.7)}Mi",
            annotations={"bayplan.dev/required-nodes": str(place)},
        ).touching(f"{int(amount * 0.7 * TOUCHED)}Mi")
        for place, amount in allocatable_mib(node).items()
    ]


RACES: Mapping[str, Callable[[Node, str], Raced]] = {
    "all promised": partial(beside_burstable, part=1.0),
    "nine tenths promised": partial(beside_burstable, part=0.9),
    "15 s before the start": partial(beside_burstable, part=1.0, pause_s=15.0),
    "tmpfs": beside_a_tmpfs,
    "hogs": beside_hogs,
    "three tmpfs": partial(beside_a_tmpfs, containers=3),
    "forks": of_forking_owners,
    "stream": beside_a_stream,
    "daemon killed": with_a_daemon_that_dies,
}
"""Each with the `memoryPressure` that it is run with."""
TOPOLOGY = SIX_NODES
TOPOLOGIES = {one.name: one for one in (SIX_NODES, UNEQUAL, FOUR_NODES)}
"""Six and four unequal nodes with one that has no CPUs, and four with huge pages."""


def begin(node: Node, mode: str, *flags: str) -> None:
    """A clean node with the daemon as it is by default, which in other scenarios it is not."""
    node.prepare()
    install(node)
    node.bayplan.start(
        *("--memory-pressure", mode),
        *("--measured-reservation", "true"),
        *("--request-deadline", "1s"),
        *flags,
    )
    node.bayplan.await_synchronized()


def raced(
    node: Node,
    promised: Callable[[], list[Pod]],
    there: Sequence[Running] = (),
    pause_s: float = 0.0,
    beside: Sequence[Pod] = (),
    killed_after_s: Sequence[float] = (),
) -> Raced:
    """Create all the pods that are *promised*, start them at the same moment, and wait until all have touched
    theirs that are not killed. Those that are *there* run already. The daemon is killed, and started again,
    so long after the start and after each time."""
    before = len(kills(node))
    owners, began_s = all_created(node, promised), time.monotonic()
    time.sleep(pause_s)
    with sampled(node):
        hogs = [node.launch(hog) for hog in beside]
        start_all(node, owners)
        for after_s in killed_after_s:
            time.sleep(after_s)
            node.bayplan.kill()
            node.bayplan.start_again()
        waiting = list(owners)
        while waiting and time.monotonic() - began_s < LIMIT_S:
            ended = {container_id(one) for one in kills(node)[before:]}
            waiting = [
                one
                for one in waiting
                if one.container_id not in ended and "touched" not in node.crictl.logs(one)
            ]
            time.sleep(POLL_S)
    found = kills(node)[before:]
    free = sum(int(one["memFreeBytes"]) for one in free_of_nodes(node)) // MIB
    counted = counters(node)
    names = ("relieved_bytes", "moves", "slowed_down", "slowed_in_vain", "starts_held", "starts_held_ms")
    containers = {one.container_id: one.pod.name for one in (*owners, *hogs, *there)}
    return Raced(
        [named(one, containers) for one in found if one.of_a_claim],
        sum(not one.of_a_claim for one in found),
        [one.pod.name for one in waiting],
        free,
        time.monotonic() - began_s,
        {name: counted[name] for name in names if name in counted},
        f"{node.guest.read(SAMPLES_LOG)}{json.dumps(containers)}\n",
    )


def counters(node: Node) -> dict[str, int]:
    """What the daemon counted; nothing if it does not answer in time, as on a busy machine."""
    answer = node.bayplan.command("status", "--output", "json", check=False)
    found: dict[str, int] = json.loads(answer.stdout)["counters"] if answer.exit_code == 0 else {}
    return found


def named(killed: Kill, containers: Mapping[str, str]) -> str:
    """The pod that was killed, or the program of none, and on which nodes memory was asked for."""
    pod = containers.get(container_id(killed), killed.program)
    return f"{pod} for {killed.nodes}"


def container_id(killed: Kill) -> str:
    """Whose process it was, whichever runtime and cgroup driver names the cgroup; empty for none of a
    container."""
    found = _CONTAINER_ID.search(killed.cgroup)
    return found[0] if found else ""


@contextmanager
def sampled(node: Node) -> Iterator[None]:
    """While the block runs, what nodes have and containers use is noted in `SAMPLES_LOG`."""
    path = f"/run/testbed/{SAMPLES.name}"
    node.guest.write(path, SAMPLES.read_text())
    node.guest.run("rm", "-f", SAMPLES_LOG)
    node.guest.start(SAMPLED, "python3", path, "/sys/fs/cgroup/kubepods", log=SAMPLES_LOG)
    try:
        yield
    finally:
        node.guest.signal(SAMPLED, SIGTERM)


def all_created(node: Node, promised: Callable[[], list[Pod]]) -> list[Running]:
    """The pods that are *promised*, whose containers do not run yet. How much that is is asked again once
    their sandboxes run and what these take was measured: it is not there any more."""
    pods = promised()
    with ThreadPoolExecutor(len(pods)) as pool:
        sandboxes = list(pool.map(node.crictl.run_sandbox, pods))
        time.sleep(MEASURED_S)
        pods = [replace(pod, containers=now.containers) for pod, now in zip(pods, promised(), strict=True)]
        return list(pool.map(lambda pod, sandbox: created(node, pod, sandbox), pods, sandboxes))


def created(node: Node, pod: Pod, sandbox: str) -> Running:
    """The pod with its container, which does not run yet."""
    (container,) = pod.containers
    return Running(pod, sandbox, {container.name: node.crictl.create(sandbox, pod, container)})


def free_of_nodes(node: Node) -> list[dict[str, int]]:
    """MemFree of each node."""
    text = node.guest.run("sh", "-c", "cat /sys/devices/system/node/node*/meminfo | grep MemFree").stdout
    return [{"memFreeBytes": int(line.split()[3]) * 1024} for line in text.splitlines()]


def files_mib(node: Node) -> int:
    """What is in the tmpfs."""
    return int(node.guest.run("sh", "-c", f"du -sm {FILES} | cut -f1").stdout)


def await_that(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it does not become true"
        time.sleep(POLL_S)
