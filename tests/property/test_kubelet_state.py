"""What engines have placed goes out to kubelet's files and comes back from them as the same promises, and
nobody is moved on either way."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.config.kubelet_rules import engine_of
from bayplan.config.reservations import static_managers
from bayplan.engines.interface import KUBELET
from bayplan.engines.kubelet.cpu_checkpoint import format_checkpoint as format_cpus
from bayplan.engines.kubelet.memory_checkpoint import checkpoint_of
from bayplan.engines.kubelet.memory_checkpoint import format_checkpoint as format_memory
from bayplan.engines.kubelet.state_files import read_cpu_file, read_memory_file
from bayplan.model.basis import Basis
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.request import derive_request
from bayplan.model.workload import Container, ContainerState, Pod
from bayplan.placement.adjustment import cpus_updates
from bayplan.placement.kubelet_handover import KubeletState, Names, hand_back, take_over
from bayplan.placement.reconcile import reconcile
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.machines import container, pod
from support.recorded_kubelet import MACHINE, SETTINGS

POLICY, OPTIONS = static_managers(SETTINGS, MACHINE)
ENGINES = {name: engine_of(replace(SETTINGS, engine=name)) for name in ("exact", KUBELET)}
CONTAINERS = 12
GROUPS = "as kubelet groups nodes"

Pairs = dict[str, tuple[Pod, Container]]


def placed(engine: str, draw: random.Random) -> tuple[Ledger, Pairs]:
    """Guaranteed containers that came and went, and those that are left."""
    ledger, pairs = Ledger(), Pairs()
    for number in range(CONTAINERS):
        owner = pod(f"p{number}", QosClass.GUARANTEED)
        milli = draw.choice([500, 1000, 2000, 3000])
        memory_bytes = draw.choice([100, 300, 600, 1100]) * MIB
        one = container(f"c{number}", owner, memory_bytes=memory_bytes, milli_cpus=milli)
        request = derive_request(owner, one, MACHINE)
        decision = ENGINES[engine].decide(Basis(MACHINE, POLICY, ledger), request)
        if decision.outcome is Outcome.PLACED:
            ledger = ledger.moved(decision.moves).with_entry(Entry(decision))
            pairs[one.id] = owner, one
        if pairs and draw.random() < 1 / 4:
            gone = draw.choice(sorted(pairs))
            ledger = ledger.without(gone)
            del pairs[gone]
    return ledger, pairs


def as_kubelet_left_them(ledger: Ledger, pairs: Pairs) -> list[Container]:
    """The containers with the cpusets that kubelet's managers would have set."""
    shared = ledger.shared_cpus(MACHINE)
    found = []
    for key, (_, one) in pairs.items():
        placement = ledger.entries[key].decision.placement
        cpus = placement.exclusive_cpus or shared
        resources = replace(one.resources, cpuset_cpus=cpus, cpuset_mems=placement.mems)
        found.append(replace(one, resources=resources, state=ContainerState.RUNNING))
    return found


def promises(ledger: Ledger) -> dict[str, object]:
    """CPUs, nodes and amounts by container."""
    found: dict[str, object] = {}
    for key, entry in ledger.entries.items():
        placement, total = entry.decision.placement, dict[str, int]()
        rows = placement.booked_bytes.values() if placement.claim is None else [placement.claim.amounts_bytes]
        for row in rows:
            for resource, amount_bytes in row.items():
                total[resource] = total.get(resource, 0) + amount_bytes
        found[key] = placement.exclusive_cpus, placement.mems, total
    return found


def files(ledger: Ledger, names: Names) -> tuple[str, str]:
    """The texts of both files."""
    state = hand_back(Basis(MACHINE, POLICY, ledger), OPTIONS, names)
    assert state.problems == ()
    memory = format_memory(checkpoint_of("Static", state.memory), 1)
    return format_cpus(state.cpus, "static"), memory


@pytest.mark.parametrize("engine", ENGINES)
@given(st.randoms(use_true_random=False))
def test_a_round_trip_through_kubelets_files_keeps_every_promise(engine, draw):
    ledger, pairs = placed(engine, draw)
    names = {key: (owner.uid, one.name) for key, (owner, one) in pairs.items()}
    problems = hand_back(Basis(MACHINE, POLICY, ledger), OPTIONS, names).problems
    if problems:
        # Only the engine exact places containers on sets of nodes that cross each other.
        assert engine == "exact"
        assert all(GROUPS in problem.expected for problem in problems)
        return
    cpu_text, memory_text = files(ledger, names)
    cpus, wrong_cpus = read_cpu_file(cpu_text, MACHINE, POLICY.reserved_cpus, {})
    memory, wrong_memory = read_memory_file(memory_text, MACHINE)
    assert (wrong_cpus, wrong_memory) == ((), ())
    containers = as_kubelet_left_them(ledger, pairs)
    pods = {owner.id: owner for owner, _ in pairs.values()}
    decides = ENGINES[engine]
    found = reconcile(Basis(MACHINE, POLICY, Ledger()), decides, pods, containers, kubelet_pins_cpus=True)
    assert not found.updates
    state = KubeletState(cpus, memory)
    result = take_over(Basis(MACHINE, POLICY, found.ledger), decides, names, state)
    assert result.problems == ()
    assert result.absent == ()
    after = result.ledger
    assert promises(after) == promises(ledger)
    assert after.exclusive_cpus.isdisjoint(POLICY.reserved_cpus or CpuSet())
    assert not cpus_updates(after, after.shared_cpus(MACHINE))
    again = reconcile(Basis(MACHINE, POLICY, after), decides, pods, containers, kubelet_pins_cpus=True)
    assert not again.updates
    assert promises(again.ledger) == promises(ledger)
    assert files(after, names) == (cpu_text, memory_text)
