"""A node of two NUMA nodes of 4 GiB without huge pages, whose pools of 2Mi may grow to 2 GiB: a controller on
a kernel, and the owner of its pools."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bayplan.config.settings import Settings
from bayplan.daemon.hardware import Hardware, Host, Measurement
from bayplan.daemon.shadow import Parts
from bayplan.host.hugepage_files import HugepageFiles
from bayplan.host.sysfs import read_machine
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, QosClass
from bayplan.model.policy import PoolBounds, TopologyPolicy
from bayplan.model.resources import Resources
from bayplan.model.workload import Container
from bayplan.nri import Event
from bayplan.placement.shortfall import overclaims
from bayplan.quantity import GIB, MIB
from support.controllers import Controlled, controlled, here
from support.hugepage_kernel import HugepageKernel
from support.machines import machine, pod

SIZE = 2 * MIB
PAGES = "hugepages-2Mi"
MACHINE = machine(2, cpus_per_node=4, memory_bytes=4 * GIB, hugepages_bytes={SIZE: 0})
BOUNDS = PoolBounds(0, 2 * GIB)
SETTINGS = Settings(
    eviction_hard={"memory.available": None},
    measured_reservation=False,
    topology=TopologyPolicy.SINGLE_NUMA_NODE,
    hugepage_pools={0: {SIZE: BOUNDS}, 1: {SIZE: BOUNDS}},
)
FREE = {0: 4 * GIB, 1: 4 * GIB}


class PoolNode:
    """A controller on a kernel, and the owner of its pools."""

    def __init__(
        self, kernel: HugepageKernel, hardware: Hardware, made: Controlled, settings: Settings
    ) -> None:
        self.kernel, self.hardware, self.controller, self.now_s = kernel, hardware, made.controller, 0.0
        hardware.attach(made.controller.state, made.verify_soon)
        files = HugepageFiles(kernel.root, kernel.write)
        self.pools = Parts.of_process().hugepage_pools(
            made.controller.state, hardware, files, here, here, 1.0, lambda: self.now_s
        )
        self.made = made
        made.grow_pools = self.pools.grow

    async def place(self, name: str, pages: int, memory: int = 64 * MIB) -> Decision:
        owner = pod(name, QosClass.GUARANTEED)
        await self.controller.create_container(owner, with_pages(name, pages, memory))
        return self.controller.state.ledger.entries[name].decision

    async def end(self, name: str) -> None:
        owner = pod(name, QosClass.GUARANTEED)
        await self.controller.state_changed(Event.REMOVE_CONTAINER, owner, with_pages(name, 0, 0))

    async def pass_time(self, seconds: float) -> None:
        await self.pools.look()
        self.now_s += seconds
        await self.pools.look()

    def check(self) -> None:
        """Decisions see the kernel's pools, and all that is promised fits beside them."""
        basis = self.controller.state.basis
        for node in basis.machine.nodes:
            assert node.hugepages_bytes[SIZE] == self.kernel.pages(node.id, SIZE) * SIZE
        fits(basis)


def fits(basis: Basis) -> None:
    assert tuple(overclaims(basis)) == ()


def with_pages(name: str, pages: int, memory: int) -> Container:
    owner = pod(name, QosClass.GUARANTEED)
    limits = {SIZE: pages * SIZE} if pages else {}
    resources = Resources(
        memory_limit_bytes=memory or None,
        cpu_shares=512,
        cpu_quota_us=50_000,
        cpu_period_us=100_000,
        hugepage_limits_bytes=limits,
    )
    return Container(name, owner.id, name, resources=resources)


@asynccontextmanager
async def pool_node(
    directory: Path, kernel: HugepageKernel, settings: Settings = SETTINGS
) -> AsyncIterator[PoolNode]:
    host = Host(partial(read_machine, kernel.root), lambda *_: Measurement({}, {}, {}))
    hardware = Hardware(settings, host, here)
    async with controlled(directory, hardware.policy, on=hardware.machine) as made:
        yield PoolNode(kernel, hardware, made, settings)


def pool_kernel(
    directory: Path,
    free: Mapping[int, int] = FREE,
    scattered: Mapping[int, int] | None = None,
    *,
    compaction: bool = True,
) -> HugepageKernel:
    return HugepageKernel(directory / "kernel", MACHINE, free, scattered, compaction=compaction)
