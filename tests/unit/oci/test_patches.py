"""What an adjustment changes in a spec: the memory policy, beside what the property tests hold."""

import json

from bayplan.model.decision import MemoryPolicyMode, MemoryPolicySetting
from bayplan.model.workload import Adjustment
from bayplan.oci.documents import exec_patch, merged, parse_spec, spec_patch
from bayplan.sets import CpuSet, NodeSet

SPREAD = MemoryPolicySetting(MemoryPolicyMode.WEIGHTED_INTERLEAVE, NodeSet([0, 1, 3]), ("static_nodes",))


def rewritten(spec: dict[str, object], setting: MemoryPolicySetting) -> dict[str, object]:
    document = json.dumps(spec).encode()
    patch = spec_patch(Adjustment(memory_policy=setting), parse_spec(document, "spec"))
    return json.loads(merged(document, patch, "spec")) if patch else spec


def test_a_memory_policy_is_written_by_the_kernels_names() -> None:
    assert rewritten({"linux": {"x": 1}}, SPREAD) == {
        "linux": {
            "x": 1,
            "memoryPolicy": {
                "mode": "MPOL_WEIGHTED_INTERLEAVE",
                "nodes": "0-1,3",
                "flags": ["MPOL_F_STATIC_NODES"],
            },
        }
    }
    local = MemoryPolicySetting(MemoryPolicyMode.LOCAL)
    assert rewritten({"linux": {}}, local) == {"linux": {"memoryPolicy": {"mode": "MPOL_LOCAL"}}}


def test_a_memory_policy_of_somebody_else_stays() -> None:
    spec: dict[str, object] = {"linux": {"memoryPolicy": {"mode": "MPOL_BIND", "nodes": "1"}}}
    assert rewritten(spec, SPREAD) == spec


def test_cpus_of_later_processes_are_written_where_nobody_chose_them() -> None:
    cpus = CpuSet([0, 1, 4])
    for process, patch in (
        ({}, {"execCPUAffinity": {"initial": "0-1,4"}}),
        ({"execCPUAffinity": {"final": "3"}}, {}),
        ({"execCPUAffinity": {}}, {}),
        (None, {}),
    ):
        spec = parse_spec(json.dumps({"linux": {}, "process": process}).encode(), "spec")
        assert exec_patch(cpus, spec) == patch
        assert exec_patch(None, spec) == {}
