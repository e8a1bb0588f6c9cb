"""OCI hooks over the real socket: what they get into the ledger, the kernel's files, and the answer."""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.config.settings import Undecided
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.origin import Hook
from bayplan.model.policy import MemoryQos, PlacementPolicy, TopologyPolicy
from bayplan.nri import Event
from bayplan.oci.request_handler import OciRequestSettings
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, pod
from support.oci_node import OWN_CGROUP, OciNode, guaranteed, spec, state
from support.oci_socket import (
    BEST_EFFORT,
    BEST_EFFORT_SCOPE,
    CRIO,
    ID,
    OTHER,
    SCOPE,
    SYSTEMD,
    oci_socket,
)

EXCLUSIVE = spec(SYSTEMD, resources=guaranteed(2, GIB // 2), annotations=CRIO)
SHARED = spec(SYSTEMD, resources=guaranteed(0, GIB // 4), annotations=CRIO)
GUARANTEED = pod("g", QosClass.GUARANTEED)


@pytest.mark.parametrize("crun", [False, True])
@pytest.mark.parametrize(
    ("cgroups_path", "scope"),
    [(SYSTEMD, SCOPE), (f"/kubepods/pod1/crio-{ID}", f"/kubepods/pod1/crio-{ID}")],
)
async def test_a_container_is_placed_before_it_starts(
    tmp_path: Path, cgroups_path: str, scope: str, crun: bool
) -> None:
    child = crun and scope.endswith(".scope")

    async with oci_socket(tmp_path, PlacementPolicy(memory_qos=MemoryQos(0.9))) as one:
        document = spec(cgroups_path, resources=guaranteed(2, GIB // 2), annotations=CRIO)
        announced = one.node.begin(ID, document, 4242, child=child)
        assert await one.ask("createRuntime", announced) == ("ok", "")
        for path in (scope, f"{scope}/container") if child else (scope,):
            shown = one.node.shown(path, "cpuset.cpus", "cpuset.mems", "memory.oom.group", "memory.max")
            assert shown == ("1-2", "0", "1", "max")
        assert one.node.oom_score_adj(4242) == -997
        entry = one.entries[ID]
        assert entry.decision.request.name == "default/web/main"
        assert entry.decision.request.qos is QosClass.GUARANTEED
        assert entry.decision.placement.mems == NodeSet([0])
        assert type(entry.origin) is Hook
        assert entry.origin.cgroups["cpuset"] == (f"{scope}/container" if child else scope)
        assert (entry.origin.container.pid, entry.origin.start_ticks) == (4242, 1000)

        one.node.end(4242)
        assert await one.ask("poststop", state(ID, "/gone", 0, status="stopped")) == ("ok", "")
        assert one.entries == {}
        assert await one.ask("poststop", state(ID, "/gone", 0, status="stopped")) == ("ok", "")


async def test_the_others_leave_its_cpus_before_it_starts_and_come_back_after_its_end(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        shared = one.node.begin(OTHER, spec(BEST_EFFORT, annotations=CRIO), 77)
        assert await one.ask("createRuntime", shared) == ("ok", "")
        assert one.node.shown(BEST_EFFORT_SCOPE, "cpuset.cpus") == ("0-7",)
        announced = one.node.begin(ID, EXCLUSIVE, 4242)
        assert await one.ask("createRuntime", announced) == ("ok", "")
        assert one.node.shown(BEST_EFFORT_SCOPE, "cpuset.cpus") == ("0,3-7",)
        before = one.around.changes_of_all
        one.node.end(4242)
        assert await one.ask("poststop", announced) == ("ok", "")
        assert one.around.changes_of_all == before + 1


@pytest.mark.parametrize("placed", [EXCLUSIVE, SHARED], ids=["exclusive", "shared"])
async def test_what_is_written_late_is_what_the_ledger_says_then(
    tmp_path: Path, placed: dict[str, Any]
) -> None:
    async with oci_socket(tmp_path) as one:
        await one.ask("createRuntime", one.node.begin(OTHER, spec(BEST_EFFORT, annotations=CRIO), 77))
        gate = threading.Event()
        announced = one.node.begin(ID, placed, 4242)
        async with one.transaction:
            answer = asyncio.create_task(one.ask("createRuntime", announced))
            while not one.around.controller.state._lock._waiters:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            # It is about to be decided, and the thread that writes has something else to do then.
            busy = asyncio.ensure_future(one.handler._thread.do(gate.wait))
            await asyncio.sleep(0)
        while ID not in one.entries:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        nri = container("x", GUARANTEED, memory_bytes=GIB // 4, milli_cpus=2000)
        await one.around.controller.create_container(GUARANTEED, nri)
        gate.set()
        assert await answer == ("ok", "")
        await busy
        assert one.entries["x"].decision.placement.exclusive_cpus
        expected = {one.container.id: str(one.cpus) for one in one.around.expectations()}
        assert one.node.shown(SCOPE, "cpuset.cpus") == (expected[ID],)
        if placed is EXCLUSIVE:
            assert one.node.shown(BEST_EFFORT_SCOPE, "cpuset.cpus") == (expected[OTHER],)


async def test_all_pods_of_a_node_may_start_at_once(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        ids = [f"{number:064x}" for number in range(110)]
        announced = [
            one.node.begin(each, spec(f"/kubepods/besteffort/pod{each}/{each}"), 100 + number)
            for number, each in enumerate(ids)
        ]
        answers = await asyncio.gather(*(one.ask("createRuntime", each) for each in announced))
        assert set(answers) == {("ok", "")}
        assert set(one.entries) == set(ids)


async def test_a_decision_that_moves_the_memory_of_others_writes_that_too(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        flexible = spec(f"/kubepods/pod1/crio-{OTHER}", resources=guaranteed(1, 600 * MIB))
        assert (await one.ask("createRuntime", one.node.begin(OTHER, flexible, 77)))[0] == "ok"
        assert one.node.shown(f"/kubepods/pod1/crio-{OTHER}", "cpuset.mems") == ("0",)
        late = spec(
            f"/kubepods/pod2/crio-{ID}",
            resources=guaranteed(2, 900 * MIB),
            annotations={"bayplan.dev/required-nodes": "0"},
        )
        assert (await one.ask("createRuntime", one.node.begin(ID, late, 4242)))[0] == "ok"
        assert one.entries[ID].decision.moves != ()
        assert one.node.shown(f"/kubepods/pod2/crio-{ID}", "cpuset.mems") == ("0",)
        assert one.node.shown(f"/kubepods/pod1/crio-{OTHER}", "cpuset.mems") == ("0-1",)


async def test_all_that_are_gone_are_released_though_each_release_changes_the_shared_cpus(
    tmp_path: Path,
) -> None:
    async with oci_socket(tmp_path) as one:
        await one.ask("createRuntime", one.node.begin(OTHER, spec(BEST_EFFORT, annotations=CRIO), 77))
        await one.ask("createRuntime", one.node.begin(ID, EXCLUSIVE, 4242))
        found = one.entries
        for container_id in (ID, OTHER):
            await one.handler.release(found[container_id])
        assert one.entries == {}
        # An entry of an earlier start takes nothing from the next one.
        await one.ask("createRuntime", one.node.begin(ID, EXCLUSIVE, 5000))
        await one.handler.release(found[ID])
        assert set(one.entries) == {ID}


async def test_what_came_over_nri_is_left_to_nri(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        owner = pod("g", QosClass.GUARANTEED)
        await one.around.controller.create_container(owner, container(ID, owner, milli_cpus=1000))
        before = one.entries
        announced = one.node.begin(ID, EXCLUSIVE, 4242)
        assert await one.ask("createRuntime", announced) == ("ok", "")
        assert await one.ask("poststop", announced) == ("ok", "")
        assert await one.ask("delete", ID.encode()) == ("ok", "")
        assert one.entries == before
        assert one.node.shown(SCOPE, "cpuset.cpus", "cpuset.mems") == ("", "")


async def test_a_container_that_nri_answered_by_default_is_placed_after_all(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        owner, controller = pod("g", QosClass.GUARANTEED), one.around.controller
        told = controller.fallback_adjustment(owner, container(ID, owner))
        controller.missed(Event.CREATE_CONTAINER, ID, "late")
        resources = guaranteed(2, GIB // 2)
        resources["cpu"]["cpus"] = str(told.cpuset_cpus)
        document = spec(SYSTEMD, resources=resources, annotations=CRIO)
        assert (await one.ask("createRuntime", one.node.begin(ID, document, 4242)))[0] == "ok"
        assert one.node.shown(SCOPE, "cpuset.cpus", "cpuset.mems") == ("1-2", "0")
        assert one.entries[ID].decision.request.pinned_cpus is None


async def test_a_sandbox_is_left_alone(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        pause = spec(SYSTEMD, annotations={**CRIO, "io.kubernetes.cri-o.ContainerType": "sandbox"})
        assert await one.ask("createRuntime", one.node.begin(ID, pause, 4242)) == ("ok", "")
        assert one.entries == {}
        assert one.node.shown(SCOPE, "cpuset.cpus") == ("",)


async def test_a_refusal_fails_the_creation_and_leaves_only_history(tmp_path: Path) -> None:
    async with oci_socket(tmp_path, PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)) as one:
        big = spec(SYSTEMD, resources=guaranteed(1, 3 * GIB), annotations=CRIO)
        status, text = await one.ask("createRuntime", one.node.begin(ID, big, 4242))
        assert status == "refused"
        assert text.startswith("TopologyAffinityError: default/web/main: ")
        assert one.entries == {}
        assert one.node.shown(SCOPE, "cpuset.mems", "memory.max") == ("", "max")


@pytest.mark.parametrize(
    ("verb", "body", "subject"),
    [
        ("createRuntime", state(ID, "/nowhere", 7), ID),
        ("create", b"/nowhere\0" + ID.encode() + b"\0\0", ID),
        ("update", ID.encode() + b"\0[", ID),
        ("delete", b"a/b", ""),
        ("create", b"", ""),
        ("precreate", b"{", ""),
        ("poststop", b"{", ""),
    ],
)
async def test_the_log_names_the_container_that_there_is_no_decision_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, verb: str, body: bytes, subject: str
) -> None:
    async with oci_socket(tmp_path) as one:
        await one.ask("createRuntime", one.node.begin(ID, EXCLUSIVE, 4242))
        assert (await one.ask(verb, body))[0] == "error"
    assert [one.__dict__["container_id"] for one in caplog.records if one.levelname == "ERROR"] == [subject]


@pytest.mark.parametrize(
    ("undecided", "answer"),
    [(Undecided.CLIENT, "error"), (Undecided.REFUSE, "refused"), (Undecided.ALLOW, "ok")],
)
async def test_what_cannot_be_applied_is_released_and_answered_as_configured(
    tmp_path: Path, undecided: Undecided, answer: str
) -> None:
    async with oci_socket(tmp_path, settings=OciRequestSettings(60, undecided)) as one:
        announced = one.node.begin(ID, EXCLUSIVE, 4242)
        (one.node.directory(SCOPE) / "cpuset.mems").unlink()
        status, text = await one.ask("createRuntime", announced)
        assert status == answer
        assert ("cpuset.mems" in text) is (answer != "ok")
        assert one.entries == {}
        assert one.around.controller.state.counters["oci_undecided"] == 1


def _pid(pid: int | None) -> Callable[[OciNode], bytes]:
    return lambda node: state(ID, node.write_spec(ID, EXCLUSIVE), pid)  # type: ignore[arg-type]  # what the test hands over on purpose


def _in_cgroup(path: str, cgroups_path: str = SYSTEMD) -> Callable[[OciNode], bytes]:
    def announce(node: OciNode) -> bytes:
        node.make_cgroup(path)
        node.make_process(4242, path)
        return state(ID, node.write_spec(ID, {**EXCLUSIVE, "linux": spec(cgroups_path)["linux"]}), 4242)

    return announce


def _with_config(content: bytes) -> Callable[[OciNode], bytes]:
    def announce(node: OciNode) -> bytes:
        announced = node.begin(ID, EXCLUSIVE, 4242)
        (node.bundle(ID) / "config.json").write_bytes(content)
        return announced

    return announce


def _bundle_is_a_link(node: OciNode) -> bytes:
    node.begin(ID, EXCLUSIVE, 4242)
    link = node.root / "link"
    link.symlink_to(node.bundle(ID))
    return state(ID, link, 4242)


def _config_is_a_link(node: OciNode) -> bytes:
    announced = node.begin(ID, EXCLUSIVE, 4242)
    config = node.bundle(ID) / "config.json"
    config.rename(config.with_name("real.json"))
    config.symlink_to("real.json")
    return announced


def _config_is_a_fifo(node: OciNode) -> bytes:
    announced = node.begin(ID, EXCLUSIVE, 4242)
    (node.bundle(ID) / "config.json").unlink()
    os.mkfifo(node.bundle(ID) / "config.json", 0o600)
    return announced


def _config_is_writable_by_others(node: OciNode) -> bytes:
    announced = node.begin(ID, EXCLUSIVE, 4242)
    (node.bundle(ID) / "config.json").chmod(0o666)
    return announced


def _bundle_of_another_container(node: OciNode) -> bytes:
    node.begin(ID, EXCLUSIVE, 4242)
    foreign = node.write_spec(OTHER, spec(BEST_EFFORT, annotations=CRIO))
    return state(ID, foreign, 4242)


def _not_alone(node: OciNode) -> bytes:
    announced = node.begin(ID, EXCLUSIVE, 4242)
    node.make_process(4243, SCOPE)
    return announced


@pytest.mark.parametrize(
    ("announce", "named"),
    [
        *((_pid(pid), f"state of container {ID}: ") for pid in (1, 0, -5, None)),
        (_pid(999), "proc/999"),
        # Of these the spec says that they are the container's own.
        *((_in_cgroup(path, path), f"cgroup {path} of ") for path in ("/", "/init.scope", "/system.slice")),
        (_in_cgroup(OWN_CGROUP, OWN_CGROUP), f"cgroup {OWN_CGROUP} of "),
        (_in_cgroup("/system.slice/sshd.service"), "cgroup /system.slice/sshd.service of "),
        *(
            (_in_cgroup("/user.slice/x.scope", path), "cgroup /user.slice/x.scope of ")
            for path in ("relative/path", "/", "/user.slice")
        ),
        (_in_cgroup(f"/user.slice/not{ID}.scope", ""), f"cgroup /user.slice/not{ID}.scope of "),
        (_in_cgroup(f"{SCOPE}/container/deeper"), f"cgroup {SCOPE}/container/deeper of "),
        (_not_alone, "[4243]"),
        (_bundle_is_a_link, "/link: "),
        (_bundle_of_another_container, f"cgroup {SCOPE} of "),
        (lambda node: state(ID, "relative", 4242), "bundle: found 'relative'"),
        (lambda node: state(ID, "/a/../b", 4242), "bundle: found '/a/../b'"),
        (lambda node: state(ID, "", 4242), "bundle: found ''"),
        (lambda node: state(ID, "/run/nothing", 4242), "/run/nothing: "),
        (_config_is_a_link, "/config.json: "),
        (_config_is_a_fifo, "/config.json: "),
        (_config_is_writable_by_others, "/config.json: "),
        *(
            (_with_config(text), "/config.json: ")
            for text in (b"", b"\xff\xfe", b"[" * 100_000, b"[]", b"{}")
        ),
        (_with_config(b'{"linux": {"resources": {"cpu": {"shares": "x"}}}}'), "$.linux.resources.cpu.shares"),
        (_with_config(b'{"linux": {"resources": {"cpu": {"mems": "0-"}}}}'), "linux.resources.cpu.mems"),
        (_with_config(b" " * ((16 << 20) + 1)), "/config.json: "),
        (lambda node: b"{", "state of the container: "),
        (lambda node: b'{"bundle": "/b", "pid": 7}', "`id`"),
        (lambda node: state("../../etc", "/b", 7), "container id: found '../../etc'"),
        (lambda node: b'{"id": "x", "pid": "7"}', "$.pid"),
    ],
)
async def test_what_is_no_container_is_answered_with_its_name_and_nothing_is_written(
    tmp_path: Path, announce: Callable[[OciNode], bytes], named: str
) -> None:
    async with oci_socket(tmp_path) as one:
        body = announce(one.node)
        before = contents(one.node.root)
        status, text = await one.ask("createRuntime", body)
        assert status == "error"
        assert named in text
        assert contents(one.node.root) == before
        assert one.entries == {}


def contents(root: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


async def test_a_container_that_starts_again_is_decided_again(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        assert (await one.ask("createRuntime", one.node.begin(ID, EXCLUSIVE, 4242)))[0] == "ok"
        one.node.end(4242)
        assert (await one.ask("createRuntime", one.node.begin(ID, EXCLUSIVE, 5000)))[0] == "ok"
        assert one.entries[ID].origin.container.pid == 5000
        assert one.around.controller.state.ledger.exclusive_cpus == CpuSet([1, 2])


async def test_a_deletion_that_fails_releases_nothing(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        await one.ask("createRuntime", one.node.begin(ID, EXCLUSIVE, 4242))
        assert await one.ask("delete", ID.encode()) == ("ok", "")
        assert set(one.entries) == {ID}
        one.node.end(4242)
        assert await one.ask("delete", ID.encode()) == ("ok", "")
        assert one.entries == {}
        assert (await one.ask("delete", b"a/b"))[0] == "error"


async def test_a_deletion_that_takes_its_time_releases_when_it_is_done(tmp_path: Path) -> None:
    async with oci_socket(tmp_path, settings=OciRequestSettings(60, end_pauses_s=(0,) * 10_000)) as one:
        await one.ask("createRuntime", one.node.begin(ID, EXCLUSIVE, 4242))
        assert await one.ask("delete", ID.encode()) == ("ok", "")
        assert set(one.entries) == {ID}
        one.node.end(4242)
        await asyncio.wait(one.handler.endings)
        assert one.entries == {}


async def test_a_client_whose_time_is_over_is_told_so_and_the_work_is_finished(tmp_path: Path) -> None:
    async with oci_socket(tmp_path, settings=OciRequestSettings(deadline_s=0.01)) as one:
        announced = one.node.begin(ID, EXCLUSIVE, 4242)
        async with one.transaction:
            status, text = await one.ask("createRuntime", announced)
            assert (status, text) == ("error", "no decision within 0.01 s")
            assert one.entries == {}
        await one.handler.close()
        assert set(one.entries) == {ID}
        assert one.node.shown(SCOPE, "cpuset.cpus", "cpuset.mems") == ("1-2", "0")


async def test_a_client_that_is_gone_leaves_ledger_and_kernel_in_agreement(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        body = one.node.begin(ID, EXCLUSIVE, 4242)
        async with one.transaction:
            _, writer = await asyncio.open_unix_connection(str(one.path))
            writer.write(b"bayplan-oci/1 createRuntime %d\n%s" % (len(body), body))
            await writer.drain()
            while not one.around.controller.state.counters["oci_createRuntime"]:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            writer.transport.abort()
        await one.handler.close()
        assert set(one.entries) == {ID}
        assert one.node.shown(SCOPE, "cpuset.cpus", "cpuset.mems") == ("1-2", "0")


async def test_an_oom_score_adj_that_cannot_be_written_undoes_the_decision(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        announced = one.node.begin(ID, EXCLUSIVE, 4242)
        file = one.node.root / "proc/4242/oom_score_adj"
        file.unlink()
        file.mkdir()
        status, text = await one.ask("createRuntime", announced)
        assert (status, "oom_score_adj" in text) == ("error", True)
        assert one.entries == {}


async def test_a_pinned_container_is_recorded_and_not_touched(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        pinned = guaranteed(2, 64 * MIB)
        pinned["cpu"] |= {"cpus": "5-6", "mems": "1"}
        document = spec(SYSTEMD, resources=pinned, annotations=CRIO)
        assert (await one.ask("createRuntime", one.node.begin(ID, document, 4242)))[0] == "ok"
        assert one.node.shown(SCOPE, "cpuset.cpus", "cpuset.mems") == ("", "")
        decision = one.entries[ID].decision
        assert decision.request.pinned_cpus == CpuSet([5, 6])
        assert decision.outcome is Outcome.PLACED


async def test_pod_wide_facts_come_from_the_sandbox(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        sandbox = {
            "io.kubernetes.cri-o.Annotations": json.dumps({"bayplan.dev/memory-limit": "64Mi"}),
            "pod-linux-resources.crio.io": json.dumps({"memory_limit_in_bytes": GIB, "cpu_shares": 512}),
            "io.kubernetes.cri-o.CgroupParent": "kubepods-besteffort-pod2.slice",
        }
        one.node.write_spec("5a" * 32, spec("x:y:z", annotations=sandbox))
        announced = one.node.begin(OTHER, spec(BEST_EFFORT, annotations=CRIO), 4242)
        assert (await one.ask("createRuntime", announced))[0] == "ok"
        assert one.node.shown(BEST_EFFORT_SCOPE, "memory.max") == (str(64 * MIB),)
        request = one.entries[OTHER].decision.request
        assert request.pod_totals is not None
        assert request.pod_totals.memory_bytes == GIB
        assert request.qos is QosClass.BEST_EFFORT


@pytest.mark.parametrize(
    ("wish", "pins", "answer", "written"),
    [
        ("required-nodes", {"cpus": "1"}, "ok", ("", "1")),
        ("preferred-nodes", {"cpus": "5"}, "ok", ("", "1")),
        ("required-nodes", {"mems": "1"}, "ok", ("4-5", "")),
        ("required-nodes", {"cpus": "1", "mems": "0"}, "refused", ("", "")),
        ("preferred-nodes", {"cpus": "1", "mems": "0"}, "ok", ("", "")),
    ],
)
async def test_wishes_are_kept_beside_what_the_spec_has_pinned(
    tmp_path: Path, wish: str, pins: dict[str, str], answer: str, written: tuple[str, str]
) -> None:
    async with oci_socket(tmp_path) as one:
        resources = guaranteed(2, GIB // 4)
        resources["cpu"] |= pins
        annotations = {**CRIO, f"bayplan.dev/{wish}": "1"}
        announced = one.node.begin(ID, spec(SYSTEMD, resources=resources, annotations=annotations), 4242)
        status, _ = await one.ask("createRuntime", announced)
        assert status == answer
        # What the spec has, its runtime writes; here is nothing but what was written beside it.
        assert one.node.shown(SCOPE, "cpuset.cpus", "cpuset.mems") == written
