"""A node on which kubelet ran: the same pods get the same places, and the same files to the byte."""

from pathlib import Path

import pytest

from bayplan.engines.kubelet.cpu_checkpoint import format_checkpoint as format_cpus
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.engines.kubelet.managers import managers_state
from bayplan.engines.kubelet.memory_checkpoint import checkpoint_of, format_checkpoint
from bayplan.engines.kubelet.memory_state import MemoryState, empty_nodes
from bayplan.kubelet.manager_options import CpuOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.basis import Basis
from bayplan.model.decision import QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.request import derive_request
from support.kubelet_start import restore_checkpoint, restored
from support.machines import container, pod
from support.recorded_kubelet import MACHINE, PODS, POLICY


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Path:
    return request.config.rootpath / "tests" / "data" / "kubelet_node"


def test_the_same_pods_leave_the_same_state_files(files: Path) -> None:
    engine, ledger = KubeletEngine(), Ledger()
    for uid, (milli, memory_bytes) in PODS.items():
        home = pod(uid, QosClass.GUARANTEED)
        one = container(uid, home, memory_bytes=memory_bytes, milli_cpus=milli)
        request = derive_request(home, one, MACHINE)
        ledger = ledger.with_entry(Entry(engine.decide(Basis(MACHINE, POLICY, ledger), request)))
    cpus = StaticCpuPolicy(CpuTopology.of_machine(MACHINE), CpuOptions(), POLICY.reserved_cpus)
    empty = empty_nodes(MACHINE, POLICY.reserved_bytes)
    state = managers_state(MemoryManagerPolicy.STATIC, empty, cpus, ledger)
    # Containers are known by other names in the ledger than in kubelet's files.
    memory = {uid: {"main": state.memory.state.assignments[f"{uid}-sandbox"][uid]} for uid in PODS}
    saved = checkpoint_of("Static", MemoryState(state.memory.state.nodes, memory))
    assert format_checkpoint(saved, 1) == (files / "memory_manager_state").read_text()
    exclusive = {
        owner.removesuffix("-sandbox"): {"main": own[owner.removesuffix("-sandbox")]}
        for owner, own in state.cpus.assignments.items()
    }
    assert (
        format_cpus(CpuState(state.cpus.shared, exclusive), "static")
        == (files / "cpu_manager_state").read_text()
    )


def test_its_state_files_can_be_restored(files: Path) -> None:
    memory = files / "memory_manager_state"
    state = restored(memory.read_text(), str(memory), "Static", FeatureGates())
    assert {uid: str(blocks["main"][0].nodes) for uid, blocks in state.assignments.items()} == dict(
        zip(PODS, ("1", "0,2", "3"), strict=True)
    )
    cpus = restore_checkpoint((files / "cpu_manager_state").read_text(), "static")
    assert (str(cpus.shared), [str(own) for _, _, own in cpus.items()]) == ("0-1,4-7", ["2-3"])
