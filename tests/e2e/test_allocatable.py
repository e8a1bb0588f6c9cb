"""All that can be promised on a node can be touched there by one owner, by the kernel's own settings."""

import time
from dataclasses import replace

import pytest
from testbed.crictl import Running
from testbed.errors import CommandError
from testbed.memory_load import kills
from testbed.node import Node
from testbed.pods import MIB, guaranteed
from testbed.promise_races import created
from testbed.scenario import on
from testbed.topology import FOUR_NODES, TIERED, TWO_NODES, UNEQUAL, NumaNode, Topology

PROGRAM_MIB = 8
"""What the program itself has of a promise: 3 MiB of memory, its stacks and what the kernel holds for it."""
PAGES_OF_A_TABLE = 512
ATTEMPTS = 5
# The first has DMA zones, the fourth lies in two zones.
SIX = Topology("six-nodes", tuple(NumaNode(1, size) for size in (640, 448, 512, 576, 768, 1024)))


def every_node_gives_what_it_promises(node: Node) -> None:
    node.bayplan.start("--measured-reservation", "true", "--memory-pressure", "relieve")
    node.bayplan.await_synchronized()
    await_measured(node)
    before = len(kills(node))
    for place in [one["id"] for one in node.bayplan.nodes()["nodes"]]:
        if room_mib(node, place) < 2 * PROGRAM_MIB:
            continue
        running, touched_mib = owner_of_all(node, place)
        node.crictl.await_log(running, "touched", limit_s=300)
        assert kills(node)[before:] == []
        assert node.view(running).anon_bytes()[place] >= touched_mib * MIB
        node.crictl.remove_sandbox(running.sandbox_id)


def owner_of_all(node: Node, place: int) -> tuple[Running, int]:
    """A container that is promised all that can be promised on *place* while its sandbox runs, and how many
    MiB it touches. More may be held there by the time that it is created: then that is not promised."""
    pod = guaranteed(f"owner-{place}", 0.5, "1Mi", annotations={"bayplan.dev/required-nodes": str(place)})
    sandbox = node.crictl.run_sandbox(pod)
    for _ in range(ATTEMPTS):
        promised_mib = room_mib(node, place)
        touched_mib = promised_mib - PROGRAM_MIB - promised_mib // PAGES_OF_A_TABLE
        asking = guaranteed(pod.name, 0.5, f"{promised_mib}Mi").touching(f"{touched_mib}Mi")
        pod = replace(pod, containers=asking.containers)
        try:
            running = created(node, pod, sandbox)
        except CommandError as error:
            assert "TopologyAffinityError" in error.stderr, error  # noqa: PT017 - another one is a failure
            time.sleep(1)
            continue
        node.crictl.start(running.container_id)
        return running, touched_mib
    raise AssertionError(f"what can be promised on node {place} was refused {ATTEMPTS} times")


def await_measured(node: Node) -> None:
    """Until it is known what is held: under emulation that takes longer than the runtime is kept waiting."""
    deadline = time.monotonic() + 60
    while any(one["reservation"]["heldOutsideBytes"] is None for one in node.bayplan.nodes()["nodes"]):
        assert time.monotonic() < deadline
        time.sleep(1)


def room_mib(node: Node, place: int) -> int:
    """What can still be promised on a node alone."""
    (there,) = [one for one in node.bayplan.nodes()["nodes"] if one["id"] == place]
    return int(there["resources"]["memory"]["freeBytes"]) // MIB


@pytest.mark.matrix
@on(SIX, "2.3")
def test_on_six_unequal_nodes(node: Node) -> None:
    every_node_gives_what_it_promises(node)


@pytest.mark.matrix
@on(UNEQUAL, "2.3")
def test_on_a_node_without_cpus(node: Node) -> None:
    every_node_gives_what_it_promises(node)


@pytest.mark.matrix
@on(FOUR_NODES, "2.3")
def test_beside_huge_pages(node: Node) -> None:
    every_node_gives_what_it_promises(node)


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_on_two_nodes(node: Node) -> None:
    every_node_gives_what_it_promises(node)


@pytest.mark.matrix
@on(TIERED, "2.3")
def test_on_a_slower_tier(node: Node) -> None:
    every_node_gives_what_it_promises(node)
