"""Containers that exit at once, that fail to start, that are killed while they are created, the daemon killed
meanwhile: afterwards nothing is held, although nobody removes what is left of them. CRI-O's is in
test_crio.py."""

import pytest
from testbed.node import Node
from testbed.pods import guaranteed
from testbed.scenario import on
from testbed.short_lives import Short, await_nothing_held, live_shortly
from testbed.topology import FOUR_NODES

BURST = (Short.EXITS, Short.FAILS, Short.STOPPED_FIRST, Short.EXITS, Short.NOT_STARTED, Short.UPDATED_LATE)


@on(FOUR_NODES)
@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.matrix)])
def test_nothing_is_held_by_the_dead(node: Node, rounds: int) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    pod = guaranteed("short", 1, "50Mi")
    sandbox_id = node.crictl.run_sandbox(pod)
    lives = node.launch(guaranteed("lives", 1, "50Mi"))
    for number in range(rounds):
        live_shortly(node, pod, sandbox_id, BURST[:3], first=10 * number)
        node.bayplan.kill()
        live_shortly(node, pod, sandbox_id, (Short.EXITS,), first=10 * number + 3)
        node.bayplan.start_again()
        live_shortly(node, pod, sandbox_id, BURST[3:], first=10 * number + 4)
        await_nothing_held(node, lives.container_id)
        assert len(node.crictl.containers()) > 1
