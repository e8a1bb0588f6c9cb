"""Pods that are created while the daemon is stopped, killed, hangs or is slow: none starts unplaced with
`refuse`, all start with `pass`, and none is stuck once it is back."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from test_required_plugin import documented_settings
from testbed.crictl import Running
from testbed.errors import CommandError
from testbed.node import Node
from testbed.pods import Pod, best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import TWO_NODES

VERSION = "2.4-nri"
"""With NRI 0.12.5, which honours a plugin's failure_policy."""
PODS = int(os.environ.get("PODS", "6"))
"""In each state of the daemon."""
AT_ONCE = 4
STATES = ("stopped", "killed", "hanging", "slow")
RUNTIME_TIMEOUT_S = 3


@contextmanager
def down(node: Node, state: str) -> Iterator[None]:
    """The daemon is stopped, killed, hangs, or hangs again and again, and is back afterwards."""
    since = node.bayplan.log_position()
    if state == "hanging":
        node.bayplan.pause()
        yield
        node.bayplan.resume()
        return
    if state == "slow":
        with slowed(node):
            yield
        return
    (node.bayplan.stop if state == "stopped" else node.bayplan.kill)()
    yield
    node.bayplan.start_again()
    node.bayplan.await_synchronized(since=since)


@contextmanager
def slowed(node: Node) -> Iterator[None]:
    """The daemon is stopped for longer than the runtime waits, and goes on for a moment, again and again."""
    over = Event()

    def slow() -> None:
        while not over.is_set():
            node.bayplan.pause()
            over.wait(RUNTIME_TIMEOUT_S + 1)
            node.bayplan.resume()
            over.wait(1)

    with ThreadPoolExecutor(1) as thread:
        slowing = thread.submit(slow)
        try:
            yield
        finally:
            over.set()
            slowing.result()


def created(node: Node, pods: list[Pod]) -> list[Running]:
    """Those of *pods* that start."""

    def launch(pod: Pod) -> Running | None:
        try:
            return node.launch(pod)
        except CommandError:
            return None

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return [one for one in threads.map(launch, pods) if one is not None]


def pods(prefix: str) -> list[Pod]:
    return [best_effort(f"{prefix}-{number}") for number in range(PODS)]


def unmanaged(node: Node) -> set[str]:
    return {one["name"] for one in node.bayplan.status()["unmanaged"]}


def name(one: Running) -> str:
    return f"{one.pod.namespace}/{one.pod.name}/main"


@pytest.mark.matrix
@on(TWO_NODES, VERSION)
def test_with_refuse_none_starts_unplaced_and_none_is_stuck_afterwards(node: Node) -> None:
    node.containerd.end()
    node.containerd.start(settings=documented_settings(), plugin_timeout_s=RUNTIME_TIMEOUT_S)
    try:
        node.bayplan.start(config='whenDown = "refuse"\n')
        node.bayplan.await_synchronized()
        for state in STATES:
            with down(node, state):
                started = created(node, pods(state))
            again = created(node, pods(f"{state}-again"))
            # What came late on a busy machine is refused as well, and kubelet tries again.
            again += created(node, pods(f"{state}-retry")[len(again) :])
            # A daemon that is slow decides about some in time.
            assert (state, len(again)) == (state, PODS)
            assert state == "slow" or not started
            assert unmanaged(node) == set()
            placed = [node.bayplan.decided(one.container_id) for one in (*started, *again)]
            assert {one and one["outcome"] for one in placed} == {"placed"}
            node.crictl.remove_everything()
    finally:
        node.containerd.end()
        node.containerd.start()


@pytest.mark.matrix
@on(TWO_NODES, VERSION)
def test_with_pass_all_start_and_are_found_afterwards(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    for state in STATES:
        with down(node, state):
            started = created(node, pods(state))
        assert (state, len(started)) == (state, PODS)
        one = node.launch(guaranteed(f"{state}-later", 1, "100Mi"))
        assert node.bayplan.decided(one.container_id)["outcome"] == "placed"
        node.bayplan.await_known([*(running.container_id for running in started), one.container_id])
        found = {name(running) for running in started}
        assert unmanaged(node) <= found
        assert state == "slow" or unmanaged(node) == found
        node.crictl.remove_everything()
