"""A node that is taken over from dra-driver-cpu: kubelet has the same answers, containers the same CPUs, and
nothing is left once the claims are released."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan._proto.dra import api_pb2 as pb
from bayplan.admin.kubelet_state import importing_claims
from bayplan.admin.server import AdminServer
from bayplan.agent.dra.driver import ClaimDriver
from bayplan.agent.dra.former_driver import FormerDriver
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.backoff import Backoff
from bayplan.cli.bayplan import main
from bayplan.errors import ConfigError, PlacementError
from bayplan.host.shadow_mode import ShadowModeError, shadow_mode
from bayplan.model.workload import Container
from bayplan.sets import CpuSet
from bayplan.views.node_room import claimable_by_node
from support.conditions import running, until
from support.console_blocks import commands
from support.controllers import Controlled, begun
from support.dra_kubelet import found_sockets, registered
from support.dra_node import DraNode
from support.fake_api_server import NODE, SLICES, FakeApiServer
from support.former_driver import (
    FILES,
    OTHER,
    SHARED,
    SOLVER,
    SOLVER_CPUS,
    SOLVER_UID,
    SPECS,
    STATE,
    WEB,
    WEB_CPUS,
    WEB_UID,
    listed,
)
from support.former_driver import running as running_container
from support.machines import container
from support.snapshots import make_snapshot

WEB_CLAIM = pb.Claim(namespace="default", uid=WEB_UID, name="claim-cpu-capacity-2")
SOLVER_CLAIM = pb.Claim(namespace="batch", uid=SOLVER_UID, name="solver-cpus-x7k2p")
OF_DRIVER = f"{SLICES}/node-a-dra.cpu-x"


class Node(DraNode):
    """Daemon and agent of the node, with what the other driver has left."""

    def __init__(self, directory: Path, api: FakeApiServer) -> None:
        super().__init__(directory, api)
        self.specs.mkdir()
        for name, text in SPECS.items():
            (self.specs / name).write_text(text)
        spec = {"driver": "dra.cpu", "nodeName": NODE, "devices": []}
        api.objects[OF_DRIVER] = {"metadata": {"name": "node-a-dra.cpu-x"}, "spec": spec}

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Mirror]:
        mirror, quick = Mirror(), Backoff(lambda: 0.0, first_s=0.01, limit_s=0.01)
        link = DaemonLink(self.directory / "agent.sock", mirror, backoff=quick)
        driver = ClaimDriver(self.api.api(), link, mirror, NODE)
        sockets = self.directory / "plugins", self.registry
        former = FormerDriver(self.api.api(), link, mirror, driver, NODE, sockets, 0.05)
        async with AsyncExitStack() as parts:
            for part in (link, former):
                await parts.enter_async_context(running(part))
            yield mirror

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.specs.iterdir()}


@pytest.fixture
def node() -> Iterator[Node]:
    api = FakeApiServer()
    # A socket's path has 107 bytes.
    with api.serving(), TemporaryDirectory(prefix="dra") as directory:
        yield Node(Path(directory), api)


async def take(one: Controlled, *, dry_run: bool = False, **given: Any) -> dict[str, Any]:
    question = importing_claims(one.controller, one.verify_soon)
    asked = {"checkpoint": STATE, "specs": SPECS, "dryRun": dry_run, **given}
    return await question(make_snapshot(), asked)


async def found(one: Controlled) -> None:
    await one.controller.synchronize(*listed())


def again(container_id: str) -> Container:
    """The container of the claim, created anew: nobody else says where it runs."""
    _, containers = listed()
    (one,) = (each for each in containers if each.id == container_id.partition("-")[0])
    return replace(one, id=container_id, resources=replace(one.resources, cpuset_cpus=None))


async def test_kubelet_has_the_answers_of_the_other_driver_until_the_claims_are_released(node: Node) -> None:
    async with node.daemon() as one, node.agent() as mirror:
        await found(one)
        await until(lambda: mirror.snapshot is not None)
        assert found_sockets(node.registry) == []
        said = await take(one)
        assert [each["name"] for each in said["claims"]] == [
            "batch/solver-cpus-x7k2p",
            "default/claim-cpu-capacity-2",
        ]
        assert said["leftOut"] == []
        async with registered(node.registry) as kubelet:
            assert (kubelet.info.name, list(kubelet.info.supported_versions)) == ("dra.cpu", ["v1.DRAPlugin"])
            answers = await kubelet.prepare(WEB_CLAIM, SOLVER_CLAIM)
            assert [each.error for each in answers.values()] == ["", ""]
            (device,) = answers[WEB_UID].devices
            assert (device.device_name, device.pool_name) == ("cpudevnuma000", "node-a")
            assert list(device.request_names) == ["req-cpu-slice"]
            assert len(device.cdi_device_ids) == 2
            assert device.share_id
            assert len(answers[SOLVER_UID].devices) == 3
            # Nothing new is allocated of its slices.
            await until(lambda: OF_DRIVER not in node.api.objects)
            never = pb.Claim(namespace="x", uid="0b1c2d3e-0000-4000-8000-000000000009", name="y")
            assert "delete the pod" in (await kubelet.prepare(never))[never.uid].error
            # A container of it that starts again, and others beside it.
            await one.controller.stop_container(WEB, container("web", WEB))
            adjustment, _ = await begun(one.controller, WEB, again("web-2"))
            assert adjustment.cpuset_cpus == WEB_CPUS
            assert (await kubelet.unprepare(WEB_CLAIM))[WEB_UID]
            await one.controller.stop_container(WEB, container("web-2", WEB))
            assert await kubelet.unprepare(WEB_CLAIM) == {WEB_UID: ""}
            assert {name for name in node.files() if WEB_UID in name} == set()
            beside, _ = await begun(one.controller, OTHER, container("new", OTHER))
            assert beside.cpuset_cpus == SHARED | WEB_CPUS
            await one.controller.stop_container(SOLVER, container("solver", SOLVER))
            assert await kubelet.unprepare(SOLVER_CLAIM, never) == {SOLVER_UID: "", never.uid: ""}
        await until(lambda: found_sockets(node.registry) == [])
        assert one.controller.state.ledger.retained == {}
        assert node.files() == {}


async def test_after_a_reboot_all_is_there_again(node: Node) -> None:
    """The directory of the specs is empty, kubelet asks for the claims anew, and all containers are new."""
    async with node.daemon() as one:
        await found(one)
        await take(one)
    for path in node.specs.iterdir():
        path.unlink()
    async with node.daemon() as one, node.agent():
        assert node.files() == SPECS
        await one.controller.synchronize([], [])
        async with registered(node.registry) as kubelet:
            for path in node.specs.iterdir():
                path.unlink()
            answers = await kubelet.prepare(WEB_CLAIM)
            assert answers[WEB_UID].error == ""
            assert {name for name in SPECS if WEB_UID in name} == set(node.files())
            adjustment, _ = await begun(one.controller, WEB, again("web-1"))
            assert adjustment.cpuset_cpus == WEB_CPUS


async def test_the_documented_commands_take_it_over(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    (node.directory / "dra_manager_state").write_text(STATE)
    admin, shown = (
        node.directory / "admin.sock",
        commands("run by tests/unit/agent/dra/test_former_driver.py"),
    )
    options = ["--kubelet-directory", str(node.directory), "--cdi-directory", str(node.specs)]
    async with node.daemon() as one:
        await found(one)
        question = importing_claims(one.controller, one.verify_soon)
        server = AdminServer(
            admin, make_snapshot, lambda level: level or "info", questions={"import-claims": question}
        )
        await server.start()
        for command, held in zip(shown, (0, 2), strict=True):
            program, *words = command.split()
            assert program == "bayplan"
            arguments = [*words, *options, "--admin-socket", str(admin)]
            assert await asyncio.to_thread(main, arguments) == 0
            assert len(one.controller.state.ledger.resource_claims) == held
        await server.close()
    assert "default/claim-cpu-capacity-2" in capsys.readouterr().out


async def test_nothing_is_changed_by_looking_or_in_shadow_mode(node: Node) -> None:
    async with node.daemon() as one:
        await found(one)
        before = one.controller.state.ledger
        said = await take(one, dry_run=True)
        assert (len(said["claims"]), said["dryRun"]) == (2, True)
        with shadow_mode(), pytest.raises(ShadowModeError):
            await take(one)
        assert one.controller.state.ledger == before
        assert node.files() == SPECS


async def test_what_is_taken_over_is_recorded(node: Node) -> None:
    async with node.daemon() as one:
        await found(one)
        await take(one)
        recorded = await one.controller.state.recorder.ledger()
        assert recorded.retained == one.controller.state.ledger.retained
        assert one.verifications == 1
    async with node.daemon() as one:
        await found(one)
        assert one.controller.state.ledger.exclusive_cpus == WEB_CPUS | SOLVER_CPUS
        decision = one.controller.state.ledger.entries["solver"].decision
        assert decision.placement.claimed_cpus == SOLVER_CPUS
        assert await one.controller.state.check_ledger() == ()


async def test_a_claim_of_another_pod_is_refused_and_a_name_alone_means_nothing(node: Node) -> None:
    async with node.daemon() as one:
        liar = running_container(OTHER, "liar", SHARED, WEB_UID)
        unpinned = replace(liar, resources=replace(liar.resources, cpuset_cpus=None))
        adjustment, _ = await begun(one.controller, OTHER, unpinned)
        assert adjustment.cpuset_cpus != WEB_CPUS
        await one.controller.stop_container(OTHER, container("liar", OTHER))
        await found(one)
        await take(one)
        with pytest.raises(PlacementError) as refused:
            await one.controller.create_container(OTHER, replace(unpinned, id="liar-2"))
        assert WEB_UID in str(refused.value)


async def test_what_is_published_lacks_what_another_driver_has_given_out(node: Node) -> None:
    """The scheduler subtracts from our devices what is allocated of these alone."""
    async with node.daemon() as one:
        await found(one)
        await take(one)
        rooms = claimable_by_node(one.controller.state.basis)
        for each in one.controller.state.machine.nodes:
            free = each.cpus - WEB_CPUS - SOLVER_CPUS
            assert rooms[each.id]["cpu"] <= len(free)


@pytest.mark.parametrize(
    "given",
    [
        {"checkpoint": None},
        {"checkpoint": "{}"},
        {"specs": ["x"]},
        {"specs": {"x": 1}},
    ],
)
async def test_what_is_no_question_is_one_error(node: Node, given: dict[str, Any]) -> None:
    async with node.daemon() as one:
        with pytest.raises(ConfigError):
            await take(one, **given)


async def test_slices_that_cannot_be_deleted_are_said(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.api.forbidden.add(("DELETE", SLICES))
    async with node.daemon() as one, node.agent() as mirror:
        await found(one)
        await take(one)
        await until(lambda: any("forbidden" in str(vars(each)) for each in caplog.records))
        node.api.forbidden.clear()
        await until(lambda: OF_DRIVER not in node.api.objects)
        assert mirror.connected


def test_the_recordings_have_their_provenance() -> None:
    readme = (FILES / "README.md").read_text()
    assert "v1.37.2" in readme
    assert json.loads(STATE)["Checksum"]
    assert not SHARED & WEB_CPUS
    assert isinstance(SOLVER_CPUS, CpuSet)
