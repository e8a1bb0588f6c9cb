"""Containers that exit at once, that fail to start, that are killed while they are created, the daemon killed
meanwhile: afterwards nothing is held, although nobody removes what is left of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from testbed.crio import RUNTIMES, CrioNode, in_slice, whole_cpu
from testbed.node import Node
from testbed.pods import guaranteed
from testbed.scenario import on
from testbed.short_lives import Short, await_nothing_held, live_shortly
from testbed.topology import FOUR_NODES

BURST = (Short.EXITS, Short.FAILS, Short.STOPPED_FIRST, Short.EXITS, Short.NOT_STARTED, Short.UPDATED_LATE)


@on(FOUR_NODES)
@pytest.mark.matrix
@pytest.mark.parametrize("rounds", [1, 4])
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


@pytest.mark.parametrize(
    ("nri", "runtimes"),
    [
        pytest.param(True, tuple(RUNTIMES)[:1], id="nri"),
        pytest.param(True, tuple(RUNTIMES), id="nri-both", marks=pytest.mark.matrix),
        pytest.param(False, tuple(RUNTIMES), id="hook", marks=pytest.mark.matrix),
    ],
)
def test_nothing_is_held_by_the_dead_of_crio(
    crio_node: CrioNode, nri: bool, runtimes: tuple[str, ...]
) -> None:
    """In a sandbox of each of these OCI runtimes at once."""
    node = crio_node
    if not nri:
        node.forms.install()
    node.crio.start(nri=nri)
    # Emulated, a decision takes ten times as long.
    node.bayplan.start("--oci-deadline", "20s")
    if nri:
        node.bayplan.await_synchronized()
    lives = node.crictl.launch(whole_cpu("lives"))
    pods = [in_slice(guaranteed(f"short-{runtime}", 1, "50Mi")) for runtime in runtimes]
    sandboxes = [
        node.crictl.run_sandbox(pod, handler=runtime) for pod, runtime in zip(pods, runtimes, strict=True)
    ]

    def burst(*shorts: Short, first: int) -> None:
        with ThreadPoolExecutor(len(pods)) as workers:
            begun = [
                workers.submit(live_shortly, node, pod, sandbox_id, shorts, first=first)
                for pod, sandbox_id in zip(pods, sandboxes, strict=True)
            ]
        for one in begun:
            one.result()

    burst(Short.EXITS, Short.FAILS, Short.STOPPED_FIRST, first=0)
    node.bayplan.kill()
    burst(Short.EXITS, first=3)
    node.bayplan.start_again()
    burst(Short.NOT_STARTED, Short.FAILS, first=4)
    await_nothing_held(node, lives.container_id)
