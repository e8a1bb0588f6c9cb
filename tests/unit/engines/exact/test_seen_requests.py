"""What a node learns of the requests that it sees, and containers that go where such ones lose no room."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.confined import KEEPS_ROOM
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.question import LOST_REQUESTS, SeenRooms
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.exact.topology import NodeTopology
from bayplan.errors import PlacementError
from bayplan.model.basis import MOST_REMEMBERED, MOST_SIZES, Basis, SeenRequests, SeenSize, rounded_up
from bayplan.model.decision import Claim, Decision, Outcome, Placement, QosClass, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY
from bayplan.model.policy import KeepWhole, PlacementPolicy, PlacementStrategy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.recording.recording import RecordedEngine, Recording
from bayplan.recording.replay import read_recording, replay
from bayplan.sets import CpuSet, NodeSet
from support.controllers import controlled
from support.machines import container, machine, pod
from support.requests import guaranteed_request

NODE = PlacementPolicy(
    topology=TopologyPolicy.SINGLE_NUMA_NODE, keep_whole=KeepWhole.NODE, shared_cpus_minimum=0
)
MACHINE = machine(2, cpus_per_node=4, memory_bytes=8 * GIB)


def asking(name: str, memory_gib: int, cpus: int = 0) -> Request:
    request = guaranteed_request(name, memory_gib * GIB, cpus)
    return replace(request, cpu_milli=cpus * 1000)


def on(node: int, name: str, memory_gib: int, cpus: Sequence[int] = ()) -> Entry:
    mems, own = NodeSet([node]), CpuSet(cpus)
    placement = Placement(mems, own, claim=Claim(mems, {MEMORY: memory_gib * GIB}))
    return Entry(Decision(asking(name, memory_gib, len(own)), Outcome.PLACED, placement))


def seen(*requests: Request) -> tuple[SeenSize, ...]:
    return SeenRequests.of(requests).sizes()


# Node 0 has 4 GiB and 3 CPUs left, node 1 7 GiB and one.
IN_PIECES = Ledger.of([on(0, "a", 4), on(1, "b", 1, [4, 5, 6])])


@pytest.mark.parametrize(
    ("before", "strategy", "node"),
    [
        ([], PlacementStrategy.PACK, "0"),
        ([asking("web", 4, 2)], PlacementStrategy.PACK, "1"),
        # There is room for neither anyway, or for both on each.
        ([asking("web", 8, 2), asking("small", 1)], PlacementStrategy.PACK, "0"),
        # More of those who need node 0 as it is than of those who need node 1.
        ([asking("web", 4, 2), asking("db", 7), asking("more", 4, 2)], PlacementStrategy.PACK, "1"),
        ([asking("web", 4, 2), asking("db", 7), asking("more", 7)], PlacementStrategy.PACK, "0"),
        ([asking("web", 4, 2)], PlacementStrategy.SPREAD, "0"),
        ([asking("db", 7), asking("more", 7)], PlacementStrategy.SPREAD, "0"),
    ],
)
def test_a_container_goes_where_requests_of_late_lose_no_room(
    before: Sequence[Request], strategy: PlacementStrategy, node: str
) -> None:
    basis = Basis(MACHINE, replace(NODE, strategy=strategy), IN_PIECES, seen(*before))
    decision = ExactEngine().decide(basis, asking("new", 3))
    assert str(decision.placement.mems) == node
    advantage = decision.advantage if strategy is PlacementStrategy.PACK else None
    by_requests = advantage is not None and advantage.criterion == LOST_REQUESTS
    assert (KEEPS_ROOM in {reason.code for reason in decision.reasons}) == by_requests
    assert by_requests == (len(before) in (1, 3) and strategy is PlacementStrategy.PACK)


def test_what_spans_nodes_needs_as_many_of_them() -> None:
    hardware = machine(4, cpus_per_node=4, memory_bytes=8 * GIB)
    ledger, policy = Ledger.of([on(0, "a", 2)]), replace(NODE, topology=TopologyPolicy.RESTRICTED)
    basis = Basis(hardware, policy, ledger, seen(asking("wide", 22), asking("large", 24), asking("all", 32)))
    rooms = SeenRooms.of(NodeTopology(hardware), ResourceFlows(basis))
    assert rooms is not None
    # Rounded up both are 24 GiB, which the three empty nodes have.
    assert [(one.amounts_bytes[MEMORY] // GIB, one.count, width) for one, width, _ in rooms.fitting] == [
        (24, 2, 3)
    ]
    assert [rooms.lost_on(1 << node, {MEMORY: GIB}, 0) for node in range(4)] == [0, 2, 2, 2]
    assert rooms.lost_on(0b0011, {MEMORY: 7 * GIB}, 0) == 2


@pytest.mark.parametrize(
    ("left", "before", "arriving"),
    [
        pytest.param(
            [(2, 4), (1, 4), (1, 4)],
            [(2, 0)],
            [(1, 0), (1, 0), (2, 0)],
            id="kueue 4474: two small ones go to two nodes with 1, so that the one with 2 is whole",
        ),
        pytest.param([(4, 4), (2, 4)], [], [(2, 0), (4, 0)], id="kueue 3756: what fits exactly"),
        pytest.param(
            [(24, 24), (24, 24)],
            [],
            [(10, 10), (10, 10), (20, 20)],
            id="pai 2013: two jobs go to one machine, so that the other is there for a large one",
        ),
        pytest.param(
            [(2, 4), (7, 2)],
            [(1, 4), (7, 1), (1, 4)],
            [(1, 1), (1, 4)],
            id="KAI-Scheduler 1373: the memory of one node is taken, and the CPUs of the other",
        ),
    ],
)
def test_what_others_reported(
    left: list[tuple[int, int]], before: list[tuple[int, int]], arriving: list[tuple[int, int]]
) -> None:
    """So many GiB and CPUs are left on each node; who arrives fits, in this order."""
    most = max(max(memory, cpus) for memory, cpus in left)
    hardware = machine(len(left), cpus_per_node=most + 1, memory_bytes=(most + 1) * GIB)
    ledger = Ledger()
    for node, (memory, cpus) in zip(hardware.nodes, left, strict=True):
        own = list(node.cpus - CpuSet([0]))
        taken = own[: len(own) - cpus]
        ledger = ledger.with_entry(on(node.id, f"there-{node.id}", most + 1 - memory, taken))
    learned = SeenRequests.of(asking(f"before-{number}", *one) for number, one in enumerate(before))
    for number, one in enumerate(arriving):
        request = asking(f"new-{number}", *one)
        decision = ExactEngine().decide(Basis(hardware, NODE, ledger, learned.sizes()), request)
        assert decision.outcome is Outcome.PLACED
        learned.see(request)
        ledger = ledger.with_entry(Entry(decision))


sizes = st.tuples(st.integers(1, 8), st.integers(0, 4))


@given(st.lists(sizes, max_size=6), st.lists(sizes, min_size=1, max_size=8), sizes)
def test_what_is_lost_is_what_does_not_fit_beside_the_container_once_it_is_there(
    laid: list[tuple[int, int]], asked: list[tuple[int, int]], new: tuple[int, int]
) -> None:
    hardware = machine(3, cpus_per_node=4, memory_bytes=8 * GIB)
    basis = Basis(hardware, NODE, Ledger(), seen(*(asking(f"s{n}", *one) for n, one in enumerate(asked))))
    engine = ExactEngine()
    for number, one in enumerate(laid):
        decision = engine.decide(basis, asking(f"c{number}", *one))
        if decision.outcome is Outcome.PLACED:
            basis = basis.with_ledger(basis.ledger.with_entry(Entry(decision)))
    rooms = SeenRooms.of(NodeTopology(hardware), ResourceFlows(basis))
    memory, cpus = new
    for node in hardware.nodes:
        own = list(node.cpus & basis.exclusive_candidates())[:cpus]
        room = ResourceFlows(basis).room(1 << node.id, {MEMORY: memory * GIB}).get(MEMORY, 0)
        if room < memory * GIB or len(own) < cpus:
            continue
        after = basis.with_ledger(basis.ledger.with_entry(on(node.id, "new", memory, own)))
        left = SeenRooms.of(NodeTopology(hardware), ResourceFlows(after))
        lost = fitting(rooms) - fitting(left)
        found = 0 if rooms is None else rooms.lost_on(1 << node.id, {MEMORY: memory * GIB}, cpus)
        assert found == lost


def fitting(rooms: SeenRooms | None) -> int:
    return 0 if rooms is None else sum(one.count for one, *_ in rooms.fitting)


def test_each_counts_once_and_no_more_than_a_number() -> None:
    learned = SeenRequests()
    assert learned.see(asking("a", 5, 2))
    assert not learned.see(asking("a", 5, 2))
    assert learned.sizes() == (SeenSize({MEMORY: 5 * GIB}, 2, 1),)
    assert learned.see(asking("a", 6, 2))
    for number in range(3 * MOST_REMEMBERED):
        learned.see(asking(f"b{number}", 1 + number % 40))
    assert sum(one.count for one in learned.sizes()) <= MOST_REMEMBERED
    assert len(learned.sizes()) <= MOST_SIZES
    assert len(learned.by_name) == MOST_REMEMBERED


def test_from_whom_nothing_is_learned() -> None:
    one = asking("a", 1)
    others = [
        replace(one, opted_out=True),
        replace(one, qos=QosClass.BURSTABLE),
        replace(one, pinned_mems=NodeSet([0])),
        replace(one, pinned_cpus=CpuSet([1])),
        replace(one, container_id="claim:uid"),
    ]
    assert seen(*others) == ()


@given(st.integers(0, 1 << 50))
def test_sizes_that_differ_by_less_than_a_quarter_are_one(amount: int) -> None:
    assert amount <= rounded_up(amount) <= amount * 5 / 4
    assert rounded_up(rounded_up(amount)) == rounded_up(amount)


async def test_it_is_learned_from_refusals_too_and_again_after_a_restart(tmp_path: Path) -> None:
    names = ["a", "b", "large"]
    pods = {name: pod(name, QosClass.GUARANTEED) for name in names}
    sized = {"a": 300 * MIB, "b": 40 * MIB, "large": 20 * GIB}
    async with controlled(tmp_path, NODE) as one:
        state = one.controller.state
        for name in names:
            made = container(name, pods[name], memory_bytes=sized[name])
            if name == "large":
                with pytest.raises(PlacementError):
                    await one.controller.create_container(pods[name], made)
            else:
                await one.controller.create_container(pods[name], made)
        learned = state.basis.seen
        assert [one.count for one in learned] == [1, 1, 1]
    async with controlled(tmp_path, replace(NODE, keep_whole=KeepWhole.CACHE)) as one:
        state = one.controller.state
        assert state.basis.seen == ()
        one.accept(policy=NODE)
        await state.remember()
        assert state.basis.seen == learned
        one.accept(policy=replace(NODE, keep_whole=KeepWhole.OFF))
        assert state.basis.seen == ()
    async with controlled(tmp_path, NODE) as one:
        assert one.controller.state.basis.seen == learned


def test_a_recording_has_what_was_seen(tmp_path: Path) -> None:
    file = tmp_path / "recording"
    recording = Recording.open(file)
    engine = RecordedEngine(ExactEngine(), recording)
    basis = Basis(MACHINE, NODE, IN_PIECES)
    places = []
    for before in ([], [asking("web", 4, 2)], []):
        basis = basis.with_seen(seen(*before))
        places.append(str(engine.decide(basis, asking("new", 3)).placement.mems))
    recording.close()
    assert places == ["0", "1", "0"]
    assert [difference for _, difference in replay(file, read_recording(file))] == [None, None, None]
