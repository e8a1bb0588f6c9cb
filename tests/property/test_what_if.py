"""What-if changes nothing: not the ledger, and no later answer of the daemon's own engine."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.admin.questions import what_if_view
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.quantity import GIB
from bayplan.simulate.manifest import plan_manifest, sizes_manifest
from bayplan.simulate.rehearsal import Rehearsal
from bayplan.state.record import encode
from support.machines import machine
from support.snapshots import make_snapshot

MACHINE = machine(3, cpus_per_node=4, memory_bytes=4 * GIB)
PODS = st.lists(
    st.tuples(st.integers(1, 7000), st.sampled_from(["250m", "1", "2"]), st.sampled_from(["", "0-1", "2"])),
    max_size=6,
)


def manifest(name: str, mib: int, cpus: str, nodes: str) -> dict[str, object]:
    wishes = {"bayplan.dev/preferred-nodes": nodes} if nodes else {}
    return sizes_manifest(name, memory=f"{mib}Mi", cpus=cpus, annotations=wishes)


@pytest.mark.parametrize("make", [ExactEngine, KubeletEngine])
@given(st.sampled_from(TopologyPolicy), PODS, PODS)
def test_nothing_is_changed(
    make: Callable[[], Engine],
    topology: TopologyPolicy,
    there: list[tuple[int, str, str]],
    asked: list[tuple[int, str, str]],
) -> None:
    policy = PlacementPolicy(topology=topology)
    asked_pods = [manifest(f"w{number}", *pod) for number, pod in enumerate(asked)]
    daemon, twin = (Rehearsal(MACHINE, policy, make()) for _ in range(2))
    for number, pod in enumerate(there):
        snapshot = make_snapshot(machine=MACHINE, policy=policy, ledger=daemon.ledger)
        before = {key: encode(entry) for key, entry in daemon.ledger.entries.items()}
        said = what_if_view(snapshot, make(), MemoryPolicyAbility(), asked_pods)
        assert len(said["pods"]) == len(asked_pods)
        assert {key: encode(entry) for key, entry in snapshot.ledger.entries.items()} == before
        (planned,) = plan_manifest(manifest(f"t{number}", *pod), MACHINE)
        assert daemon.admit(planned) == twin.admit(planned)
    assert daemon.ledger == twin.ledger


@given(st.sampled_from(TopologyPolicy), PODS, PODS)
def test_what_it_says_is_what_happens(
    topology: TopologyPolicy, there: list[tuple[int, str, str]], asked: list[tuple[int, str, str]]
) -> None:
    policy = PlacementPolicy(topology=topology)
    daemon = Rehearsal(MACHINE, policy, ExactEngine())
    for number, pod in enumerate(there):
        daemon.admit(plan_manifest(manifest(f"t{number}", *pod), MACHINE)[0])
    snapshot = make_snapshot(machine=MACHINE, policy=policy, ledger=daemon.ledger)
    pods = [manifest(f"w{number}", *pod) for number, pod in enumerate(asked)]
    said = what_if_view(snapshot, ExactEngine(), MemoryPolicyAbility(), pods)
    for pod, told in zip(pods, said["pods"], strict=True):
        (decision,) = daemon.admit(plan_manifest(pod, MACHINE)[0])
        assert told["containers"][0]["outcome"] == decision.outcome.value
        mems = told["containers"][0]["placement"] and told["containers"][0]["placement"]["mems"]
        assert mems == (None if decision.placement.mems is None else str(decision.placement.mems))
        assert [one["text"] for one in told["containers"][0]["reasons"]] == [
            one.text for one in decision.reasons
        ]
