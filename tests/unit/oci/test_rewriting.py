"""Rewritten specs and updates: for podman's precreate, in a bundle, and on their way to a runtime."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.daemon.shadow import ShadowRequests
from bayplan.host.unix_socket import Peer
from bayplan.model.decision import QosClass
from bayplan.model.origin import Precreate, Wrapper
from bayplan.model.policy import MemoryQos, MemoryReservationPolicy, PlacementPolicy, TopologyPolicy
from bayplan.oci.protocol import Answer, Status, Verb
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, pod
from support.oci_node import guaranteed, spec, state
from support.oci_socket import CRIO, ID, OTHER, SCOPE, SYSTEMD, oci_socket

PODMAN = f"machine.slice:libpod:{ID}"
PODMAN_SCOPE = f"/machine.slice/libpod-{ID}.scope"
ASKED = guaranteed(2, GIB // 2)


def create_body(bundle: Path, container_id: str = ID) -> bytes:
    return b"\0".join([os.fsencode(bundle), container_id.encode(), b"/usr/bin/runc", b""])


def expected_of(document: dict[str, Any]) -> dict[str, Any]:
    """The spec of a Guaranteed container of two CPUs, as it is after rewriting."""
    resources = document["linux"]["resources"]
    cpu = {**resources["cpu"], "cpus": "1-2", "mems": "0"}
    rewritten = {**resources, "cpu": cpu, "unified": {"memory.oom.group": "1"}}
    return {
        **document,
        "process": {**document["process"], "oomScoreAdj": -997},
        "linux": {**document["linux"], "resources": rewritten},
    }


@pytest.mark.parametrize("cgroups_path", [PODMAN, f"/libpod_parent/libpod-{ID}"])
async def test_precreate_answers_with_the_rewritten_spec(tmp_path: Path, cgroups_path: str) -> None:
    async with oci_socket(tmp_path) as one:
        document = spec(cgroups_path, resources=ASKED)
        status, text = await one.ask("precreate", json.dumps(document).encode())
        assert status == "ok"
        assert json.loads(text) == expected_of(document)
        origin = one.entries[ID].origin
        assert (type(origin), origin.container.pid, origin.bundle) == (Precreate, 0, "")


async def test_a_later_createruntime_and_poststop_find_what_precreate_decided(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        document = spec(PODMAN, resources=ASKED)
        _, text = await one.ask("precreate", json.dumps(document).encode())
        announced = one.node.begin(ID, json.loads(text), 4242)
        decided = one.entries[ID].decision
        assert await one.ask("createRuntime", announced) == ("ok", "")
        entry = one.entries[ID]
        assert entry.decision == decided
        assert entry.decision.request.pinned_cpus is None
        assert (type(entry.origin), entry.origin.container.pid) == (Precreate, 4242)
        assert entry.origin.cgroups == {"cpuset": PODMAN_SCOPE, "memory": PODMAN_SCOPE}
        # What the runtime wrote when the spec was made is compared with what the ledger says now.
        own = entry.decision.placement.exclusive_cpus
        assert one.node.shown(PODMAN_SCOPE, "cpuset.cpus") == (str(own),)
        one.node.end(4242)
        assert await one.ask("poststop", state(ID, "", 0)) == ("ok", "")
        assert one.entries == {}


async def test_the_wrapper_has_the_bundle_rewritten_with_owner_and_mode_kept(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        document = spec(SYSTEMD, resources=ASKED, annotations=CRIO)
        bundle = one.node.write_spec(ID, document)
        config = bundle / "config.json"
        config.chmod(0o640)
        if os.geteuid() == 0:
            os.chown(config, 1234, 5678)
        before = config.stat()
        assert await one.ask("create", create_body(bundle)) == ("ok", "")
        assert json.loads(config.read_text()) == expected_of(document)
        after = config.stat()
        kept = (before.st_uid, before.st_gid, stat.S_IMODE(before.st_mode))
        assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == kept
        assert [file.name for file in bundle.iterdir()] == ["config.json"]
        origin = one.entries[ID].origin
        assert (type(origin), origin.bundle) == (Wrapper, str(bundle))


@pytest.mark.parametrize("kind", ["io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri.container-type"])
async def test_specs_of_sandboxes_stay_as_they_are(tmp_path: Path, kind: str) -> None:
    async with oci_socket(tmp_path) as one:
        document = spec("relative", resources=ASKED, annotations={kind: "sandbox"})
        assert await one.ask("precreate", json.dumps(document).encode()) == ("ok", "")
        bundle = one.node.write_spec(ID, document)
        assert await one.ask("create", create_body(bundle)) == ("ok", "")
        assert json.loads((bundle / "config.json").read_text()) == document
        assert one.entries == {}


async def test_a_spec_that_nri_has_rewritten_stays_as_it_is(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        owner = pod("g", QosClass.GUARANTEED)
        await one.around.controller.create_container(owner, container(ID, owner, milli_cpus=1000))
        document = spec(SYSTEMD, resources=ASKED)
        bundle = one.node.write_spec(ID, document)
        assert await one.ask("create", create_body(bundle)) == ("ok", "")
        assert json.loads((bundle / "config.json").read_text()) == document
        assert await one.ask("update", ID.encode() + b"\0{}") == ("ok", "")


async def test_the_wrapper_beside_nri_adds_what_nri_has_no_field_for(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        wish = {"bayplan.dev/exec-cpus": "first"}
        owner = replace(pod("g", QosClass.GUARANTEED), annotations=wish)
        await one.around.controller.create_container(owner, container(ID, owner, milli_cpus=2000))
        own = one.entries[ID].decision.placement.exclusive_cpus
        document = spec(SYSTEMD, resources=ASKED)
        bundle = one.node.write_spec(ID, document)
        assert await one.ask("create", create_body(bundle)) == ("ok", "")
        rewritten = json.loads((bundle / "config.json").read_text())
        affinity = rewritten["process"].pop("execCPUAffinity")
        assert rewritten == document
        assert affinity.keys() == {"initial"}
        assert CpuSet.parse(affinity["initial"]) & own == CpuSet([min(own)])
        one.node.write_spec(ID, document)
        handler = ShadowRequests(one.around.controller, one.node.hierarchy, one.around.cpusets)
        assert await handler.serve(Verb.CREATE, create_body(bundle), Peer(1, 0)) == Answer(Status.OK)
        await handler.close()
        assert json.loads((bundle / "config.json").read_text()) == document


@pytest.mark.parametrize(
    ("verb", "body", "words"),
    [
        ("precreate", b"{", "cannot be read"),
        ("precreate", json.dumps(spec("relative/path")).encode(), "linux.cgroupsPath: found 'relative/path'"),
        ("create", b"/bundle", "request: has 1 part,"),
        ("create", b"/\xff\0x\0\0", "is not UTF-8"),
        ("create", create_body(Path("/nowhere")), "/nowhere: "),
        ("create", create_body(Path("/nowhere"), "../x"), "container id"),
    ],
)
async def test_what_cannot_be_rewritten_is_an_error(
    tmp_path: Path, verb: str, body: bytes, words: str
) -> None:
    async with oci_socket(tmp_path) as one:
        status, text = await one.ask(verb, body)
        assert status == "error"
        assert words in text
        assert one.entries == {}


async def test_a_refusal_rewrites_nothing(tmp_path: Path) -> None:
    async with oci_socket(tmp_path, PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)) as one:
        document = spec(SYSTEMD, resources=guaranteed(1, 3 * GIB), annotations=CRIO)
        bundle = one.node.write_spec(ID, document)
        status, text = await one.ask("create", create_body(bundle))
        assert status == "refused"
        assert text.startswith("TopologyAffinityError: ")
        assert json.loads((bundle / "config.json").read_text()) == document
        assert one.entries == {}


async def test_a_bundle_that_cannot_be_written_keeps_nothing_in_the_ledger(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        bundle = one.node.write_spec(ID, spec(SYSTEMD, resources=ASKED, annotations=CRIO))
        (bundle / ".config.json.bayplan").mkdir()
        status, text = await one.ask("create", create_body(bundle))
        assert (status, "cannot be replaced" in text) == ("error", True)
        assert one.entries == {}


async def test_a_repeated_creation_decides_again(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        document = spec(SYSTEMD, resources=ASKED, annotations=CRIO)
        for _ in range(2):
            bundle = one.node.write_spec(ID, document)
            assert await one.ask("create", create_body(bundle)) == ("ok", "")
            assert json.loads((bundle / "config.json").read_text()) == expected_of(document)
        assert one.around.controller.state.ledger.exclusive_cpus == CpuSet([1, 2])


async def test_what_was_decided_is_merged_into_updates(tmp_path: Path) -> None:
    async with oci_socket(tmp_path, PlacementPolicy(memory_qos=MemoryQos(0.9))) as one:
        annotations = {**CRIO, "bayplan.dev/memory-limit": "256Mi"}
        burstable = {"cpu": {"shares": 512}}
        path = f"kubepods-burstable-pod9.slice:crio:{ID}"
        document = spec(path, resources=burstable, annotations=annotations, oom_score_adj=900)
        bundle = one.node.write_spec(ID, document)
        await one.ask("create", create_body(bundle))
        unified = json.loads((bundle / "config.json").read_text())["linux"]["resources"]["unified"]

        async def update(resources: dict[str, Any]) -> dict[str, Any]:
            status, text = await one.ask("update", ID.encode() + b"\0" + json.dumps(resources).encode())
            assert status == "ok"
            merged: dict[str, Any] = json.loads(text)
            return merged

        shares = await update({"cpu": {"shares": 1024, "cpus": ""}, "pids": {"limit": 9}})
        assert shares == {
            "cpu": {"shares": 1024, "cpus": "0-7"},
            "pids": {"limit": 9},
            "memory": {"limit": 256 * MIB},
            "unified": unified,
        }
        assert one.entries[ID].decision.request.cpu_milli == 1000
        # Runtimes that read the spec repeat its values to us; nobody chose them.
        assert (await update({"cpu": {"cpus": "0-7"}}))["cpu"] == {"cpus": "0-7"}
        # Somebody else pins it from now on, and memory has a limit of its own.
        pinned = await update({"cpu": {"cpus": "5"}, "memory": {"limit": 224 * MIB}})
        assert pinned["cpu"] == {"cpus": "5"}
        assert pinned["memory"] == {"limit": 224 * MIB}
        assert int(pinned["unified"]["memory.high"]) < 224 * MIB
        request = one.entries[ID].decision.request
        assert (request.pinned_cpus, request.memory_limit_bytes) == (CpuSet([5]), 224 * MIB)


async def test_an_update_that_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with oci_socket(tmp_path, PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)) as one:
        bundle = one.node.write_spec(ID, spec(SYSTEMD, resources=ASKED, annotations=CRIO))
        assert (await one.ask("create", create_body(bundle)))[0] == "ok"
        before = one.entries
        more = json.dumps({"memory": {"limit": 2 * GIB}}).encode()
        status, text = await one.ask("update", ID.encode() + b"\0" + more)
        assert status == "refused"
        assert text.startswith("TopologyAffinityError: ")
        assert one.entries == before
        assert (await one.ask("update", ID.encode() + b"\0[]"))[0] == "error"


async def test_an_update_takes_cpus_along_with_memory(tmp_path: Path) -> None:
    async with oci_socket(tmp_path, PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)) as one:
        for container_id, resources in (
            (ID, guaranteed(2, 100 * MIB)),
            (OTHER, guaranteed(1, 800 * MIB)),
        ):
            path = f"kubepods.slice:crio:{container_id}"
            document = spec(path, resources=resources, annotations=CRIO)
            bundle = one.node.write_spec(container_id, document)
            assert (await one.ask("create", create_body(bundle, container_id)))[0] == "ok"
        assert one.entries[ID].decision.placement.exclusive_cpus == CpuSet([1, 2])
        more = json.dumps({"memory": {"limit": GIB // 2}}).encode()
        status, text = await one.ask("update", ID.encode() + b"\0" + more)
        assert (status, json.loads(text)["cpu"]) == ("ok", {"cpus": "4-5", "mems": "1"})
        assert one.entries[ID].decision.placement.exclusive_cpus == CpuSet([4, 5])


async def test_an_update_of_a_container_that_nobody_knows_passes_unchanged(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        assert await one.ask("update", OTHER.encode() + b"\0{}") == ("ok", "")


async def test_a_resize_survives_a_restart_of_the_daemon(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        await one.ask("createRuntime", one.node.begin(ID, spec(SYSTEMD, resources=ASKED), 4242))
    async with oci_socket(tmp_path) as one:
        smaller = json.dumps({"memory": {"limit": 128 * MIB}}).encode()
        status, text = await one.ask("update", ID.encode() + b"\0" + smaller)
        assert status == "ok"
        assert json.loads(text)["cpu"] == {"cpus": "1-2", "mems": "0"}
        assert one.node.shown(SCOPE, "cpuset.cpus") == ("1-2",)
        assert one.entries[ID].decision.request.cpu_milli == 2000


async def test_what_unified_chooses_stays_and_is_counted(tmp_path: Path) -> None:
    """As `podman run --cgroup-conf` writes it: the key is written after the field."""
    unified = {"cpuset.cpus": "4-5,", "cpuset.mems": "1", "memory.max": "256M"}
    async with oci_socket(tmp_path) as one:
        status, text = await one.ask(
            "precreate", json.dumps(spec(PODMAN, resources={**ASKED, "unified": unified})).encode()
        )
        resources = json.loads(text)["linux"]["resources"]
        assert (status, resources["cpu"], resources["memory"]) == ("ok", ASKED["cpu"], ASKED["memory"])
        assert resources["unified"] == {**unified, "memory.oom.group": "1"}
        request = one.entries[ID].decision.request
        assert (request.pinned_cpus, request.pinned_mems) == (CpuSet([4, 5]), NodeSet([1]))
        assert request.memory_limit_bytes == 256 * MIB
        # The others leave these CPUs to nobody: they are none that could become exclusive.
        await one.ask(
            "precreate", json.dumps(spec(f"machine.slice:libpod:{OTHER}", resources=ASKED)).encode()
        )
        assert one.entries[OTHER].decision.placement.exclusive_cpus.isdisjoint(CpuSet([4, 5]))


async def test_a_reservation_is_not_overwritten_by_memory_qos(tmp_path: Path) -> None:
    qos = MemoryQos(reservation=MemoryReservationPolicy.TIERED)
    async with oci_socket(tmp_path, PlacementPolicy(memory_qos=qos)) as one:
        for reserved in (None, 64 * MIB):
            memory = {"limit": 128 * MIB, **({} if reserved is None else {"reservation": reserved})}
            _, text = await one.ask(
                "precreate", json.dumps(spec(PODMAN, resources={"memory": memory})).encode()
            )
            assert ("memory.low" in json.loads(text)["linux"]["resources"]["unified"]) is (reserved is None)


async def test_an_update_to_no_limit_takes_it_out_of_the_ledger(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        bundle = one.node.write_spec(ID, spec(PODMAN, resources=ASKED))
        await one.ask("create", create_body(bundle))
        assert one.entries[ID].decision.request.memory_limit_bytes == GIB // 2
        for resources in ({"memory": {"limit": -1}}, {"unified": {"memory.max": "max"}}):
            status, text = await one.ask("update", ID.encode() + b"\0" + json.dumps(resources).encode())
            assert status == "ok"
            assert "limit" not in json.loads(text).get("memory", {}) or resources["memory"]["limit"] == -1
            request = one.entries[ID].decision.request
            assert (request.memory_limit_bytes, request.memory.high_bytes) == (None, 0)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"process": {}}, ["linux", "not placed"]),
        ({"windows": {"layerFolders": []}}, ["'windows'", "Linux"]),
        ({"freebsd": {"vnet": True}, "root": {"path": "rootfs"}}, ["'freebsd'", "Linux"]),
        (
            {"linux": {}, "annotations": {"io.container.manager": "libpod"}},
            ["linux.cgroupsPath", "--cgroups=disabled"],
        ),
        ({"linux": {"memoryPolicy": {"mode": "MPOL_NEAR"}}}, ["linux.memoryPolicy.mode", "MPOL_NEAR"]),
        (
            {"linux": {"memoryPolicy": {"mode": "MPOL_BIND", "flags": ["MPOL_F_ALL"]}}},
            ["linux.memoryPolicy.flags", "MPOL_F_ALL"],
        ),
        (
            {"linux": {"memoryPolicy": {"mode": "MPOL_BIND", "nodes": "1-0"}}},
            ["linux.memoryPolicy.nodes", "'1-0'"],
        ),
        (
            {"linux": {"resources": {"cpu": {"cpus": "x"}, "unified": {"memory.max": "8 GB"}}}},
            ["linux.resources.cpu.cpus", "'x'", "linux.resources.unified[memory.max]", "'8 GB'"],
        ),
    ],
)
async def test_a_spec_that_cannot_be_placed_is_an_error_that_says_what_it_is(
    tmp_path: Path, document: dict[str, Any], named: list[str]
) -> None:
    async with oci_socket(tmp_path) as one:
        bundle = one.node.write_spec(ID, document)
        status, text = await one.ask("create", create_body(bundle))
        assert status == "error"
        assert [one for one in named if one not in text] == []
        assert not one.entries
        assert json.loads((bundle / "config.json").read_text()) == document


async def test_a_container_in_the_cgroup_of_its_engine_is_said_to_have_none(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        bundle = one.node.write_spec(ID, spec("", resources=ASKED))
        one.node.make_cgroup("/user.slice/podman.scope")
        one.node.make_process(4242, "/user.slice/podman.scope")
        status, text = await one.ask("createRuntime", state(ID, bundle, 4242))
        assert status == "error"
        assert "linux.cgroupsPath" in text
