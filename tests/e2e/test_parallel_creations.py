"""Containers that are created and started at the same moment: nobody runs on the CPUs of an owner that has
started, on any containerd. CRI-O's is in test_crio.py."""

import pytest
from testbed.at_once import CpuWatch, exclusive_cpus, launch_at_once, run_sandboxes
from testbed.node import Node
from testbed.pods import best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import FOUR_NODES


@on(FOUR_NODES)
@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.matrix)])
def test_nobody_else_runs_on_the_cpus_of_an_owner(node: Node, rounds: int) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    for number in range(rounds):
        pods = []
        for letter in "abc":
            pods.append(best_effort(f"shared-{number}{letter}"))
            pods.append(guaranteed(f"owner-{number}{letter}", 2 if letter == "a" else 1, "50Mi"))
        sandboxes = run_sandboxes(node, pods)
        with CpuWatch(node.guest) as watch:
            running = launch_at_once(node, pods, sandboxes)
            watch.await_programs(one.container_id for one in running)
        owners = exclusive_cpus(node)
        assert len(owners) == 3
        overlaps = watch.overlaps(owners, node.bayplan.known())
        print(watch.measured(overlaps))
        running_there = [one for one in overlaps if not one.other.starting]
        assert not running_there, "\n".join(map(str, running_there))
        assert node.bayplan.status()["counters"].get("drifted", 0) == 0
        node.crictl.remove_sandbox(*(one.sandbox_id for one in running))
        node.bayplan.await_known([])
