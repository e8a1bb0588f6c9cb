"""What a container is told: the document, and the variables of its environment."""

import json

import pytest
from msgspec.structs import replace

from bayplan.model.decision import (
    Claim,
    Decision,
    MemoryPolicyMode,
    MemoryPolicySetting,
    Outcome,
    Placement,
    Request,
)
from bayplan.model.origin import NRI, Hook, Origin, Wrapper
from bayplan.model.policy import PlacementFiles, PlacementPolicy
from bayplan.model.wishes import Wishes
from bayplan.placement.placement_file import (
    NO_ENVIRONMENT,
    NO_FILE,
    as_far_as_possible,
    body_of,
    document,
    environment_of,
    wished_file,
    with_generation,
)
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, pod
from support.placements import MACHINE, OWN, entry
from support.requests import guaranteed_request


def test_the_document_of_a_container_with_cpus_of_its_own() -> None:
    written = document(MACHINE, CpuSet([0, 1, 4, 5]), entry(OWN))
    devices = {one["name"]: one["devices"] for one in written["requests"]}
    assert written["metadata"] == {"name": "main", "namespace": "shop", "uid": "c", "generation": 0}
    assert written["pod"] == "db-0"
    assert (written["cpus"], written["mems"]) == ({"exclusive": "2-3,6", "shared": ""}, "2")
    assert written["promises"] == [{"nodes": "2", "bytes": {"hugepages-2Mi": 512 * MIB, "memory": 3 * GIB}}]
    assert [one["name"] for one in devices["exclusive-cpus"]] == ["cpu2", "cpu3", "cpu6"]
    assert devices["exclusive-cpus"][2]["attributes"] == {
        "resource.kubernetes.io/numaNode": {"int": 2},
        "cpuID": {"int": 6},
        "coreID": {"int": 2},
        "socketID": {"int": 1},
        "cacheL3ID": {"int": 2},
    }
    assert devices["memory"][0]["attributes"] == {
        "resource.kubernetes.io/numaNode": {"int": 2},
        "nodes": {"strings": ["0", "2"]},
        "distances": {"ints": [21, 10]},
    }
    assert devices["shared-cpus"] == []


def test_the_document_of_a_container_on_the_shared_cpus() -> None:
    anywhere = Placement(None, claim=Claim(NodeSet([0, 2]), {"memory": GIB}))
    written = document(MACHINE, CpuSet([0, 1, 4, 5, 7]), entry(anywhere))
    shared = written["requests"][1]["devices"]
    assert (written["cpus"], written["mems"]) == ({"exclusive": "", "shared": "0-1,4-5,7"}, "0,2")
    assert [one["attributes"]["cpus"]["string"] for one in shared] == ["0-1,4-5", "7"]
    assert shared[0]["attributes"]["cores"] == {"strings": ["0,4", "1,5"]}
    assert written["promises"] == [{"nodes": "0,2", "bytes": {"memory": GIB}}]


def test_a_promise_of_the_engine_kubelet_is_on_each_node() -> None:
    placement = Placement(NodeSet([0, 2]), booked_bytes={2: {"memory": MIB}, 0: {"memory": GIB}})
    assert document(MACHINE, CpuSet([0]), entry(placement))["promises"] == [
        {"nodes": "0", "bytes": {"memory": GIB}},
        {"nodes": "2", "bytes": {"memory": MIB}},
    ]


def test_what_others_chose_is_what_it_has() -> None:
    pinned = entry(Placement(NodeSet([0])), pinned_cpus=CpuSet([5]), pinned_mems=NodeSet([2]))
    written = document(MACHINE, CpuSet([0]), pinned)
    assert (written["cpus"], written["mems"]) == ({"exclusive": "", "shared": "5"}, "2")


def test_the_memory_policy_is_named_as_the_kernel_does() -> None:
    policy = MemoryPolicySetting(MemoryPolicyMode.INTERLEAVE, NodeSet([0, 2]), ("static_nodes",))
    written = document(MACHINE, CpuSet([0]), entry(replace(OWN, memory_policy=policy)))
    assert written["memoryPolicy"] == {
        "mode": "MPOL_INTERLEAVE",
        "nodes": "0,2",
        "flags": ["MPOL_F_STATIC_NODES"],
    }
    assert "memoryPolicy" not in document(MACHINE, CpuSet([0]), entry(OWN))


def test_the_file_has_one_key_a_line_and_its_generation() -> None:
    hostile = entry(OWN)
    request = replace(hostile.decision.request, name='shop/"generation": 0/"generation": 0')
    hostile = replace(hostile, decision=replace(hostile.decision, request=request))
    text = with_generation(body_of(MACHINE, CpuSet([0]), hostile), 17)
    assert json.loads(text)["metadata"]["generation"] == 17
    assert json.loads(text)["pod"] == '"generation": 0'
    assert b'\n  "exclusive": "2-3,6",\n' in text


def decided(environment: tuple[str, ...], placement: Placement = OWN, *, file: bool = False) -> Decision:
    request = replace(guaranteed_request("c"), environment=environment, placement_file=file)
    return Decision(request, Outcome.PLACED, placement)


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        ("openmp", {"OMP_PLACES": "{2,6},{3}", "OMP_NUM_THREADS": "3"}),
        ("go", {"GOMAXPROCS": "3"}),
        ("jvm", {"JAVA_TOOL_OPTIONS": "-XX:ActiveProcessorCount=3"}),
        ("dpdk", {"DPDK_EAL_ARGS": "-l 2-3,6 --socket-mem 0,0,512"}),
    ],
)
def test_variables_say_it_in_each_programs_words(program: str, variables: dict[str, str]) -> None:
    assert environment_of(MACHINE, decided((program,))) == variables
    assert environment_of(MACHINE, decided((program,)), variables.keys()) == {}
    assert environment_of(MACHINE, decided((program,), Placement(NodeSet([2])))) == {}


@pytest.mark.parametrize(
    ("own", "cores"), [("0,127", "-l 0,127"), ("127-128,200", "--lcores 0@127,1@128,2@200")]
)
def test_dpdk_gets_cpus_of_large_machines_as_it_takes_them(own: str, cores: str) -> None:
    placed = Placement(exclusive_cpus=CpuSet.parse(own))
    assert environment_of(MACHINE, decided(("dpdk",), placed)) == {"DPDK_EAL_ARGS": cores}


def test_huge_pages_that_may_lie_on_several_nodes_are_not_divided() -> None:
    wide = replace(OWN, claim=Claim(NodeSet([0, 2]), {"hugepages-2Mi": GIB}))
    assert environment_of(MACHINE, decided(("dpdk",), wide)) == {"DPDK_EAL_ARGS": "-l 2-3,6"}
    even = replace(OWN, claim=Claim(NodeSet([0, 2]), {"hugepages-2Mi": GIB}, even_hugepages=True))
    both = {"DPDK_EAL_ARGS": "-l 2-3,6 --socket-mem 512,0,512"}
    assert environment_of(MACHINE, decided(("dpdk",), even)) == both


def test_a_jvm_on_several_nodes_is_told_to_look_at_them() -> None:
    both = replace(OWN, mems=NodeSet([0, 2]))
    found = environment_of(MACHINE, decided(("jvm",), both))
    assert found == {"JAVA_TOOL_OPTIONS": "-XX:ActiveProcessorCount=3 -XX:+UseNUMA"}


@pytest.mark.parametrize(
    ("policy", "wish", "wanted", "codes"),
    [
        (PlacementFiles.ASKED, None, False, []),
        (PlacementFiles.ASKED, True, True, []),
        (PlacementFiles.ALL, None, True, []),
        (PlacementFiles.ALL, False, False, []),
        (PlacementFiles.OFF, None, False, []),
        (PlacementFiles.OFF, True, False, [NO_FILE]),
    ],
)
def test_who_gets_a_file(policy: PlacementFiles, wish: bool | None, wanted: bool, codes: list[str]) -> None:
    wishes, reasons = wished_file(PlacementPolicy(placement_files=policy), Wishes(placement_file=wish))
    assert (wishes.placement_file, [one.code for one in reasons]) == (wanted, codes)


def test_what_the_spec_has_stays() -> None:
    def told(decision: Decision, origin: Origin = NRI, **spec: object) -> tuple[Request, list[str]]:
        one = replace(container("c", pod()), **spec)
        after = as_far_as_possible(MACHINE, decision, one, origin)
        return after.request, [reason.code for reason in after.reasons]

    request, codes = told(decided((), file=True), placement_source="/srv/x")
    assert (request.placement_file, codes) == (False, [NO_FILE])
    request, codes = told(decided((), file=True), placement_source="/run/bayplan-placements/c")
    assert (request.placement_file, codes) == (True, [])
    request, codes = told(decided(("go",)), given_environment=("GOMAXPROCS",))
    assert (request.environment, codes) == (("go",), [NO_ENVIRONMENT])
    request, codes = told(decided(("go",)), Hook.of(pod(), container("c", pod())))
    assert (request.environment, codes) == ((), [NO_ENVIRONMENT])
    request, codes = told(decided(("go",), Placement()))
    assert (request.environment, codes) == ((), [NO_ENVIRONMENT])
    assert told(decided(("go",)), Wrapper.of(pod(), container("c", pod())))[1] == []
