"""The witness of a ledger, and ledgers that one engine made and another one takes over."""

import random

from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.witness import by_node, settled_by_node, share, shortages, witness
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.exact_oracle import Trial
from support.machines import container, machine, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)
MACHINE = machine(2)
POLICY = PlacementPolicy(reserved_cpus=CpuSet([0]))


def placed(engine: Engine, ledger: Ledger, name: str, memory_bytes: int) -> Ledger:
    one = container(name, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=500)
    decision = engine.decide(Basis(MACHINE, POLICY, ledger), derive_request(GUARANTEED, one, MACHINE))
    assert decision.outcome is Outcome.PLACED
    return ledger.with_entry(Entry(decision))


@given(st.integers(0, 2**32))
def test_the_share_of_one_is_its_part_of_the_whole_and_order_plays_no_part(seed: int) -> None:
    trial = Trial(random.Random(seed), 6)
    for _ in range(25):
        trial.step()
    whole = witness(Basis(trial.machine, trial.policy, trial.ledger))
    # Within a pod the order stays: of containers with equal scores the newest claims.
    entries = trial.ledger.entries.values()
    in_reverse = sorted(entries, key=lambda entry: entry.decision.request.pod_id, reverse=True)
    backwards = Ledger.of([*in_reverse, *trial.ledger.retained.values()])
    assert witness(Basis(trial.machine, trial.policy, backwards)) == whole
    for container_id in trial.ledger.entries:
        assert share(Basis(trial.machine, trial.policy, trial.ledger), container_id) == whole[container_id]


def test_a_ledger_of_kubelets_becomes_claims_and_claims_become_bookings() -> None:
    kubelet, exact = KubeletEngine(), ExactEngine()
    booked = placed(kubelet, placed(kubelet, Ledger(), "small", 600 * MIB), "other", 700 * MIB)
    ours = exact.converted(Basis(MACHINE, POLICY, booked))
    assert not ours.booked_bytes
    small = ours.entries["small"].decision.placement
    assert small.claim is not None
    assert (small.mems, small.claim.nodes) == (NodeSet([0]), NodeSet([0]))
    assert sum(row["memory"] for row in ours.claimed_bytes.values()) == 1300 * MIB
    assert not shortages(Basis(MACHINE, POLICY, ours))
    more = placed(exact, ours, "more", 500 * MIB)

    back = kubelet.converted(Basis(MACHINE, POLICY, more))
    assert not back.claimed_bytes
    assert back == settled_by_node(Basis(MACHINE, POLICY, more))
    sums = by_node(witness(Basis(MACHINE, POLICY, more)).values())
    assert {node: dict(row) for node, row in back.booked_bytes.items()} == sums
    assert sum(row["memory"] for row in sums.values()) == 1800 * MIB
    assert all(row["memory"] <= GIB for row in sums.values())
    assert kubelet.converted(Basis(MACHINE, POLICY, back)) is back
