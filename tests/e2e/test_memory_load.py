"""Nobody is killed within its claim while everybody uses what they may, and others take the rest.

Guaranteed containers vary up to 90 % of their promise, Burstable ones within their requests; BestEffort ones
and page cache take what they get. MEMORY_LOAD_SECONDS is for how long, two minutes unless it is set.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from testbed.crictl import Running
from testbed.memory_load import MemoryWatch, install, kills, let_go, said, using, varying
from testbed.node import Node
from testbed.pods import MIB, best_effort, burstable, guaranteed
from testbed.scenario import on
from testbed.topology import SPLIT_SOCKETS, UNEQUAL

SECONDS = int(os.environ.get("MEMORY_LOAD_SECONDS", "120"))
POLL_S = 5.0
# From Linux 6.7 on CPUs keep up to an eighth of a node in lists of their own, of which nobody else gets any
# before somebody is killed: here that would be as much as is left free.
CPU_LISTS = "vm.percpu_pagelist_high_fraction"
PAGE_BYTES = 4096
RATE_MIB = 2
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(SECONDS + 1200, func_only=True)]


@dataclass(frozen=True)
class Load:
    """In MiB: what a Guaranteed container is promised on each of these nodes, what two Burstable ones request
    each, and what two processes of a BestEffort one rise to; a third one has page cache."""

    promised: Mapping[int, int]
    requested: int
    rest: int
    cached: int = 400


EQUAL_LOAD = Load({0: 310, 1: 320, 2: 320}, 220, 50)
UNEQUAL_LOAD = Load({1: 150, 2: 320, 3: 430}, 240, 80)


def launched(node: Node, load: Load) -> tuple[list[Running], list[Running], Running]:
    """Who is confined, who else has a claim, and who copies memory beside them."""
    total = node.kernel.memory_total_bytes()
    owners = [
        node.launch(
            using(
                guaranteed(
                    f"owner-{place}",
                    0.5,
                    f"{amount}Mi",
                    annotations={"bayplan.dev/required-nodes": str(place)},
                ),
                varying(amount // 2, amount * 9 // 10, RATE_MIB),
            )
        )
        for place, amount in load.promised.items()
    ]
    high = load.requested * 9 // 10
    webs = [
        node.launch(
            using(
                burstable(f"web-{number}", node_memory_bytes=total, memory=f"{load.requested}Mi"),
                varying(high // 4, high, RATE_MIB),
            )
        )
        for number in range(2)
    ]
    stream = node.launch(using(guaranteed("stream", 0.5, "60Mi"), ("copy", 16 * MIB)))
    cached = ("read", "/tmp/holes", load.cached * MIB, 2 * RATE_MIB * MIB)
    rest = varying(load.rest // 4, load.rest, RATE_MIB)
    node.launch(using(best_effort("batch"), cached, rest, rest))
    return owners, webs, stream


def measured(node: Node, load: Load, mode: str) -> dict[str, object]:
    """Start all of it, and say what became of it: nothing here judges."""
    install(node)
    node.guest.run("sysctl", f"{CPU_LISTS}=64")
    node.bayplan.start(
        *("--memory-pressure", mode),
        *("--measured-reservation", "true"),
        *("--single-process-oom-kill", "true"),
    )
    node.bayplan.await_synchronized()
    before = len(kills(node))
    owners, webs, stream = launched(node, load)
    with MemoryWatch(node, owners) as watch:
        let_go(node)
        until_s = time.monotonic() + SECONDS
        while not killed_within_claims(node, before) and (
            time.monotonic() < until_s or not all_used(node, owners, webs, load)
        ):
            time.sleep(POLL_S)
    node.guest.run("sysctl", f"{CPU_LISTS}=0")
    counters = node.bayplan.status()["counters"]
    found = {
        "mode": mode,
        "seconds": round(watch.seconds),
        "killed_within_claims": killed_within_claims(node, before),
        "killed_best_effort": len(kills(node)) - before - len(killed_within_claims(node, before)),
        "lowest_share_on_promised_nodes": round(watch.lowest_share, 4),
        "below_low_watermark_s": {place: round(amount, 1) for place, amount in watch.below_low_s.items()},
        "moved_mib": counters.get("relieved_bytes", 0) // MIB,
        "fault_p99_us": {one.pod.name: said(node, one).get("p99_us") for one in (*owners, *webs)},
        "copied_mib_per_s": said(node, stream).get("bytes_per_s", 0) // MIB,
    }
    print(f"\n{node.topology.name}: {json.dumps(found)}")
    return found


def all_used(node: Node, owners: list[Running], webs: list[Running], load: Load) -> bool:
    """Whether everybody with a claim has touched as many pages as nine tenths of it has."""
    claims = [*load.promised.values(), *[load.requested] * len(webs)]
    return all(
        said(node, one).get("faults", 0) * PAGE_BYTES >= claim * 9 // 10 * MIB
        for one, claim in zip((*owners, *webs), claims, strict=True)
    )


def killed_within_claims(node: Node, before: int) -> list[str]:
    return [one.program for one in kills(node)[before:] if one.of_a_claim]


def keeps_promises(node: Node, load: Load) -> None:
    found = measured(node, load, "relieve")
    assert found["killed_within_claims"] == []
    assert float(str(found["lowest_share_on_promised_nodes"])) >= 0.99


@on(SPLIT_SOCKETS, "2.1")
def test_nobody_is_killed_within_its_claim_on_equal_nodes(node: Node) -> None:
    keeps_promises(node, EQUAL_LOAD)


@on(UNEQUAL, "2.1")
def test_nobody_is_killed_within_its_claim_on_unequal_nodes(node: Node) -> None:
    keeps_promises(node, UNEQUAL_LOAD)
