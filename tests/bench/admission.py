"""How long a whole decision takes: ``python tests/bench/admission.py [--repeat N]``.

The CPU, Memory and Device Manager give hints for a container of a Guaranteed pod, and the Topology Manager
merges them, on machines of 2 to 64 nodes which fill up with pods of random sizes (fixed seed). Prints the
median and the worst over the pods, each the fastest of some repetitions, in microseconds; policy best-effort.
"""

import argparse
import random
import statistics
import time

from bayplan.engines.kubelet.cpu.manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu.options import CpuOptions
from bayplan.engines.kubelet.cpu.state import CpuState
from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.engines.kubelet.devices.manager import Device, DeviceManager
from bayplan.engines.kubelet.managers import KubeletManagers, ManagersState
from bayplan.engines.kubelet.memory.manager import MemoryManagerPolicy
from bayplan.engines.kubelet.memory.restore import start
from bayplan.engines.kubelet.pod import ContainerSpec, FeatureGates, PodSpec
from bayplan.engines.kubelet.topology.manager import TopologyManager
from bayplan.engines.kubelet.topology.options import TopologyOptions
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.model.policy import TopologyPolicy
from bayplan.sets import CpuSet, NodeSet

SIZES = (2, 4, 8, 16, 32, 64)
CPUS, GIB, DEVICES, PODS_PER_NODE = 16, 1 << 30, 4, 3
DEVICE = "example.com/nic"


def machine(nodes: int) -> Machine:
    """Nodes with 16 CPUs, 64 GiB and some huge pages, four to a socket."""
    cpus = tuple(
        Cpu(cpu, cpu & ~1, cpu // (4 * CPUS), cpu // CPUS, cpu // 8 * 8) for cpu in range(nodes * CPUS)
    )
    near = [
        {other: 10 if other == node else 12 if other // 4 == node // 4 else 20 for other in range(nodes)}
        for node in range(nodes)
    ]
    own = [CpuSet(range(node * CPUS, (node + 1) * CPUS)) for node in range(nodes)]
    return Machine(
        tuple(Node(node, own[node], 64 * GIB, {1 << 21: 4 * GIB}, near[node]) for node in range(nodes)), cpus
    )


def engine(hardware: Machine, closest: bool) -> tuple[KubeletManagers, ManagersState]:
    """All managers, with nothing allocated."""
    cpus = StaticCpuPolicy.reserving(CpuTopology.of_machine(hardware), CpuOptions(), 2)
    devices = {
        f"{node.id}-{number}": Device(NodeSet([node.id]))
        for node in hardware.nodes
        for number in range(DEVICES)
    }
    topology = TopologyManager.of(
        hardware, TopologyPolicy.BEST_EFFORT, options=TopologyOptions(prefer_closest=closest)
    )
    memory = start(MemoryManagerPolicy.STATIC, hardware, {0: {"memory": GIB}}, FeatureGates())
    together = KubeletManagers(topology, cpus, DeviceManager({DEVICE: devices}))
    return together, ManagersState(cpus.start(CpuState()), memory)


def pod(number: int, hugepages: bool, rng: random.Random) -> PodSpec:
    """A pod of one container."""
    amounts = {"cpu": 1000 * rng.choice((1, 2, 4, 8, 20)), "memory": GIB * rng.choice((1, 4, 10, 30, 80))}
    if hugepages:
        amounts["hugepages-2Mi"] = GIB
    limits = amounts | {DEVICE: rng.choice((1, 1, 2, 5))}
    return PodSpec(f"pod{number}", (ContainerSpec("app", amounts, limits),))


def times_us(nodes: int, closest: bool, hugepages: bool, repeat: int) -> list[float]:
    """One time per pod."""
    rng = random.Random(nodes)
    together, state = engine(machine(nodes), closest)
    providers = tuple(together.providers())
    found = []
    for number in range(PODS_PER_NODE * nodes):
        spec = pod(number, hugepages, rng)
        best = float("inf")
        for _ in range(repeat):
            begin = time.perf_counter()
            together.topology.decide([each.hints(state, spec, spec.containers[0]) for each in providers])
            best = min(best, time.perf_counter() - begin)
        found.append(best * 1e6)
        admission = together.admit(state, spec)
        state = admission.state if admission.admitted else together.without_pod(admission.state, spec)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of which the fastest counts")
    repeat = parser.parse_args().repeat
    print(
        f"{'nodes':>5} {'hint lists':>10} {'narrowest: median':>18} {'worst':>8}"
        f" {'closest: median':>16} {'worst':>8}  [us]"
    )
    for nodes in SIZES:
        for hugepages in (False, True):
            columns = []
            for closest in (False, True):
                found = times_us(nodes, closest, hugepages, repeat)
                columns.append(f"{statistics.median(found):17.0f} {max(found):8.0f}")
            print(f"{nodes:5} {3 + hugepages:10} {' '.join(columns)}")


if __name__ == "__main__":
    main()
