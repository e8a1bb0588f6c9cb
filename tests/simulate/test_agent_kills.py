"""bayplan-agent as a process, killed after something that it says: creations go on, requests become exact."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bayplan.agent.kubelet_pods import pods_of_json
from bayplan.control.known_containers import KubeletPods
from bayplan.control.placements import ExactRequests
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_requests import BY_KUBELET, PodFacts
from bayplan.quantity import GIB
from support.agents import serving
from support.controllers import begun, controlled
from support.coroutines import PATIENCE_S
from support.fake_kubelet import RECORDED, FakeEndpoint
from support.kubelet_pods import asked, sandbox
from support.machines import machine

MACHINE = machine(2, cpus_per_node=4, memory_bytes=16 * GIB)
PODS = {pod.name: pod for pod in pods_of_json((RECORDED / "pods.json").read_bytes())[0]}
BURSTABLE = PODS["burstable"]


class Killer:
    """Takes what the agent says, and kills it after the *last* thing that it may say."""

    def __init__(self, pods: KubeletPods, last: int) -> None:
        self.said = 0
        self.pid = 0
        self._pods = pods
        self._last = last

    def update(self, pod: PodFacts) -> None:
        self._pods.update(pod)
        self._count()

    def forget(self, uid: str) -> None:
        self._pods.forget(uid)
        self._count()

    def _count(self) -> None:
        self.said += 1
        if self.said == self._last:
            os.kill(self.pid, signal.SIGKILL)


@asynccontextmanager
async def agent(socket: Path, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The program; killed at the end."""
    argv = ("--daemon-socket", str(socket), "--kubelet-pods-socket", str(socket.with_name("none.sock")))
    off = ("--pod-resources-socket", "none", "--listen", "none")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bayplan.agent.bayplan_agent", *argv, *off, "--kubelet-url", url),
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("last", [1, 2, len(PODS)])
async def test_an_agent_that_is_killed_leaves_everything_as_it_is(tmp_path: Path, last: int) -> None:
    path, kubelet = tmp_path / "a.sock", FakeEndpoint()
    async with controlled(tmp_path / "state", on=MACHINE) as one:
        pods = one.controller.state.kubelet_pods
        killer, exact = Killer(pods, last), ExactRequests(one.controller.state)
        with kubelet.serving():
            async with serving(one, path, pods=killer), asyncio.timeout(PATIENCE_S):
                async with agent(path, kubelet.url) as process:
                    killer.pid = process.pid
                    await begun(one.controller, sandbox(BURSTABLE), asked(BURSTABLE, "main", GIB * 32))
                    assert await process.wait() == -signal.SIGKILL
                entries = dict(one.controller.state.ledger.entries)
                await begun(one.controller, sandbox(BURSTABLE), asked(BURSTABLE, "small", GIB * 32))
                assert one.controller.state.ledger.entries["main"] == entries["main"]
                async with agent(path, kubelet.url):
                    while killer.said < last + len(PODS):  # noqa: ASYNC110 - nothing tells of it
                        await asyncio.sleep(0.01)
                    await exact.correct()
        for name in ("main", "small"):
            request = one.controller.state.ledger.entries[name].decision.request
            assert request.qos is QosClass.BURSTABLE
            assert request.memory.source == BY_KUBELET
        assert one.controller.state.counters["agent_requests_not_used"] == 0


async def test_an_agent_ends_on_a_signal_and_starts_without_daemon_or_kubelet(tmp_path: Path) -> None:
    async with agent(tmp_path / "none" / "a.sock", "http://127.0.0.1:9/pods") as process:
        assert process.stderr is not None
        missing = {"the daemon is not there", "kubelet's pods are not known"}
        while missing:
            missing.discard(json.loads(await process.stderr.readline())["msg"])
        process.terminate()
        assert await process.wait() == 0
