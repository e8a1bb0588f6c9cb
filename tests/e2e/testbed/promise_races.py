"""Promises that are touched at once while others' pages are in the way, with the kernel's own settings.

Each race is one row of `relief_under_load.py`: containers are created and started at the same moment, touch
nine tenths of what they were promised as fast as they can, and it is told who was killed. Nothing here
judges.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from testbed.crictl import Running
from testbed.memory_load import install, kills
from testbed.node import Node
from testbed.pods import MIB, Pod, best_effort, burstable, guaranteed
from testbed.topology import SIX_NODES

LIMIT_S = 240.0
POLL_S = 0.5
TOUCHED = 0.9
MEASURED_S = 32.0
"""What is held outside of containers is measured every 30 s, and more is held since the first ones run."""
MEASURED_MIB = 24
"""And what it may rise by until the last container is created."""
FILES = "/run/testbed/files"
FILES_MIB = 450


@dataclass(frozen=True)
class Raced:
    """Programs that were killed though they are within their claims, and how many others; containers that
    have not touched what they were to touch; MiB that were free when somebody was killed, or at the end; how
    long it took; and what the daemon counted."""

    killed_within_claims: list[str]
    killed_others: int
    unfinished: list[str]
    free_mib: int
    seconds: float
    counted: Mapping[str, int] = field(default_factory=dict)


def allocatable_mib(node: Node) -> dict[int, int]:
    """What can be promised on each node."""
    return {
        one["id"]: int(one["resources"]["memory"]["allocatableBytes"]) // MIB - MEASURED_MIB
        for one in node.bayplan.nodes()["nodes"]
    }


def beside_burstable(node: Node, part: float, pause_s: float = 0.0) -> Raced:
    """Four Burstable containers have touched nine tenths of their requests; then Guaranteed ones are promised
    five of six nodes, and *part* of all that can be promised is promised."""
    begin(node)
    return raced(node, owners_of_five(node, part), pause_s)


def in_the_way(node: Node, rate: str) -> list[Running]:
    """The same, of nine tenths, up to the start of the Guaranteed containers; pages move that slowly."""
    begin(node, "--page-move-rate", rate)
    return [created(node, one) for one in owners_of_five(node, 0.9)]


def owners_of_five(node: Node, part: float) -> list[Pod]:
    """See `beside_burstable`: the Burstable containers run, the Guaranteed ones are not there yet."""
    has = allocatable_mib(node)
    *owned, rest = sorted(has)
    total = node.kernel.memory_total_bytes()
    request = int(has[rest] * part) // 4 - 4
    pods = [burstable(f"web-{number}", node_memory_bytes=total, memory=f"{request}Mi") for number in range(4)]
    for one in [node.launch(pod.touching(f"{int(request * TOUCHED)}Mi")) for pod in pods]:
        node.crictl.await_log(one, "touched")
    if part == 1.0:
        time.sleep(MEASURED_S)
    has = allocatable_mib(node)
    return [
        guaranteed(
            f"owner-{place}",
            0.2,
            f"{int(has[place] * part)}Mi",
            annotations={"bayplan.dev/required-nodes": str(place)},
        ).touching(f"{int(has[place] * part * TOUCHED)}Mi")
        for place in owned
    ]


def bound(node: Node) -> list[str]:
    """The cgroups of containers with a memory.high."""
    script = "grep -L max $(find /sys/fs/cgroup/kubepods -name memory.high)"
    return node.guest.run("sh", "-c", script, check=False).stdout.split()


def start_all(node: Node, created: Sequence[Running]) -> None:
    """Start them at the same moment."""
    with ThreadPoolExecutor(len(created)) as pool:
        list(pool.map(lambda one: node.crictl.start(one.container_id), created))


def beside_a_tmpfs(node: Node) -> Raced:
    """A BestEffort container fills a tmpfs; then six Guaranteed ones touch theirs, wherever they were
    placed."""
    begin(node)
    node.guest.run("sh", "-c", f"mkdir -p {FILES}; mount -t tmpfs -o size=1g tmpfs {FILES}")
    try:
        batch = best_effort("batch")
        (container,) = batch.containers
        command = ("/bin/workload", "tmpfs", "/files/filled", str(FILES_MIB * MIB))
        node.launch(batch.with_containers(replace(container, command=command, mounts={"/files": FILES})))
        await_that(lambda: files_mib(node) >= FILES_MIB)
        has = allocatable_mib(node)
        each = (sum(has.values()) - FILES_MIB) * 85 // 100 // 6
        amounts = [min(each, amount) for amount in has.values()]
        owners = [
            guaranteed(f"owner-{number}", 0.2, f"{amount}Mi").touching(f"{int(amount * TOUCHED)}Mi")
            for number, amount in enumerate(amounts)
        ]
        return raced(node, owners)
    finally:
        node.crictl.remove_everything()
        node.guest.run("sh", "-c", f"umount {FILES}")


def beside_hogs(node: Node) -> Raced:
    """BestEffort containers take all there is, beside Guaranteed ones."""
    begin(node)
    has = allocatable_mib(node)
    owners = [
        guaranteed(
            f"owner-{place}",
            0.2,
            f"{int(amount * 0.7)}Mi",
            annotations={"bayplan.dev/required-nodes": str(place)},
        ).touching(f"{int(amount * 0.7 * TOUCHED)}Mi")
        for place, amount in has.items()
    ]
    hogs = [best_effort(f"hog-{number}").touching(f"{sum(has.values())}Mi") for number in range(2)]
    return raced(node, owners, beside=hogs)


RACES: Mapping[str, Callable[[Node], Raced]] = {
    "all promised": lambda node: beside_burstable(node, 1.0),
    "nine tenths promised": lambda node: beside_burstable(node, 0.9),
    "15 s before the start": lambda node: beside_burstable(node, 1.0, 15.0),
    "tmpfs": beside_a_tmpfs,
    "hogs": beside_hogs,
}
TOPOLOGY = SIX_NODES


def begin(node: Node, *flags: str) -> None:
    """A clean node with the daemon as it is by default, which in other scenarios it is not."""
    node.prepare()
    install(node)
    node.bayplan.start(
        *("--memory-pressure", "relieve"),
        *("--measured-reservation", "true"),
        *("--request-deadline", "1s"),
        *flags,
    )
    node.bayplan.await_synchronized()


def raced(node: Node, pods: Sequence[Pod], pause_s: float = 0.0, beside: Sequence[Pod] = ()) -> Raced:
    """Create all *pods*, start them at the same moment, and wait until all have touched theirs, or somebody
    within its claim is killed."""
    before, began_s = len(kills(node)), time.monotonic()
    with ThreadPoolExecutor(len(pods)) as pool:
        owners = list(pool.map(lambda pod: created(node, pod), pods))
    time.sleep(pause_s)
    for hog in beside:
        node.launch(hog)
    start_all(node, owners)
    waiting = list(owners)
    while waiting and time.monotonic() - began_s < LIMIT_S:
        waiting = [one for one in waiting if "touched" not in node.crictl.logs(one)]
        if any(one.of_a_claim for one in kills(node)[before:]):
            break
        time.sleep(POLL_S)
    found = kills(node)[before:]
    free = sum(int(one["memFreeBytes"]) for one in free_of_nodes(node)) // MIB
    counters = node.bayplan.status()["counters"]
    names = ("relieved_bytes", "moves", "slowed_down", "slowed_in_vain", "starts_held", "starts_held_ms")
    return Raced(
        [one.program for one in found if one.of_a_claim],
        sum(not one.of_a_claim for one in found),
        [one.pod.name for one in waiting],
        free,
        time.monotonic() - began_s,
        {name: int(counters.get(name, 0)) for name in names},
    )


def created(node: Node, pod: Pod) -> Running:
    """A pod with its container, which does not run yet."""
    sandbox = node.crictl.run_sandbox(pod)
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
