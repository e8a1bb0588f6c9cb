"""Hot-plug and measurements reach the controller: no storms, no promise taken back, reported once."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.config.settings import Settings
from bayplan.daemon.hardware import HUGEPAGES, MEMORY_SIZE, Hardware, Host, Measurement, measure
from bayplan.engines.interface import KUBELET
from bayplan.errors import ConfigError, HostError, PlacementError
from bayplan.host.changed_files import ChangedFiles
from bayplan.host.cpu_partitions import CpuPartitions
from bayplan.host.hierarchy import CPUSET, Hierarchy, Layout
from bayplan.host.hierarchy import MEMORY as MEMORY_CONTROLLER
from bayplan.host.live_memory import ContainerMemory, HeldMemory
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.workload import Container, Pod
from bayplan.placement.measured_reservation import LOWER_BEFORE_FALL, SMALLEST_BAND_BYTES
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet, cpus_text
from support.controllers import Controlled, controlled, here, runtime
from support.coroutines import PATIENCE_S
from support.machines import container, machine, pod

MACHINE = machine(2, cpus_per_node=4, memory_bytes=4 * GIB)
PLAIN = Settings(eviction_hard={"memory.available": None})


class FakeHost:
    """A machine that tests take apart, and what they say is held on it."""

    def __init__(self) -> None:
        self.machine = MACHINE
        self.held_bytes = {0: 100 * MIB, 1: 100 * MIB}
        self.pools: dict[int, dict[int, int]] = {0: {}, 1: {}}
        self.sizes: dict[int, int] = {}
        self.problem: HostError | None = None
        self.lost = CpuSet()
        self.readings = 0
        self.measured: list[list[str]] = []
        self.measured_thrice = asyncio.Event()

    def read(self) -> Machine:
        self.readings += 1
        if self.problem is not None:
            raise self.problem
        return self.machine.without_cpus(self.lost) if self.lost else self.machine

    def measure(self, containers: Any, _: Any) -> Measurement:
        self.measured.append([one.id for _, one in containers])
        if len(self.measured) == 3:
            self.measured_thrice.set()
        if self.problem is not None:
            raise self.problem
        sizes = {node.id: self.sizes.get(node.id, node.memory_bytes) for node in self.machine.nodes}
        return Measurement(dict(self.held_bytes), self.pools, sizes, self.lost)

    def lose_cpus(self, *cpus: int) -> None:
        gone = CpuSet(cpus)
        self.machine = Machine(
            tuple(replace(node, cpus=node.cpus - gone) for node in self.machine.nodes),
            tuple(replace(cpu, online=cpu.online and cpu.id not in gone) for cpu in self.machine.cpus),
        )

    def resize(self, node: int, memory_bytes: int) -> None:
        nodes = (replace(one, memory_bytes=memory_bytes) if one.id == node else one for one in MACHINE.nodes)
        self.machine = Machine(tuple(nodes), self.machine.cpus)

    def lose_node(self, gone: int) -> None:
        self.machine = Machine(
            tuple(node for node in MACHINE.nodes if node.id != gone),
            tuple(cpu for cpu in MACHINE.cpus if cpu.node_id != gone),
        )


class Bench:
    """Hardware with a controller, and what it did."""

    def __init__(self, host: FakeHost, hardware: Hardware, made: Controlled) -> None:
        self.host, self.hardware, self.made = host, hardware, made
        self.controller = made.controller
        self.verified = asyncio.Event()

    def verify_soon(self) -> None:
        self.made.verify_soon()
        self.verified.set()

    async def place(self, name: str, memory_bytes: int, milli_cpus: int = 500) -> NodeSet | None:
        owner = pod(name, QosClass.GUARANTEED)
        one = container(name, owner, memory_bytes=memory_bytes, milli_cpus=milli_cpus)
        await self.controller.create_container(owner, one)
        return self.controller.state.ledger.entries[name].decision.placement.mems

    async def reread(self) -> None:
        await self.hardware.reread(frozenset({"memory"}))

    def reserved(self, node: int) -> int:
        return self.controller.state.policy.reserved_bytes.get(node, {}).get(MEMORY, 0)


async def begin(one: Bench) -> None:
    """What the daemon does at its start."""
    recorder = one.controller.state.recorder
    await one.hardware.begin(await recorder.held_memory(), recorder.record_learned)


def shorts(ledger: Ledger) -> set[str]:
    """Who was promised less than was asked for."""
    claims = {key: entry.decision.placement.claim for key, entry in ledger.entries.items()}
    return {key for key, claim in claims.items() if claim is not None and claim.short_bytes}


@asynccontextmanager
async def bench(directory: Path, settings: Settings = PLAIN):
    host = FakeHost()
    hardware = Hardware(settings, Host(host.read, host.measure), here)
    async with controlled(directory, hardware.policy, on=hardware.machine) as made:
        one = Bench(host, hardware, made)
        hardware.attach(made.state, one.verify_soon)
        made.before_promises.append(hardware.measure_listed)
        yield one


async def test_an_operator_reads_what_was_left_out_of_the_kernels_description(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        one.host.machine = replace(one.host.machine, remarks=("the distances were left out",))
        await one.reread()
        assert one.hardware.problems() == ("the distances were left out",)


async def test_cpus_that_the_kernel_gives_to_nobody_are_given_to_nobody(tmp_path: Path) -> None:
    """Until it gives them to others again: they are found by a measurement, without an event."""
    async with bench(tmp_path) as one:
        lost = one.controller.state.basis.allocatable.exclusive_cpus - CpuSet([1, 2])
        one.host.lost = lost
        following = asyncio.create_task(one.hardware.follow(0))
        await one.hardware.measure_once()
        await one.verified.wait()
        (problem,) = one.hardware.problems()
        assert cpus_text(lost) in problem
        await one.place("own", 100 * MIB, milli_cpus=2000)
        assert one.controller.state.ledger.exclusive_cpus == CpuSet([1, 2])
        assert one.controller.state.basis.shared_cpus.isdisjoint(lost)
        await one.place("none-left", 100 * MIB, milli_cpus=2000)
        assert one.controller.state.ledger.exclusive_cpus == CpuSet([1, 2])
        one.host.lost = CpuSet()
        one.verified.clear()
        await one.hardware.measure_once()
        await one.verified.wait()
        assert one.hardware.problems() == ()
        await one.place("again", 100 * MIB, milli_cpus=2000)
        assert len(one.controller.state.ledger.exclusive_cpus) == 4
        following.cancel()


class TestHotPlug:
    async def test_memory_that_comes_is_used_without_a_restart(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            one.host.resize(0, 16 * GIB)
            await one.reread()
            assert await one.place("large", 10 * GIB) == NodeSet([0])
            assert one.made.verifications == 1

    async def test_memory_that_leaves_is_reported_once_and_takes_nothing_new(self, tmp_path, caplog) -> None:
        async with bench(tmp_path) as one:
            await one.place("first", 3 * GIB)
            one.host.resize(0, 2 * GIB)
            with caplog.at_level(logging.WARNING):
                await one.reread()
                one.host.lose_cpus(7)
                await one.reread()
            (problem,) = one.hardware.problems()
            assert problem.startswith("node 0 has 2Gi ")
            assert "default/first/first-name" in problem
            assert one.controller.state.counters["capacity_shortfalls"] == 1
            assert [record.message for record in caplog.records].count(
                "the machine has less than was promised"
            ) == 1
            assert await one.place("second", 500 * MIB) == NodeSet([1])

    async def test_it_is_said_when_everything_is_there_again(self, tmp_path, caplog) -> None:
        async with bench(tmp_path) as one:
            await one.place("first", 3 * GIB)
            one.host.resize(0, 2 * GIB)
            await one.reread()
            one.host.resize(0, 4 * GIB)
            with caplog.at_level(logging.INFO):
                await one.reread()
            assert one.hardware.problems() == ()
            assert "all promised capacity is available again" in caplog.messages

    async def test_a_node_that_disappears_with_its_cpus(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            await one.place("first", GIB)
            await one.place("second", 4 * GIB - 100 * MIB, milli_cpus=2000)
            one.host.held_bytes[1] = 10 * MIB
            await one.hardware.measure_once()
            one.host.lose_node(1)
            await one.reread()
            gone, cpus = one.hardware.problems()
            assert [fact for fact in ("node 1 ", "3996Mi", "default/second/") if fact not in gone] == []
            assert [fact for fact in ("default/second/", "CPUs 4-5") if fact not in cpus] == []
            assert await one.place("third", GIB) == NodeSet([0])
            owner = pod("second")
            await one.controller.stop_container(owner, Container("second", owner.id))
            assert one.hardware.problems() == ()

    async def test_settings_that_fit_no_more_do_not_hide_what_left(self, tmp_path: Path) -> None:
        reserving = replace(PLAIN, reserved_memory={0: {MEMORY: GIB}, 1: {MEMORY: GIB}})
        async with bench(tmp_path, reserving) as one:
            one.host.lose_node(1)
            await one.reread()
            assert one.controller.state.machine.node_ids == NodeSet([0])
            (problem,) = one.hardware.problems()
            assert "the settings do not fit the machine any more" in problem
            assert "node 1" in problem
            assert one.reserved(0) == GIB

    async def test_a_machine_that_cannot_be_read_changes_nothing(self, tmp_path: Path, caplog) -> None:
        async with bench(tmp_path) as one:
            one.host.problem = HostError("/sys/x", "is garbled")
            await one.reread()
            assert one.controller.state.machine == MACHINE
            assert caplog.records[-1].problem == "/sys/x: is garbled"

    async def test_a_storm_of_events_is_few_readings_and_none_is_lost(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            reading, go_on = asyncio.Event(), asyncio.Event()

            async def slowly(work: Callable[[], Any]) -> Any:
                found = work()
                reading.set()
                await go_on.wait()
                return found

            one.hardware._in_thread = slowly
            task = asyncio.create_task(one.hardware.follow(pause_s=0))
            before = one.host.readings
            async with asyncio.timeout(PATIENCE_S):
                one.hardware.changed(frozenset({"memory"}))
                await reading.wait()
                # These come after sysfs was read and before it was taken over.
                one.host.resize(1, 8 * GIB)
                for _ in range(1000):
                    one.hardware.changed(frozenset({"memory"}))
                one.verified.clear()
                go_on.set()
                await one.verified.wait()
            assert one.controller.state.machine.node_by_id[1].memory_bytes == 8 * GIB
            assert one.host.readings == before + 2
            task.cancel()

    async def test_a_decision_in_progress_keeps_its_machine(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            one.host.resize(0, 8 * GIB)
            async with one.controller.state.transaction():
                await one.reread()
                assert one.controller.state.machine == MACHINE
            assert one.controller.state.machine.node_by_id[0].memory_bytes == 8 * GIB


class TestDeviceMemory:
    OWNED = replace(PLAIN, device_memory={1: "gpu0", 77: "gpu1"})

    async def test_the_operator_knows_best_who_owns_a_node(self, tmp_path: Path) -> None:
        async with bench(tmp_path, self.OWNED) as one:
            assert one.controller.state.machine.ordinary_nodes == NodeSet([0])
            one.hardware.take_settings(PLAIN)
            assert one.controller.state.machine.ordinary_nodes == NodeSet([0, 1])


class TestMeasuredReservation:
    async def test_what_is_held_is_kept_from_containers(self, tmp_path: Path) -> None:
        strict = replace(PLAIN, topology=TopologyPolicy.SINGLE_NUMA_NODE)
        async with bench(tmp_path, strict) as one:
            await one.hardware.measure_once()
            assert one.reserved(0) == 100 * MIB + SMALLEST_BAND_BYTES
            known = one.hardware.reservations()[0]
            assert (known.configured_bytes, known.held_bytes) == (0, 100 * MIB)
            assert known.measured_us
            with pytest.raises(PlacementError, match="asks for 3996Mi on one node"):
                await one.place("large", 4 * GIB - 100 * MIB)

    async def test_what_is_held_is_kept_whatever_was_promised(self, tmp_path: Path, caplog) -> None:
        async with bench(tmp_path) as one:
            await one.place("first", 3 * GIB)
            one.host.held_bytes[0] = 2 * GIB
            with caplog.at_level(logging.WARNING):
                await one.hardware.measure_once()
                one.host.held_bytes[0] += GIB
                await one.hardware.measure_once()
            assert one.reserved(0) == 3 * GIB
            (problem,) = one.hardware.problems()
            assert problem.startswith("node 0 has 1Gi for containers, 3Gi ")
            assert "default/first/first-name" in problem
            assert caplog.messages.count("the machine has less than was promised") == 1
            assert await one.place("second", 100 * MIB) == NodeSet([1])

    async def test_what_is_beside_what_is_held_is_given_up_for_promises(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            await one.place("first", 4 * GIB - 200 * MIB)
            one.host.held_bytes[0] = 190 * MIB
            await one.hardware.measure_once()
            assert one.reserved(0) == 200 * MIB
            assert one.hardware.problems() == ()
            assert await one.place("second", MIB) == NodeSet([1])

    async def test_a_small_overclaim_gives_nothing_away(self, tmp_path: Path) -> None:
        async with bench(tmp_path, replace(PLAIN, topology=TopologyPolicy.NONE)) as one:
            held = one.host.held_bytes
            held.update({0: 512 * MIB, 1: 512 * MIB})
            await one.hardware.measure_once()
            await one.place("most", 7 * GIB - 70 * MIB)
            held.update({0: 550 * MIB, 1: 550 * MIB})
            await one.hardware.measure_once()
            assert (one.reserved(0), one.reserved(1)) == (550 * MIB, 550 * MIB)
            (problem,) = one.hardware.problems()
            assert problem.startswith("nodes 0-1 have 7092Mi ")
            assert ", 1100Mi are held " in problem

    async def test_a_promise_made_while_the_policy_was_prepared_is_kept(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            one.host.held_bytes[0] = 2 * GIB

            async def meanwhile(work: Callable[[], Any]) -> Any:
                found = work()
                if isinstance(found, PlacementPolicy):
                    assert found.reserved_bytes[0][MEMORY] > 2 * GIB
                    await one.place("quick", 3 * GIB)
                return found

            one.hardware._in_thread = meanwhile
            await one.hardware.measure_once()
            assert one.controller.state.ledger.entries["quick"].decision.placement.mems == NodeSet([0])
            assert one.reserved(0) == 2 * GIB

    async def test_explicit_reservations_win_for_their_node(self, tmp_path: Path) -> None:
        async with bench(tmp_path, replace(PLAIN, reserved_memory={0: {MEMORY: 10 * MIB}})) as one:
            await one.hardware.measure_once()
            assert one.reserved(0) == 10 * MIB
            assert one.reserved(1) == 100 * MIB + SMALLEST_BAND_BYTES

    async def test_budgets_for_the_same_processes_are_not_added(self, tmp_path: Path) -> None:
        async with bench(tmp_path, replace(PLAIN, system_reserved={MEMORY: 2 * GIB})) as one:
            await one.hardware.measure_once()
            assert one.reserved(0) == GIB
            one.host.held_bytes[0] = 2 * GIB
            await one.hardware.measure_once()
            assert one.reserved(0) == 2 * GIB + SMALLEST_BAND_BYTES

    @pytest.mark.parametrize("settings", [{"measured_reservation": False}, {"engine": KUBELET}])
    async def test_it_can_be_switched_off(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        async with bench(tmp_path) as one:
            await one.hardware.measure_once()
            one.hardware._settings = replace(PLAIN, **settings)
            await one.hardware.measure_once()
            assert one.hardware.learned == {}
            assert len(one.host.measured) == 2
            one.host.pools = {0: {2 * MIB: 64 * MIB}, 1: {}}
            await one.hardware.measure_once()
            assert one.hardware._reasons == {HUGEPAGES}

    async def test_nothing_is_learned_before_the_runtime_listed_recorded_containers(
        self, tmp_path: Path
    ) -> None:
        async with bench(tmp_path) as one:
            await one.place("first", GIB)
        async with bench(tmp_path) as again:
            assert "first" in again.controller.state.ledger.entries
            await again.hardware.measure_once()
            assert (again.host.measured, again.hardware.learned) == ([[]], {})
            owner = pod("first")
            listed = container("first", owner, memory_bytes=GIB, milli_cpus=500)
            await again.controller.synchronize([owner], [listed])
            assert again.host.measured[1:] == [["first"]]
            assert again.hardware.learned.keys() == {0, 1}

    async def test_what_looked_like_others_before_a_runtime_connected_is_forgotten(
        self, tmp_path: Path
    ) -> None:
        async with bench(tmp_path) as one:
            one.host.held_bytes[0] = 3 * GIB
            await one.hardware.measure_once()
            one.controller.state.counters["connections"] += 1
            one.host.held_bytes[0] = 100 * MIB
            await one.hardware.measure_once()
            assert one.reserved(0) == 100 * MIB + SMALLEST_BAND_BYTES

    async def test_capacities_do_not_follow_noise(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            policies = set()
            for round_ in range(3 * LOWER_BEFORE_FALL):
                one.host.held_bytes[0] = (100 + round_ % 7) * MIB
                await one.hardware.measure_once()
                policies.add(id(one.controller.state.policy))
            assert len(policies) == 1

    async def test_a_failure_is_logged_once(self, tmp_path: Path, caplog) -> None:
        async with bench(tmp_path) as one:
            one.host.problem = HostError("/sys/x", "is garbled")
            await one.hardware.measure_once()
            await one.hardware.measure_once()
            assert caplog.messages == ["memory held outside of containers cannot be measured"]
            assert one.hardware.learned == {}

    async def test_huge_pages_that_were_set_aside_silently_are_noticed(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            one.host.pools = {0: {2 * MIB: 64 * MIB}, 1: {}}
            one.host.machine = Machine(
                (replace(MACHINE.nodes[0], hugepages_bytes={2 * MIB: 64 * MIB}), MACHINE.nodes[1]),
                MACHINE.cpus,
            )
            await one.hardware.measure_once()
            assert one.hardware._reasons == {HUGEPAGES}
            await one.reread()
            assert one.controller.state.machine.nodes[0].hugepages_bytes == {2 * MIB: 64 * MIB}

    async def test_memory_that_a_balloon_took_is_noticed(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            await one.hardware.measure_once()
            assert one.hardware._reasons == set()
            one.host.sizes = {0: 3 * GIB}
            await one.hardware.measure_once()
            assert one.hardware._reasons == {MEMORY_SIZE}
            one.host.resize(0, 3 * GIB)
            await one.reread()
            assert one.controller.state.machine.node_by_id[0].memory_bytes == 3 * GIB

    async def test_what_was_learned_counts_after_a_restart_until_it_is_measured(self, tmp_path: Path) -> None:
        """Nothing that was short is made up for with memory that is held."""

        owner = pod("g")
        wide = container("wide", owner, memory_bytes=5 * GIB, milli_cpus=500)
        short = container("short", owner, memory_bytes=2 * GIB, milli_cpus=500)
        async with bench(tmp_path) as one:
            one.host.held_bytes = {0: GIB, 1: GIB}
            await begin(one)
            for each in (wide, short):
                await one.controller.create_container(owner, each)
            kept = one.reserved(0), one.reserved(1)
            assert kept == (GIB + SMALLEST_BAND_BYTES, GIB + SMALLEST_BAND_BYTES)
            before = one.controller.state.ledger
            assert shorts(before) == {"short"}
        async with bench(tmp_path) as again:
            again.host.held_bytes = {0: GIB, 1: GIB}
            await begin(again)
            assert (again.reserved(0), again.reserved(1)) == kept
            assert again.host.measured == []  # The runtime has not listed what runs.
            again.controller.connected(runtime("0.12.0"))
            room = again.made.room_due
            await again.controller.synchronize([owner], [wide, short])
            assert again.host.measured == [["wide", "short"]]
            assert room.is_set()
            assert shorts(again.controller.state.ledger) == {"short"}
            assert again.hardware.learned[0].reserved_bytes == kept[0]

    async def test_where_nothing_is_recorded_it_measures_before_anything_is_placed(
        self, tmp_path: Path
    ) -> None:
        async with bench(tmp_path) as one:
            one.host.held_bytes[0] = 3 * GIB
            await begin(one)
            assert one.reserved(0) == 3 * GIB + SMALLEST_BAND_BYTES
            # Some of it was a container's, which nobody had listed yet.
            one.host.held_bytes[0] = GIB
            one.controller.connected(runtime("0.12.0"))
            async with one.controller.state.transaction():
                synchronizing = asyncio.create_task(one.controller.synchronize([], []))
                placing = asyncio.create_task(one.place("next", 100 * MIB))
                await asyncio.sleep(0)
            await synchronizing
            assert one.reserved(0) == GIB + SMALLEST_BAND_BYTES
            assert await placing == NodeSet([0])

    async def test_a_measurement_that_hangs_holds_up_no_runtime(self, tmp_path: Path, caplog) -> None:
        async with bench(tmp_path) as one:

            async def never(_: Callable[[], Any]) -> Any:
                await asyncio.Event().wait()

            one.hardware._in_thread = never
            await one.controller.synchronize([], [])
            assert "measurement not finished in time" in caplog.text
            assert one.hardware._is_first_due

    async def test_a_reconnected_runtime_starts_the_measurements_afresh_and_loses_none(
        self, tmp_path: Path
    ) -> None:
        async with bench(tmp_path) as one:
            await begin(one)
            one.controller.connected(runtime("0.12.0"))
            one.host.held_bytes[0] = 2 * GIB
            await one.controller.synchronize([], [])
            one.controller.connected(runtime("0.12.0"))
            assert one.reserved(0) == 2 * GIB + SMALLEST_BAND_BYTES
            one.host.held_bytes[0] = GIB
            await one.controller.synchronize([], [])
            assert one.reserved(0) == GIB + SMALLEST_BAND_BYTES

    async def test_it_measures_for_ever(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as one:
            task = asyncio.create_task(one.hardware.measure_for_ever(first_s=0, interval_s=0))
            async with asyncio.timeout(PATIENCE_S):
                await one.host.measured_thrice.wait()
            task.cancel()
            assert one.reserved(0) == 100 * MIB + SMALLEST_BAND_BYTES


async def test_settings_the_machine_cannot_meet_are_refused_before_anything_changes(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        with pytest.raises(ConfigError):
            one.hardware.policy_for(replace(PLAIN, reserved_memory={5: {MEMORY: GIB}}))
        assert one.controller.state.policy == one.hardware.policy


def test_the_measurement_itself_on_cgroups_and_nodes_below_a_root(tmp_path: Path) -> None:
    cgroup = tmp_path / "sys/fs/cgroup/kubepods/c1"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.numa_stat").write_text(
        f"inactive_anon N0={30 * MIB}\nactive_anon\nunevictable N0={MIB}\n"
    )
    node = tmp_path / "sys/devices/system/node/node0"
    (node / "hugepages/hugepages-2048kB").mkdir(parents=True)
    (node / "hugepages/hugepages-2048kB/nr_hugepages").write_text("16\n")
    (node / "meminfo").write_text("Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 524288 kB\n")
    mount = str(tmp_path / "sys/fs/cgroup")
    hierarchy = Hierarchy(Layout.UNIFIED, {CPUSET: mount, MEMORY_CONTROLLER: mount}, {"": "/"}, root=tmp_path)
    there = Container("c1", "p", cgroups_path="/kubepods/c1")
    gone = Container("c2", "p", cgroups_path="/kubepods/c2")
    (tmp_path / "sys/fs/cgroup/cpuset.cpus.isolated").write_text("3\n")
    partitions = CpuPartitions(mount, ChangedFiles(None))
    everybody = [(Pod("p"), there), (Pod("p"), gone)]
    held = HeldMemory(ContainerMemory(hierarchy), hierarchy.root)
    found = measure(hierarchy, held, partitions, everybody, [0])
    assert found.lost_cpus == CpuSet([3])
    assert found.held_bytes == {0: (512 - 32 - 31) * MIB}
    assert found.hugepages_bytes == {0: {2 * MIB: 32 * MIB}}


async def test_an_update_of_a_running_container_survives_the_loss_of_its_node(tmp_path: Path) -> None:
    async with bench(tmp_path) as one:
        await one.place("first", 3 * GIB)
        assert await one.place("second", 3 * GIB) == NodeSet([1])
        one.host.lose_node(1)
        await one.reread()
        owner = pod("second")
        running = container("second", owner, memory_bytes=3 * GIB, milli_cpus=500)
        smaller = replace(running.resources, memory_limit_bytes=500 * MIB)
        await one.controller.update_container(owner, running, smaller)
        decision = one.controller.state.ledger.entries["second"].decision
        assert decision.outcome is not Outcome.REFUSED
        assert decision.placement.mems == NodeSet([0])
