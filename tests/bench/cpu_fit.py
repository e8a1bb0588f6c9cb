"""Whole cores and caches that stay while pods come and go: ``python tests/bench/cpu_fit.py [--events N]
[--draws N]``.

Random pods with CPUs of their own, 1 to 16, on machines as they are sold, four fifths of whose CPUs are
taken. Played on the engine `exact`, on kubelet's rules with `prefer-align-cpus-by-uncorecache` (the engine
`kubelet`), and on the CPU allocator of nri-plugins through the Go program in cpuallocator/, asked for
CPUs of the node with the fewest that suffice. CPU 0 is reserved.

Prints per machine and allocator, as means over all draws and all moments after the first tenth of each: how
many cores are whole of those that the free CPUs could make up, and how many L3 caches; and of all pods how
many have CPUs at more caches than it takes, or share more cores with others than it takes.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from msgspec.structs import replace
from testbed.errors import TestBedError
from testbed.gobuild import compiled

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.kubelet.manager_options import CpuOptions, ManagerOptions
from bayplan.model.basis import Basis
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import KeepWhole, PlacementPolicy
from bayplan.quantity import MIB, MILLI_PER_CPU
from bayplan.sets import CpuSet
from support.layouts import LAYOUTS
from support.requests import guaranteed_request
from support.sysfs import SYSTEM, SysfsTree

MACHINES = ("Rome 7742", "Genoa 9654", "Milan 7763, NPS4", "Xeon, SNC off")
SIZES = (1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16)
TAKEN = 0.8
RESERVED = CpuSet([0])
ALLOCATOR = Path(__file__).parent / "cpuallocator"


class Allocator(Protocol):
    """What gives pods their CPUs."""

    name: str

    def come(self, pod: str, count: int, free: CpuSet) -> CpuSet:
        """*count* of the *free* CPUs, or none."""
        ...

    def go(self, pod: str) -> None:
        """The pod has ended."""
        ...


class Ours:
    """An engine of bayplan."""

    def __init__(
        self, name: str, hardware: Machine, engine: Engine, keep_whole: KeepWhole = KeepWhole.CACHE
    ) -> None:
        self.name, self._hardware, self._engine = name, hardware, engine
        policy = PlacementPolicy(reserved_cpus=RESERVED, shared_cpus_minimum=0)
        self._policy, self._ledger = replace(policy, keep_whole=keep_whole), Ledger()

    def come(self, pod: str, count: int, free: CpuSet) -> CpuSet:
        del free
        request = replace(guaranteed_request(pod, MIB, count), cpu_milli=count * MILLI_PER_CPU)
        decision = self._engine.decide(Basis(self._hardware, self._policy, self._ledger), request)
        if decision.placement.exclusive_cpus:
            self._ledger = self._ledger.with_entry(Entry(decision))
        return decision.placement.exclusive_cpus

    def go(self, pod: str) -> None:
        self._ledger = self._ledger.without(pod)


class Cpuallocator:
    """nri-plugins' allocator in a process of its own."""

    name = "nri-plugins"

    def __init__(self, hardware: Machine, program: Path, folder: Path) -> None:
        self._hardware = hardware
        _tree(hardware).write(folder)
        self._process = subprocess.Popen(
            [program, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def come(self, pod: str, count: int, free: CpuSet) -> CpuSet:
        del pod
        nodes = [node.cpus & free for node in self._hardware.nodes]
        enough = [cpus for cpus in nodes if len(cpus) >= count]
        chosen = min(enough, key=len, default=free)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{chosen} {count}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        return CpuSet() if answer.startswith("!") else CpuSet.parse(answer)

    def go(self, pod: str) -> None:
        """It keeps nothing."""

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _tree(hardware: Machine) -> SysfsTree:
    """What sysfs says of *hardware*, with the files that nri-plugins reads beside ours."""
    tree = SysfsTree(hardware)
    for name in ("possible", "present"):
        tree.files[f"{SYSTEM}/cpu/{name}"] = f"{hardware.online_cpus}\n"
    tree.files[f"{SYSTEM}/cpu/isolated"] = "\n"
    for name in ("has_normal_memory", "has_memory", "has_cpu", "possible"):
        tree.files[f"{SYSTEM}/node/{name}"] = f"{hardware.node_ids}\n"
    for cpu in hardware.cpus:
        topology, caches = (f"{SYSTEM}/cpu/cpu{cpu.id}/{name}" for name in ("topology", "cache"))
        siblings = tree.files[f"{topology}/core_cpus_list"]
        ids = {"core_id": f"{cpu.core_id}\n", "cluster_id": f"{cpu.core_id}\n", "die_id": "0\n"}
        lists = dict.fromkeys(("thread_siblings_list", "cluster_cpus_list"), siblings)
        tree.files.update({f"{topology}/{name}": text for name, text in {**ids, **lists}.items()})
        for index, (level, kind) in enumerate(
            ((1, "Data"), (1, "Instruction"), (2, "Unified"), (3, "Unified"))
        ):
            of_core, below = level < 3, f"{caches}/index{index}"
            tree.files[f"{below}/id"] = f"{cpu.core_id if of_core else cpu.l3_cache_id}\n"
            tree.files[f"{below}/size"] = "1024K\n"
            if of_core:
                tree.files[f"{below}/level"], tree.files[f"{below}/type"] = f"{level}\n", f"{kind}\n"
                tree.files[f"{below}/shared_cpu_list"] = siblings
    return tree


class Score:
    """What stayed whole, and what did not, on one machine with one allocator."""

    def __init__(self, hardware: Machine) -> None:
        self._hardware = hardware
        self._cores, self._caches = (
            [CpuSet(members) for members in groups.values()]
            for groups in (_groups(hardware, "core_id"), _groups(hardware, "l3_cache_id"))
        )
        self.cores, self.caches, self.moments = 0.0, 0.0, 0
        self.pods = self.apart = self.sharing = self.refused = 0

    def moment(self, free: CpuSet) -> None:
        """Count what is whole."""
        self.moments += 1
        for groups, name in ((self._cores, "cores"), (self._caches, "caches")):
            most = len(free) // len(groups[0])
            whole = sum(group <= free for group in groups)
            setattr(self, name, getattr(self, name) + (whole / most if most else 1))

    def pod(self, cpus: CpuSet) -> None:
        """Count a pod with *cpus*."""
        self.pods += 1
        at = sum(not group.isdisjoint(cpus) for group in self._caches)
        split = sum(not group.isdisjoint(cpus) and not group <= cpus for group in self._cores)
        self.apart += at > -(-len(cpus) // len(self._caches[0]))
        self.sharing += split > (len(cpus) % len(self._cores[0]) > 0)

    def row(self, machine: str, name: str) -> str:
        """A row of the table."""
        cores, caches = (total / self.moments for total in (self.cores, self.caches))
        apart, sharing = self.apart / self.pods, self.sharing / self.pods
        return (
            f"{machine:18} {name:16} {cores:8.1%} {caches:8.1%} {apart:10.1%} {sharing:10.1%}"
            f" {self.refused:8} of {self.pods + self.refused}"
        )


def _groups(hardware: Machine, key: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for cpu in hardware.cpus:
        found.setdefault(getattr(cpu, key), []).append(cpu.id)
    return found


def play(hardware: Machine, allocator: Allocator, events: int, seed: int, score: Score) -> None:
    """Let pods come and go, and all go at the end; the draws are the same for every allocator."""
    draw, free = random.Random(seed), hardware.online_cpus - RESERVED
    pods: dict[str, CpuSet] = {}
    for number in range(events):
        count, leaving = draw.choice(SIZES), draw.random()
        if pods and len(free) - count < (1 - TAKEN) * len(hardware.cpus):
            pod = list(pods)[int(leaving * len(pods))]
            allocator.go(pod)
            free |= pods.pop(pod)
        else:
            name = f"c{number}"
            cpus = allocator.come(name, count, free)
            if cpus:
                score.pod(cpus)
                pods[name] = cpus
                free -= cpus
            else:
                score.refused += 1
        if number >= events // 10:
            score.moment(free)
    for pod in pods:
        allocator.go(pod)


def allocators(hardware: Machine, program: Path | None) -> Iterator[Allocator]:
    """All that are compared."""
    yield Ours("exact", hardware, ExactEngine())
    yield Ours("exact, keep off", hardware, ExactEngine(), KeepWhole.OFF)
    uncore = CpuOptions(prefer_align_cpus_by_uncorecache=True)
    yield Ours("kubelet", hardware, KubeletEngine(ManagerOptions(cpu_options=uncore)))
    if program is not None:
        with tempfile.TemporaryDirectory() as folder:
            allocator = Cpuallocator(hardware, program, Path(folder))
            yield allocator
            allocator.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000, help="arrivals and departures per machine")
    parser.add_argument("--machine", choices=MACHINES, action="append", help="on these alone")
    parser.add_argument("--seed", type=int, default=0, help="the first draw of pods")
    parser.add_argument("--draws", type=int, default=16, help="how many draws")
    options = parser.parse_args()
    try:
        program = compiled(ALLOCATOR, "cpuallocator-replay")
    except TestBedError as error:
        program = None
        print(f"Without nri-plugins: {error}")
    print(
        f"{'machine':18} {'allocator':16} {'cores':>8} {'caches':>8} {'more caches':>10} {'more split':>10}"
        f" {'refused':>8}"
    )
    for name in options.machine or MACHINES:
        hardware = LAYOUTS[name].machine()
        for allocator in allocators(hardware, program):
            score = Score(hardware)
            for seed in range(options.seed, options.seed + options.draws):
                play(hardware, allocator, options.events, seed, score)
            print(score.row(name, allocator.name), flush=True)


if __name__ == "__main__":
    main()
