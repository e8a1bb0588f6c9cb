"""A hundred pods while the daemon is stopped, killed, hangs or is slow: none starts unplaced with `refuse`,
all start with `pass`, and none is stuck once it is back."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import pytest
from test_required_plugin import documented_settings
from testbed.crictl import Running
from testbed.errors import CommandError
from testbed.node import Node
from testbed.pods import best_effort
from testbed.scenario import on
from testbed.topology import THIS_MACHINE

VERSION = "2.4-nri"
"""With NRI 0.12.5, which honours a plugin's failure_policy."""
PODS = int(os.environ.get("PODS", "100"))
"""In each state of the daemon."""
AT_ONCE = 6
TRIES = 5
"""kubelet tries for ever."""
STATES = tuple(os.environ.get("STATES", "stopped killed hanging slow").split())
RUNTIME_TIMEOUT_S = 2
"""What NRI waits for an answer if nobody says otherwise."""
WATCHDOG_S = 30
"""WatchdogSec of the unit. With `refuse` the runtime goes on writing to a daemon that reads nothing, which
blocks all of NRI once the socket is full, after some 20 pods: it heeds its timeout where it reads only."""
DEADLINE = ("--request-deadline", "1s")
"""The daemon's default: the test bed has a longer one."""


@contextmanager
def down(node: Node, state: str) -> Iterator[None]:
    """The daemon is stopped, killed, hangs, or hangs again and again, and is back afterwards."""
    if state in MEANWHILE:
        over = Event()
        with ThreadPoolExecutor(1) as thread:
            ending = thread.submit(MEANWHILE[state], node, over)
            try:
                yield
            finally:
                over.set()
                ending.result()
        return
    (node.bayplan.stop if state == "stopped" else node.bayplan.kill)()
    yield
    start_again(node)


def start_again(node: Node) -> None:
    since = node.bayplan.log_position()
    node.bayplan.start_again()
    node.bayplan.await_synchronized(since=since)


def hang(node: Node, over: Event) -> None:
    """The daemon answers nothing, until its unit's watchdog ends it, which starts another."""
    node.bayplan.pause()
    over.wait(WATCHDOG_S)
    node.bayplan.kill()
    start_again(node)


def slow(node: Node, over: Event) -> None:
    """The daemon is stopped for longer than the runtime waits, and goes on for a moment, again and again."""
    while not over.is_set():
        node.bayplan.pause()
        over.wait(RUNTIME_TIMEOUT_S + 1)
        node.bayplan.resume()
        over.wait(1)


MEANWHILE: Mapping[str, Callable[[Node, Event], None]] = {"hanging": hang, "slow": slow}
"""What is done while the pods are created."""


def created(node: Node, names: Iterable[str], why_not: list[str]) -> list[Running]:
    """Those of the pods with these names that start; what the runtime said of others."""

    def launch(name: str) -> Running | None:
        try:
            return node.launch(best_effort(name))
        except CommandError as error:
            why_not.append(error.stderr)
            return None

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return [one for one in threads.map(launch, names) if one is not None]


def names(prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(PODS)]


def unmanaged(node: Node) -> set[str]:
    return {one["name"] for one in node.bayplan.status()["unmanaged"]}


def name(one: Running) -> str:
    return f"{one.pod.namespace}/{one.pod.name}/main"


def all_start(node: Node, names: list[str]) -> tuple[list[Running], list[str]]:
    """Try as kubelet does: what comes late on a busy machine is refused as well, and of some hundred starts
    with runc 1.1 one failed for reasons of its own. And what the runtime said of those that failed."""
    running: dict[str, Running] = {}
    why_not: list[str] = []
    for _ in range(TRIES):
        lacking = [name for name in names if name not in running]
        running |= {one.pod.name: one for one in created(node, lacking, why_not)}
    assert set(running) == set(names)
    return list(running.values()), why_not


def placed_again(node: Node, state: str) -> bool:
    """Whether one that is created now is placed, and not only found: the daemon may be about to connect."""
    for number in range(TRIES):
        ((one,), _) = all_start(node, [f"{state}-later-{number}"])
        decided = node.bayplan.decided(one.container_id)
        if decided is not None and decided["outcome"] == "placed":
            return True
        node.bayplan.await_known({*node.bayplan.known(), one.container_id})
    return False


@pytest.mark.matrix
@on(THIS_MACHINE, VERSION)
def test_with_refuse_none_starts_unplaced_and_none_is_stuck_afterwards(node: Node) -> None:
    node.containerd.end()
    node.containerd.start(settings=documented_settings(), plugin_timeout_s=RUNTIME_TIMEOUT_S)
    try:
        node.bayplan.start(*DEADLINE, config='whenDown = "refuse"\n')
        node.bayplan.await_synchronized()
        for state in STATES:
            with down(node, state):
                started = created(node, names(state), [])
            again, _ = all_start(node, names(f"{state}-again"))
            # A daemon that is slow decides about some in time, and so does the one after one that hung.
            assert state in MEANWHILE or not started
            assert unmanaged(node) == set()
            placed = [node.bayplan.decided(one.container_id) for one in (*started, *again)]
            assert {one and one["outcome"] for one in placed} == {"placed"}
            print(f"refuse, {state}: {len(started)} of {PODS} started meanwhile, {len(again)} afterwards")
            node.crictl.remove_everything()
    finally:
        node.containerd.end()
        node.containerd.start()


@pytest.mark.matrix
@on(THIS_MACHINE, VERSION)
def test_with_pass_all_start_and_are_found_afterwards(node: Node) -> None:
    node.containerd.end()
    node.containerd.start(plugin_timeout_s=RUNTIME_TIMEOUT_S)
    try:
        node.bayplan.start(*DEADLINE)
        node.bayplan.await_synchronized()
        for state in STATES:
            with down(node, state):
                started, why_not = all_start(node, names(state))
            assert [text for text in why_not if "bayplan" in text] == []
            node.bayplan.await_known([running.container_id for running in started])
            found = {name(running) for running in started}
            assert unmanaged(node) <= found
            assert state in MEANWHILE or unmanaged(node) == found
            assert placed_again(node, state)
            print(f"pass, {state}: all of {PODS} started, {len(unmanaged(node))} of them unplaced")
            print("".join(why_not), end="")
            node.crictl.remove_everything()
    finally:
        node.containerd.end()
        node.containerd.start()
