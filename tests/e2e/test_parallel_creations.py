"""Containers that are created and started at the same moment: nobody runs on the CPUs of an owner that has
started, on any containerd. CRI-O's is in test_crio.py."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from testbed.at_once import CpuWatch, exclusive_cpus, launch_at_once, run_sandboxes
from testbed.node import Node
from testbed.pods import best_effort, burstable, guaranteed
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


@pytest.mark.matrix
@on(FOUR_NODES)
def test_nobody_else_runs_on_the_cpus_of_an_owner_while_a_named_pool_grows_and_shrinks(node: Node) -> None:
    node.bayplan.start(config="cpuPools = { db = { maximum = 3 } }\n")
    node.bayplan.await_synchronized()
    total, in_pool = node.kernel.memory_total_bytes(), {"bayplan.dev/cpus": "pool=db"}
    owners: dict[str, frozenset[int]] = {}
    others: set[str] = set()
    ending: list[str] = []
    sizes = []
    with CpuWatch(node.guest) as watch:
        for number in range(3):
            members = [
                burstable(f"member-{number}{letter}", node_memory_bytes=total, cpus=1, annotations=in_pool)
                for letter in "ab"
            ]
            pods = [*members, guaranteed(f"owner-{number}", 1, "50Mi"), best_effort(f"shared-{number}")]
            sandboxes = run_sandboxes(node, pods)
            with ThreadPoolExecutor(1) as pool:
                # Those of the last round end while these are created: the pool shrinks and grows.
                ended = pool.submit(node.crictl.remove_sandbox, *ending) if ending else None
                running = launch_at_once(node, pods, sandboxes)
                if ended is not None:
                    ended.result()
            watch.await_programs(one.container_id for one in running)
            others |= {one.container_id for one in running}
            owners |= exclusive_cpus(node)
            (first, second, *_) = running
            node.await_view(first, lambda view: len(view.cpus_allowed) == 2)
            pooled = node.view(first).cpus_allowed
            assert node.view(second).cpus_allowed == pooled
            assert all(pooled.isdisjoint(cpus) for cpus in exclusive_cpus(node).values())
            node.crictl.stop(second.container_id)
            node.await_view(first, lambda view: len(view.cpus_allowed) == 1)
            sizes.append(len(pooled))
            ending = [one.sandbox_id for one in running]
    overlaps = watch.overlaps(owners, others)
    print(watch.measured(overlaps))
    assert len(owners) == len(sizes) == 3
    running_there = [one for one in overlaps if not one.other.starting]
    assert not running_there, "\n".join(map(str, running_there))
    assert node.bayplan.status()["counters"].get("drifted", 0) == 0
