"""What a container's resources mean: the same over NRI and in an OCI document, and as the kernel has it."""

from typing import Any, Final

from hypothesis import assume, given
from hypothesis import strategies as st

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.errors import ParseError
from bayplan.model.basis import Basis
from bayplan.model.decision import Outcome, QosClass, QosSource, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import OutsideRequests, PlacementPolicy, TopologyPolicy
from bayplan.model.request import derive_request
from bayplan.model.workload import Container, Pod
from bayplan.placement.adjustment import Ability, adjustment_for
from bayplan.placement.decide import decide_creation, read_annotations
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.quantity import GIB, MIB, parse_cgroup_bytes
from bayplan.sets import CpuSet
from support.cgroup_oracle import (
    PAGE_SIZES,
    Cgroup,
    ListReader,
    RefusedByKernelError,
    cgroup_after,
    memparse,
    set_mempolicy_refuses,
)
from support.described_specs import described_by_nri, described_by_oci
from support.machines import container, machine, pod

MACHINE: Final = machine(2, 8, 64 * GIB, hugepages_bytes={2 * MIB: GIB, GIB: 4 * GIB})
LAST_CPU, LAST_NODE, MAX_NODE = 15, 1, 1023
MEMORY = MACHINE.memory_bytes
POOLS = {"2MB": 2 * GIB, "1GB": 8 * GIB}
NO_POOLS = ("64KB", "32MB", "16GB")
"""Sizes of other architectures, of which the machine has none."""
KUBELETS = {
    QosClass.GUARANTEED: "kubepods-pod1.slice:cri-containerd:c",
    QosClass.BURSTABLE: "kubepods-burstable-pod1.slice:cri-containerd:c",
}
UNLIMITED = (-1, (1 << 63) - 1, (1 << 63) - 4096, (1 << 63) - 65536, 9223372036854000000)

amounts = st.one_of(
    st.integers(4096, MEMORY * 2),
    st.sampled_from(
        [MEMORY, MEMORY - 4096, MEMORY // 2, MEMORY // 2 + 4096, 8 * GIB, 100_000, 0, *UNLIMITED]
    ),
)
texts = st.one_of(
    st.integers(4096, MEMORY * 2).map(str),
    st.sampled_from(["max", "8G", "512m", "0x40000000", "017", "1t", "0", "", str(1 << 63), "100000"]),
)
cpu_lists = st.sampled_from(
    ["", "0-3,", " 0 , 1 ", "0-7:1/2", "all", "0-N", "N", "8-9", "0 1", "ALL:2/4", "12-N:1/2", ",", "3,1,2"]
)
node_lists = st.sampled_from(["", "0", "1", "0-1", "0-N", "all", " 1,", "N"])
quotas = st.one_of(st.integers(1000, 3_200_000), st.sampled_from([0, -1, 200_000, 1_600_000, 800_000]))
periods = st.sampled_from([0, 1000, 50_000, 100_000, 1_000_000])
page_limits = st.one_of(
    st.integers(0, 16 * GIB), st.sampled_from([(1 << 64) - 4096, 9223372036854772000, 8 * GIB, 2 * GIB])
)


def some(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of *fields*."""
    return st.fixed_dictionaries({}, optional=fields)


unified = some(
    {
        "memory.max": texts.filter(lambda text: text != "0"),
        "memory.high": texts,
        "memory.low": texts,
        "memory.min": texts,
        "memory.swap.max": texts,
        "memory.oom.group": st.just("1"),
        "cpu.max": st.sampled_from(
            ["max", "max 50000", "200000 100000", "1600000 100000", "50000", "400000"]
        ),
        "cpu.weight": st.integers(1, 10_000).map(str),
        "cpu.weight.nice": st.integers(-20, 19).map(str),
        "cpu.idle": st.sampled_from(["0", "1"]),
        "cpu.max.burst": st.just("1000"),
        "cpu.uclamp.min": st.just("50.00"),
        "cpuset.cpus": cpu_lists,
        "cpuset.mems": node_lists,
        "cpuset.cpus.partition": st.sampled_from(["member", "root", "isolated"]),
        "cpuset.cpus.exclusive": cpu_lists,
        "hugetlb.2MB.max": texts,
        "hugetlb.1GB.rsvd.max": texts,
        "hugetlb.64KB.max": texts,
        "memory.swap.high": texts,
        "memory.zswap.max": texts,
        "pids.max": st.just("100"),
        "io.max": st.just("8:16 rbps=1\n8:0 wbps=2"),
    }
)
resources = some(
    {
        "devices": st.just([{"allow": False, "access": "rwm"}]),
        "memory": some(
            {
                "limit": amounts,
                "reservation": amounts,
                "swap": amounts,
                "kernel": amounts,
                "kernelTCP": amounts,
                "swappiness": st.integers(0, 100),
                "disableOOMKiller": st.booleans(),
                "useHierarchy": st.booleans(),
                "checkBeforeUpdate": st.booleans(),
            }
        ),
        "cpu": some(
            {
                "shares": st.one_of(st.integers(2, 262_144), st.sampled_from([0, 2, 1024, 2048])),
                "quota": quotas,
                "burst": st.integers(0, 1000),
                "period": periods,
                "realtimeRuntime": st.just(950_000),
                "realtimePeriod": st.just(1_000_000),
                "idle": st.sampled_from([0, 1]),
                "cpus": cpu_lists,
                "mems": node_lists,
            }
        ),
        "pids": some({"limit": st.integers(-1, 1000)}),
        "blockIO": some({"weight": st.integers(10, 1000)}),
        "hugepageLimits": st.lists(
            st.fixed_dictionaries(
                {"pageSize": st.sampled_from([*sorted(PAGE_SIZES), *NO_POOLS]), "limit": page_limits}
            ),
            max_size=3,
        ),
        "network": some({"classID": st.integers(0, 9)}),
        "rdma": st.just({"mlx5_1": {"hcaHandles": 3}}),
        "unified": unified,
    }
)
documents = st.fixed_dictionaries(
    {"ociVersion": st.just("1.3.0")},
    optional={
        "annotations": st.dictionaries(
            st.sampled_from(["a/b", "bayplan.dev/memory-request"]), st.just("4Gi"), max_size=2
        ),
        "process": some(
            {
                "oomScoreAdj": st.sampled_from([-999, -997, 0, 2, 3, 500, 950, 999, 1000]),
                "execCPUAffinity": some({"initial": cpu_lists, "final": cpu_lists}),
                "ioPriority": st.just({"class": "IOPRIO_CLASS_IDLE", "priority": 0}),
                "scheduler": st.just({"policy": "SCHED_BATCH", "nice": 19}),
            }
        ),
    },
)
paths = st.sampled_from(["machine.slice:libpod:c", "/docker/c", "", *KUBELETS.values()])


def request_of(
    described: tuple[Pod, Container], outside: OutsideRequests = OutsideRequests.LIMITS
) -> Request:
    return derive_request(*described, MACHINE, outside=outside)


def kernels(document: dict[str, Any]) -> Cgroup:
    return cgroup_after(document["linux"].get("resources") or {}, LAST_CPU, LAST_NODE)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    document = draw(documents)
    rdt = draw(some({"intelRdt": st.just({"closID": "a", "memBwSchema": "MB:0=20;1=70"})}))
    return {**document, "linux": {"cgroupsPath": draw(paths), "resources": draw(resources), **rdt}}


@given(specs(), st.sampled_from(OutsideRequests))
def test_both_descriptions_of_a_container_mean_the_same(
    document: dict[str, Any], outside: OutsideRequests
) -> None:
    # NRI has no field for it.
    document["linux"]["resources"].get("cpu", {}).pop("idle", None)
    by_nri, by_oci = described_by_nri(document), described_by_oci(document)
    assert by_nri[1].resources == by_oci[1].resources
    assert request_of(by_nri, outside) == request_of(by_oci, outside)


@given(specs())
def test_limits_and_cpusets_are_those_of_the_cgroup(document: dict[str, Any]) -> None:
    request, shown = request_of(described_by_oci(document)), kernels(document)
    assert set(request.pinned_cpus or ()) == shown.cpus
    assert set(request.pinned_mems or ()) == shown.mems
    limit = shown.memory_max or None
    if request.qos_source is not QosSource.CGROUP_PARENT and limit is not None and limit >= MEMORY:
        limit = None
    assert request.memory_limit_bytes == limit


@given(specs())
def test_outside_of_kubelets_tree_nobody_is_promised_more_than_it_asked_for(document: dict[str, Any]) -> None:
    request, shown = request_of(described_by_oci(document)), kernels(document)
    assume(request.qos_source is QosSource.INFERRED)
    limit = shown.memory_max if shown.memory_max and shown.memory_max < MEMORY else None
    low, least = (amount if amount < MEMORY else 0 for amount in (shown.memory_low, shown.memory_min))
    reserved = max(low, least)
    asked = min(reserved or limit or 0, limit or MEMORY, MEMORY // 2)
    assert (request.memory.low_bytes, request.memory.high_bytes) == (asked, asked)
    for name, size in PAGE_SIZES.items():
        limits = (shown.hugetlb.get(name), shown.reserved_pages.get(name))
        amount, pool = min((one for one in limits if one is not None), default=None), POOLS[name]
        wanted = (
            0 if amount is None or amount // size * size >= pool else min(amount // size * size, pool // 2)
        )
        assert request.hugepages_bytes.get(f"hugepages-{name[0]}{name[1]}i", 0) == wanted
    quota = None if shown.quota_us is None else shown.quota_us / shown.period_us
    limited = quota is not None and quota < LAST_CPU + 1
    if request.qos is QosClass.GUARANTEED:
        assert limited
        assert limit == asked
        assert request.exclusive_cpus <= (quota or 0) <= (LAST_CPU + 1) / 2
    else:
        assert request.exclusive_cpus == 0
    nothing = not (asked or limited or (shown.shares or 0) > 2)
    assert (request.qos is QosClass.BEST_EFFORT) is (nothing and limit is None)
    assert request.cpu_milli <= (LAST_CPU + 1) * 500


@given(specs())
def test_where_limits_are_no_requests_only_reservations_count(document: dict[str, Any]) -> None:
    described, shown = described_by_oci(document), kernels(document)
    request = request_of(described, OutsideRequests.RESERVATIONS)
    assume(request.qos_source is QosSource.INFERRED)
    low, least = (amount if amount < MEMORY else 0 for amount in (shown.memory_low, shown.memory_min))
    assert request.memory.high_bytes == min(max(low, least), MEMORY // 2)
    assert request.exclusive_cpus == 0
    assert not request.hugepages_bytes
    nothing = request_of(described, OutsideRequests.NOTHING)
    assert (nothing.qos, nothing.memory.high_bytes, nothing.cpu_milli) == (QosClass.BEST_EFFORT, 0, 0)


@given(specs(), st.integers(1, MEMORY - 1), st.integers(1, 7))
def test_keys_that_others_add_change_no_request_of_kubelets(
    document: dict[str, Any], limit: int, cpus: int
) -> None:
    """A Guaranteed container of kubelet's, with any ``unified`` that does not look like MemoryQoS'."""
    kubelets = {"memory": {"limit": limit}, "cpu": {"shares": cpus * 1024, "quota": cpus * 100_000}}
    added = (document["linux"]["resources"]).get("unified", {})
    assume(not {"memory.min", "memory.high"} <= added.keys())
    linux = {"cgroupsPath": KUBELETS[QosClass.GUARANTEED], "resources": {**kubelets, "unified": added}}
    request = request_of(described_by_oci({"linux": linux, "process": {"oomScoreAdj": -997}}))
    assert (request.memory.low_bytes, request.memory.high_bytes) == (limit, limit)
    assert request.exclusive_cpus == cpus
    assert request.qos is QosClass.GUARANTEED


@given(st.text("0123N,-:/al \n", max_size=9))
def test_lists_are_read_as_by_the_kernel(text: str) -> None:
    try:
        expected = ListReader(text, LAST_CPU).read()
    except RefusedByKernelError:
        expected = None
    try:
        found = set(CpuSet.parse(text, LAST_CPU))
    except ParseError:
        found = None
    # Ids that no machine has are refused by the kernel that knows its own.
    if found is not None and found and max(found) > LAST_CPU:
        found = None
    assert found == expected


@given(st.text("0123xX9abkKmMe-+ ", max_size=8) | texts)
def test_amounts_are_read_as_by_the_kernel(text: str) -> None:
    assume(text.strip())
    try:
        expected = memparse(text)
    except RefusedByKernelError:
        try:
            parse_cgroup_bytes(text)
        except ParseError:
            return
        raise
    assert parse_cgroup_bytes(text) == expected


memory_policies = st.one_of(
    st.fixed_dictionaries({"mode": st.sampled_from(["MPOL_DEFAULT", "MPOL_LOCAL"])}),
    st.fixed_dictionaries(
        {
            "mode": st.sampled_from(
                [
                    "MPOL_BIND",
                    "MPOL_INTERLEAVE",
                    "MPOL_WEIGHTED_INTERLEAVE",
                    "MPOL_PREFERRED",
                    "MPOL_PREFERRED_MANY",
                ]
            ),
            "nodes": st.sampled_from(["", "0", "1", "0-1", "2", "1-3"]),
        },
        optional={
            "flags": st.lists(
                st.sampled_from(["MPOL_F_STATIC_NODES", "MPOL_F_RELATIVE_NODES", "MPOL_F_NUMA_BALANCING"]),
                unique=True,
            )
        },
    ),
)
wishes = some(
    {
        "bayplan.dev/required-nodes": st.sampled_from(["0", "1", "0-1"]),
        "bayplan.dev/memory-policy": st.sampled_from(["interleave", "bind:0", "preferred:1"]),
    }
)


@given(
    specs(),
    memory_policies,
    wishes,
    st.sampled_from([ExactEngine(), KubeletEngine()]),
    st.sampled_from(TopologyPolicy),
)
def test_no_memory_policy_of_a_spec_gets_nodes_that_the_kernel_refuses(
    document: dict[str, Any],
    memory_policy: dict[str, Any],
    annotations: dict[str, str],
    engine: Engine,
    topology: TopologyPolicy,
) -> None:
    linux = {**document["linux"], "memoryPolicy": memory_policy}
    pod, container = described_by_oci({**document, "linux": linux, "annotations": annotations})
    policy = PlacementPolicy(topology, reserved_cpus=CpuSet([0]))
    annotated = read_annotations(Basis(MACHINE, policy, Ledger()), pod, container)
    decision = decide_creation(
        Basis(MACHINE, policy, Ledger()),
        engine,
        pod,
        container,
        annotated=annotated,
        ability=MemoryPolicyAbility(),
    )
    nodes = ListReader(memory_policy.get("nodes", ""), MAX_NODE).read()
    mode, bound = memory_policy["mode"], memory_policy["mode"] == "MPOL_BIND"
    required = ListReader(annotations.get("bayplan.dev/required-nodes", "0-1"), LAST_NODE).read()
    if decision.outcome is Outcome.REFUSED:
        strict = topology in (TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE)
        assert strict or not bound or not nodes & required or not kernels(document).mems <= required
        return
    adjustment = adjustment_for(
        Basis(MACHINE, policy, Ledger()), Ability(), CpuSet(range(16)), decision, container
    )
    assert adjustment.memory_policy is None
    before = kernels(document).mems or {0, 1}
    mems = set(adjustment.cpuset_mems or before)
    if not set_mempolicy_refuses(mode, nodes, memory_policy.get("flags", []), before):
        assert not set_mempolicy_refuses(mode, nodes, memory_policy.get("flags", []), mems)
    if not memory_policy.get("flags") and nodes & before and adjustment.cpuset_mems is not None:
        assert nodes & mems if bound else nodes & required <= mems
    claim = decision.placement.claim
    if bound and claim is not None and not memory_policy.get("flags") and nodes & before:
        assert set(claim.nodes) <= nodes


@given(
    specs(),
    st.sampled_from([ExactEngine, KubeletEngine]),
    st.sampled_from(TopologyPolicy),
    st.integers(1, 3),
    st.integers(1, 60),
)
def test_no_container_outside_of_kubelets_tree_keeps_out_its_pods(
    document: dict[str, Any],
    engine_kind: type[ExactEngine] | type[KubeletEngine],
    topology: TopologyPolicy,
    cpus: int,
    gib: int,
) -> None:
    """Whatever it asks for or is pinned to, a Guaranteed pod of less than half a machine still starts."""
    engine, policy, ledger = engine_kind(), PlacementPolicy(topology), Ledger()
    outside = described_by_oci({**document, "linux": {**document["linux"], "cgroupsPath": "/docker/c"}})
    owner = pod("k", QosClass.GUARANTEED)
    kubelets = owner, container("k", owner, memory_bytes=gib * GIB // 2, milli_cpus=cpus * 1000)
    for described in (outside, kubelets):
        annotated = read_annotations(Basis(MACHINE, policy, Ledger()), *described)
        decision = decide_creation(
            Basis(MACHINE, policy, ledger),
            engine,
            *described,
            annotated=annotated,
            ability=MemoryPolicyAbility(),
        )
        if decision.outcome is not Outcome.REFUSED:
            ledger = ledger.with_entry(Entry(decision))
    assert decision.outcome is not Outcome.REFUSED
    assert len(decision.placement.exclusive_cpus) == cpus
    pinned = kernels(document).cpus
    told = any(reason.code == "not-alone" for reason in decision.reasons)
    assert told is not pinned.isdisjoint(decision.placement.exclusive_cpus)
