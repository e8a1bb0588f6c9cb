"""explain and what-if beside a runtime that speaks NRI: what they say is what the runtime was told."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.admin.questions import recorded_questions, rehearsing
from bayplan.admin.server import AdminServer
from bayplan.admin.snapshot_source import snapshot_of
from bayplan.cli.bayplan import main
from bayplan.control.controller import Controller
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.nri import Identity, Session, UnixSocket
from bayplan.quantity import MIB
from support.controllers import controlled
from support.flavors import CONTAINERD_2_1, CONTAINERD_2_3, Flavor
from support.plugin import UNHURRIED
from support.plugin_calls import OperationError
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, GUARANTEED, make_container, make_pod

RESTRICTED = PlacementPolicy(topology=TopologyPolicy.RESTRICTED)


@dataclass
class Site:
    """A runtime, the daemon's parts that serve it, and the command line."""

    runtime: FakeRuntime
    controller: Controller
    admin_socket: Path
    capsys: pytest.CaptureFixture[str]

    async def bayplan(self, *words: str) -> Any:
        """What the command prints as JSON."""
        argv = [*words, "--json", "--admin-socket", str(self.admin_socket)]
        assert await asyncio.to_thread(main, argv) == 0
        return json.loads(self.capsys.readouterr().out)


@asynccontextmanager
async def site(directory: Path, flavor: Flavor, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Site]:
    runtime, socket, admin_socket = FakeRuntime(flavor), directory / "nri.sock", directory / "admin.sock"
    await runtime.listen(socket)
    async with controlled(directory / "state", RESTRICTED, nri=None) as rig:
        controller = rig.controller
        questions = {
            **recorded_questions(controller.state.recorder),
            "what-if": rehearsing(ExactEngine, controller.placements.policy_ability),
        }
        admin = AdminServer(
            admin_socket, lambda: snapshot_of(controller.state, 0, ()), lambda _: "info", questions=questions
        )
        await admin.start()
        identity, endpoint = Identity("bayplan", "90"), UnixSocket(str(socket))
        session = Session(controller, identity, endpoint, timeouts=UNHURRIED, jitter=lambda: 0.0)
        running = asyncio.create_task(session.run())
        try:
            await runtime.synchronized()
            yield Site(runtime, controller, admin_socket, capsys)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await admin.close()
            await runtime.stop()


def guaranteed(pod: pb.PodSandbox, mib: int) -> pb.Container:
    return make_container(
        pod, memory_limit_bytes=mib * MIB, cpu_shares=512, cpu_quota_us=50_000, oom_score_adj=-997
    )


async def test_a_refusal_is_told_and_explained_in_the_same_words(tmp_path, capsys):
    async with site(tmp_path, CONTAINERD_2_3, capsys) as one:
        for name in ("a", "b"):
            pod = make_pod(name, qos=GUARANTEED)
            await one.runtime.create_container(pod, guaranteed(pod, 600))
        foretold = await one.bayplan("what-if", "--memory", "600Mi", "--cpus", "500m", "--name", "default/c")
        late = make_pod("c", qos=GUARANTEED)
        with pytest.raises(OperationError) as refused:
            await one.runtime.create_container(late, guaranteed(late, 600))
        (explained,) = (await one.bayplan("explain", "c"))["containers"]
        assert explained["state"] == "refused"
        assert explained["refusal"] in str(refused.value)
        assert explained["shortage"]["text"] in explained["refusal"]
        assert "default/a/main" in explained["shortage"]["text"]
        assert foretold["pods"][0]["containers"][0]["refusal"] == explained["refusal"]
        await one.runtime.stop_container("sandbox-default-a-main")
        (gone,) = (await one.bayplan("explain", "a/main"))["containers"]
        assert (gone["state"], gone["outcome"]) == ("departed", "placed")


async def test_a_refused_resize_is_listed_beside_what_stays_in_force(tmp_path, capsys):
    async with site(tmp_path, CONTAINERD_2_3, capsys) as one:
        pod = make_pod("a", qos=GUARANTEED)
        created = guaranteed(pod, 600)
        await one.runtime.create_container(pod, created)
        larger = pb.LinuxResources(memory=pb.LinuxMemory(limit=pb.OptionalInt64(value=5000 * MIB)))
        with pytest.raises(OperationError) as refused:
            await one.runtime.update_container(created.id, larger)
        (explained,) = (await one.bayplan("explain", "a"))["containers"]
        assert (explained["state"], explained["outcome"]) == ("current", "placed")
        assert explained["asked"]["memory"]["limitBytes"] == 600 * MIB
        (earlier,) = explained["earlier"]
        assert earlier["outcome"] == "refused"
        assert earlier["summary"].removeprefix("refused: ") in str(refused.value)


@pytest.mark.parametrize(
    ("flavor", "outcome"), [(CONTAINERD_2_3, "placed"), (CONTAINERD_2_1, "degraded")], ids=str
)
async def test_a_memory_policy_goes_to_runtimes_that_have_it(tmp_path, capsys, flavor, outcome):
    async with site(tmp_path, flavor, capsys) as one:
        annotations = {"bayplan.dev/memory-policy": "interleave"}
        pod = make_pod("spread", qos=BEST_EFFORT, annotations=annotations)
        spread = make_container(pod, cpu_shares=2, oom_score_adj=1000)
        answered = await one.runtime.create_container(pod, spread)
        (explained,) = (await one.bayplan("explain", "spread"))["containers"]
        assert explained["outcome"] == outcome
        policy = answered.adjust.linux.memory_policy
        if outcome == "placed":
            assert (policy.mode, policy.nodes) == (pb.MPOL_INTERLEAVE, "0-1")
            assert explained["placement"]["memoryPolicy"] == "interleave:0-1"
        else:
            assert not answered.adjust.linux.HasField("memory_policy")
            assert explained["reasons"][-1]["code"] == "memory-policy-unsupported"
