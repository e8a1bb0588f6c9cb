"""explain and what-if over a real admin socket, beside a controller that serves a runtime's events."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.admin.questions import recorded_questions, rehearsing, what_if_described
from bayplan.admin.server import AdminServer
from bayplan.admin.snapshot_source import snapshot_of
from bayplan.cli import what_if
from bayplan.cli.bayplan import main
from bayplan.control.controller import Controller
from bayplan.engines.exact.engine import ExactEngine
from bayplan.errors import PlacementError
from bayplan.model.decision import QosClass
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.simulate.manifest import sizes_manifest
from support.controllers import controlled
from support.machines import container, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
STRICT = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
Capture = pytest.CaptureFixture[str]
Bayplan = Callable[..., Awaitable[int]]


async def serving(
    directory: Path, policy: PlacementPolicy, scenario: Callable[[Controller, Bayplan], Awaitable[None]]
) -> None:
    """Run *scenario* with a controller and the `bayplan` command against its admin socket."""
    async with controlled(directory, policy) as rig:
        controller = rig.controller
        path = directory / "admin.sock"
        server = AdminServer(
            path,
            lambda: snapshot_of(controller.state, 0, ()),
            lambda level: level or "info",
            questions={
                **recorded_questions(controller.state.recorder),
                "what-if": rehearsing(
                    ExactEngine, controller.placements.policy_ability, controller.placements.moves_obstacle
                ),
            },
        )
        await server.start()

        async def bayplan(*words: str) -> int:
            return await asyncio.to_thread(main, [*words, "--admin-socket", str(path)])

        try:
            await scenario(controller, bayplan)
        finally:
            await server.close()


def run(
    directory: Path,
    scenario: Callable[[Controller, Bayplan], Awaitable[None]],
    policy: PlacementPolicy = STRICT,
) -> None:
    asyncio.run(serving(directory, policy, scenario))


def test_explain_tells_of_what_runs_what_left_and_what_was_refused(tmp_path: Path, capsys: Capture) -> None:
    async def scenario(controller: Controller, bayplan: Bayplan) -> None:
        for name in ("stays", "leaves"):
            one = container(name, GUARANTEED, memory_bytes=GIB // 2, milli_cpus=500)
            await controller.create_container(GUARANTEED, one)
        await controller.stop_container(GUARANTEED, container("leaves", GUARANTEED))
        large = container("large", GUARANTEED, memory_bytes=2 * GIB, milli_cpus=500)
        with pytest.raises(PlacementError) as refused:
            await controller.create_container(GUARANTEED, large)
        assert await bayplan("explain", "g", "--json") == 0
        said = json.loads(capsys.readouterr().out)
        states = {one["name"]: one["state"] for one in said["containers"]}
        assert states == {
            "default/g/large-name": "refused",
            "default/g/leaves-name": "departed",
            "default/g/stays-name": "current",
        }
        large_view = said["containers"][0]
        assert large_view["refusal"] == str(refused.value)
        for subject in ("default/g/large-name", "g/large-name", "large"):
            assert await bayplan("explain", subject) == 0
            said_again = capsys.readouterr().out
            assert "  error:      TopologyAffinityError, " in said_again
            for reason in large_view["reasons"]:
                assert said_again.count(reason["text"]) == 1
        assert await bayplan("explain", "nobody") == 1
        assert "no decision about 'nobody' is recorded" in capsys.readouterr().err

    run(tmp_path, scenario)


def test_an_explanation_reads_well(tmp_path: Path, capsys: Capture) -> None:
    async def scenario(controller: Controller, bayplan: Bayplan) -> None:
        one = container("c", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=2000)
        await controller.create_container(GUARANTEED, one)
        assert await bayplan("explain", "default/g") == 0
        first, *lines = capsys.readouterr().out.splitlines()
        assert first.startswith("default/g/c-name (current, decided 20")
        assert lines[:8] == [
            "  asked:      Guaranteed, known from its cgroup parent",
            "              memory: 512Mi, known from its limit",
            "              CPUs: 2 of its own",
            "  outcome:    placed",
            "  placed:     memory: node 0 (512Mi on node 0)",
            "              CPUs: 1-2, its own",
            "  why:        node 0 is the best set with room",
            "  won:        node 0 before node 1, which would do as well, by the lower id",
        ]
        assert lines[8] == ""
        assert lines[9].split()[:3] == ["CANDIDATE", "OVERLAPPING", "SETS"]
        assert [line.split()[0] for line in lines[10:]] == ["0", "1"]

    run(tmp_path, scenario)


def test_earlier_decisions_about_a_name_are_listed(tmp_path: Path, capsys: Capture) -> None:
    async def scenario(controller: Controller, bayplan: Bayplan) -> None:
        for size in (2 * GIB, GIB // 2):
            one = container("c", GUARANTEED, memory_bytes=size, milli_cpus=500)
            try:
                await controller.create_container(GUARANTEED, one)
            except PlacementError:
                continue
        assert await bayplan("explain", "c", "--output", "json") == 0
        (one_view,) = json.loads(capsys.readouterr().out)["containers"]
        assert (one_view["state"], one_view["outcome"]) == ("current", "placed")
        assert [(item["id"], item["outcome"]) for item in one_view["earlier"]] == [("c", "refused")]

    run(tmp_path, scenario)


def test_what_if_decides_as_the_daemon_will(tmp_path: Path, capsys: Capture) -> None:
    async def scenario(controller: Controller, bayplan: Bayplan) -> None:
        one = container("c", GUARANTEED, memory_bytes=GIB // 2, milli_cpus=500)
        await controller.create_container(GUARANTEED, one)
        await asyncio.sleep(0)  # it is counted after the reply
        before = (
            controller.state.ledger,
            dict(controller.state.counters),
            controller.state.machine,
            controller.state.policy,
        )
        sizes = ("--memory", "600Mi", "--cpus", "500m", "--count", "2", "--name", "n/p/c", "--json")
        assert await bayplan("what-if", *sizes) == 0
        said = json.loads(capsys.readouterr().out)
        assert [(pod["name"], pod["admitted"]) for pod in said["pods"]] == [("n/p-1", True), ("n/p-2", False)]
        assert said["pods"][0]["containers"][0]["placement"]["mems"] == "1"
        assert (
            controller.state.ledger,
            dict(controller.state.counters),
            controller.state.machine,
            controller.state.policy,
        ) == before
        assert controller.state.ledger is before[0]
        assert await bayplan("explain", "n/p/c") == 1
        later = container("d", GUARANTEED, memory_bytes=600 * MIB, milli_cpus=500)
        adjustment, _ = await controller.create_container(GUARANTEED, later)
        assert str(adjustment.cpuset_mems) == "1"

    run(tmp_path, scenario)


def test_what_if_of_manifests_in_a_file(tmp_path: Path, capsys: Capture) -> None:
    manifest = tmp_path / "pods.yaml"
    manifest.write_text(
        """\
apiVersion: v1
kind: Pod
metadata: {name: a, managedFields: [{manager: kubectl}]}
spec:
  initContainers:
  - {name: first, resources: {limits: {memory: 900Mi, cpu: 1}}}
  - {name: second, resources: {limits: {memory: 900Mi, cpu: 1}}}
  containers:
  - {name: main, resources: {limits: {memory: 900Mi, cpu: 1}}}
---
kind: Service
metadata: {name: a}
spec: {ports: [{port: 80}]}
---
{"kind": "Pod", "metadata": {"name": "b"}, "spec": {"containers": [{"name": "main"}]}}
"""
    )

    async def scenario(_: Controller, bayplan: Bayplan) -> None:
        assert await bayplan("what-if", str(manifest), "--json") == 0
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert [(one["name"], one["admitted"]) for one in said["pods"]] == [
            ("default/a", True),
            ("default/b", True),
        ]
        # Each init container is gone before the next container comes.
        places = [one["placement"]["mems"] for one in said["pods"][0]["containers"]]
        assert places == ["0", "0", "0"]
        assert await bayplan("what-if", str(manifest)) == 0
        out = capsys.readouterr().out
        assert [line.split()[:3] for line in out.splitlines()[1:3]] == [
            ["default/a", "fits", "0"],
            ["default/b", "fits", "any"],
        ]
        assert "2 of 2 pods would be placed." in out
        manifest.write_text('{"kind": "List", "items": [{"kind": "Service"}]}')
        assert await bayplan("what-if", str(manifest)) != 0
        assert "pods: found none, " in capsys.readouterr().err

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "--memory"),
        (("--memory", "lots"), "--memory: found 'lots'"),
        (("--hugepages", "2Mi"), "--hugepages: found '2Mi'"),
        (("/nowhere/pod.yaml",), "/nowhere/pod.yaml: the file: "),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(
    tmp_path: Path, capsys: Capture, words: tuple[str, ...], problem: str
) -> None:
    async def scenario(_: Controller, bayplan: Bayplan) -> None:
        assert await bayplan("what-if", *words) != 0
        assert problem in capsys.readouterr().err

    run(tmp_path, scenario)


def test_more_pods_than_are_rehearsed_at_once(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text("metadata: {name: one}\nspec: {containers: [{name: main}]}\n")

    async def scenario(_: Controller, bayplan: Bayplan) -> None:
        assert await bayplan("what-if", "--memory", "1Mi", "--count", "200", str(path)) == 1
        assert "pods: found 201, " in capsys.readouterr().err

    run(tmp_path, scenario)


@pytest.mark.parametrize("subject", ["", "\udcff", "no/such/one"])
def test_a_subject_that_nobody_has_is_one_sentence(tmp_path: Path, capsys: Capture, subject: str) -> None:
    async def scenario(_: Controller, bayplan: Bayplan) -> None:
        assert await bayplan("explain", subject) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "expected" in said

    run(tmp_path, scenario)


def test_rules_and_pools_that_none_of_the_asked_pods_matches_are_named(tmp_path: Path) -> None:
    machine, config = tmp_path / "machine.yaml", tmp_path / "baypland.yaml"
    machine.write_text("nodes: [{count: 2, cpus: 8, memory: 8Gi}]")
    config.write_text("""
cpuPools: {db: {maximum: 2}, web: {maximum: 1}}
cpuRules:
- {namespaces: [shop], cpus: pool=db}
- {namespaces: [bank], cpus: shared}
""")
    pods = [sizes_manifest(name, memory="1Gi", cpus="1") for name in ("shop/a", "default/b")]
    said = what_if_described(machine, [config], pods)
    assert [one.split()[0] for one in said["unmatchedCpuRules"]] == ["cpuRules[1]"]
    assert [one.split()[0] for one in said["unmatchedCpuPools"]] == ["cpuPools.web"]
    shown = "\n".join(block for block in what_if.blocks(said) if isinstance(block, str))
    assert "cpuRules[1] is" in shown
    assert "cpuPools.web has" in shown
    config.write_text(f"{config.read_text()}\nforbiddenAnnotations: [cpus]")
    (closed,) = what_if_described(machine, [config], pods)["remarks"]
    assert closed.startswith("cpuPools.web can")
