"""Nodes on which everybody uses what they may and others take the rest, and what became of it.

Guaranteed containers vary up to 90 % of their promise, Burstable ones within their requests; BestEffort ones
and page cache take what they get. Nothing here judges.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.crictl import Running
from testbed.memory_load import (
    MemoryWatch,
    install,
    kills,
    let_go,
    said,
    using,
    varying,
)
from testbed.node import Node
from testbed.pods import MIB, best_effort, burstable, guaranteed
from testbed.topology import SPLIT_SOCKETS, UNEQUAL, Topology

POLL_S = 5.0
PAGE_BYTES = 4096
RATE_MIB = 2


@dataclass(frozen=True)
class Load:
    """A machine, and in MiB: what a Guaranteed container is promised on each of these nodes, what two
    Burstable ones request each, and what two processes of a BestEffort one rise to; a third one has page
    cache. Each grows by so much per second."""

    topology: Topology
    promised: Mapping[int, int]
    requested: int
    rest: int
    cached: int = 400
    rate: int = RATE_MIB


EQUAL_LOAD = Load(SPLIT_SOCKETS, {0: 310, 1: 320, 2: 320}, 220, 50)
UNEQUAL_LOAD = Load(UNEQUAL, {1: 150, 2: 320, 3: 430}, 240, 80)


@dataclass(frozen=True)
class Measured:
    """Programs that were killed though they are within their claims, and how many others; the least part of
    promised anonymous memory that was on promised nodes; seconds below the low watermark by node, of so many
    in all; the 99th percentile of a page fault by container."""

    seconds: float
    killed_within_claims: list[str]
    killed_others: int
    lowest_share: float
    below_low_s: dict[int, float]
    moved_mib: int
    fault_p99_us: dict[str, int]
    copied_mib_per_s: int


def measured(node: Node, load: Load, mode: str, seconds: float) -> Measured:
    """Have all of it run with this `memoryPressure`, until *seconds* passed and everybody has used what is
    theirs, or somebody within its claim is killed."""
    install(node)
    node.bayplan.start(
        *("--memory-pressure", mode),
        *("--measured-reservation", "true"),
        *("--single-process-oom-kill", "true"),
    )
    node.bayplan.await_synchronized()
    before = len(kills(node))
    owners, webs, stream = _launched(node, load)
    with MemoryWatch(node, owners) as watch:
        let_go(node)
        until_s = time.monotonic() + seconds
        while not _killed_within_claims(node, before) and (
            time.monotonic() < until_s or not _all_used(node, owners, webs, load)
        ):
            time.sleep(POLL_S)
    counters, killed = node.bayplan.status()["counters"], _killed_within_claims(node, before)
    return Measured(
        watch.seconds,
        killed,
        len(kills(node)) - before - len(killed),
        watch.lowest_share,
        watch.below_low_s,
        counters.get("relieved_bytes", 0) // MIB,
        {one.pod.name: said(node, one).get("p99_us", 0) for one in (*owners, *webs)},
        said(node, stream).get("bytes_per_s", 0) // MIB,
    )


def _launched(node: Node, load: Load) -> tuple[list[Running], list[Running], Running]:
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
                varying(amount // 2, amount * 9 // 10, load.rate),
            )
        )
        for place, amount in load.promised.items()
    ]
    high = load.requested * 9 // 10
    webs = [
        node.launch(
            using(
                burstable(f"web-{number}", node_memory_bytes=total, memory=f"{load.requested}Mi"),
                varying(high // 4, high, load.rate),
            )
        )
        for number in range(2)
    ]
    stream = node.launch(using(guaranteed("stream", 0.5, "60Mi"), ("copy", 16 * MIB)))
    cached = ("read", "/tmp/holes", load.cached * MIB, 2 * load.rate * MIB)
    rest = varying(load.rest // 4, load.rest, load.rate)
    node.launch(using(best_effort("batch"), cached, rest, rest))
    return owners, webs, stream


def _all_used(node: Node, owners: list[Running], webs: list[Running], load: Load) -> bool:
    """Whether everybody with a claim has touched as many pages as nine tenths of it has."""
    claims = [*load.promised.values(), *[load.requested] * len(webs)]
    return all(
        said(node, one).get("faults", 0) * PAGE_BYTES >= claim * 9 // 10 * MIB
        for one, claim in zip((*owners, *webs), claims, strict=True)
    )


def _killed_within_claims(node: Node, before: int) -> list[str]:
    return [one.program for one in kills(node)[before:] if one.of_a_claim]
