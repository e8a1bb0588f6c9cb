"""Containers without a record, or with one that is older than they are."""

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim, Outcome, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.origin import Hook
from bayplan.model.policy import Defragment, PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.model.workload import Container, ContainerState, Update
from bayplan.placement.adjustment import cpus_for
from bayplan.placement.decide import decide_creation, read_annotations
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.placement.reconcile import Reconciliation, reconcile
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, machine, pod

MACHINE = machine(2, cpus_per_node=4)
GUARANTEED = pod("g", QosClass.GUARANTEED)
BURSTABLE = pod("b", QosClass.BURSTABLE)
PODS = {one.id: one for one in (GUARANTEED, BURSTABLE)}
CPU_0 = PlacementPolicy(reserved_cpus=CpuSet([0]))


def running(one: Container, cpus: str = "", mems: str = "") -> Container:
    """*one* as the runtime lists it with these cpusets."""
    spec = replace(
        one.resources,
        cpuset_cpus=CpuSet.parse(cpus) if cpus else None,
        cpuset_mems=NodeSet.parse(mems) if mems else None,
    )
    return replace(one, resources=spec, state=ContainerState.RUNNING)


def against(
    containers: list[Container], ledger: Ledger = Ledger(), carried: dict[str, Entry] | None = None
) -> Reconciliation:
    return reconcile(Basis(MACHINE, CPU_0, ledger), ExactEngine(), PODS, containers, carried=carried or {})


def own(name: str, cpus: int = 1, memory_bytes: int = 100 * MIB) -> Container:
    return container(name, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=cpus * 1000)


def shared(name: str) -> Container:
    return container(name, BURSTABLE, memory_bytes=50 * MIB)


def decided(one: Container, ledger: Ledger = Ledger()) -> Entry:
    """The entry of *one* as it was made at its creation."""
    owner = next(each for each in PODS.values() if each.id == one.pod_id)
    request = derive_request(owner, one, MACHINE)
    decision = ExactEngine().decide(Basis(MACHINE, CPU_0, ledger), request)
    after = ledger.with_entry(Entry(decision))
    return Entry(decision, cpus_for(decision, after.shared_cpus(MACHINE)))


def pinned(result: Reconciliation) -> dict[str, str]:
    requests = (entry.decision.request for entry in result.ledger.entries.values())
    return {one.container_id: str(one.pinned_cpus) for one in requests if one.pinned_cpus is not None}


def exclusive(result: Reconciliation) -> dict[str, str]:
    entries = result.ledger.entries.items()
    return {key: str(cpus) for key, entry in entries if (cpus := entry.decision.placement.exclusive_cpus)}


class TestWithoutAnnotation:
    def test_most_run_on_an_earlier_pool_of_ours(self) -> None:
        """The owner of CPUs 3-4 ended while nobody looked."""
        crowd = [running(shared(name), "0,2,5-7") for name in "abc"]
        result = against([running(own("x"), "1", "0"), running(own("y"), "6", "1"), *crowd])
        # y may be one of many on CPU 6; nobody but x is on CPU 1.
        assert exclusive(result) == {"x": "1"}
        assert pinned(result) == {"y": "6"}
        assert list(result.updates) == [Update(name, cpuset_cpus=CpuSet.parse("0,2-7")) for name in "abc"]

    def test_what_only_one_of_many_has_stays_its_own(self) -> None:
        crowd = [running(shared(name), "0,2,5-7") for name in "abc"]
        assert pinned(against([*crowd, running(shared("pinned"), "2-3")])) == {"pinned": "2-3"}

    def test_no_pool_without_the_reserved_cpus(self) -> None:
        assert len(pinned(against([running(shared(name), "2-3") for name in "abc"]))) == 3

    def test_a_reserved_cpu_is_nobodys(self) -> None:
        """A shared container whose pool had shrunk to one CPU, and that asks for one."""
        result = against([running(own("x"), "0")])
        assert exclusive(result) == {}
        assert result.updates == (Update("x", cpuset_cpus=CpuSet(range(8))),)

    def test_cpus_that_several_have_are_nobodys(self) -> None:
        result = against([running(own("x", 2), "1-2"), running(shared("s"), "0-2,5")])
        assert exclusive(result) == {}

    def test_where_records_are_left_an_unknown_cpuset_is_somebody_elses(self) -> None:
        known = decided(shared("k"))
        ledger = Ledger.of([known])
        result = against([running(shared("k"), "0-7"), running(shared("n"), "0,3-4")], ledger)
        assert pinned(result) == {"n": "0,3-4"}

    def test_who_has_what_members_were_told_is_a_member(self) -> None:
        """An update for both was lost with the record of one."""
        known = replace(decided(shared("k")), notified_cpus=CpuSet.parse("0,3-7"))
        result = against([running(shared("k"), "0,3-7"), running(shared("n"), "0,3-7")], Ledger.of([known]))
        assert pinned(result) == {}
        assert len(result.updates) == 2

    def test_what_kubelet_pins_is_kubelets(self) -> None:
        crowd = [running(shared(name), "0,2,5-7") for name in "abc"]
        result = reconcile(
            Basis(MACHINE, CPU_0, Ledger()), ExactEngine(), PODS, crowd, kubelet_pins_cpus=True
        )
        assert len(pinned(result)) == 3


class TestWithAnnotation:
    def test_a_record_is_made_again_and_nobody_is_told_anything(self) -> None:
        x = decided(own("x", 2))
        s = decided(shared("s"), Ledger.of([x]))
        listed = [running(own("x", 2), "1-2", "0"), running(shared("s"), "0,3-7")]
        result = against(listed, carried={"x": x, "s": s})
        assert result.ledger == Ledger.of([s, x])
        assert (result.found, result.updates, result.recovered) == ((), (), ("s", "x"))
        assert {entry.container_id for entry in result.changed} == {"s", "x"}

    def test_an_entry_that_is_recorded_is_not_asked_again(self) -> None:
        x = decided(own("x", 2))
        other = replace(x, decision=replace(x.decision, outcome=Outcome.DEGRADED))
        result = against([running(own("x", 2), "1-2", "0")], Ledger.of([x]), {"x": other})
        assert (result.ledger.entries, result.recovered) == ({"x": x}, ())

    @pytest.mark.parametrize(("cpus", "mems"), [("", ""), ("1-2", ""), ("", "0")])
    def test_a_container_that_has_not_got_it_has_it_from_elsewhere(self, cpus: str, mems: str) -> None:
        x = decided(own("x", 2))
        result = against([running(own("x", 2), cpus, mems)], carried={"x": x})
        assert result.recovered == ()
        assert [entry.container_id for entry in result.found] == ["x"]

    def test_no_cpus_that_the_container_does_not_have(self) -> None:
        forged = decided(own("x", 2))
        result = against([running(own("x", 2), "0,3-7", "0")], carried={"x": forged})
        assert exclusive(result) == {}
        assert pinned(result) == {"x": "0,3-7"}

    def test_no_cpu_goes_to_two(self) -> None:
        carried = {name: replace(decided(own(name, 2))) for name in "xy"}
        result = against([running(own(name, 2), "1-2", "0") for name in "xy"], carried=carried)
        # They were free when the newer one was created.
        assert exclusive(result) == {"y": "1-2"}
        assert pinned(result) == {}
        assert result.updates == (Update("x", cpuset_cpus=CpuSet.parse("0,3-7")),)

    def test_no_cpu_of_a_container_that_the_runtime_does_not_list(self) -> None:
        """It came by the hook while the creation of x was under way, after the daemon that had decided about
        x had died."""
        hooked = own("h", 2)
        entry = replace(decided(hooked), recorded_origin=Hook.of(GUARANTEED, hooked))
        result = against([running(own("x", 2), "1-2", "0")], Ledger.of([entry]), {"x": decided(own("x", 2))})
        assert exclusive(result) == {"h": "1-2"}
        assert result.ledger.exclusive_cpus == CpuSet([1, 2])
        assert result.updates == (Update("x", cpuset_cpus=CpuSet.parse("0,3-7")),)

    def test_shared_cpus_that_changed_since_are_still_shared(self) -> None:
        s = decided(shared("s"))
        result = against([running(shared("s"), "0,3-5")], carried={"s": s})
        assert pinned(result) == {}
        assert result.updates == (Update("s", cpuset_cpus=CpuSet(range(8))),)

    def test_who_was_moved_since_remembers_its_home(self) -> None:
        x = decided(container("x", GUARANTEED, memory_bytes=600 * MIB, milli_cpus=500))
        listed = container("x", GUARANTEED, memory_bytes=600 * MIB, milli_cpus=500)
        placement = (
            against([running(listed, "0-7", "0-1")], carried={"x": x}).ledger.entries["x"].decision.placement
        )
        assert (placement.mems, placement.original_nodes) == (NodeSet([0, 1]), NodeSet([0]))
        assert placement.claim is not None
        assert placement.claim.nodes == NodeSet([0, 1])

    def test_what_cannot_be_moved_was_pinned_by_somebody(self) -> None:
        x = decided(own("x"))
        assert x.decision.placement.claim is not None
        firm = replace(x.decision.placement, claim=replace(x.decision.placement.claim, flexible=False))
        x = replace(x, decision=replace(x.decision, placement=firm))
        request = (
            against([running(own("x"), "1", "1")], carried={"x": x}).ledger.entries["x"].decision.request
        )
        assert request.pinned_mems == NodeSet([1])

    def test_a_resize_since_then_is_what_counts(self) -> None:
        x = decided(own("x", 2))
        after = running(own("x", 1, 300 * MIB), "2", "1")
        entry = against([after], carried={"x": x}).ledger.entries["x"]
        placement = entry.decision.placement
        assert (entry.decision.request.memory_limit_bytes, str(placement.exclusive_cpus)) == (300 * MIB, "2")
        assert placement.claim is not None
        assert (placement.claim.nodes, placement.claim.amounts_bytes) == (NodeSet([1]), {"memory": 300 * MIB})
        assert (placement.mems, placement.original_nodes) == (NodeSet([1]), None)

    def test_a_resize_to_shared_cpus(self) -> None:
        x = decided(own("x", 2))
        listed = container("x", GUARANTEED, memory_bytes=100 * MIB, milli_cpus=1500)
        result = against([running(listed, "0-7", "0")], carried={"x": x})
        assert (exclusive(result), pinned(result), result.updates) == ({}, {}, ())

    def test_a_resize_takes_no_reserved_cpu_and_nobodys(self) -> None:
        x, y = decided(own("x", 2)), decided(own("y", 1), Ledger.of([decided(own("x", 2))]))
        listed = [running(own("x", 1), "3", "0"), running(own("y"), "3", "0")]
        assert exclusive(against(listed, carried={"x": x, "y": y})) == {"y": "3"}
        assert exclusive(against([running(own("x", 1), "0", "0")], carried={"x": x})) == {}

    def test_an_older_database_catches_up_too(self) -> None:
        """It knows x from before a resize, and nothing of y."""
        x = decided(own("x", 2))
        y = decided(own("y", 2))
        listed = [running(own("x", 1), "3", "0"), running(own("y", 2), "1-2", "0")]
        result = against(listed, Ledger.of([x]), {"x": x, "y": y})
        assert exclusive(result) == {"x": "3", "y": "1-2"}
        assert result.updates == ()

    def test_what_ended_meanwhile_leaves_an_older_database(self) -> None:
        old, y = decided(own("old", 2)), decided(own("y", 2))
        result = against([running(own("y", 2), "1-2", "0")], Ledger.of([old]), {"y": y})
        assert result.gone == ("old",)
        assert exclusive(result) == {"y": "1-2"}


class TestBoundToMovableMemory:
    """It may use node 0 as well, where the kernel has memory for its pipes; its own is on node 1."""

    HARDWARE = replace(MACHINE, nodes=(MACHINE.nodes[0], replace(MACHINE.nodes[1], is_movable=True)))
    BASIS = Basis(HARDWARE, PlacementPolicy(), Ledger())
    OWNER = pod("g", QosClass.GUARANTEED, {"bayplan.dev/required-nodes": "1"})
    ONE = container("x", OWNER, memory_bytes=100 * MIB, milli_cpus=500)

    def created(self) -> Entry:
        annotated = read_annotations(Basis(self.HARDWARE, PlacementPolicy(), Ledger()), self.OWNER, self.ONE)
        ability = MemoryPolicyAbility()
        return Entry(
            decide_creation(
                self.BASIS, ExactEngine(), self.OWNER, self.ONE, annotated=annotated, ability=ability
            )
        )

    def found(self, one: Container, ledger: Ledger = Ledger()) -> Reconciliation:
        return reconcile(self.BASIS.with_ledger(ledger), ExactEngine(), {"g": self.OWNER}, [one])

    @pytest.mark.parametrize("defragment", Defragment)
    @pytest.mark.parametrize("memory_bytes", [100 * MIB, 120 * MIB])
    def test_it_keeps_its_nodes_and_its_promise(self, defragment: Defragment, memory_bytes: int) -> None:
        policy = PlacementPolicy(defragment=defragment)
        one = container("x", self.OWNER, memory_bytes=memory_bytes, milli_cpus=500)
        basis = Basis(self.HARDWARE, policy, Ledger())
        carried = {"x": self.created()}
        result = reconcile(
            basis, ExactEngine(), {"g": self.OWNER}, [running(one, mems="0-1")], carried=carried
        )
        placement = result.ledger.entries["x"].decision.placement
        assert placement.mems == NodeSet([0, 1])
        assert placement.claim == Claim(NodeSet([1]), {"memory": memory_bytes})
        assert placement.original_nodes is None
        assert [update.cpuset_mems for update in result.updates] == [None]

    def test_it_is_counted_where_the_policy_of_its_spec_binds_it(self) -> None:
        bound = self.created().decision.placement.memory_policy
        entry = self.found(replace(running(self.ONE, mems="0-1"), memory_policy=bound)).found[0]
        assert entry.decision.request.pinned_mems == NodeSet([0, 1])
        assert entry.decision.placement.claim == Claim(NodeSet([1]), {"memory": 100 * MIB})

    @pytest.mark.parametrize(("mems", "there"), [("0-1", "1"), ("0", "0")])
    def test_it_is_counted_there_whoever_chooses_its_nodes(self, mems: str, there: str) -> None:
        """Where none of them is left the kernel passes over the policy."""
        entry = self.created()
        result = self.found(running(self.ONE, mems=mems), Ledger.of([entry]))
        placement = result.ledger.entries["x"].decision.placement
        assert result.ledger.entries["x"].decision.request.pinned_mems == NodeSet.parse(mems)
        assert placement.claim == Claim(NodeSet.parse(there), {"memory": 100 * MIB})
