"""Where the time of a scenario goes: what each step takes, on the clock and of CPU time (of QEMU alone).

python tests/e2e/costs.py
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from testbed.bayplan import CLIENT
from testbed.containerd import Containerd
from testbed.crictl import CRICTL
from testbed.errors import TestBedError
from testbed.guest import Guest
from testbed.machine import Machine
from testbed.node import Node
from testbed.pods import guaranteed
from testbed.supplies import disks
from testbed.topology import FOUR_NODES

VERSION = "2.3"
IDLE_S = 5
PODS = 3
Result = TypeVar("Result")


class Costs:
    """Steps in the order in which they are taken."""

    def __init__(self) -> None:
        self.table = Table()
        self.table.add_column("step")
        self.table.add_column("s", justify="right")
        self.table.add_column("CPU s", justify="right")

    def step(self, name: str, guest: Callable[[], Guest | None], take: Callable[[], Result]) -> Result:
        """Take a step, during which there is this guest at the end."""
        before_s = _cpu_s(guest())
        started = time.monotonic()
        result = take()
        took_s = time.monotonic() - started
        self.table.add_row(name, f"{took_s:.2f}", f"{_cpu_s(guest()) - before_s:.2f}")
        return result


def _cpu_s(guest: Guest | None) -> float:
    """What QEMU has taken so far."""
    if guest is None:
        return 0
    words = Path(f"/proc/{guest.qemu.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def measure_boot(costs: Costs) -> None:
    machine = Machine(FOUR_NODES, disks(VERSION, with_bayplan=False))
    guest: Guest | None = None
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)

        def boot() -> Guest:
            nonlocal guest
            guest = machine.boot(path)
            return guest

        booted = costs.step("boot", lambda: guest, boot)
        try:
            containerd = Containerd(booted, VERSION)
            costs.step("containerd starts", lambda: booted, containerd.start)
            costs.step("two images are imported", lambda: booted, containerd.import_images)
        finally:
            booted.shut_down()


def measure_node(costs: Costs, node: Node) -> None:
    def step(name: str, take: Callable[[], Result]) -> Result:
        return costs.step(name, lambda: node.guest, take)

    step(f"nothing, {FOUR_NODES.cpus} idle CPUs, {IDLE_S} s", lambda: time.sleep(IDLE_S))
    for words in (("true",), ("python3", "-c", "pass"), ("runc", "--version"), ("crun", "--version")):
        for number in ("first", "second"):
            step(f"`{' '.join(words)}` in the guest, {number}", lambda words=words: node.guest.run(*words))
    step("crictl version in the guest", lambda: node.guest.run(CRICTL, "version"))
    step("crictl version from here", lambda: node.crictl("version"))
    for number in ("first", "second"):
        step(f"baypland starts and is synchronized, {number}", lambda: _start(node))
        step("bayplan status in the guest", lambda: node.guest.run(CLIENT, "status"))
        step("bayplan status from here", node.bayplan.status)
        step("baypland stops", node.bayplan.stop)
    _start(node)
    for number in range(1, PODS + 1):
        pod = guaranteed(f"pod-{number}", 0.5, "100Mi")
        sandbox = step(f"pod {number}: sandbox", lambda pod=pod: node.crictl.run_sandbox(pod))
        container = step(
            f"pod {number}: create",
            lambda pod=pod, sandbox=sandbox: node.crictl.create(sandbox, pod, pod.containers[0]),
        )
        step(f"pod {number}: start", lambda container=container: node.crictl.start(container))
        step(f"pod {number}: the kernel's view", lambda container=container: node.view(container))
        step(f"pod {number}: stop and remove", lambda sandbox=sandbox: node.crictl.remove_sandbox(sandbox))
    step("a clean node for the next scenario", node.prepare)


def _start(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()


def main() -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    costs, node = Costs(), None
    try:
        measure_boot(costs)
        # Made beforehand, if need be, so that the step is the restoring alone.
        node = Node(FOUR_NODES, VERSION)
        node.guest.shut_down()
        costs.step("restored", lambda: None, node.restore)
        measure_node(costs, node)
    except TestBedError as error:
        sys.stderr.write(f"costs: {error}\n")
        return 1
    finally:
        if node is not None:
            node.shut_down()
        console.print(costs.table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
