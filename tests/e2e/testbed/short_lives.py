"""Containers that do not live long: that exit at once, that fail to start, that are stopped or removed before
they are started, many at the same moment, in one sandbox. And what the runtime says of them over NRI.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from signal import SIGTERM

from testbed.at_once import exclusive_cpus
from testbed.channel import LIMIT_S
from testbed.errors import CommandError
from testbed.guest import Guest
from testbed.node import Node
from testbed.pods import Pod

PROGRAM = Path(__file__).parent / "programs" / "nri_events.py"
SERVICE = "nri-events"
LOG = "/run/testbed/nri-events.log"


class Short(Enum):
    """What becomes of a container; the values are part of its name. All but REMOVED are left to the
    runtime."""

    EXITS = "exits"
    FAILS = "fails"
    KILLED = "killed"
    STOPPED_FIRST = "stopped-first"
    NOT_STARTED = "not-started"
    UPDATED_LATE = "updated-late"
    REMOVED = "removed"


_COMMANDS = {
    Short.EXITS: ("/bin/busybox", "true"),
    Short.UPDATED_LATE: ("/bin/busybox", "true"),
    Short.FAILS: ("/no/such/program",),
}


def live_shortly(
    node: Node, pod: Pod, sandbox_id: str, lives: Sequence[Short], *, at_once: int = 6, first: int = 0
) -> list[str]:
    """Have containers of *pod*, like its first one, live like that, so many at once; the ids of those that
    were created. Their names have numbers from *first* on."""
    numbered = enumerate(lives, first)
    with ThreadPoolExecutor(at_once) as workers:
        created = workers.map(lambda one: _live(node, pod, sandbox_id, one[1], one[0]), numbered)
        return [container_id for container_id in created if container_id]


def _live(node: Node, pod: Pod, sandbox_id: str, short: Short, number: int) -> str:
    program = _COMMANDS.get(short, pod.containers[0].command)
    container = replace(pod.containers[0], name=f"{short.value}-{number}", command=program)
    crictl = node.crictl
    try:
        container_id = crictl.create(sandbox_id, pod, container)
    except CommandError:
        return ""  # CRI-O's OCI runtime looks for the program when it creates the container
    if short is Short.STOPPED_FIRST:
        crictl.stop(container_id)
    if short is not Short.NOT_STARTED:
        with suppress(CommandError):
            crictl.start(container_id)
    if short in (Short.KILLED, Short.STOPPED_FIRST, Short.NOT_STARTED):
        crictl.stop(container_id)
    if short is Short.UPDATED_LATE:
        with suppress(CommandError):
            crictl.update(container_id, cpu_share=512)
    if short is Short.REMOVED:
        crictl.remove(container_id)
    return container_id


def await_nothing_held(node: Node, lives: str) -> None:
    """Wait until no container but *lives*, which is promised memory and CPUs, holds a CPU or a byte."""
    node.bayplan.await_known([lives])
    assert exclusive_cpus(node).keys() == {lives}
    booked = node.bayplan.decided(lives)["bookedBytes"]
    for view in node.bayplan.nodes()["nodes"]:
        expected = booked.get(str(view["id"]), {}).get("memory", 0)
        assert view["resources"]["memory"]["bookedBytes"] == expected, view


class EventLog:
    """Another plugin, which writes what the runtime says, from `start` to `orders`."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    def start(self) -> None:
        """Begin; what comes first is what exists."""
        path = f"/run/testbed/{PROGRAM.name}"
        self._guest.write(path, PROGRAM.read_text())
        self._guest.start(SERVICE, "env", "PYTHONPATH=/opt/bayplan/lib", "python3", path, log=LOG)
        self._guest.await_text(LOG, "SYNCHRONIZED", limit_s=LIMIT_S)

    def orders(self) -> Counter[tuple[str, ...]]:
        """The orders of events of the containers, each event with the state in which it describes the
        container, and how often each was seen. The events of its pod belong to them. Ends the plugin."""
        time.sleep(1)  # what a runtime says after its answer to crictl
        self._guest.signal(SERVICE, SIGTERM)
        return orders_of(self._guest.read(LOG).splitlines())


def orders_of(lines: Iterable[str]) -> Counter[tuple[str, ...]]:
    """The same, of the lines that programs/nri_events.py writes."""
    orders, pods = dict[str, list[str]](), dict[str, str]()
    for line in lines:
        said = json.loads(line)
        if "event" not in said or said["event"] in ("SYNCHRONIZED", "LISTED"):
            continue
        if "id" in said:
            pods.setdefault(said["id"], said["pod"])
            orders.setdefault(said["id"], []).append(f"{said['event']} {said['state']}")
            continue
        for container_id, pod_id in pods.items():
            if pod_id == said["pod"]:
                orders[container_id].append(said["event"])
    return Counter(map(tuple, orders.values()))
