"""Containers that run without a record: entered as they are, where CRI-O made them and NRI lists none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.control.ended_containers import CRIO
from bayplan.model.decision import Outcome
from bayplan.oci.unmanaged_containers import UnmanagedContainers
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.controllers import Controlled, controlled, here, runtime
from support.machines import container, pod
from support.oci_node import OciNode, guaranteed, spec
from support.oci_socket import CRIO as ANNOTATIONS

ID = "c1" * 32
PATH = f"/kubepods/pod1/crio-{ID}"
MADE_BY_CRIO = {**ANNOTATIONS, "io.container.manager": CRIO}


def started(node: OciNode, container_id: str = ID, pid: int = 42, **annotations: str) -> Path:
    """A container that runs, as CRI-O and conmon leave it; its bundle."""
    path = f"/kubepods/pod1/crio-{container_id}"
    described = spec(path, resources=guaranteed(1, 100 * MIB), annotations={**MADE_BY_CRIO, **annotations})
    node.begin(container_id, described, pid)
    bundle = node.bundle(container_id)
    (bundle / "pidfile").write_text(f"{pid}")
    return bundle


def unmanaged(one: Controlled, node: OciNode) -> UnmanagedContainers:
    return UnmanagedContainers(one.controller, node.hierarchy, here, one.verify_soon)


async def test_it_is_entered_kept_off_exclusive_cpus_and_stays_after_a_restart(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    async with controlled(tmp_path / "state", nri=None) as one:
        owner = pod("g")
        exclusive = container("x", owner, memory_bytes=MIB, milli_cpus=1000)
        await one.controller.create_container(owner, exclusive)
        held = one.controller.state.ledger.entries["x"].decision.placement.exclusive_cpus
        started(node)
        look = unmanaged(one, node).enter_found
        await look()
        assert set(one.controller.state.ledger.entries) == {"x"}  # no hook and no wrapper ever asked
        one.controller.state.counters["oci_createRuntime"] += 1
        await look()
        entry = one.controller.state.ledger.entries[ID]
        assert entry.decision.outcome is Outcome.ADOPTED
        assert one.controller.state.wanted(entry).cpuset_cpus == CpuSet(range(8)) - held
        assert (entry.origin.container.pid, entry.origin.cgroups["memory"]) == (42, PATH)
        assert one.controller.state.ledger.adopted == {ID: "default/web/main"}
        assert one.verifications == 1
        await look()
        assert one.verifications == 1
    async with controlled(tmp_path / "state", nri=None) as one:
        assert set(one.controller.state.ledger.entries) == {"x", ID}


def gone(node: OciNode) -> None:
    started(node)
    node.end(42)


def ended(node: OciNode) -> None:
    """Nobody has asked for its end yet."""
    started(node)
    stat = node.root / "proc/42/stat"
    stat.write_text(stat.read_text().replace(" S ", " Z "))
    (node.directory(PATH) / "cgroup.procs").write_text("")


def without_process(node: OciNode) -> None:
    (started(node) / "pidfile").unlink()


def of_another_cgroup(node: OciNode) -> None:
    started(node)
    node.make_cgroup("/system.slice")
    (node.root / "proc/42/cgroup").write_text("0::/system.slice\n")


def nonsense(node: OciNode) -> None:
    (started(node) / "pidfile").write_text("soon")


@pytest.mark.parametrize(
    "made",
    [
        gone,
        ended,
        without_process,
        of_another_cgroup,
        nonsense,
        lambda node: started(node, **{"io.kubernetes.cri-o.ContainerType": "sandbox"}),
        lambda node: started(node, **{"io.container.manager": "libpod"}),
    ],
    ids=["gone", "ended", "no process yet", "a pid that is another's", "nonsense", "a sandbox", "podman's"],
)
async def test_what_is_none_is_passed_over(tmp_path: Path, made: Callable[[OciNode], Any]) -> None:
    node = OciNode(tmp_path / "root")
    made(node)
    async with controlled(tmp_path / "state", nri=None) as one:
        one.controller.state.counters["oci_create"] += 1
        looking = unmanaged(one, node)
        await looking.enter_found()
        await looking.enter_found()
        assert one.controller.state.ledger.entries == {}


async def test_one_that_was_passed_over_is_looked_at_again_with_its_next_process(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    gone(node)
    async with controlled(tmp_path / "state", nri=None) as one:
        one.controller.state.counters["oci_create"] += 1
        looking = unmanaged(one, node)
        await looking.enter_found()
        started(node, pid=43)
        await looking.enter_found()
        assert set(one.controller.state.ledger.entries) == {ID}


async def test_where_nri_lists_containers_nothing_is_looked_for(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    started(node)
    async with controlled(tmp_path / "state") as one:
        one.controller.state.counters["oci_create"] += 1
        await unmanaged(one, node).enter_found()
        assert one.controller.state.ledger.entries == {}
        one.controller.disconnected("for good")
        await unmanaged(one, node).enter_found()
        assert set(one.controller.state.ledger.entries) == {ID}
        one.controller.connected(runtime("0.12.0"))


async def test_where_crio_is_set_up_to_ask_they_are_looked_for_before_it_does_but_nri_comes_first(
    tmp_path: Path,
) -> None:
    node = OciNode(tmp_path / "root")
    started(node)
    hooks = node.root / "usr/share/containers/oci/hooks.d"
    hooks.mkdir(parents=True)
    definition = {"hook": {"path": "/usr/libexec/bayplan/oci-hook"}, "stages": ["createRuntime"]}
    (hooks / "90-bayplan.json").write_text(json.dumps(definition))
    (node.root / "etc/crio").mkdir(parents=True)
    async with controlled(tmp_path / "state") as one:
        looking = unmanaged(one, node)
        await looking.enter_found()
        one.controller.disconnected("for now")
        await looking.enter_found()
        one.controller.connected(runtime("0.12.0"))
        await looking.enter_found()
        one.controller.disconnected("for good")
        await looking.enter_found()
        assert one.controller.state.ledger.entries == {}
        await looking.enter_found()
        assert set(one.controller.state.ledger.entries) == {ID}
