"""What the daemon reads while nothing happens, beside 250 containers: counted by the kernel, on no clock.

All that is repeated for each container: what it holds, which cpuset it has, whether it runs.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from bayplan.config.settings import MemoryPressure
from bayplan.control.cpusets import Cpusets
from bayplan.control.ended_containers import EndedContainers
from bayplan.control.verify import Verifier, grounds_of
from bayplan.daemon.memory_pressure import COUNT_S, PressureWatch
from bayplan.daemon.page_relief import PageRelief
from bayplan.host.container_processes import Occupancy
from bayplan.host.live_memory import CHARGED_BYTES, UNCHANGED_S, ContainerMemory, HeldMemory
from bayplan.host.memory_statistics import HeldPages
from bayplan.model.decision import QosClass
from bayplan.quantity import GIB, MIB
from support.controllers import controlled, here
from support.live_nodes import LiveNodes
from support.machines import container, machine, pod
from support.oci_node import OciNode

CONTAINERS = 250
NODES = {0: 64 * GIB, 1: 64 * GIB}
CGROUP = "/kubepods/burstable/podp{0}/c{0}"


def reads() -> int:
    """How often this process has read from a file so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("syscr:")))


OVERHEAD = -reads() + reads()


async def read_by(work: Callable[[], Awaitable[object]]) -> int:
    before = reads()
    await work()
    return reads() - before - OVERHEAD


class AtRest:
    """The daemon's parts that look regularly, beside containers that run."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 1000.0
        self.live = LiveNodes(OciNode(directory), NODES)
        self.hierarchy = self.live.node.hierarchy
        self.memory = ContainerMemory(self.hierarchy, self.clock_s)
        self.held = HeldMemory(self.memory, self.hierarchy.root)

    def clock_s(self) -> float:
        return self.now_s

    def add(self, number: int) -> None:
        """A container that runs and holds something."""
        self.live.held[path := CGROUP.format(number)] = {0: 8 * MIB}
        self.live.node.make_cgroup(path)
        (self.live.node.directory(path) / "cgroup.events").write_text("populated 1\n")

    def measure(self) -> dict[int, int]:
        names = [(f"c{number}", CGROUP.format(number), "") for number in range(CONTAINERS)]
        return self.held.read(names, dict.fromkeys(NODES, 0))


def charged(one: AtRest, number: int, amount_bytes: int) -> None:
    (one.live.node.directory(CGROUP.format(number)) / "memory.current").write_text(f"{amount_bytes}\n")


async def test_what_is_read_at_rest_beside_many(tmp_path: Path) -> None:
    """Of each: what it is charged for, every 30 s; its cpuset only when somebody has written into its cgroup;
    and where its first process is not known, whether it has one, every ten seconds."""
    one = AtRest(tmp_path / "root")
    async with controlled(tmp_path / "state", on=machine(2, 36, 64 * GIB), became=None) as it:
        state = it.controller.state
        for number in range(CONTAINERS):
            owner = pod(f"p{number}", QosClass.BURSTABLE)
            assert f"{owner.cgroup_parent}/c{number}" == CGROUP.format(number)
            await it.controller.create_container(owner, container(f"c{number}", owner))
            one.add(number)
        one.live.write()
        for wanted in state.expectations():
            shown = one.live.node.directory(f"{wanted.cgroup_parent}/{wanted.container.id}")
            (shown / "cpuset.cpus.effective").write_text(f"{wanted.cpus}\n")
            (shown / "memory.oom.group").write_text(f"{int(wanted.oom_group)}\n")
        watch = PressureWatch(
            state,
            one.hierarchy,
            here,
            MemoryPressure.RELIEVE,
            PageRelief(one.hierarchy, GIB),
            it.promised_nodes(one.hierarchy, one.clock_s),
            memory=one.memory,
            clock_s=one.clock_s,
        )
        cpusets = Cpusets(one.hierarchy, state.expectations, here)
        verifier = Verifier(
            one.hierarchy,
            cpusets,
            state.expectations,
            here,
            grounds=lambda: grounds_of(state),
            most_files=9999,
        )
        ended = EndedContainers(
            it.controller,
            Occupancy(one.hierarchy, 9999),
            here,
            lambda _: {},
            lambda _: (),
            lambda _: None,
            one.clock_s,
        )

        async def measured() -> None:
            one.measure()

        parts = (
            (watch.look, CONTAINERS, 1),
            (measured, 0, 1),
            (lambda: verifier.verify(at_once=False), 0, 3),
            (ended.release_ended, CONTAINERS, 3),
        )
        for _ in range(2):
            for work, _, _ in parts:
                await work()
            one.now_s += COUNT_S
        assert (verifier.unrepaired, verifier.drift, len(state.ledger.entries)) == ({}, (), CONTAINERS)
        total = 0
        for work, most, times in parts:
            found = [await read_by(work) for _ in range(times)]
            assert max(found) <= most + 40, (work, found)
            total += sum(found)
        # With what is opened and read anew each time it was 6,600.
        assert total <= 4.5 * CONTAINERS


def test_only_who_is_charged_for_something_else_is_read_again(tmp_path: Path) -> None:
    one = AtRest(tmp_path / "root")
    for number in range(3):
        one.add(number)
    one.live.write()
    names = [(f"c{number}", CGROUP.format(number), "", {}) for number in range(3)]

    def look() -> list[HeldPages]:
        one.now_s += COUNT_S
        return [one.memory.recent(*name) for name in names]

    def hold(number: int, amounts_bytes: dict[int, int]) -> None:
        before = [one.live.node.directory(CGROUP.format(number)) / "memory.current" for number in range(3)]
        texts = [file.read_text() for file in before]
        one.live.held[CGROUP.format(number)] = amounts_bytes
        one.live.write()
        for file, text in zip(before, texts, strict=True):
            file.write_text(text)

    first = look()
    hold(1, {0: 9 * MIB})
    assert all(now is before for now, before in zip(look(), first, strict=True))
    charged(one, 1, 8 * MIB + CHARGED_BYTES)
    assert all(now is before for now, before in zip(look(), first, strict=True))
    charged(one, 1, 8 * MIB + CHARGED_BYTES + 1)
    now = look()
    assert [now[0] is first[0], now[2] is first[2]] == [True, True]
    assert now[1].of_processes_bytes == {0: 9 * MIB}
    hold(0, {1: 8 * MIB})
    one.now_s += UNCHANGED_S
    assert look()[0].of_processes_bytes == {1: 8 * MIB}


def test_a_heap_that_grows_instead_of_page_cache_is_not_taken_for_the_kernels(tmp_path: Path) -> None:
    """What the container is charged for stays the same."""
    one = AtRest(tmp_path / "root")
    for number in range(CONTAINERS):
        one.add(number)
    one.live.cache_bytes[0] = 2 * GIB
    one.live.write()
    before = one.measure()
    assert one.measure() == before
    one.live.held[CGROUP.format(7)] = {0: GIB}
    one.live.cache_bytes[0] = GIB
    one.live.write()
    one.now_s += COUNT_S
    assert one.measure() == before
