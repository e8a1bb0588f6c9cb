"""A node on which kubelet ran: the same pods get the same places, and the same files to the byte."""

from pathlib import Path

import pytest

from bayplan.engines.kubelet.cpu.checkpoint import format_checkpoint as format_cpus
from bayplan.engines.kubelet.cpu.checkpoint import restore_checkpoint
from bayplan.engines.kubelet.cpu.manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu.options import CpuOptions
from bayplan.engines.kubelet.cpu.state import CpuState
from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.engines.kubelet.ledger_state import managers_state
from bayplan.engines.kubelet.memory.checkpoint import checkpoint_of, format_checkpoint, restored
from bayplan.engines.kubelet.memory.manager import MemoryManagerPolicy
from bayplan.engines.kubelet.memory.state import MemoryState, empty_nodes
from bayplan.engines.kubelet.pod import FeatureGates
from bayplan.model.decision import QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.request import derive_request
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet
from support.machines import container, pod

POLICY = PlacementPolicy(
    topology=TopologyPolicy.RESTRICTED,
    reserved_bytes={node: {"memory": 50 * MIB} for node in range(4)},
    reserved_cpus=CpuSet([0]),
)
PODS = {
    "1ca45a945a3bf4e2db7478429a628bb5": (2000, 600 * MIB),
    "f4b864112d2a25bd4fdeb534b567bded": (500, 1200 * MIB),
    "d8aaba841c394db5508917fe0b76ac05": (500, 700 * MIB),
}
MACHINE = Machine(
    tuple(
        Node(node, CpuSet([2 * node, 2 * node + 1]), memory_bytes, {2 * MIB: 64 * MIB, GIB: 0})
        for node, memory_bytes in enumerate((1055182848, 988942336, 1056247808, 1015586816))
    ),
    tuple(Cpu(cpu, cpu & ~1, cpu // 2, cpu // 2, cpu & ~1) for cpu in range(8)),
)


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Path:
    return request.config.rootpath / "tests" / "data" / "kubelet_node"


def test_the_same_pods_leave_the_same_state_files(files: Path) -> None:
    engine, ledger = KubeletEngine(), Ledger()
    for uid, (milli, memory_bytes) in PODS.items():
        home = pod(uid, QosClass.GUARANTEED)
        one = container(uid, home, memory_bytes=memory_bytes, milli_cpus=milli)
        request = derive_request(home, one, MACHINE.memory_bytes)
        ledger = ledger.with_entry(Entry(engine.decide(MACHINE, POLICY, ledger, request)))
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
