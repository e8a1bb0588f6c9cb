"""The ledger against the runtime's list."""

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim, Outcome, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import CpuPool, CpuRule, PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.model.resources import Resources, WrittenResources, read
from bayplan.model.wishes import read_wishes
from bayplan.model.workload import Container, ContainerState, Pod, Update
from bayplan.placement.adjustment import cpus_for
from bayplan.placement.ledger_check import contradictions
from bayplan.placement.reconcile import Reconciliation, reconcile
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, machine, pod

MACHINE = machine(2, cpus_per_node=4)
GUARANTEED = pod("g", QosClass.GUARANTEED)
BURSTABLE = pod("b", QosClass.BURSTABLE)
PODS = {one.id: one for one in (GUARANTEED, BURSTABLE)}


def placed(ledger: Ledger, owner: Pod, one: Container) -> Ledger:
    request = derive_request(owner, one, MACHINE)
    decision = ExactEngine().decide(Basis(MACHINE, PlacementPolicy(), ledger), request)
    after = ledger.with_entry(Entry(decision))
    shared = after.shared_cpus(MACHINE)
    return after.with_notified_cpus({one.id: cpus_for(decision, shared) or CpuSet()})


def running(one: Container, cpus: str = "", mems: str = "") -> Container:
    """*one* as the runtime lists it after our adjustment."""
    spec = replace(
        one.resources,
        cpuset_cpus=CpuSet.parse(cpus) if cpus else None,
        cpuset_mems=NodeSet.parse(mems) if mems else None,
    )
    return replace(one, resources=spec, state=ContainerState.RUNNING)


EXCLUSIVE = container("x", GUARANTEED, memory_bytes=100 * MIB, milli_cpus=2000)
SHARED = container("s", BURSTABLE, memory_bytes=50 * MIB)
LEDGER = placed(placed(Ledger(), GUARANTEED, EXCLUSIVE), BURSTABLE, SHARED)
AS_PLACED = [running(EXCLUSIVE, "1-2", "0"), running(SHARED, "0,3-7")]


def against(containers: list[Container], ledger: Ledger = LEDGER) -> Reconciliation:
    return reconcile(Basis(MACHINE, PlacementPolicy(), ledger), ExactEngine(), PODS, containers)


def test_agreement_changes_nothing() -> None:
    result = against(AS_PLACED)
    assert result.ledger == LEDGER
    assert (result.gone, result.changed, result.found, result.updates) == ((), (), (), ())


def test_a_record_without_a_container_goes_and_the_pool_grows() -> None:
    result = against(AS_PLACED[1:])
    assert result.gone == ("x",)
    assert result.updates == (Update("s", cpuset_cpus=CpuSet(range(8))),)
    assert NodeSet([0]) not in result.ledger.claimed_bytes
    assert not result.ledger.exclusive_cpus


def test_a_stopped_container_holds_nothing() -> None:
    assert against([replace(AS_PLACED[0], state=ContainerState.STOPPED), AS_PLACED[1]]).gone == ("x",)


def test_a_container_without_a_record_is_found_and_kept_off_the_exclusive_cpus() -> None:
    stranger = running(container("n", GUARANTEED, memory_bytes=200 * MIB, milli_cpus=1000))
    result = against([*AS_PLACED, stranger])
    assert [entry.container_id for entry in result.found] == ["n"]
    entry = result.found[0]
    assert entry.decision.outcome is Outcome.ADOPTED
    assert entry.decision.placement.mems is None
    assert entry.decision.placement.claim == Claim(NodeSet([0, 1]), {"memory": 200 * MIB}, flexible=True)
    assert result.updates == (Update("n", cpuset_cpus=CpuSet.parse("0,3-7")),)


def test_a_lost_reply_is_sent_again() -> None:
    result = against([running(EXCLUSIVE), AS_PLACED[1]])
    assert result.updates == (Update("x", CpuSet([1, 2]), NodeSet([0])),)
    assert result.ledger.entries["x"].notified_cpus == CpuSet([1, 2])


def test_a_failed_update_is_sent_again() -> None:
    result = against([AS_PLACED[0], running(SHARED, "0-7")])
    assert result.updates == (Update("s", cpuset_cpus=CpuSet.parse("0,3-7")),)


def resized(cpus: str) -> Ledger:
    """The shared container has *cpus* to itself since an update that was answered."""
    entry = LEDGER.entries["s"]
    own = CpuSet.parse(cpus)
    placement = replace(entry.decision.placement, exclusive_cpus=own)
    decided = replace(entry, decision=replace(entry.decision, placement=placement))
    return LEDGER.with_entry(decided).with_notified_cpus({"s": own})


def test_cpus_of_its_own_are_sent_again_until_the_runtime_has_them() -> None:
    ledger = resized("3-4")
    for _ in range(2):  # The daemon ends each time before the runtime carries out its answer.
        result = against(AS_PLACED, ledger)
        assert Update("s", cpuset_cpus=CpuSet.parse("3-4")) in result.updates
        ledger = result.ledger
        assert ledger.exclusive_cpus == CpuSet.parse("1-4")
    # Nor did it have the first of two changes when the second was answered.
    again = ledger.with_notified_cpus({"s": CpuSet.parse("3-5")})
    assert not against(AS_PLACED, again).ledger.pinned_ids


def test_cpus_from_before_an_update_that_was_carried_out_are_somebodys_choice() -> None:
    ledger = resized("3-4").with_notified_cpus({"s": CpuSet.parse("3-4")}, carried_out=True)
    result = against(AS_PLACED, ledger)
    assert result.ledger.pinned_ids == {"s"}
    assert result.ledger.exclusive_cpus == CpuSet.parse("1-2")


def test_what_somebody_set_later_is_respected() -> None:
    result = against([running(EXCLUSIVE, "5", "1"), AS_PLACED[1]])
    request = result.ledger.entries["x"].decision.request
    assert (request.pinned_cpus, request.pinned_mems) == (CpuSet([5]), NodeSet([1]))
    assert result.updates == (Update("s", cpuset_cpus=CpuSet(range(8))),)


def test_a_lost_store_is_rebuilt_from_the_runtime() -> None:
    result = against(AS_PLACED, Ledger())
    assert result.ledger.exclusive_cpus == CpuSet([1, 2])
    assert result.ledger.entries["x"].decision.placement.mems == NodeSet([0])
    assert result.ledger.claimed_bytes[NodeSet([0])] == {"memory": 100 * MIB}
    assert result.ledger.entries["s"].decision.request.pinned_cpus is None
    assert result.updates == ()
    assert {entry.container_id for entry in result.changed} == {"x", "s"}


def test_a_foreign_cpuset_stays_foreign() -> None:
    result = against([running(SHARED, "2-3")], Ledger())
    assert result.ledger.entries["s"].decision.request.pinned_cpus == CpuSet([2, 3])
    assert result.updates == ()


def test_a_pod_that_is_not_listed_is_no_obstacle() -> None:
    lost = replace(running(container("n", Pod("gone-pod"), resources=Resources())), pod_id="gone-pod")
    assert [entry.decision.request.name for entry in against([*AS_PLACED, lost]).found] == [
        "-/gone-pod/n-name"
    ]


def test_a_cpuset_up_to_the_last_cpu_is_that_of_the_machine() -> None:
    """Written as ``N`` by somebody who pinned it; observed again it is the same pin."""
    pinned = replace(SHARED, resources=read(WrittenResources(cpus="5-N", mems="all")))
    ledger = placed(Ledger(), BURSTABLE, pinned)
    for _ in range(2):
        ledger = against([replace(pinned, state=ContainerState.RUNNING)], ledger).ledger
        request = ledger.entries["s"].decision.request
        assert (request.pinned_cpus, request.pinned_mems) == (CpuSet([5, 6, 7]), NodeSet([0, 1]))


POOLS = PlacementPolicy(cpu_pools={"db": CpuPool(1, 4)})
IN_POOL = {"bayplan.dev/cpus": "pool=db"}


def members(**milli: int) -> Ledger:
    """A ledger with a container of each name in the pool, which came in this order."""
    ledger = Ledger()
    for name, requested in milli.items():
        owner = pod(name, QosClass.BURSTABLE, IN_POOL)
        one = container(name, owner, milli_cpus=requested, memory_bytes=50 * MIB)
        request = derive_request(owner, one, MACHINE, read_wishes(IN_POOL, one.name, MACHINE))
        entry = Entry(ExactEngine().decide(Basis(MACHINE, POOLS, ledger), request))
        ledger = ledger.with_entry(replace(entry, notified_cpus=entry.decision.placement.pool_cpus))
    return ledger


def test_a_pool_shrinks_when_a_member_has_gone_meanwhile() -> None:
    ledger = members(a=1000, b=2000)
    had = ledger.pool_cpus("db")
    there = running(container("a", pod("a", QosClass.BURSTABLE), memory_bytes=50 * MIB), str(had))
    result = reconcile(Basis(MACHINE, POOLS, ledger), ExactEngine(), PODS, [there])
    assert len(had) == 3
    assert len(result.ledger.pool_cpus("db")) == 1
    assert result.updates == (Update("a", cpuset_cpus=result.ledger.pool_cpus("db")),)


def test_a_pool_whose_record_is_lost_is_made_again_but_for_what_others_own_by_now() -> None:
    carried = dict(members(a=1000).entries)
    pooled = members(a=1000, b=1000)
    carried["b"] = pooled.entries["b"]
    cpus = pooled.pool_cpus("db")
    own = CpuSet([max(cpus)])
    decision = LEDGER.entries["x"].decision
    request = replace(decision.request, exclusive_cpus=1)
    placement = replace(decision.placement, exclusive_cpus=own)
    carried["x"] = Entry(replace(decision, request=request, placement=placement), notified_cpus=own)
    owner = container("x", GUARANTEED, memory_bytes=100 * MIB, milli_cpus=1000)
    containers = [
        running(container(name, pod(name, QosClass.BURSTABLE), memory_bytes=50 * MIB), "1") for name in "ab"
    ]
    result = reconcile(
        Basis(MACHINE, POOLS, Ledger()),
        ExactEngine(),
        PODS,
        [*containers, running(owner, str(own), "0")],
        carried=carried,
    )
    pool = result.ledger.pool_cpus("db")
    assert result.ledger.pool_ids == {"db": frozenset("ab")}
    assert pool.isdisjoint(own)
    assert cpus - own <= pool
    assert contradictions(result.ledger) == ()
    assert result.ledger.entries["x"].decision.placement.exclusive_cpus == own


RULED = replace(POOLS, cpu_rules=(CpuRule(cpus="pool=db"),))


@pytest.mark.parametrize(("policy", "annotations"), [(POOLS, IN_POOL), (RULED, {})])
@pytest.mark.parametrize("there", [{}, {"a": 1000}], ids=["the-first", "beside-another"])
def test_a_container_that_was_found_joins_the_pool_that_it_belongs_to(
    policy: PlacementPolicy, annotations: dict[str, str], there: dict[str, int]
) -> None:
    owner, ledger = pod("n", QosClass.BURSTABLE, annotations), members(**there)
    known = (
        [running(container("a", pod("a"), memory_bytes=50 * MIB), str(ledger.pool_cpus("db")))]
        if there
        else []
    )
    stranger = running(container("n", owner, memory_bytes=50 * MIB, milli_cpus=2000))
    result = reconcile(
        Basis(MACHINE, policy, ledger), ExactEngine(), PODS | {owner.id: owner}, [*known, stranger]
    )
    pool = result.ledger.pool_cpus("db")
    assert result.ledger.pool_ids == {"db": frozenset({"n", *there})}
    assert len(pool) == 2 + len(there)
    assert ledger.pool_cpus("db") <= pool
    assert Update("n", cpuset_cpus=pool) in result.updates
    entry = result.ledger.entries["n"].decision
    assert [reason.code for reason in entry.reasons] == ["created-without-us", "cpu-pool"]
    assert contradictions(result.ledger) == ()


def test_a_container_that_runs_on_the_shared_cpus_or_on_its_pools_joins_it_and_no_other() -> None:
    ledger = members(a=1000)
    pool = ledger.pool_cpus("db")
    shared = ledger.shared_cpus(MACHINE)
    owner = pod("n", QosClass.BURSTABLE, IN_POOL)
    known = running(container("a", pod("a"), memory_bytes=50 * MIB), str(pool))
    for cpus, joins in ((shared, True), (pool, True), (CpuSet([min(shared)]), False)):
        stranger = running(container("n", owner, memory_bytes=50 * MIB, milli_cpus=500), str(cpus))
        result = reconcile(
            Basis(MACHINE, POOLS, ledger), ExactEngine(), PODS | {owner.id: owner}, [known, stranger]
        )
        assert result.ledger.pool_ids["db"] == frozenset("an" if joins else "a")
        pinned = result.ledger.entries["n"].decision.request.pinned_cpus
        assert pinned == (None if joins else cpus)
        assert contradictions(result.ledger) == ()


def test_a_container_that_was_found_joins_no_pool_that_there_is_not() -> None:
    owner = pod("n", QosClass.BURSTABLE, {"bayplan.dev/cpus": "pool=gone"})
    stranger = running(container("n", owner, memory_bytes=50 * MIB))
    result = reconcile(Basis(MACHINE, POOLS, Ledger()), ExactEngine(), {owner.id: owner}, [stranger])
    assert result.ledger.pool_ids == {}
    assert result.ledger.entries["n"].decision.shares_cpus
