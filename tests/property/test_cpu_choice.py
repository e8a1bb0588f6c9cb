"""The choice of CPUs against all there are, on small machines with caches, clusters and broken cores."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.cpu_choice import CpuLayout, Occupation, Rules, WantedCpus, choose, fit
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Cpu, Machine
from bayplan.model.policy import KeepWhole, PlacementPolicy
from bayplan.sets import CpuSet
from support import cpu_order
from support.cpu_machines import machines
from support.requests import guaranteed_request


@dataclass
class Puzzle:
    """A machine, which of its CPUs others have, and what is wanted of the rest."""

    machine: Machine
    wanted: WantedCpus

    def every_choice(self) -> Iterable[frozenset[int]]:
        kept = frozenset(CpuSet.of_mask(self.wanted.kept))
        rest = [cpu for cpu in CpuSet.of_mask(self.wanted.available) if cpu not in kept]
        for more in combinations(rest, self.wanted.count - len(kept)):
            yield kept | set(more)


@st.composite
def puzzles(draw: st.DrawFn) -> Puzzle:
    machine = draw(machines())
    ids = [cpu.id for cpu in machine.cpus]
    taken = draw(st.sets(st.sampled_from(ids), max_size=len(ids) // 2))
    free = [cpu for cpu in ids if cpu not in taken]
    away = draw(st.sampled_from([[], [], free[: len(free) // 2]]))
    available = [cpu for cpu in free if cpu not in away]
    kept = draw(st.sets(st.sampled_from(available), max_size=3)) if draw(st.integers(0, 3)) == 3 else set()
    count = draw(st.integers(max(1, len(kept)), len(available)))
    distances = {node: draw(st.sampled_from([0, 0, 10, 21])) for node in machine.node_ids}
    rules = Rules(
        caches=draw(st.sampled_from([True, True, True, False])), spread=draw(st.integers(0, 4)) == 4
    )
    taken_from, others_lack, held = (CpuSet(cpus).mask for cpus in (available, free, kept))
    occupation = draw(st.none() | occupations(machine)) if rules.caches else None
    return Puzzle(machine, WantedCpus(count, taken_from, others_lack, held, distances, rules, occupation))


def occupations(machine: Machine) -> st.SearchStrategy[Occupation]:
    """So many containers at each L3 cache, some of which can never be whole."""
    caches: dict[object, int] = {}
    for cpu in machine.cpus:
        key = cpu_order.cache_of(cpu)
        caches[key] = caches.get(key, 0) | 1 << cpu.id
    every = sum(caches.values())
    possible = st.sampled_from([every, every, *(every & ~(1 << cpu.id) for cpu in machine.cpus)])
    holders = st.fixed_dictionaries({mask: st.integers(0, 4) for mask in caches.values()})
    return st.builds(Occupation, holders, possible)


@given(puzzles())
def test_no_choice_is_better(puzzle: Puzzle) -> None:
    found = choose(CpuLayout(puzzle.machine), puzzle.wanted)
    chosen = frozenset(CpuSet.of_mask(found.cpus))
    best = min(puzzle.every_choice(), key=partial(cpu_order.key, puzzle.machine, puzzle.wanted))
    event(f"{len(puzzle.machine.cpus)} CPUs")
    assert (cpu_order.key(puzzle.machine, puzzle.wanted, chosen), sorted(chosen)) == (
        cpu_order.key(puzzle.machine, puzzle.wanted, best),
        sorted(best),
    )
    assert found.proven


GROUPS = ("l3_cache_id", "cluster_id", "die_id")


@st.composite
def crossed_machines(draw: st.DrawFn) -> Machine:
    """Machines whose nodes, sockets, caches, clusters and dies cut cores, as virtual machines are told, and
    as the L3 caches of POWER10 do."""
    machine = draw(machines())

    def drawn(cpu: Cpu) -> Cpu:
        changes: dict[str, int | None] = {}
        for key in GROUPS:
            if draw(st.integers(0, 2)) == 0:
                changes[key] = draw(st.sampled_from([None, *(other.id for other in machine.cpus)]))
        if draw(st.integers(0, 4)) == 0:
            changes["node_id"] = draw(st.sampled_from(sorted(machine.node_ids)))
        return replace(cpu, **changes)

    cpus = tuple(map(drawn, machine.cpus))
    nodes = tuple(
        replace(node, cpus=CpuSet(cpu.id for cpu in cpus if cpu.node_id == node.id)) for node in machine.nodes
    )
    return replace(machine, nodes=nodes, cpus=cpus)


def nested(machine: Machine) -> Machine:
    """The machine with cores that end with their node, and one group of each kind for each core."""
    cpus = list(machine.cpus)
    of = {
        cpu.id: min(
            other.id
            for other in cpus
            if (other.core_id, other.node_id, other.socket_id) == (cpu.core_id, cpu.node_id, cpu.socket_id)
        )
        for cpu in cpus
    }
    cpus = [replace(cpu, core_id=of[cpu.id]) for cpu in cpus]
    for key in GROUPS:
        for _ in cpus:  # once for each is enough for the farthest to hear of it
            for core in {cpu.core_id for cpu in cpus}:
                ids = {getattr(cpu, key) for cpu in cpus if cpu.core_id == core} - {None}
                if ids:
                    cpus = [
                        replace(cpu, **{key: min(ids)})
                        if cpu.core_id == core or getattr(cpu, key) in ids
                        else cpu
                        for cpu in cpus
                    ]
    return replace(machine, cpus=tuple(cpus))


@given(crossed_machines(), st.data())
def test_cores_that_others_cut_end_there_or_keep_them_together(machine: Machine, data: st.DataObject) -> None:
    ids = [cpu.id for cpu in machine.cpus]
    free = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    count = data.draw(st.integers(1, len(free)))
    mask = CpuSet(free).mask
    wanted = WantedCpus(count, mask, mask)
    layout = CpuLayout(machine)
    found = choose(layout, wanted)
    order = partial(cpu_order.key, nested(machine), wanted)
    chosen = frozenset(CpuSet.of_mask(found.cpus))
    best = min(map(frozenset, combinations(free, count)), key=order)
    assert len(chosen) == count
    assert chosen <= set(free)
    # Groups that cross each other count by their parts: how many there are is another question.
    assert order(chosen)[:2] == order(best)[:2]
    cost = fit(layout, mask, count, Rules())
    assert (cost.broken, cost.split) == order(best)[:2]
    # Of the CPUs of one core there are those at as few of its caches as can be.
    cache_of = {cpu.id: cpu.l3_cache_id for cpu in machine.cpus}
    for core in {cpu.core_id for cpu in nested(machine).cpus}:
        of_core = {cpu.id for cpu in nested(machine).cpus if cpu.core_id == core} & set(free)
        taken = of_core & chosen
        at = {cache_of[cpu] for cpu in taken} - {None}
        rooms = sorted(Counter(cache_of[cpu] for cpu in of_core).values(), reverse=True)
        fewest = next(used for used in range(len(rooms) + 1) if sum(rooms[:used]) >= len(taken))
        if None not in {cache_of[cpu] for cpu in of_core}:
            event("a core with several caches" if len(rooms) > 1 else "a core with one cache")
            assert len(at) == fewest


@given(puzzles())
def test_what_a_choice_costs_is_known_without_it(puzzle: Puzzle) -> None:
    layout, wanted = CpuLayout(puzzle.machine), puzzle.wanted
    plain = replace(wanted, free=wanted.available, kept=0, rules=replace(wanted.rules, spread=False))
    chosen = frozenset(CpuSet.of_mask(choose(layout, plain).cpus))
    broken, split, *_ = cpu_order.key(puzzle.machine, plain, chosen)
    caches = {cpu_order.cache_of(puzzle.machine.cpu_by_id[cpu]) for cpu in chosen}
    found = fit(layout, plain.available, plain.count, plain.rules)
    assert (found.broken, found.split) == (broken, split)
    assert found.caches <= len(caches)
    assert found.opened <= 1
    assert found.opened <= found.caches


@given(puzzles(), st.integers(0, 40))
def test_a_choice_that_was_cut_off_is_a_choice_and_says_so(puzzle: Puzzle, steps: int) -> None:
    layout = CpuLayout(puzzle.machine)
    found = choose(layout, puzzle.wanted, steps)
    wanted = puzzle.wanted
    assert found.cpus.bit_count() == wanted.count
    assert not found.cpus & ~wanted.available
    assert not wanted.kept & ~found.cpus
    best = choose(layout, wanted)
    assert not found.proven or found.cpus == best.cpus


@given(machines(), st.lists(st.integers(1, 3), max_size=4), st.integers(1, 4))
def test_what_is_kept_whole_changes_neither_what_fits_nor_how_few_nodes_and_cores(
    machine: Machine, there: list[int], count: int
) -> None:
    engine, ledger = ExactEngine(), Ledger()
    policy = PlacementPolicy(shared_cpus_minimum=0, keep_whole=KeepWhole.OFF)
    for number, each in enumerate(there):
        request = guaranteed_request(f"there-{number}", exclusive_cpus=each)
        ledger = ledger.with_entry(Entry(engine.decide(Basis(machine, policy, ledger), request)))
    request, found = guaranteed_request("new", exclusive_cpus=count), []
    for keep_whole in KeepWhole:
        basis = Basis(machine, replace(policy, keep_whole=keep_whole), ledger)
        decision = engine.decide(basis, request)
        criteria = decision.candidates[0].criteria if decision.candidates else {}
        same = [
            criteria.get(name)
            for name in ("overlapping sets", "nodes", "distance", "broken cores", "split cores")
        ]
        found.append((decision.outcome, len(decision.placement.exclusive_cpus), same))
        event(f"by {decision.advantage.criterion if decision.advantage else 'nothing'}")
    assert found == [found[0]] * len(found)
