"""bayplan at work in a virtual machine: pods of every QoS class, its decisions beside what the kernel says.

python tests/e2e/demo.py [--containerd VERSION] [--shell]
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from testbed import progress
from testbed.containerd import VERSIONS
from testbed.crictl import Running
from testbed.errors import CommandError, TestBedError
from testbed.kernel import ContainerView
from testbed.node import Node
from testbed.pods import MIB, Container, Pod, best_effort, burstable, guaranteed
from testbed.topology import FOUR_NODES

WIDTH = 150
MEASURED_LIMIT_S = 60
NEXT = """
What to try next:
  make run ARGS=--shell              the same machine, then commands of yours in it
  make install                       bayplan on this machine (README.md, Install)
  .venv/bin/bayplan simulate --help  any machine, any pods, without a machine or a daemon (docs/simulate.md)
  make test                          all tests"""
SHELL = """\
Commands for the machine, one per line, each in a shell of its own. To get out, and to shut the machine down:
exit, or Ctrl-D. For instance:
  bayplan explain database
  bayplan status
  bayplan nodes
  crictl ps"""


@dataclass(frozen=True, slots=True)
class Shown:
    """One pod of the demonstration: what it is, and what it asks for in words."""

    pod: Pod
    asks: str


def demonstrated(node_memory_bytes: int) -> list[Shown]:
    """A pod of every class, in kubelet's tree and outside of it. They fill little: a page fault is dear."""
    plain = Container(memory_limit_bytes=200 * MIB, cpu_quota_us=50_000, cpu_period_us=100_000)
    return [
        Shown(
            burstable(
                "web", node_memory_bytes=node_memory_bytes, cpus=0.2, memory="100Mi", memory_limit="300Mi"
            ),
            "Burstable: 100Mi, at most 300Mi",
        ),
        Shown(best_effort("batch"), "BestEffort"),
        Shown(guaranteed("database", 2, "600Mi").touching("120Mi"), "Guaranteed: 2 CPUs, 600Mi; fills 120Mi"),
        Shown(
            guaranteed("cache", 0.5, "500Mi").touching("90Mi"), "Guaranteed: half a CPU, 500Mi; fills 90Mi"
        ),
        Shown(
            guaranteed("wide", 0.5, "1200Mi").touching("240Mi"), "Guaranteed: 1200Mi, more than a node has"
        ),
        Shown(Pod("by-hand", (plain,)), "plain crictl: limit 200Mi, quota half a CPU"),
    ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Shows bayplan at work in a virtual machine with four NUMA nodes."
    )
    parser.add_argument("--containerd", default="2.1", choices=sorted(VERSIONS), metavar="VERSION")
    parser.add_argument(
        "--shell", action="store_true", help="then take commands for the machine from the terminal"
    )
    arguments = parser.parse_args(argv)
    # Not a terminal: wide enough for the table, whatever COLUMNS says.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    started = time.monotonic()
    node = None
    progress.interrupt_once()
    try:
        node = boot(console, arguments.containerd)
        show(node, console)
        console.print(f"\nAll of this took {time.monotonic() - started:.0f} s.")
        if arguments.shell:
            take_commands(node)
        else:
            console.print(NEXT, markup=False)
    except TestBedError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if node is not None:
            node.shut_down()
    return 0


def boot(console: Console, version: str) -> Node:
    console.print(
        f"A virtual machine: four NUMA nodes of 2 CPUs and 1 GiB, containerd {version}, bayplan.\n"
        "The first time it is booted and saved, which takes half a minute; then it is there in a few seconds."
    )
    with progress.shown():
        try:
            node = Node(FOUR_NODES, version)
        except TestBedError as error:
            if version != "2.1":
                raise
            console.print(f"containerd 2.1 is not to be had ({str(error).splitlines()[0]}); using 1.7")
            version = "1.7"
            node = Node(FOUR_NODES, version)
    # As for who installs it: what is held on the nodes is measured, too.
    node.bayplan.start("--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    console.print(node.guest.run("/opt/bayplan/bin/baypland", "--version").stdout.strip())
    return node


def show(node: Node, console: Console) -> None:
    shown = demonstrated(node.kernel.memory_total_bytes())
    running = []
    for one in shown:
        console.print(f"crictl starts [bold]{one.pod.name}[/bold] ({one.asks})")
        running.append(node.launch(one.pod))
        if "touch" in one.pod.containers[0].command:
            node.crictl.await_log(running[-1], "touched")
    await_measured(node)
    console.print("\n[bold]$ bayplan nodes[/bold]")
    console.print(node.bayplan.command("nodes").stdout, markup=False)
    console.print("[bold]$ bayplan status[/bold]")
    console.print(node.bayplan.command("status").stdout, markup=False)
    console.print("[bold]What was decided, and what the kernel says[/bold]")
    console.print(comparison(node, shown, running))


def await_measured(node: Node) -> None:
    """Wait until all that containers hold was counted, so that nothing is shown as unknown."""
    deadline = time.monotonic() + MEASURED_LIMIT_S
    while time.monotonic() < deadline:
        nodes = json.loads(node.bayplan.command("nodes", "--json").stdout)["nodes"]
        if all(one["heldBytes"] is not None for each in nodes for one in each["containers"]):
            return
        time.sleep(1)


def comparison(node: Node, shown: list[Shown], running: list[Running]) -> Table:
    table = Table(show_lines=True)
    for heading in ("pod", "asks for", "bayplan decided", "the kernel allows", "memory is on", "limits"):
        table.add_column(heading, overflow="fold")
    for one, pod in zip(shown, running, strict=True):
        view = node.view(pod)
        table.add_row(one.pod.name, one.asks, decided(node, pod), allowed(view), resident(view), limits(view))
    return table


def decided(node: Node, pod: Running) -> str:
    entry = node.bayplan.decided(pod.container_id)
    if entry is None:
        return "nothing"
    cpus = f"{entry['cpus']}{' (its own)' if entry['cpusExclusive'] else ''}"
    mems = "all" if entry["mems"] is None else entry["mems"]
    inferred = " (inferred)" if entry["qosInferred"] else ""
    return f"{entry['qosClass']}{inferred}, {entry['outcome']}\nnodes {mems}, CPUs {cpus}"


def allowed(view: ContainerView) -> str:
    return f"nodes {spans(view.mems_allowed)}\nCPUs {spans(view.cpus_allowed)}"


def resident(view: ContainerView) -> str:
    amounts = {node: amount // MIB for node, amount in view.anon_bytes().items() if amount >= MIB}
    return (
        "\n".join(f"node {node}: {amount} MiB" for node, amount in sorted(amounts.items())) or "(under 1 MiB)"
    )


def limits(view: ContainerView) -> str:
    most = view.memory_max_bytes
    group = "together" if view.oom_group else "one by one"
    text = "max" if most is None else f"{most // MIB} MiB"
    return f"memory.max {text}\noom_score_adj {view.oom_score_adj}\nkilled {group}"


def spans(ids: frozenset[int]) -> str:
    """0-3,8: the kernel's list format."""
    parts: list[list[int]] = []
    for number in sorted(ids):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def take_commands(node: Node) -> None:
    """A line at a time, each in a shell of its own; the end of input ends it, or a word that ends a shell."""
    sys.stdout.write(f"\n{SHELL}\n")
    for line in iter(lambda: _ask("node# "), None):
        if line.strip() in ("exit", "quit", "logout"):
            return
        try:
            done = node.guest.run(
                "sh", "-c", f"PATH=$PATH:/opt/bayplan/bin:/opt/crictl/bin; {line}", check=False
            )
        except CommandError as error:
            sys.stdout.write(f"{error}\n")
        else:
            sys.stdout.write(done.stdout + done.stderr)


def _ask(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
