"""The node whose kubelet left the files in tests/data/kubelet_node: machine, policy, what was asked for."""

from pathlib import Path
from typing import Final

from bayplan.config.settings import Settings
from bayplan.kubelet.eviction_manager import ThresholdValue
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet

FILES: Final = Path(__file__).parents[1] / "data" / "kubelet_node"
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

SETTINGS = Settings(
    reserved_memory={node: {"memory": 50 * MIB} for node in range(4)},
    reserved_cpus=CpuSet([0]),
    system_reserved={"memory": 100 * MIB},
    eviction_hard={"memory.available": ThresholdValue(100 * MIB)},
    topology=POLICY.topology,
)
"""What that kubelet was configured with."""
