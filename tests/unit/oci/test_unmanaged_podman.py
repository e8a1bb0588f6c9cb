"""podman's containers without a record: found in its storage, entered as they are, not before their hooks."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bayplan.control.container_files import Starts
from bayplan.control.ended_containers import EndedContainers
from bayplan.control.verify import compare, repair
from bayplan.host.container_processes import Occupancy
from bayplan.host.hierarchy import container_path
from bayplan.model.decision import Outcome
from bayplan.model.origin import Hook, Wrapper
from bayplan.model.workload import Pod
from bayplan.oci.unmanaged_containers import PODMAN, UnmanagedContainers, failed_creations
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.controllers import Controlled, controlled, here
from support.machines import container, pod
from support.oci_node import OciNode, guaranteed, spec
from support.oci_socket import oci_socket

Result = TypeVar("Result")
ID = "c1" * 32
POD = "5a" * 32
SYSTEMD = f"machine.slice:libpod:{ID}"
HOOKS = "usr/share/containers/oci/hooks.d"
DEFINITION = '{"hook": {"path": "/usr/libexec/bayplan/oci-hook"}, "stages": ["createRuntime"]}'


class PodmanNode(OciNode):
    """A node whose podman is set up to run our hook."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin/podman").touch()
        (root / HOOKS).mkdir(parents=True)
        (root / HOOKS / "90-bayplan.json").write_text(DEFINITION)
        self.run_root = root / "run/containers/storage"
        self.graph_root = root / "var/lib/containers/storage"
        self.driver = "overlay"

    def bundle(self, container_id: str) -> Path:
        return self.graph_root / f"{self.driver}-containers" / container_id / "userdata"

    def pidfile(self, container_id: str) -> Path:
        return self.run_root / f"{self.driver}-containers" / container_id / "userdata/pidfile"

    def create(
        self, cgroups_path: str = SYSTEMD, pid: int = 42, *, child: bool = False, **more: str
    ) -> bytes:
        """A container whose hooks are running; its state."""
        annotations = {"io.container.manager": PODMAN, **more}
        described = spec(cgroups_path, resources=guaranteed(1, 100 * MIB), annotations=annotations)
        return self.begin(ID, described, pid, child=child)

    def created(self, pid: int = 42) -> None:
        """The runtime's call is over."""
        self.pidfile(ID).parent.mkdir(parents=True, exist_ok=True)
        self.pidfile(ID).write_text(f"{pid}")


def unmanaged(one: Controlled, node: OciNode) -> UnmanagedContainers:
    return UnmanagedContainers(one.controller, node.hierarchy, here, one.verify_soon)


@pytest.mark.parametrize(
    ("cgroups_path", "child"),
    [
        (SYSTEMD, False),
        (SYSTEMD, True),
        (f"machine-libpod_pod_{POD}.slice:libpod:{ID}", True),
        (f"/libpod_parent/libpod-{ID}", False),
        (f"/libpod_parent/{POD}/libpod-{ID}", False),
        (f"/system.slice/web.service/libpod-payload-{ID}", False),
    ],
    ids=["runc", "crun", "in a pod, crun", "cgroupfs", "cgroupfs, in a pod", "of a systemd unit"],
)
@pytest.mark.parametrize("nri", [None, "0.12.0"], ids=["without NRI", "beside NRI"])
async def test_it_is_entered_and_kept_off_exclusive_cpus_and_its_end_is_noticed(
    tmp_path: Path, cgroups_path: str, nri: str | None, *, child: bool
) -> None:
    node = PodmanNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=nri) as one:
        owner = pod("g")
        await one.controller.create_container(owner, container("x", owner, memory_bytes=MIB, milli_cpus=1000))
        held = one.controller.state.ledger.entries["x"].decision.placement.exclusive_cpus
        in_pod = {"io.kubernetes.cri-o.SandboxID": "9f" * 32} if POD in cgroups_path else {}
        node.create(cgroups_path, child=child, **in_pod)
        node.created()
        looking = unmanaged(one, node)
        await looking.enter_found()
        await looking.enter_found()
        entry = one.controller.state.ledger.entries[ID]
        assert entry.decision.outcome is Outcome.ADOPTED
        assert one.controller.state.wanted(entry).cpuset_cpus == CpuSet(range(8)) - held
        origin = entry.origin
        assert (type(origin), origin.engine, origin.bundle) == (Hook, PODMAN, str(node.bundle(ID)))
        path = container_path(cgroups_path) + ("/container" if child else "")
        assert (origin.container.pid, origin.cgroups["memory"]) == (42, path)
        assert set(one.controller.state.ledger.adopted) == {ID}
        await asyncio.sleep(0)
        assert one.controller.state.counters["found_containers"] == one.verifications == 1

        node.end(42)
        forget = Starts(None).forget
        occupancy, failed = Occupancy(node.hierarchy), partial(failed_creations, node.root)
        ended = EndedContainers(one.controller, occupancy, here, lambda _: {}, failed, forget)
        await ended.release_ended()
        assert set(one.controller.state.ledger.entries) == {"x"}
        assert one.controller.state.ledger.adopted == {}


def in_another_storage(node: PodmanNode) -> None:
    node.run_root, node.graph_root = node.root / "run/elsewhere", node.root / "data/containers"
    node.driver = "vfs"
    settings = node.root / "etc/containers/storage.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        '[storage]\ndriver = "vfs"\nrunroot = "/run/elsewhere"\ngraphroot = "/data/containers"\n'
    )


def with_settings_that_are_broken(node: PodmanNode) -> None:
    settings = node.root / "usr/share/containers/storage.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[storage\n")


@pytest.mark.parametrize("settle", [in_another_storage, with_settings_that_are_broken])
async def test_the_storage_is_where_podman_has_it(
    tmp_path: Path, settle: Callable[[PodmanNode], None]
) -> None:
    node = PodmanNode(tmp_path / "root")
    settle(node)
    node.create()
    node.created()
    async with controlled(tmp_path / "state", nri=None) as one:
        await unmanaged(one, node).enter_found()
        assert set(one.controller.state.ledger.entries) == {ID}


def stopped(node: PodmanNode) -> None:
    node.create()
    node.created()
    node.end(42)


def of_the_last_boot(node: PodmanNode) -> None:
    """Its process's id is another's by now."""
    stopped(node)
    node.make_cgroup("/system.slice")
    node.make_process(42, "/system.slice")


def without_spec(node: PodmanNode) -> None:
    node.create()
    node.created()
    (node.bundle(ID) / "config.json").unlink()


def with_half_a_spec(node: PodmanNode) -> None:
    node.create()
    node.created()
    config = node.bundle(ID) / "config.json"
    config.write_text(config.read_text()[:40])


def of_conmon(node: PodmanNode) -> None:
    node.create()
    node.created()
    node.make_cgroup(f"/machine.slice/libpod-conmon-{ID}.scope")
    (node.root / "proc/42/cgroup").write_text(f"0::/machine.slice/libpod-conmon-{ID}.scope\n")


def of_a_pods_own_container(node: PodmanNode) -> None:
    node.create(f"machine-libpod_pod_{POD}.slice:libpod:{ID}")
    node.created()


def of_an_engine_that_is_not_set_up(node: PodmanNode) -> None:
    (node.root / HOOKS / "90-bayplan.json").unlink()
    node.create()
    node.created()


@pytest.mark.parametrize(
    "made",
    [
        stopped,
        of_the_last_boot,
        without_spec,
        with_half_a_spec,
        of_conmon,
        of_a_pods_own_container,
        of_an_engine_that_is_not_set_up,
    ],
)
async def test_what_is_none_is_passed_over(tmp_path: Path, made: Callable[[PodmanNode], Any]) -> None:
    node = PodmanNode(tmp_path / "root")
    made(node)
    async with controlled(tmp_path / "state", nri=None) as one:
        looking = unmanaged(one, node)
        await looking.enter_found()
        await looking.enter_found()
        assert one.controller.state.ledger.entries == {}


async def test_one_that_is_being_created_is_its_hooks_and_half_a_pidfile_is_read_again(
    tmp_path: Path,
) -> None:
    node = PodmanNode(tmp_path / "root")
    node.create(pid=4242)
    async with controlled(tmp_path / "state", nri=None) as one:
        looking = unmanaged(one, node)
        for written in (None, "", "42"):
            if written is not None:
                node.created()
                node.pidfile(ID).write_text(written)
            await looking.enter_found()
            assert one.controller.state.ledger.entries == {}
        node.created(4242)
        await looking.enter_found()
        assert set(one.controller.state.ledger.entries) == {ID}


async def test_a_hook_that_decides_meanwhile_wins_and_one_that_decides_later_too(tmp_path: Path) -> None:
    node = PodmanNode(tmp_path / "node")
    async with oci_socket(tmp_path, hierarchy=node.hierarchy) as one:
        told = node.create()
        node.created()
        controller = one.around.controller

        async def slowly(work: Callable[[], Result]) -> Result:
            found = work()
            await one.ask("createRuntime", told)
            return found

        await UnmanagedContainers(controller, node.hierarchy, slowly, one.around.verify_soon).enter_found()
        assert one.entries[ID].decision.outcome is Outcome.PLACED
        assert controller.state.ledger.adopted == {}

        await controller.stop_container(Pod(ID), container(ID, Pod(ID)))
        await UnmanagedContainers(controller, node.hierarchy, here, one.around.verify_soon).enter_found()
        assert one.entries[ID].decision.outcome is Outcome.ADOPTED
        await one.ask("createRuntime", told)
        assert one.entries[ID].decision.outcome is Outcome.PLACED
        assert controller.state.ledger.adopted == {}


async def test_one_that_was_started_again_without_us_gets_what_was_decided(tmp_path: Path) -> None:
    node = PodmanNode(tmp_path / "node")
    async with oci_socket(tmp_path, hierarchy=node.hierarchy) as one:
        controller = one.around.controller
        assert (await one.ask("createRuntime", node.create()))[0] == "ok"
        node.created()
        decided = one.entries[ID]
        looking = UnmanagedContainers(controller, node.hierarchy, here, one.around.verify_soon)
        await looking.enter_found()
        assert one.entries[ID] is decided

        node.end(42)
        node.create(pid=77)
        await looking.enter_found()
        assert one.entries[ID] is decided  # podman has not said yet which process it is
        node.created(77)
        await looking.enter_found()
        await looking.enter_found()
        entry = one.entries[ID]
        assert entry.decision == decided.decision
        assert (entry.origin.container.pid, one.around.verifications) == (77, 1)
        repair(
            node.hierarchy,
            one.around.on(node.hierarchy),
            compare(node.hierarchy, one.around.expectations()),
        )
        assert node.oom_score_adj(77) == -997
        assert node.shown(container_path(SYSTEMD), "cpuset.mems") == (str(decided.decision.placement.mems),)


async def test_the_process_of_one_whose_spec_was_rewritten_becomes_known_and_is_held_to_the_decision(
    tmp_path: Path,
) -> None:
    node = PodmanNode(tmp_path / "node")
    async with oci_socket(tmp_path, hierarchy=node.hierarchy) as one:
        node.create()
        question = "\0".join((str(node.bundle(ID)), ID, "/usr/bin/crun", "")).encode()
        assert (await one.ask("create", question))[0] == "ok"
        # Let through while the daemon was away, podman has made the spec anew.
        node.create()
        node.created()
        controller = one.around.controller
        looking = UnmanagedContainers(controller, node.hierarchy, here, one.around.verify_soon)
        await looking.enter_found()
        origin = one.entries[ID].origin
        assert (type(origin), origin.container.pid) == (Wrapper, 42)
        repair(
            node.hierarchy,
            one.around.on(node.hierarchy),
            compare(node.hierarchy, one.around.expectations()),
        )
        assert node.oom_score_adj(42) == -997
        assert controller.state.ledger.adopted == {}
