"""Which CPUs containers get to themselves, on machines as they are sold, and under kubelet's options."""

from collections import Counter

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.cpu_choice import CpuLayout, Occupation, Rules, WantedCpus, choose, fit
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.exclusive_cpus import (
    CORE_KINDS_MIXED,
    ISOLATED_CPUS,
    NO_EXCLUSIVE_CPUS,
    NOHZ_FULL,
    SMT_ALIGNMENT,
)
from bayplan.model.basis import Basis
from bayplan.model.decision import CpuUse, CpuWish, Decision, DeviceHint, NodeWish, Outcome, QosClass, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Cpu, Machine
from bayplan.model.policy import (
    CpuAlignment,
    KeepWhole,
    PlacementPolicy,
    PlacementStrategy,
    TopologyPolicy,
)
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet
from support.decisions import codes
from support.layouts import LAYOUTS, Layout, alder_lake, machine_of, power8_threads_off, power9_lpar
from support.requests import guaranteed_request

SMALL = Layout(sockets=2, caches=2, cores=4)
"""Two nodes of 8 cores of two threads; cores 0-3 (CPUs 0-3 and 16-19) are the first cache."""


def arrivals(
    machine: Machine, counts: list[int], policy: PlacementPolicy = PlacementPolicy()
) -> list[Decision]:
    engine, ledger, found = ExactEngine(), Ledger(), []
    for number, count in enumerate(counts):
        request = guaranteed_request(f"c{number}", exclusive_cpus=count)
        found.append(engine.decide(Basis(machine, policy, ledger), request))
        ledger = ledger.with_entry(Entry(found[-1]))
    return found


def first(machine: Machine, request: Request, alignment: CpuAlignment, **policy: object) -> Decision:
    rules = replace(PlacementPolicy(cpu_alignment=alignment), **policy)
    return ExactEngine().decide(Basis(machine, rules, Ledger()), request)


def caches(machine: Machine, cpus: CpuSet) -> set[int | None]:
    return {machine.cpu_by_id[cpu].l3_cache_id for cpu in cpus}


def split_cores(machine: Machine, cpus: CpuSet) -> list[int]:
    counts = Counter(machine.cpu_by_id[cpu].core_id for cpu in cpus)
    return [core for core, count in counts.items() if count < machine.core_sizes[core]]


@pytest.mark.parametrize("name", LAYOUTS)
def test_pods_of_one_cache_lie_in_one_and_split_no_core(name: str) -> None:
    layout, machine = LAYOUTS[name], LAYOUTS[name].machine()
    each, number = layout.cores * layout.threads, layout.sockets * layout.nodes * layout.caches
    decisions = arrivals(machine, [each] * (number - 1)) if number > 1 else arrivals(machine, [each // 2])
    for decision in decisions:
        assert len(decision.placement.exclusive_cpus) in {each, each // 2}
        assert len(caches(machine, decision.placement.exclusive_cpus)) == 1
        assert split_cores(machine, decision.placement.exclusive_cpus) == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_pods_of_one_core_leave_whole_caches_whole(name: str) -> None:
    layout, machine = LAYOUTS[name], LAYOUTS[name].machine()
    count = min(8, layout.caches * layout.cores - 1)
    decisions = arrivals(machine, [layout.threads] * count)
    taken = CpuSet(cpu for one in decisions for cpu in one.placement.exclusive_cpus)
    assert [split_cores(machine, one.placement.exclusive_cpus) for one in decisions] == [[]] * count
    # The cache with the reserved CPU is filled first, if it has whole cores left, then one by one.
    assert len(caches(machine, taken)) == -(-(count + (layout.cores > 1)) // layout.cores)


def test_the_sibling_of_the_reserved_cpu_is_for_an_odd_one() -> None:
    machine = Layout(sockets=2, cores=4, neighbours=True).machine()
    decisions = arrivals(machine, [10, 3])
    assert [str(one.placement.exclusive_cpus) for one in decisions] == ["2-3,8-15", "1,4-5"]


def test_a_node_on_which_cores_stay_whole_comes_before_one_on_which_they_break() -> None:
    machine = Layout(sockets=2, cores=2, neighbours=True).machine()
    (decision,) = arrivals(machine, [4])
    assert (str(decision.placement.mems), str(decision.placement.exclusive_cpus)) == ("1", "4-7")
    (decision,) = arrivals(machine, [3])
    assert (str(decision.placement.mems), str(decision.placement.exclusive_cpus)) == ("0", "1-3")


def test_a_node_with_a_whole_cache_comes_before_one_where_two_are_needed() -> None:
    machine = Layout(sockets=2, caches=2, cores=2, threads=1).machine()
    policy = PlacementPolicy(reserved_cpus=CpuSet([0, 2]))
    (decision,) = arrivals(machine, [2], policy)
    assert (str(decision.placement.mems), str(decision.placement.exclusive_cpus)) == ("1", "4-5")


def on_cpus(machine: Machine, *cpus: str) -> Ledger:
    """A ledger with a container for each of these."""
    ledger, engine = Ledger(), ExactEngine()
    for number, own in enumerate(cpus):
        mine = CpuSet.parse(own)
        request = guaranteed_request(f"there-{number}", exclusive_cpus=len(mine))
        decision = engine.decide(Basis(machine, PlacementPolicy(), Ledger()), request)
        nodes = machine.nodes_of(mine)
        claim = None if decision.placement.claim is None else replace(decision.placement.claim, nodes=nodes)
        placement = replace(decision.placement, mems=nodes, exclusive_cpus=mine, claim=claim, booked_bytes={})
        ledger = ledger.with_entry(Entry(replace(decision, placement=placement)))
    return ledger


@pytest.mark.parametrize(
    ("keep_whole", "node", "criterion"),
    [(KeepWhole.CACHE, "1", "lost caches"), (KeepWhole.NODE, "1", "lost nodes"), (KeepWhole.OFF, "0", "id")],
)
def test_a_container_goes_where_most_are_so_that_pieces_become_whole(
    keep_whole: KeepWhole, node: str, criterion: str
) -> None:
    """Both nodes have four CPUs left at a cache that others have begun: one container on node 0, and two on
    node 1, who are not gone before one is."""
    machine = Layout(sockets=2, caches=2, cores=8, threads=1).machine()
    ledger = on_cpus(machine, "8-11", "24-25", "26-27")
    policy = PlacementPolicy(reserved_cpus=CpuSet([0, 16]), keep_whole=keep_whole)
    request = guaranteed_request("new", exclusive_cpus=4)
    decision = ExactEngine().decide(Basis(machine, policy, ledger), request)
    assert str(decision.placement.mems) == node
    assert decision.advantage is not None
    assert decision.advantage.criterion == criterion


@pytest.mark.parametrize(
    ("keep_whole", "cpus"), [(KeepWhole.CACHE, "20-21"), (KeepWhole.NODE, "12-13"), (KeepWhole.OFF, "12-13")]
)
def test_within_a_node_it_goes_to_the_cache_where_most_are(keep_whole: KeepWhole, cpus: str) -> None:
    """Two caches have four CPUs left each: one container is at the first of them, and two at the second."""
    machine = Layout(caches=3, cores=8, threads=1).machine()
    ledger = on_cpus(machine, "1-7", "8-11", "16-17", "18-19")
    policy = PlacementPolicy(reserved_cpus=CpuSet([0]), keep_whole=keep_whole)
    decision = ExactEngine().decide(
        Basis(machine, policy, ledger), guaranteed_request("new", exclusive_cpus=2)
    )
    assert str(decision.placement.exclusive_cpus) == cpus


def test_who_spreads_keeps_nothing_whole() -> None:
    machine = Layout(sockets=2, caches=2, cores=8, threads=1).machine()
    ledger = on_cpus(machine, "8-11", "24-25", "26-27")
    for keep_whole in KeepWhole:
        policy = PlacementPolicy(keep_whole=keep_whole, strategy=PlacementStrategy.SPREAD)
        decision = ExactEngine().decide(
            Basis(machine, policy, ledger), guaranteed_request("new", exclusive_cpus=4)
        )
        assert not {"lost caches", "lost nodes"} & decision.candidates[0].criteria.keys()


def test_a_cache_loses_less_the_more_containers_have_cpus_there() -> None:
    layout = CpuLayout(Layout(caches=2, cores=8, threads=1).machine())
    first, second = layout.caches
    every = first | second
    lost = [
        Occupation({first: holders, second: 0}, every).lost_by(first & ~0b1, 0b110) for holders in range(5)
    ]
    assert lost == sorted(lost, reverse=True)
    assert len(set(lost)) == len(lost)
    whole = Occupation({first: 0, second: 0}, every)
    assert whole.lost_by(first, first) < whole.lost_by(first, 0b1111)
    assert whole.lost_by(first, 0b11) > whole.lost_by(first & ~0b100, 0b11)


def test_a_cache_that_can_never_be_whole_loses_nothing() -> None:
    machine = Layout(sockets=2, caches=2, cores=8, threads=1).machine()
    # The first one has the reserved CPU; the third would be whole again without one container.
    policy, ledger = PlacementPolicy(reserved_cpus=CpuSet([0])), on_cpus(machine, "8-13", "24-29", "16")
    decision = ExactEngine().decide(
        Basis(machine, policy, ledger), guaranteed_request("new", exclusive_cpus=7)
    )
    assert str(decision.placement.exclusive_cpus) == "1-7"


def test_who_asks_for_a_whole_cache_gets_one_where_one_is_free() -> None:
    machine = Layout(sockets=2, caches=2, cores=8, threads=1).machine()
    ledger = on_cpus(machine, "0-3", "8-11", "16-19")
    for count, where in ((8, "24-31"), (7, "4-6,12-15")):
        request = guaranteed_request("new", exclusive_cpus=count)
        decision = ExactEngine().decide(Basis(machine, PlacementPolicy(), ledger), request)
        assert str(decision.placement.exclusive_cpus) == where, count


def test_on_hybrid_machines_whole_cores_are_of_the_kind_that_can_make_them_up() -> None:
    """Performance cores have two threads, so that three CPUs are three efficiency cores."""
    hybrid = alder_lake()
    kinds = {cpu.id: "performance" if cpu.id < 16 else "efficiency" for cpu in hybrid.cpus}
    hybrid = replace(hybrid, cpus=tuple(replace(cpu, kind=kinds[cpu.id]) for cpu in hybrid.cpus))
    whole = CpuAlignment(full_pcpus_only=True)
    plain = guaranteed_request("new", exclusive_cpus=3)
    assert str(first(hybrid, plain, whole).placement.exclusive_cpus) == "16-18"
    wishing = replace(plain, cpu_kind="performance")
    assert str(first(hybrid, wishing, whole).placement.exclusive_cpus) == "2-5"
    strict = first(hybrid, wishing, whole, topology=TopologyPolicy.RESTRICTED)
    assert strict.outcome is Outcome.REFUSED
    assert SMT_ALIGNMENT in codes(strict)
    others = on_cpus(hybrid, "16-23")
    left = ExactEngine().decide(Basis(hybrid, PlacementPolicy(cpu_alignment=whole), others), plain)
    assert not left.placement.exclusive_cpus
    assert SMT_ALIGNMENT in codes(left)


def test_caches_that_are_filled_are_not_opened_whatever_their_sizes() -> None:
    sizes = (4, 1, 4, 1)
    caches_of = [first for first, size in zip((0, 4, 5, 9), sizes, strict=True) for _ in range(size)]
    layout = CpuLayout(machine_of(Cpu(cpu, cpu, 0, 0, cache) for cpu, cache in enumerate(caches_of)))
    every = (1 << sum(sizes)) - 1
    opened = {count: fit(layout, every, count, Rules()).opened for count in (3, 4, 7, 8, 9, 10)}
    assert opened == {3: 1, 4: 0, 7: 1, 8: 0, 9: 0, 10: 0}


def test_of_caches_the_one_with_the_least_room_is_taken() -> None:
    machine = Layout(caches=3, cores=4, threads=1).machine()
    decisions = arrivals(machine, [2, 1, 3, 4])
    assert [str(one.placement.exclusive_cpus) for one in decisions] == ["1-2", "3", "4-6", "8-11"]


def test_one_node_with_two_sockets_keeps_pods_in_a_socket_and_a_cache() -> None:
    genoa = LAYOUTS["Genoa 9654"].machine()
    machine = machine_of(replace(cpu, node_id=0) for cpu in genoa.cpus)
    decisions = arrivals(machine, [16] * 22)
    assert all(len(caches(machine, one.placement.exclusive_cpus)) == 1 for one in decisions)
    (wide,) = arrivals(machine, [96])
    assert {machine.cpu_by_id[cpu].socket_id for cpu in wide.placement.exclusive_cpus} == {0}


def test_clusters_are_kept_together_where_they_are_within_a_cache() -> None:
    machine = LAYOUTS["Kunpeng 920"].machine()
    decisions = arrivals(machine, [2, 4, 4, 1])
    assert [str(one.placement.exclusive_cpus) for one in decisions] == ["1-2", "4-7", "8-11", "3"]


def test_power_with_one_core_for_each_socket() -> None:
    decisions = arrivals(power9_lpar(), [8, 8, 4, 12])
    assert [str(one.placement.exclusive_cpus) for one in decisions] == ["8-15", "16-23", "1-4", "24-35"]


def test_threads_that_are_off_and_a_node_without_memory() -> None:
    decisions = arrivals(power8_threads_off(), [4, 2])
    assert [str(one.placement.exclusive_cpus) for one in decisions] == ["8,16,24,32", "40,48"]


def test_a_hybrid_machine_breaks_no_core_of_two_threads_for_an_odd_number() -> None:
    machine = alder_lake()
    (decision,) = arrivals(machine, [3], PlacementPolicy(reserved_cpus=CpuSet([0, 1])))
    assert split_cores(machine, decision.placement.exclusive_cpus) == []


def test_a_changed_container_keeps_its_cpus_and_gets_the_best_beside_them() -> None:
    machine, engine, policy = SMALL.machine(), ExactEngine(), PlacementPolicy()
    (decision,) = arrivals(machine, [4])
    for count in (6, 8, 5, 2):
        request = guaranteed_request("c0", exclusive_cpus=count)
        changed = engine.decide(Basis(machine, policy, Ledger()), request, decision.placement)
        before, after = decision.placement.exclusive_cpus, changed.placement.exclusive_cpus
        assert before <= after or after <= before
        assert len(after) == count
        assert count % 2 or not split_cores(machine, after)
        decision = changed


class TestOptions:
    def test_whole_cores_only_are_rounded_up_and_said(self) -> None:
        decision = first(
            SMALL.machine(), guaranteed_request("c", exclusive_cpus=3), CpuAlignment(full_pcpus_only=True)
        )
        assert (decision.outcome, str(decision.placement.exclusive_cpus)) == (Outcome.PLACED, "1-2,17-18")
        assert SMT_ALIGNMENT in codes(decision)

    @pytest.mark.parametrize("topology", [TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE])
    def test_no_whole_number_of_cores_is_refused_under_a_strict_policy(
        self, topology: TopologyPolicy
    ) -> None:
        alignment = CpuAlignment(full_pcpus_only=True)
        odd = first(SMALL.machine(), guaranteed_request("c", exclusive_cpus=3), alignment, topology=topology)
        even = first(SMALL.machine(), guaranteed_request("c", exclusive_cpus=4), alignment, topology=topology)
        assert (odd.outcome, even.outcome) == (Outcome.REFUSED, Outcome.PLACED)
        assert SMT_ALIGNMENT in codes(odd)

    def test_cores_of_which_others_have_a_part_are_not_whole(self) -> None:
        machine = Layout(cores=2, neighbours=True).machine()
        decision = first(
            machine, guaranteed_request("c", exclusive_cpus=4), CpuAlignment(full_pcpus_only=True)
        )
        assert not decision.placement.exclusive_cpus
        assert NO_EXCLUSIVE_CPUS in codes(decision) or decision.outcome is Outcome.DEGRADED

    def test_a_running_container_keeps_what_it_has(self) -> None:
        machine = SMALL.machine()
        (before,) = arrivals(machine, [3])
        policy = PlacementPolicy(TopologyPolicy.RESTRICTED, cpu_alignment=CpuAlignment(full_pcpus_only=True))
        request = guaranteed_request("c0", exclusive_cpus=3)
        after = ExactEngine().decide(Basis(machine, policy, Ledger()), request, before.placement)
        assert after.outcome is Outcome.PLACED
        assert after.placement.exclusive_cpus == before.placement.exclusive_cpus

    def test_as_many_on_each_node(self) -> None:
        machine = SMALL.machine()
        request = guaranteed_request("c", 100 * GIB, exclusive_cpus=10)
        for even, wanted in ((True, [4, 6]), (False, [10])):
            decision = first(machine, request, CpuAlignment(distribute_cpus_across_numa=even))
            counts = Counter(machine.cpu_by_id[cpu].node_id for cpu in decision.placement.exclusive_cpus)
            assert sorted(counts.values()) == wanted
            assert split_cores(machine, decision.placement.exclusive_cpus) == []

    def test_devices_on_several_nodes_come_before_an_even_distribution(self) -> None:
        hints = tuple(DeviceHint(f"gpu{n}", NodeSet([node])) for n, node in enumerate((0, 1, 1)))
        request = replace(guaranteed_request("c", 100 * GIB, exclusive_cpus=6), hints=hints)
        machine = SMALL.machine()
        decision = first(machine, request, CpuAlignment(distribute_cpus_across_numa=True))
        counts = Counter(machine.cpu_by_id[cpu].node_id for cpu in decision.placement.exclusive_cpus)
        assert counts == {0: 2, 1: 4}

    def test_cpus_of_the_whole_socket_count(self) -> None:
        machine = Layout(sockets=2, nodes=2, cores=2, threads=1).machine()
        request = guaranteed_request("c", exclusive_cpus=3)
        near = first(machine, request, CpuAlignment(), topology=TopologyPolicy.BEST_EFFORT)
        assert len(near.placement.mems or ()) == 2
        aligned = first(machine, request, CpuAlignment(align_by_socket=True))
        assert len(aligned.placement.mems or ()) == 1
        assert len({machine.cpu_by_id[cpu].socket_id for cpu in aligned.placement.exclusive_cpus}) == 1
        assert aligned.outcome is Outcome.PLACED

    def test_caches_do_not_count_where_that_is_switched_off(self) -> None:
        machine = Layout(caches=2, cores=3, threads=1).machine()
        for prefer, wanted in ((True, "3-5"), (False, "1-3")):
            decision = first(
                machine,
                guaranteed_request("c", exclusive_cpus=3),
                CpuAlignment(prefer_align_cpus_by_uncorecache=prefer),
            )
            assert str(decision.placement.exclusive_cpus) == wanted

    def test_each_cpu_on_a_core_of_its_own(self) -> None:
        machine = SMALL.machine()
        decision = first(
            machine,
            guaranteed_request("c", exclusive_cpus=6),
            CpuAlignment(distribute_cpus_across_cores=True),
        )
        cores = {machine.cpu_by_id[cpu].core_id for cpu in decision.placement.exclusive_cpus}
        assert len(cores) == 6


def test_a_cpu_without_a_node_or_a_cache_can_be_chosen() -> None:
    plain = machine_of(Cpu(cpu, cpu, 0, 0, 0) for cpu in range(2))
    machine = Machine(plain.nodes, (*plain.cpus, Cpu(2, 2, 0, None, None)))
    (decision,) = arrivals(machine, [2])
    assert str(decision.placement.exclusive_cpus) == "1-2"


HYBRID = Machine(
    alder_lake().nodes,
    tuple(replace(cpu, kind="performance" if cpu.id < 16 else "efficiency") for cpu in alder_lake().cpus),
)
"""CPUs 0-15 are performance cores of two threads, 16-23 efficiency cores."""


def isolating(machine: Machine, isolated: CpuSet) -> tuple[Machine, PlacementPolicy]:
    policy = PlacementPolicy(isolated_cpus=isolated, withheld_cpus=isolated)
    return Machine(machine.nodes, machine.cpus, isolated=isolated), policy


def test_isolated_cpus_are_neither_shared_nor_exclusive_but_to_who_asks() -> None:
    isolated = CpuSet([0, 1, 4, 5])
    machine, policy = isolating(alder_lake(), isolated)
    engine, ledger = ExactEngine(), Ledger()
    assert ledger.shared_cpus(machine, policy.withheld_cpus).isdisjoint(isolated)
    for number in range(30):
        request = guaranteed_request(f"c{number}", exclusive_cpus=1)
        if number % 3 == 0:
            request = replace(request, cpus=CpuWish(CpuUse.ISOLATED))
        decision = engine.decide(Basis(machine, policy, ledger), request)
        own = decision.placement.exclusive_cpus
        assert own.isdisjoint(ledger.exclusive_cpus)
        if number % 3 == 0:
            assert own <= isolated
            assert (ISOLATED_CPUS if own else NO_EXCLUSIVE_CPUS) in codes(decision)
            assert bool(own) is (number // 3 < len(isolated))
        else:
            assert own.isdisjoint(isolated)
        ledger = ledger.with_entry(Entry(decision))
    assert ledger.exclusive_cpus >= isolated


@pytest.mark.parametrize("topology", list(TopologyPolicy))
@pytest.mark.parametrize("qos", [QosClass.GUARANTEED, QosClass.BURSTABLE])
def test_more_isolated_cpus_than_there_are(topology: TopologyPolicy, qos: QosClass) -> None:
    machine, policy = isolating(alder_lake(), CpuSet([2, 3]))
    request = replace(guaranteed_request("c", exclusive_cpus=3), qos=qos, cpus=CpuWish(CpuUse.ISOLATED))
    decision = ExactEngine().decide(Basis(machine, replace(policy, topology=topology), Ledger()), request)
    strict = topology in {TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE}
    assert decision.outcome is (Outcome.REFUSED if strict else Outcome.DEGRADED)
    assert not decision.placement.exclusive_cpus


@pytest.mark.parametrize("kind", ["performance", "efficiency"])
@pytest.mark.parametrize("count", range(1, 10))
def test_a_wished_kind_is_that_kind_or_none(kind: str, count: int) -> None:
    request = replace(guaranteed_request("c", exclusive_cpus=count), cpu_kind=kind)
    decision = ExactEngine().decide(Basis(HYBRID, PlacementPolicy(), Ledger()), request)
    own = decision.placement.exclusive_cpus
    assert own <= HYBRID.cpus_by_kind[kind]
    assert len(own) == (count if count <= 8 or kind == "performance" else 0)


def test_cpus_are_of_one_kind_until_none_has_enough() -> None:
    decisions = arrivals(HYBRID, [3] * 7)
    kinds = [
        {HYBRID.cpu_by_id[cpu].kind for cpu in decision.placement.exclusive_cpus} for decision in decisions
    ]
    assert kinds[:5] == [{"performance"}] * 5
    assert kinds[5:] == [{"efficiency"}] * 2
    assert all(CORE_KINDS_MIXED not in codes(decision) for decision in decisions)
    wide = arrivals(HYBRID, [20])[-1]
    assert len(wide.placement.exclusive_cpus) == 20
    assert CORE_KINDS_MIXED in codes(wide)


TWO_KINDS = replace(
    plain := Layout(sockets=2, cores=4, threads=1).machine(),
    cpus=tuple(replace(cpu, kind="performance" if cpu.id < 6 else "efficiency") for cpu in plain.cpus),
)
"""Four CPUs on each of two nodes; the last two of the second one are of another kind."""


@pytest.mark.parametrize(
    ("count", "node", "required", "cpus", "mixed"),
    [
        # Most containers of their size can have performance cores, on the first node; two are not there.
        (2, 1, True, "4-5", False),
        (3, 1, True, "4-6", True),
        (4, 1, True, "4-7", True),
        # A node that is only preferred gives way to the kind.
        (3, 1, False, "1-3", False),
        (3, 0, True, "1-3", False),
    ],
)
def test_kinds_of_cores_are_those_of_the_nodes_that_it_requires(
    count: int, node: int, required: bool, cpus: str, mixed: bool
) -> None:
    wish = NodeWish(NodeSet([node]), required=required)
    request = replace(guaranteed_request("c", exclusive_cpus=count), nodes=wish)
    decision = ExactEngine().decide(Basis(TWO_KINDS, PlacementPolicy(), Ledger()), request)
    assert str(decision.placement.exclusive_cpus) == cpus
    assert (CORE_KINDS_MIXED in codes(decision)) is mixed


def test_the_kind_of_cores_that_its_nodes_have_comes_first() -> None:
    here = NodeWish(NodeSet([1]), required=True)
    request = replace(guaranteed_request("c", exclusive_cpus=2), nodes=here)
    swapped = replace(
        TWO_KINDS,
        cpus=tuple(
            replace(cpu, kind="efficiency" if cpu.id in (5, 6, 7) else "performance")
            for cpu in TWO_KINDS.cpus
        ),
    )
    decision = ExactEngine().decide(Basis(swapped, PlacementPolicy(), Ledger()), request)
    assert str(decision.placement.exclusive_cpus) == "5-6"
    assert CORE_KINDS_MIXED not in codes(decision)


def test_cpus_without_a_timer_tick_are_told() -> None:
    machine = replace(Layout(cores=4, threads=1).machine(), nohz_full=CpuSet([2, 3]))
    told, other = arrivals(machine, [2, 1])
    assert told.placement.exclusive_cpus == CpuSet([1, 2])
    assert NOHZ_FULL in codes(told)
    assert NOHZ_FULL in codes(other)
    assert NOHZ_FULL not in codes(arrivals(replace(machine, nohz_full=CpuSet([3])), [2])[0])


def test_what_fits_at_a_cache_that_others_have_begun_lies_there() -> None:
    """As Kubernetes' issue 137315 has it: of 3, 5, 7 and 11-15 kubelet takes five at two caches."""
    layout = CpuLayout(Layout(caches=2, cores=4, neighbours=True).machine())
    free = CpuSet.parse("3,5,7,11-15").mask
    assert CpuSet.of_mask(choose(layout, WantedCpus(5, free, free)).cpus) == CpuSet.parse("11-15")


def test_a_cache_of_two_nodes_is_left_where_more_cores_would_be_split_in_it() -> None:
    rows = [(cpu, cpu // 4 * 4, cpu // 8, cpu // 4, cpu // 8 * 8) for cpu in range(14)]
    layout = CpuLayout(machine_of(Cpu(*row) for row in rows))
    free = CpuSet.parse("0,3,6-13").mask
    assert CpuSet.of_mask(choose(layout, WantedCpus(3, free, free)).cpus) == CpuSet.parse("0,12-13")


def test_a_reserved_thread_of_a_hybrid_machine_leaves_its_sibling_for_an_odd_one() -> None:
    """As a report about an i9-13900 with CPU 1 reserved has it: full-pcpus-only refuses nothing there."""
    cpus = [Cpu(cpu, cpu // 2 * 2, 0, 0, 0) for cpu in range(16)]
    cpus += [Cpu(cpu, cpu, 0, 0, 0, cluster_id=cpu // 4 * 4) for cpu in range(16, 32)]
    policy = PlacementPolicy(reserved_cpus=CpuSet([1]), cpu_alignment=CpuAlignment(full_pcpus_only=True))
    decisions = arrivals(machine_of(cpus), [2, 4, 7, 1], policy)
    assert [one.outcome for one in decisions] == [Outcome.PLACED] * 4
    assert all(split_cores(machine_of(cpus), one.placement.exclusive_cpus) == [] for one in decisions)
