"""What becomes of full nodes with relief and without.

python tests/e2e/relief_under_load.py [--minutes N] [--rate MIB] [--nodes equal|unequal] [--mode relieve|off]

The load of `test_memory_load.py` in a virtual machine for each row, for as long as one likes. Ends with 1 if
somebody within its claim was killed with relief, or less than 99 % of promised memory was on promised nodes.
Page faults and copying are those of this machine: under emulation they tell only rows of one run apart.
"""

import argparse
import sys
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from testbed.errors import TestBedError
from testbed.full_nodes import EQUAL_LOAD, RATE_MIB, UNEQUAL_LOAD, Load, Measured, measured
from testbed.node import Node

LOADS = {"equal": EQUAL_LOAD, "unequal": UNEQUAL_LOAD}
RELIEVE, OFF = MODES = ("relieve", "off")
LEAST_SHARE = 0.99
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
    asked = parser.parse_args(argv)
    console, kept = Console(highlight=False, width=None if sys.stdout.isatty() else 200), True
    shown = Table(title=f"{asked.minutes:g} minutes, each grows {asked.rate} MiB/s")
    for heading in COLUMNS:
        shown.add_column(heading)
    for name in asked.nodes or LOADS:
        load = replace(LOADS[name], rate=asked.rate)
        for mode in asked.mode or MODES:
            try:
                found = on_its_own_machine(load, mode, asked.minutes * 60)
            except TestBedError as error:
                sys.stderr.write(f"relief_under_load: {error}\n")
                return 1
            shown.add_row(*row(name, mode, found))
            broken = found.killed_within_claims or found.lowest_share < LEAST_SHARE
            kept = kept and not (mode == RELIEVE and broken)
    console.print(shown)
    return 0 if kept else 1


def on_its_own_machine(load: Load, mode: str, seconds: float) -> Measured:
    node = Node(load.topology, "2.1")
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
