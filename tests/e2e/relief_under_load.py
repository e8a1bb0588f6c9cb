"""What becomes of full nodes with relief and without.

python tests/e2e/relief_under_load.py [--minutes N] [--rate MIB] [--nodes equal|unequal] [--mode relieve|off]
                                      [--race NAME] [--times N] [--races-only] [--logs DIRECTORY]
                                      [--on TOPOLOGY] [--runtime NAME]

The load of `test_memory_load.py` in a virtual machine for each row, for as long as one likes. Then the races
of `testbed.promise_races`, each as often as asked for, with the kernel's own settings. Ends with 1 if
somebody within its claim was killed with relief, or less than 99 % of promised memory was on promised
nodes. Each race is told as soon as it is over, as what follows may be interrupted; at the end comes a table.
With `--logs` each leaves what nodes and containers had every half second, and the logs.
Page faults and copying are those of this machine: under emulation they tell only rows of one run apart.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from testbed.containerd import VERSIONS
from testbed.errors import TestBedError
from testbed.full_nodes import EQUAL_LOAD, RATE_MIB, UNEQUAL_LOAD, Load, Measured, measured
from testbed.node import Node
from testbed.promise_races import OFF, RACES, RELIEVE, TOPOLOGIES, TOPOLOGY, CrioServes, Raced

LOADS = {"equal": EQUAL_LOAD, "unequal": UNEQUAL_LOAD}
MODES = (RELIEVE, OFF)
LEAST_SHARE = 0.99
CRIO = "crio"
COLUMNS = (
    "nodes",
    "memoryPressure",
    "killed within claims",
    "killed others",
    "promised pages on their nodes, at least",
    "below low, all nodes",
    "MiB moved",
    "p99 of a page fault",
    "copied",
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What becomes of full nodes with relief and without.")
    parser.add_argument("--minutes", type=float, default=2.0, metavar="N", help="for each row")
    parser.add_argument("--rate", type=int, default=RATE_MIB, metavar="MIB", help="each grows by per second")
    parser.add_argument("--nodes", choices=LOADS, action="append", help="both if it is not given")
    parser.add_argument("--mode", choices=MODES, action="append", help="both if it is not given")
    parser.add_argument("--race", choices=RACES, action="append", help="all if it is not given")
    parser.add_argument("--times", type=int, default=5, metavar="N", help="each race is run")
    parser.add_argument("--races-only", action="store_true", help="without the load before them")
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="where what was seen of races is left")
    parser.add_argument("--on", choices=TOPOLOGIES, default=TOPOLOGY.name, help="the nodes of races")
    parser.add_argument(
        "--runtime", default="2.3", choices=(*VERSIONS, CRIO), help="containerd's version, or CRI-O"
    )
    asked = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    try:
        kept = asked.races_only or show_loads(console, asked)
        kept = show_races(console, asked) and kept
    except TestBedError as error:
        sys.stderr.write(f"relief_under_load: {error}\n")
        return 1
    return 0 if kept else 1


def show_loads(console: Console, asked: argparse.Namespace) -> bool:
    """The table of the load; whether promises were kept with relief."""
    kept = True
    shown = Table(title=f"{asked.minutes:g} minutes, each grows {asked.rate} MiB/s")
    for heading in COLUMNS:
        shown.add_column(heading)
    for name in asked.nodes or LOADS:
        load = replace(LOADS[name], rate=asked.rate)
        for mode in asked.mode or MODES:
            found = on_its_own_machine(load, mode, asked.minutes * 60)
            shown.add_row(*row(name, mode, found))
            broken = found.killed_within_claims or found.lowest_share < LEAST_SHARE
            kept = kept and not (mode == RELIEVE and broken)
    console.print(shown)
    return kept


def show_races(console: Console, asked: argparse.Namespace) -> bool:
    """A line for each race, and a table of all; whether nobody within its claim was killed in any with
    relief."""
    kept = True
    console.print("the kernel's own settings, the daemon's defaults")
    shown = Table("memoryPressure", "race", "killed within claims", "killed others", "seconds", title="Races")
    topology = TOPOLOGIES[asked.on]
    node = CrioServes(topology) if asked.runtime == CRIO else Node(topology, asked.runtime)
    try:
        for mode in asked.mode or (RELIEVE,):
            for name in asked.race or RACES:
                runs = list(raced_often(console, node, mode, name, asked))
                kept = kept and not (mode == RELIEVE and any(one.killed_within_claims for one in runs))
                shown.add_row(mode, name, *race_row(runs))
    finally:
        node.shut_down()
        console.print(shown)
    return kept


def raced_often(
    console: Console, node: Node, mode: str, name: str, asked: argparse.Namespace
) -> Iterator[Raced]:
    """The race of this name, as often as asked for; each is told, and leaves its files."""
    for number in range(1, asked.times + 1):
        try:
            found = RACES[name](node, mode)
        except (AssertionError, TestBedError) as error:
            # On a busy machine somebody does not answer in time: that says nothing of promises.
            console.print(f"{mode}, {name}, {number} of {asked.times}: no result: {error}")
            node.shut_down()
            node.restore()
            continue
        console.print(f"{mode}, {name}, {number} of {asked.times}: {raced(found)}")
        if asked.logs is not None:
            directory = asked.logs / f"{mode}-{name.replace(' ', '-')}-{number}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "samples.jsonl").write_text(found.sampled)
            node.save_logs(directory)
        yield found


def race_row(runs: Sequence[Raced]) -> tuple[str, ...]:
    """What became of all runs of a race: a run's numbers between commas."""
    return (
        ", ".join(" and ".join(one.killed_within_claims) or "0" for one in runs),
        ", ".join(str(one.killed_others) for one in runs),
        ", ".join(f"{one.seconds:.0f}" for one in runs),
    )


def raced(found: Raced) -> str:
    """What became of a race, on a line."""
    unfinished = f", not finished {' '.join(found.unfinished)}" if found.unfinished else ""
    return (
        f"killed within claims {len(found.killed_within_claims)} {', '.join(found.killed_within_claims)}; "
        f"others {found.killed_others}{unfinished}; "
        f"{found.free_mib} MiB free; {found.seconds:.0f} s; "
        + " ".join(f"{key} {amount}" for key, amount in found.counted.items() if amount)
    )


def on_its_own_machine(load: Load, mode: str, seconds: float) -> Measured:
    node = Node(load.topology, "2.3")
    try:
        return measured(node, load, mode, seconds)
    finally:
        node.shut_down()


def row(name: str, mode: str, found: Measured) -> tuple[str, ...]:
    faults_ms = [amount / 1000 for amount in found.fault_p99_us.values()]
    return (
        name,
        mode,
        f"{len(found.killed_within_claims)} {' '.join(found.killed_within_claims)}".strip(),
        str(found.killed_others),
        f"{found.lowest_share:.1%}",
        f"{sum(found.below_low_s.values()):.1f} s of {found.seconds:.0f}",
        str(found.moved_mib),
        f"{min(faults_ms):.1f} to {max(faults_ms):.1f} ms",
        f"{found.copied_mib_per_s} MiB/s",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
