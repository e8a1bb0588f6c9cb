"""Which set of nodes, and by what it won."""

from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, DeviceHint, Interval, NodeWish, QosClass, QosSource, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine, Node
from bayplan.model.policy import PlacementPolicy, PlacementStrategy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.decisions import codes
from support.machines import machine


def asking(memory_bytes: int, name: str = "c") -> Request:
    return Request(
        name,
        "p",
        name,
        QosClass.GUARANTEED,
        QosSource.INFERRED,
        Interval(memory_bytes, memory_bytes, "limit"),
        memory_bytes,
    )


def decide(
    hardware: Machine,
    request: Request,
    ledger: Ledger = Ledger(),
    policy: PlacementPolicy = PlacementPolicy(),
) -> Decision:
    return ExactEngine().decide(Basis(hardware, policy, ledger), request)


def won(decision: Decision) -> str:
    assert decision.advantage is not None
    return decision.advantage.criterion


def test_distances_count_in_both_directions() -> None:
    far = {(0, 1): 12, (1, 0): 40, (0, 2): 21, (2, 0): 21, (1, 2): 30, (2, 1): 30}
    decision = decide(machine(3, memory_bytes=GIB, distances=far), asking(2 * GIB))
    assert str(decision.placement.mems) == "0,2"
    assert won(decision) == "distance"
    assert [str(one.nodes) for one in decision.candidates[:2]] == ["0,2", "0-1"]
    assert decision.candidates[0].criteria["distance"] == 42


def test_nodes_with_their_own_cpus_come_before_nodes_that_are_reached_best_from_elsewhere() -> None:
    plain = machine(2, memory_bytes=GIB)
    first, second = plain.nodes
    hardware = Machine((replace(first, initiators=NodeSet([1])), second), plain.cpus)
    decision = decide(hardware, asking(GIB))
    assert (str(decision.placement.mems), won(decision)) == ("1", "remote initiators")


def test_devices_are_near() -> None:
    near = replace(asking(GIB), hints=(DeviceHint("gpu", NodeSet([2])),))
    decision = decide(machine(4, memory_bytes=GIB), near)
    assert (str(decision.placement.mems), won(decision)) == ("2", "devices elsewhere")
    apart = replace(near, hints=(*near.hints, DeviceHint("nic", NodeSet([3]))))
    strict = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
    refused = decide(machine(4, memory_bytes=GIB), apart, policy=strict)
    assert codes(refused) == ["no-room", "devices-apart"]


RESTRICTED = PlacementPolicy(topology=TopologyPolicy.RESTRICTED)


def gpus(*nodes: int) -> tuple[DeviceHint, ...]:
    return tuple(DeviceHint(f"gpu{number}", NodeSet([node])) for number, node in enumerate(nodes))


def test_restricted_allows_as_many_nodes_as_the_devices_need() -> None:
    wide = replace(asking(GIB), hints=gpus(0, 0, 0, 2), exclusive_cpus=4)
    decision = decide(machine(4, cpus_per_node=8, memory_bytes=GIB), wide, policy=RESTRICTED)
    assert (str(decision.placement.mems), str(decision.placement.exclusive_cpus)) == ("0,2", "1-3,16")
    assert decision.placement.claim is not None
    assert decision.placement.claim.parts == (
        (NodeSet([0]), {"memory": GIB * 3 // 4}),
        (NodeSet([2]), {"memory": GIB // 4}),
    )


def test_memory_that_has_no_room_beside_its_devices_is_promised_on_their_nodes_as_a_whole() -> None:
    hardware = machine(2, memory_bytes=GIB)
    there = decide(hardware, asking(900 * MIB, "there"), policy=RESTRICTED)
    wide = replace(asking(GIB), hints=gpus(0, 1))
    decision = decide(hardware, wide, Ledger().with_entry(Entry(there)), RESTRICTED)
    assert decision.placement.claim is not None
    assert (str(decision.placement.mems), decision.placement.claim.shares) == ("0-1", {})


def test_what_one_node_has_alone_of_an_empty_machine_is_not_enough_for_restricted() -> None:
    cpus, memory = machine(2, memory_bytes=GIB).nodes
    hardware = Machine((cpus, replace(memory, cpus=CpuSet(), memory_bytes=8 * GIB, tier=0)), machine(1).cpus)
    hardware = replace(hardware, nodes=(replace(cpus, tier=0), hardware.nodes[1]))
    both = replace(asking(4 * GIB), exclusive_cpus=2)
    assert str(decide(hardware, both, policy=RESTRICTED).placement.mems) == "0-1"


def test_a_refusal_names_cpus_only_where_they_lack() -> None:
    hardware = machine(2, cpus_per_node=4, memory_bytes=GIB)
    strict = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
    apart = replace(asking(MIB), hints=gpus(0, 1), exclusive_cpus=2)
    assert codes(decide(hardware, apart, policy=strict)) == ["no-room", "devices-apart"]
    owner = decide(hardware, replace(asking(MIB, "a"), hints=gpus(1), exclusive_cpus=3), policy=strict)
    ledger = Ledger().with_entry(Entry(owner))
    beside = decide(hardware, replace(asking(MIB), hints=gpus(1), exclusive_cpus=2), ledger, strict)
    assert codes(beside) == ["no-room", "cpus-taken"]


def test_what_others_cannot_do_without_is_taken_last() -> None:
    plain = machine(3, memory_bytes=GIB)
    with_pages, with_gpus, bare = plain.nodes
    pools = {2 * MIB: 64 * MIB}
    hardware = Machine(
        (replace(with_pages, hugepages_bytes=pools), replace(with_gpus, devices=8), bare), plain.cpus
    )
    for strategy in PlacementStrategy:
        policy = PlacementPolicy(strategy=strategy)
        decision = decide(hardware, asking(MIB), policy=policy)
        assert (str(decision.placement.mems), won(decision)) == ("2", "scarce resources")
        paged = replace(asking(MIB), hugepages_bytes={"hugepages-2Mi": 2 * MIB})
        assert str(decide(hardware, paged, policy=policy).placement.mems) == "0"
        assert str(decide(hardware, replace(asking(MIB), hints=gpus(1)), policy=policy).placement.mems) == "1"


def test_as_much_as_every_node_has_is_not_scarce() -> None:
    plain = machine(2, memory_bytes=GIB)
    pages = [
        replace(node, hugepages_bytes={2 * MIB: size * MIB})
        for node, size in zip(plain.nodes, (512, 510), strict=True)
    ]
    decision = decide(Machine(tuple(pages), plain.cpus), asking(MIB))
    assert str(decision.placement.mems) == "0"


def test_full_nodes_are_filled_first_so_that_large_requests_fit_later() -> None:
    hardware = machine(3, memory_bytes=8 * GIB)
    ledger = Ledger()
    for name, size, expected in (("a", 5, "0"), ("b", 6, "1"), ("c", 2, "1"), ("d", 3, "0"), ("e", 8, "2")):
        decision = decide(hardware, asking(size * GIB, name), ledger)
        ledger = ledger.with_entry(Entry(decision))
        assert str(decision.placement.mems) == expected, name


def test_empty_nodes_are_filled_by_id_although_their_kernels_took_more_or_less() -> None:
    plain = machine(4)
    sizes = (900, 1007, 990, 1010)
    nodes = tuple(
        replace(node, memory_bytes=size * MIB) for node, size in zip(plain.nodes, sizes, strict=True)
    )
    hardware, ledger = Machine(nodes, plain.cpus), Ledger()
    for expected in ("0", "1", "2", "3"):
        decision = decide(hardware, asking(600 * MIB, expected), ledger)
        ledger = ledger.with_entry(Entry(decision))
        assert str(decision.placement.mems) == expected


def test_sparse_ids_up_to_the_kernels_limit() -> None:
    ids = (3, 64, 1023)
    nodes = tuple(Node(node, CpuSet([node]), GIB) for node in ids)
    hardware = Machine(nodes, machine(1).cpus[:1])
    assert str(decide(hardware, asking(3 * GIB)).placement.mems) == "3,64,1023"
    assert str(decide(hardware, asking(GIB)).placement.mems) == "3"


def test_more_sets_than_can_be_enumerated() -> None:
    hardware = machine(64, memory_bytes=GIB)
    decision = decide(hardware, asking(30 * GIB))
    assert decision.placement.mems is not None
    assert len(decision.placement.mems) == 30
    ledger = Ledger.of([Entry(decision)])
    rest = decide(hardware, asking(34 * GIB, "rest"), ledger)
    assert rest.placement.mems == hardware.ordinary_nodes - decision.placement.mems


def test_a_width_limit_on_a_machine_with_too_many_sets() -> None:
    hardware, restricted = machine(40, memory_bytes=GIB), PlacementPolicy(topology=TopologyPolicy.RESTRICTED)
    # Half of every second node is taken, and two of the free ones have room for 1 GiB each, but not together.
    ledger = Ledger()
    for node in range(0, 40, 2):
        wish = NodeWish(NodeSet([node]), required=True)
        taken = replace(asking(GIB // 2, f"half-{node}"), nodes=wish)
        ledger = ledger.with_entry(Entry(decide(hardware, taken, ledger)))
    pair = replace(asking(GIB, "pair"), nodes=NodeWish(NodeSet([1, 3]), required=True))
    ledger = ledger.with_entry(Entry(decide(hardware, pair, ledger)))
    wide = decide(hardware, asking(18 * GIB, "wide"), ledger, restricted)
    assert wide.placement.mems is not None
    assert len(wide.placement.mems) == 18
    assert not NodeSet([1, 3]) <= wide.placement.mems


def test_what_did_not_fit_is_listed_with_what_was_missing() -> None:
    hardware = machine(2, memory_bytes=4 * GIB)
    ledger = Ledger.of([Entry(decide(hardware, asking(3 * GIB, "first")))])
    decision = decide(hardware, asking(2 * GIB, "second"), ledger)
    assert [(str(one.nodes), one.obstacle) for one in decision.candidates] == [
        ("1", ""),
        ("0-1", ""),
        ("0", "room for 1Gi of 2Gi memory"),
    ]
    assert won(decision) == "nodes"


SPREAD = PlacementPolicy(strategy=PlacementStrategy.SPREAD)


def placed_one_by_one(hardware: Machine, requests: list[Request], policy: PlacementPolicy) -> list[str]:
    """The nodes of each, in the order of the requests."""
    ledger, nodes = Ledger(), []
    for request in requests:
        decision = decide(hardware, request, ledger, policy)
        ledger = ledger.with_entry(Entry(decision))
        nodes.append(str(decision.placement.mems))
    return nodes


def test_pack_fills_a_node_before_the_next_and_spread_takes_the_emptiest() -> None:
    hardware = machine(4, memory_bytes=8 * GIB)
    requests = [asking(GIB, f"c{number}") for number in range(6)]
    assert placed_one_by_one(hardware, requests, PlacementPolicy()) == ["0"] * 6
    assert placed_one_by_one(hardware, requests, SPREAD) == ["0", "1", "2", "3", "0", "1"]


def test_the_pods_own_strategy_wins_over_the_operators() -> None:
    hardware = machine(2, memory_bytes=8 * GIB)
    ledger = Ledger().with_entry(Entry(decide(hardware, asking(GIB))))
    spread = replace(asking(GIB, "other"), strategy=PlacementStrategy.SPREAD)
    pack = replace(asking(GIB, "other"), strategy=PlacementStrategy.PACK)
    assert str(decide(hardware, spread, ledger).placement.mems) == "1"
    assert str(decide(hardware, pack, ledger, SPREAD).placement.mems) == "0"


def test_cpus_that_others_have_alone_count_as_much_as_memory() -> None:
    hardware = machine(2, cpus_per_node=8, memory_bytes=8 * GIB)
    first = replace(asking(GIB, "first"), exclusive_cpus=6)
    large = replace(asking(4 * GIB, "large"), nodes=NodeWish(NodeSet([1])))
    assert placed_one_by_one(hardware, [first, large, asking(GIB)], SPREAD) == ["0", "1", "1"]
    decision = decide(
        hardware,
        asking(GIB),
        Ledger.of([Entry(decide(hardware, one, policy=SPREAD)) for one in (first, large)]),
        SPREAD,
    )
    assert won(decision) == "share taken"


def test_a_claim_on_several_nodes_counts_on_each_of_them() -> None:
    hardware = machine(4, memory_bytes=8 * GIB)
    assert placed_one_by_one(hardware, [asking(12 * GIB, "wide"), asking(GIB)], SPREAD) == ["0-1", "2"]


def test_spread_is_no_reason_to_be_wider_or_farther() -> None:
    far = {(0, 1): 12, (1, 0): 12, (0, 2): 30, (2, 0): 30, (1, 2): 30, (2, 1): 30}
    hardware = machine(3, memory_bytes=8 * GIB, distances=far)
    requests = [asking(4 * GIB, "first"), asking(12 * GIB, "wide")]
    assert placed_one_by_one(hardware, requests, SPREAD) == ["0", "0-1"]
