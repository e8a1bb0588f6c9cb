"""Every file that read_machine reads: absent, garbage, good; and machines of unusual shape."""

import os
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.errors import HostError
from bayplan.host.kernelfs import AbsentError
from bayplan.host.record import record, unpack
from bayplan.host.sysfs import TIERS, UNKNOWN_SOCKET, read_hugepages, read_machine
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import machine
from support.sysfs import SYSTEM, SysfsTree

SMALL = machine(nodes=2, cpus_per_node=4, threads_per_core=2, hugepages_bytes={2 * MIB: 8 * MIB, GIB: 0})

REQUIRED = [
    f"{SYSTEM}/node/node0/cpulist",
    f"{SYSTEM}/node/node1/meminfo",
    f"{SYSTEM}/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
    f"{SYSTEM}/cpu/cpu3/topology/core_cpus_list",
    f"{SYSTEM}/cpu/cpu7/topology/physical_package_id",
]
DERIVED = [f"{SYSTEM}/node/online", f"{SYSTEM}/cpu/online", f"{SYSTEM}/cpu/isolated", "proc/meminfo"]
"""They decide, and where a kernel has none something else says the same."""
ORDERING = [
    f"{SYSTEM}/node/node0/distance",
    f"{SYSTEM}/cpu/cpu0/cache/index3/level",
    f"{SYSTEM}/cpu/cpu0/cache/index3/shared_cpu_list",
]
OPTIONAL = [*DERIVED, *ORDERING]


def test_good(tmp_path):
    assert read_machine(SysfsTree(SMALL).write(tmp_path)) == SMALL


@pytest.mark.parametrize("path", REQUIRED)
def test_absent_names_the_file(tmp_path, path):
    tree = SysfsTree(SMALL)
    if path.endswith("nr_hugepages"):  # its directory announces it
        tree.files[f"{os.path.dirname(path)}/free_hugepages"] = "0\n"  # noqa: PTH120 - plain functions are shorter here
    del tree.files[path]
    with pytest.raises(AbsentError) as caught:
        read_machine(tree.write(tmp_path))
    assert caught.value.subject == str(tmp_path / path)


@pytest.mark.parametrize("path", REQUIRED + DERIVED)
def test_garbage_names_the_file_and_what_was_found(tmp_path, path):
    tree = SysfsTree(SMALL)
    tree.files[path] = "banana\n"
    with pytest.raises(HostError) as caught:
        read_machine(tree.write(tmp_path))
    assert caught.value.subject == str(tmp_path / path)
    assert "'banana'" in str(caught.value)


@pytest.mark.parametrize("path", ORDERING)
@pytest.mark.parametrize("text", ["banana\n", "", "\n", "9999999999999\n"])
def test_what_only_orders_is_left_out_with_a_remark(tmp_path, path, text):
    tree = SysfsTree(SMALL)
    tree.files[path] = text
    found = read_machine(tree.write(tmp_path))
    assert [node.cpus for node in found.nodes] == [node.cpus for node in SMALL.nodes]
    assert [cpu.core_id for cpu in found.cpus] == [cpu.core_id for cpu in SMALL.cpus]
    if text != "9999999999999\n" or "level" not in path:
        (remark,) = found.remarks
        assert f"/{path}" in remark
        assert str(tmp_path) not in remark


@pytest.mark.parametrize("path", [*REQUIRED, *DERIVED, *ORDERING])
def test_a_nul_ends_a_text(tmp_path, path):
    tree = SysfsTree(SMALL)
    if path in tree.files:
        root = tree.write(tmp_path)
        (root / path).write_text(tree.files[path] + "\0")
        assert read_machine(root) == SMALL


@pytest.mark.parametrize("path", [path for path in OPTIONAL if "isolated" not in path])
def test_absence_of_an_optional_file_is_no_error(tmp_path, path):
    tree = SysfsTree(SMALL)
    del tree.files[path]
    found = read_machine(tree.write(tmp_path))
    assert found.node_ids == SMALL.node_ids
    if "distance" in path:
        assert found.node_by_id[0].distances == {}
        assert found.distance(0, 1) == 20


def test_the_memory_of_the_machine_is_not_always_the_sum_of_its_nodes(tmp_path):
    tree = SysfsTree(SMALL)
    tree.files["proc/meminfo"] = f"MemTotal: {3 << 20} kB\n"
    assert read_machine(tree.write(tmp_path / "given")).memory_bytes == 3 * GIB
    del tree.files["proc/meminfo"]
    assert read_machine(tree.write(tmp_path / "not-given")).memory_bytes == 2 * GIB


def test_huge_pages_beyond_the_pool_are_nobodys_to_promise(tmp_path):
    tree = SysfsTree(SMALL)
    pool = f"{SYSTEM}/node/node0/hugepages/hugepages-2048kB"
    tree.files[f"{pool}/nr_hugepages"] = "9\n"
    tree.files[f"{pool}/surplus_hugepages"] = "5\n"
    found = read_machine(tree.write(tmp_path))
    assert found == SMALL
    # They come and go between two files.
    (tmp_path / f"{pool}/surplus_hugepages").write_text("10\n")
    assert read_hugepages([0, 1], tmp_path) == {0: {2 * MIB: 0, GIB: 0}, 1: {2 * MIB: 8 * MIB, GIB: 0}}
    (tmp_path / f"{pool}/surplus_hugepages").write_text("many\n")
    with pytest.raises(HostError, match="surplus_hugepages: found 'many'"):
        read_hugepages([0], tmp_path)


def test_no_cache_files_at_all(tmp_path):
    tree = SysfsTree(SMALL)
    tree.files = {path: text for path, text in tree.files.items() if "/cache/" not in path}
    found = read_machine(tree.write(tmp_path))
    assert {cpu.l3_cache_id for cpu in found.cpus} == {None}
    assert [cpu.core_id for cpu in found.cpus] == [0, 0, 2, 2, 4, 4, 6, 6]


def test_an_instruction_cache_or_another_level_is_no_l3(tmp_path):
    tree = SysfsTree(SMALL)
    tree.files[f"{SYSTEM}/cpu/cpu0/cache/index3/type"] = "Instruction\n"
    tree.files[f"{SYSTEM}/cpu/cpu4/cache/index3/level"] = "4\n"
    found = read_machine(tree.write(tmp_path))
    # CPU 1 is then the first of its cache that is asked; its id is the lowest sharer all the same.
    assert found.cpu_by_id[1].l3_cache_id == 0
    assert found.cpu_by_id[5].l3_cache_id == 4


def test_the_kernel_before_5_3_calls_a_core_its_thread_siblings(tmp_path):
    tree = SysfsTree(SMALL)
    tree.files = {
        path.replace("core_cpus_list", "thread_siblings_list"): text for path, text in tree.files.items()
    }
    assert read_machine(tree.write(tmp_path)) == SMALL


def test_a_core_that_lacks_the_cpu_itself_cannot_be(tmp_path):
    tree = SysfsTree(SMALL)
    tree.files[f"{SYSTEM}/cpu/cpu2/topology/core_cpus_list"] = "6-7\n"
    with pytest.raises(HostError, match="a list with CPU 2 itself"):
        read_machine(tree.write(tmp_path))


def test_caches_that_cannot_be_are_none_and_one_remark_tells_of_all(tmp_path):
    tree = SysfsTree(SMALL)
    for cpu in range(4):
        tree.files[f"{SYSTEM}/cpu/cpu{cpu}/cache/index3/shared_cpu_list"] = "\n"
    found = read_machine(tree.write(tmp_path))
    assert [cpu.l3_cache_id for cpu in found.cpus] == [None] * 4 + [4] * 4
    (remark,) = found.remarks
    assert "cpu0/cache/index3/shared_cpu_list" in remark
    assert "3 more" in remark


def test_kernels_before_2_6_26_have_masks_alone(tmp_path):
    tree = SysfsTree(SMALL)
    lists = {
        "cpulist": "cpumap",
        "core_cpus_list": "thread_siblings",
        "shared_cpu_list": "shared_cpu_map",
    }
    for path, text in list(tree.files.items()):
        directory, _, name = path.rpartition("/")
        if name in lists:
            mask = CpuSet.parse(text).mask
            del tree.files[path]
            tree.files[f"{directory}/{lists[name]}"] = f"00000000,{mask:08x}\n"
    tree.remove(f"{SYSTEM}/cpu/online")
    tree.remove(f"{SYSTEM}/node/online")
    root = tree.write(tmp_path)
    assert read_machine(root) == SMALL
    listing = record(root)
    assert "thread_siblings:" in listing
    unpack(listing, tmp_path / "again")
    assert read_machine(tmp_path / "again") == SMALL


class TestNodesThatShareCpus:
    """numa=fake lists all CPUs of a node in each of its parts."""

    def read(self, tmp_path, *, tiers="", distance="10 10 20\n"):
        tree = SysfsTree(machine(3, 4, GIB))
        tree.files[f"{SYSTEM}/node/node1/cpulist"] = "0-3\n"
        tree.files[f"{SYSTEM}/node/node2/cpulist"] = "4-11\n"
        for node in range(2):
            tree.files[f"{SYSTEM}/node/node{node}/distance"] = distance
        if not distance:
            tree.remove(f"{SYSTEM}/node/node0/distance")
            tree.remove(f"{SYSTEM}/node/node1/distance")
        if tiers:
            tree.files[f"{TIERS}/memory_tier4/nodelist"] = tiers
        return read_machine(tree.write(tmp_path))

    @pytest.mark.parametrize("tiers", ["", "0-2\n"])
    @pytest.mark.parametrize("distance", ["10 10 20\n", ""])
    def test_a_cpu_counts_in_the_first(self, tmp_path, tiers, distance):
        found = self.read(tmp_path, tiers=tiers, distance=distance)
        assert [node.cpus for node in found.nodes] == [CpuSet(range(4)), CpuSet(), CpuSet(range(4, 12))]
        assert found.ordinary_nodes == found.memory_nodes == NodeSet([0, 1, 2])
        assert (found.distance(0, 1), found.distance(1, 0), found.distance(0, 2)) == (10, 10, 20)
        assert found.cpu_by_id[3].node_id == 0
        (remark,) = found.remarks
        assert "node 1" in remark


class TestSockets:
    """They are packages of CPUs; what the kernel calls them counts where it tells them apart."""

    def sockets(self, tmp_path, ids, packages, name="package_cpus_list"):
        tree = SysfsTree(SMALL)
        for cpu, package in enumerate(ids):
            tree.files[f"{SYSTEM}/cpu/cpu{cpu}/topology/physical_package_id"] = f"{package}\n"
        for package in packages:
            for cpu in CpuSet.parse(package):
                tree.files[f"{SYSTEM}/cpu/cpu{cpu}/topology/{name}"] = f"{package}\n"
        return [cpu.socket_id for cpu in read_machine(tree.write(tmp_path)).cpus]

    @pytest.mark.parametrize("name", ["package_cpus_list", "core_siblings_list"])
    def test_without_ids(self, tmp_path, name):
        packages = ["0-1,6-7", "2-3", "4-5"]
        assert self.sockets(tmp_path, [-1] * 8, packages, name) == [0, 0, 1, 1, 2, 2, 0, 0]

    def test_without_ids_and_without_packages(self, tmp_path):
        assert self.sockets(tmp_path, [-1] * 8, []) == [0] * 8

    def test_ids_that_repeat_in_each_book(self, tmp_path):
        assert self.sockets(tmp_path, [0, 0, 1, 1, 0, 0, 1, 1], ["0-1", "2-3", "4-5", "6-7"]) == [
            0, 0, 1, 1, 2, 2, 3, 3,
        ]  # fmt: skip

    def test_ids_of_their_own_stay(self, tmp_path):
        assert self.sockets(tmp_path, [8] * 4 + [36] * 4, ["0-3", "4-7"]) == [8] * 4 + [36] * 4


class TestKinds:
    def read(self, tmp_path, files):
        tree = SysfsTree(SMALL)
        tree.files |= files
        return [cpu.kind[:1] for cpu in read_machine(tree.write(tmp_path)).cpus]

    def test_of_intel(self, tmp_path):
        files = {"sys/devices/cpu_core/cpus": "0-3\n", "sys/devices/cpu_atom/cpus": "4-7\n"}
        assert self.read(tmp_path, files) == ["p"] * 4 + ["e"] * 4
        files = {
            "sys/devices/cpu_core/cpus": "0-1\n",
            "sys/devices/cpu_atom/cpus": "2-5\n",
            "sys/devices/cpu_lowpower/cpus": "6-7\n",
        }
        assert self.read(tmp_path / "three", files) == ["p"] * 2 + ["m"] * 4 + ["e"] * 2
        assert self.read(tmp_path / "one", {"sys/devices/cpu_core/cpus": "0-7\n"}) == [""] * 8

    def test_of_arm(self, tmp_path):
        capacities = [718, 718, 731, 731, 1017, 1024, 1024, 1024]
        files = {f"{SYSTEM}/cpu/cpu{cpu}/cpu_capacity": f"{one}\n" for cpu, one in enumerate(capacities)}
        assert self.read(tmp_path, files) == ["e"] * 2 + ["m"] * 3 + ["p"] * 3
        for cpu, part in enumerate(["0xd87"] * 4 + ["0xd85"] * 4):
            path = f"{SYSTEM}/cpu/cpu{cpu}/regs/identification/midr_el1"
            files[path] = f"0x00000000410f{part[2:]}1\n"
        assert self.read(tmp_path / "parts", files) == ["e"] * 4 + ["p"] * 4


def test_dies_and_clusters_that_firmware_does_not_know(tmp_path):
    tree = SysfsTree(SMALL)
    for cpu in range(8):
        for group in ("die", "cluster"):
            tree.files[f"{SYSTEM}/cpu/cpu{cpu}/topology/{group}_cpus_list"] = (
                f"{cpu // 4 * 4}-{cpu // 4 * 4 + 3}\n"
            )
            tree.files[f"{SYSTEM}/cpu/cpu{cpu}/topology/{group}_id"] = f"{-1 if group == 'die' else 7}\n"
    found = read_machine(tree.write(tmp_path))
    assert {cpu.die_id for cpu in found.cpus} == {None}
    assert [cpu.cluster_id for cpu in found.cpus] == [0] * 4 + [4] * 4


def test_isolated_cpus(tmp_path):
    tree = SysfsTree(SMALL)
    tree.files[f"{SYSTEM}/cpu/isolated"] = "2-3,90\n"
    assert read_machine(tree.write(tmp_path)).isolated == CpuSet([2, 3])


@pytest.mark.parametrize(("text", "found"), [("2-3,90\n", [2, 3]), ("(null)\n", []), ("\n", [])])
def test_cpus_without_a_timer_tick(tmp_path, text, found):
    tree = SysfsTree(SMALL)
    tree.files[f"{SYSTEM}/cpu/nohz_full"] = text
    assert read_machine(tree.write(tmp_path)).nohz_full == CpuSet(found)


def test_an_online_cpu_without_a_directory_cannot_be(tmp_path):
    tree = SysfsTree(SMALL)
    tree.remove(f"{SYSTEM}/cpu/cpu6/")
    with pytest.raises(HostError, match="no directory for CPU 6, online"):
        read_machine(tree.write(tmp_path))


def test_no_online_node_cannot_be(tmp_path):
    tree = SysfsTree(SMALL)
    tree.files[f"{SYSTEM}/node/online"] = "\n"
    with pytest.raises(HostError, match="at least one node"):
        read_machine(tree.write(tmp_path))


def test_a_machine_without_any_memory_cannot_be(tmp_path):
    with pytest.raises(HostError, match="found MemTotal 0 kB on every node"):
        read_machine(SysfsTree(machine(nodes=2, memory_bytes=0)).write(tmp_path))


def test_an_empty_root_says_what_it_looked_for(tmp_path):
    with pytest.raises(AbsentError) as caught:
        read_machine(tmp_path)
    assert caught.value.subject == str(tmp_path / SYSTEM / "cpu/online")


class TestDistances:
    SPARSE = Machine(
        tuple(
            Node(node, CpuSet([node]), GIB, distances=distances)
            for node, distances in (
                (1, {1: 10, 4: 21, 9: 17}),
                (4, {1: 31, 4: 10, 9: 28}),
                (9, {1: 17, 4: 14, 9: 10}),
            )
        ),
        tuple(Cpu(cpu, cpu, 0, cpu, None) for cpu in (1, 4, 9)),
    )

    def test_columns_are_the_online_nodes_and_not_their_ids(self, tmp_path):
        tree = SysfsTree(self.SPARSE)
        # Node 0 is possible but offline: the kernel's line then begins with a blank.
        assert tree.files[f"{SYSTEM}/node/node4/distance"] == " 31 10 28\n"
        found = read_machine(tree.write(tmp_path))
        assert found == self.SPARSE
        assert (found.distance(4, 1), found.distance(1, 4), found.distance(9, 4)) == (31, 21, 14)

    @pytest.mark.parametrize("line", ["10 20 30 40\n", "10 20\n", "\n", "10 20 -1\n", "10 20 3x\n"])
    def test_a_line_that_does_not_match_the_nodes_is_left_out(self, tmp_path, line):
        tree = SysfsTree(self.SPARSE)
        tree.files[f"{SYSTEM}/node/node4/distance"] = line
        found = read_machine(tree.write(tmp_path))
        assert (found.distance(4, 4), found.distance(4, 9), found.distance(1, 4)) == (10, 20, 21)
        (remark,) = found.remarks
        assert f"/{SYSTEM}/node/node4/distance" in remark


class TestUnusualMachines:
    def test_cpu_less_nodes_with_sparse_ids(self, tmp_path):
        wanted = machine(2, 4, 64 * GIB, cpu_less={8: 256 * GIB}, distances={(0, 8): 24, (8, 1): 34})
        found = read_machine(SysfsTree(wanted).write(tmp_path))
        assert found == wanted
        assert found.node_ids == NodeSet([0, 1, 8])
        assert found.cpu_nodes == NodeSet([0, 1])

    def test_a_node_without_memory(self, tmp_path):
        bare = Machine(
            (replace(SMALL.nodes[0], memory_bytes=0, hugepages_bytes={}), SMALL.nodes[1]), SMALL.cpus
        )
        tree = SysfsTree(bare)
        assert not any("node0/hugepages" in path for path in tree.files)  # as older kernels have it
        found = read_machine(tree.write(tmp_path))
        assert found == bare
        assert found.memory_nodes == NodeSet([1])

    def test_offline_cpus_are_listed_with_their_node_but_in_no_set(self, tmp_path):
        tree = SysfsTree(
            Machine(
                (
                    replace(SMALL.nodes[0], cpus=CpuSet([0, 2, 3])),
                    replace(SMALL.nodes[1], cpus=CpuSet([5, 6, 7])),
                ),
                tuple(replace(cpu, online=cpu.id not in (1, 4)) for cpu in SMALL.cpus),
            )
        )
        found = read_machine(tree.write(tmp_path))
        assert found.online_cpus == CpuSet([0, 2, 3, 5, 6, 7])
        assert found.cpus_of(NodeSet([0, 1])) == found.online_cpus
        assert found.cpu_by_id[1] == Cpu(1, 1, UNKNOWN_SOCKET, 0, None, online=False)
        assert found.cpu_by_id[4] == Cpu(4, 4, UNKNOWN_SOCKET, 1, None, online=False)
        # The first thread of the core and of the cache is offline: the next one gives its name.
        assert found.cpu_by_id[5] == Cpu(5, 5, 1, 1, 5)
        assert found.cpu_by_id[7] == Cpu(7, 6, 1, 1, 5)

    def test_an_offline_cpu_that_is_linked_to_no_node(self, tmp_path):
        tree = SysfsTree(Machine(SMALL.nodes[:1], (*SMALL.cpus[:4], Cpu(4, 4, 0, None, None, online=False))))
        assert read_machine(tree.write(tmp_path)).cpu_by_id[4].node_id is None

    def test_cpus_that_sysfs_hides_as_offline_leave_their_node(self, tmp_path):
        tree = SysfsTree(SMALL)  # as a container runtime that narrows cpu/online to its own share
        tree.files[f"{SYSTEM}/cpu/online"] = "0-1\n"
        found = read_machine(tree.write(tmp_path))
        assert found.node_by_id[0].cpus == CpuSet([0, 1])
        assert found.node_by_id[1].cpus == CpuSet()
        assert found.online_cpus == CpuSet([0, 1])

    def test_more_than_64_nodes(self, tmp_path):
        wanted = machine(
            96, 2, GIB, cpu_less={200: GIB, 1000: GIB}, distances={(95, 1000): 99, (1000, 95): 88}
        )
        found = read_machine(SysfsTree(wanted).write(tmp_path))
        assert found == wanted
        assert len(found.nodes) == 98
        assert (found.distance(95, 1000), found.distance(1000, 95)) == (99, 88)

    def test_one_socket_per_node_and_one_l3_per_four_cpus(self, tmp_path):
        plain = machine(8, 8, GIB)
        wanted = Machine(plain.nodes, tuple(replace(cpu, l3_cache_id=cpu.id // 4 * 4) for cpu in plain.cpus))
        assert read_machine(SysfsTree(wanted).write(tmp_path)) == wanted


class TestWithoutNuma:
    ONE = machine(1, 4, 3 * GIB, hugepages_bytes={2 * MIB: 64 * MIB})

    def test_it_is_one_node(self, tmp_path):
        tree = SysfsTree.without_numa(self.ONE)
        assert not any(path.startswith(f"{SYSTEM}/node") for path in tree.files)
        assert read_machine(tree.write(tmp_path)) == self.ONE

    @pytest.mark.parametrize(
        "text", ["banana\n", "MemTotal: many kB\n", "MemTotal: 12\n", "SwapMemTotal: 12 kB\n"]
    )
    def test_garbage_in_meminfo(self, tmp_path, text):
        tree = SysfsTree.without_numa(self.ONE)
        tree.files["proc/meminfo"] = text
        with pytest.raises(HostError) as caught:
            read_machine(tree.write(tmp_path))
        assert caught.value.subject == str(tmp_path / "proc/meminfo")

    def test_absent_meminfo(self, tmp_path):
        tree = SysfsTree.without_numa(self.ONE)
        del tree.files["proc/meminfo"]
        with pytest.raises(AbsentError):
            read_machine(tree.write(tmp_path))

    def test_a_kernel_for_one_processor_has_no_topology(self, tmp_path):
        tree = SysfsTree.without_numa(machine(1, 1, GIB))
        tree.remove(f"{SYSTEM}/cpu/cpu0/topology/")
        assert read_machine(tree.write(tmp_path)).cpus == (Cpu(0, 0, 0, 0, 0),)

    def test_with_two_processors_missing_topology_is_an_error(self, tmp_path):
        tree = SysfsTree.without_numa(self.ONE)
        tree.remove(f"{SYSTEM}/cpu/cpu2/topology/")
        with pytest.raises(AbsentError):
            read_machine(tree.write(tmp_path))


DUE = {}
"""What is to be done, once, before the file of that path is opened."""


def before_opening(event, arguments):
    if event == "open" and DUE and isinstance(arguments[0], str) and arguments[0] in DUE:
        DUE.pop(arguments[0])()


sys.addaudithook(before_opening)  # They stay for the life of the process; this one costs nothing without DUE.


@pytest.fixture
def at_opening():
    yield lambda path, change: DUE.__setitem__(str(path), change)
    DUE.clear()


class TestWhileItChanges:
    """When a file is about to be opened, the test changes the tree; what was read before is out of date."""

    GROWN = machine(3, 4, GIB)

    def test_a_node_that_comes_is_in_the_result(self, tmp_path, at_opening):
        root = SysfsTree(SMALL).write(tmp_path)
        at_opening(root / SYSTEM / "node/node1/meminfo", lambda: SysfsTree(self.GROWN).write(root))
        found = read_machine(root)
        assert found.node_ids == NodeSet([0, 1, 2])
        assert found == Machine(
            tuple(
                replace(node, hugepages_bytes=found.node_by_id[node.id].hugepages_bytes)
                for node in self.GROWN.nodes
            ),
            self.GROWN.cpus,
        )

    def test_an_error_that_the_change_explains_is_not_reported(self, tmp_path, at_opening):
        root = SysfsTree(self.GROWN).write(tmp_path)

        def unplug():
            for path in sorted((root / SYSTEM / "node/node2").rglob("*")):
                path.unlink()
            for path, text in SysfsTree(machine(2, 4, GIB)).files.items():
                if path.startswith(f"{SYSTEM}/node"):
                    (root / path).write_text(text)

        at_opening(root / SYSTEM / "node/node1/meminfo", unplug)
        found = read_machine(root)
        assert found.node_ids == NodeSet([0, 1])

    def test_a_machine_that_never_holds_still_is_an_error(self, tmp_path, at_opening):
        root = SysfsTree(SMALL).write(tmp_path)
        online = iter(["0-6", "0-5", "0-4"])

        def shrink():
            (root / SYSTEM / "cpu/online").write_text(next(online))
            at_opening(root / SYSTEM / "node/node1/meminfo", shrink)

        at_opening(root / SYSTEM / "node/node1/meminfo", shrink)
        with pytest.raises(HostError, match="came or went during each of 3 attempts"):
            read_machine(root)


@st.composite
def machines(draw):
    ids = sorted(draw(st.sets(st.integers(0, 200), min_size=1, max_size=12)))
    cpu_ids = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=24)))
    node_of = {cpu: draw(st.sampled_from(ids)) for cpu in cpu_ids}
    distance = st.integers(10, 254)
    nodes = tuple(
        Node(
            node,
            CpuSet(cpu for cpu in cpu_ids if node_of[cpu] == node),
            draw(st.integers(0, 1 << 36)) << 10,
            draw(st.dictionaries(st.sampled_from([64 << 10, 2 << 20, 1 << 30]), st.just(0))),
            {other: draw(distance) for other in ids},
        )
        for node in ids
    )
    pairs = dict(zip(cpu_ids[::2], cpu_ids[1::2], strict=False)) if draw(st.booleans()) else {}
    core_of = {second: first for first, second in pairs.items()}
    l3 = draw(st.booleans())
    lowest = {node.id: min(node.cpus) for node in nodes if node.cpus}
    cpus = tuple(
        Cpu(
            cpu,
            core_of.get(cpu, cpu),
            draw(st.integers(0, 9)),
            node_of[cpu],
            lowest[node_of[cpu]] if l3 else None,
        )
        for cpu in cpu_ids
    )
    # The kernel itself needs some memory.
    filled = [node.id for node in nodes if node.memory_bytes]
    movable = draw(st.sets(st.sampled_from(filled[1:]))) if filled[1:] else set()
    return Machine(tuple(replace(node, is_movable=node.id in movable) for node in nodes), cpus)


@pytest.mark.parametrize(
    ("normal", "high", "movable"),
    [
        ("0-1\n", None, {2, 3}),
        ("0\n", "0-2\n", {3}),
        ("0-3\n", None, set()),
        ("\n", None, set()),
        (None, None, set()),
    ],
)
def test_nodes_of_which_the_kernel_has_nothing_for_itself(tmp_path, normal, high, movable):
    tree = SysfsTree(machine(4, memory_bytes=GIB))
    named = {"has_normal_memory": normal, "has_high_memory": high}
    tree.files |= {f"{SYSTEM}/node/{name}": text for name, text in named.items() if text is not None}
    assert set(read_machine(tree.write(tmp_path)).movable_nodes) == movable


@given(wanted=machines().filter(lambda wanted: wanted.memory_bytes > 0))
def test_what_the_kernel_would_print_is_read_back(tmp_path_factory, wanted):
    assert read_machine(SysfsTree(wanted).write(tmp_path_factory.mktemp("machine"))) == wanted


def test_this_machine():
    found = read_machine()
    assert CpuSet(os.sched_getaffinity(0)) <= found.online_cpus
    assert len(found.online_cpus) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert found.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert all(found.distance(node, node) == 10 for node in found.node_ids)
    assert found.cpus_of(found.node_ids) == found.online_cpus


@pytest.mark.parametrize("lead", ["FIFO", "/dev/zero"])
def test_whatever_lies_in_a_recorded_tree_holds_up_nobody(tmp_path, lead):
    """In the place of each file in turn: a machine, or an error of ours, and never a wait without an end."""
    tree = SysfsTree(machine(2, cpus_per_node=1))
    tree.write(tmp_path)
    for name in (name for name in tree.files if not name.endswith("/")):
        path = tmp_path / name
        path.unlink()
        os.mkfifo(path) if lead == "FIFO" else path.symlink_to(lead)
        with suppress(HostError):
            read_machine(tmp_path)
        path.unlink()
        path.write_text(tree.files[name])
    assert read_machine(tmp_path)


def test_devices_that_containers_are_made_for_count_on_their_node(tmp_path):
    tree = SysfsTree(machine(2))
    kinds = {
        "0000:01:00.0": ("0x030200", 0, ""),  # a GPU without a display
        "0000:02:00.0": ("0x030000", 0, ""),  # the display of a management controller
        "0000:03:00.0": ("0x120000", 1, ""),  # an accelerator
        "0000:04:00.0": ("0x020700", 1, ""),  # InfiniBand
        "0000:05:00.0": ("0x020000", 1, "8"),  # an adapter with virtual functions
        "0000:06:00.0": ("0x020000", 0, "0"),
        "0000:07:00.0": ("0x020000", 0, ""),
        "0000:08:00.0": ("0x030200", -1, ""),  # nobody knows where
    }
    for address, (kind, node, functions) in kinds.items():
        tree.add_device(f"pci0000:00/{address}", node=node, bus="pci")
        tree.files[f"sys/devices/pci0000:00/{address}/class"] = f"{kind}\n"
        if functions:
            tree.files[f"sys/devices/pci0000:00/{address}/sriov_numvfs"] = f"{functions}\n"
    root = tree.write(tmp_path)
    assert [node.devices for node in read_machine(root).nodes] == [1, 3]


def test_the_roots_of_pci_devices_are_their_nodes(tmp_path):
    tree = SysfsTree(machine(2))
    for place, node in {
        "pci0000:00/0000:00:1f.0": 0,
        "pci0000:3a/0000:3a:00.0": 1,
        "pci0000:3a/0000:3a:00.0/0000:3b:00.0": 1,
        "pci10000:e0/10000:e0:00.0": 0,
        "pci0000:80/0000:80:00.0": -1,
    }.items():
        tree.add_device(place, node=node, bus="pci")
    found = read_machine(tree.write(tmp_path))
    assert [node.pcie_roots for node in found.nodes] == [("pci0000:00", "pci10000:e0"), ("pci0000:3a",)]
