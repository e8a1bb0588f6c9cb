"""Isolated partitions: what is written to which cgroup, and that nothing of it is left."""

from pathlib import Path
from shutil import rmtree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.errors import HostError
from bayplan.host.changed_files import ChangedFiles
from bayplan.host.cpu_partitions import CpuPartitions
from bayplan.host.kernelfs import AbsentError
from bayplan.sets import CpuSet

PARTITION, EXCLUSIVE = "cpuset.cpus.partition", "cpuset.cpus.exclusive"
CGROUPS = ("kubepods", "kubepods/a", "kubepods/a/c1", "kubepods/a/c2", "kubepods/b", "kubepods/b/c3")


class Node:
    """A tree of cgroups. What a kernel refuses is said in ``refused``: the text that its state then has."""

    def __init__(self, root: Path) -> None:
        self.root, self.mount = root, root / "sys/fs/cgroup"
        for name in CGROUPS:
            (self.mount / name).mkdir(parents=True)
            self.write(name, PARTITION, "member")
            self.write(name, EXCLUSIVE, "")
        self.now_s = 0.0

    @property
    def partitions(self) -> CpuPartitions:
        """Those of a process that starts now."""
        files = ChangedFiles(self.root / "record.json", self.root)
        return CpuPartitions(str(self.mount), files, lambda: self.now_s)

    def directory(self, name: str) -> str:
        return str(self.mount / name)

    def write(self, name: str, file: str, text: str) -> None:
        (self.mount / name / file).write_text(f"{text}\n")

    def read(self, name: str, file: str) -> str:
        return (self.mount / name / file).read_text().strip()

    def exclusive(self) -> list[str]:
        return [self.read(name, EXCLUSIVE) for name in CGROUPS if (self.mount / name).exists()]

    def states(self) -> set[str]:
        return {name for name in CGROUPS if self.read(name, PARTITION) != "member"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_each_level_has_the_cpus_of_those_below_as_long_as_these_are_there(node: Node) -> None:
    a1, b3 = node.directory("kubepods/a/c1"), node.directory("kubepods/b/c3")
    node.partitions.take(a1, CpuSet.parse("2-3"))
    node.partitions.take(b3, CpuSet([6]))
    assert node.exclusive() == ["2-3,6", "2-3", "2-3", "", "6", "6"]
    assert node.states() == {"kubepods/a/c1", "kubepods/b/c3"}
    assert node.partitions.held == {a1: CpuSet([2, 3]), b3: CpuSet([6])}
    node.partitions.take(a1, CpuSet([4]))
    assert node.exclusive() == ["4,6", "4", "4", "", "6", "6"]
    node.partitions.give_back(a1)
    assert node.exclusive() == ["6", "", "", "", "6", "6"]
    assert node.partitions.give_all_back() == {}
    assert (set(node.exclusive()), node.states()) == ({""}, set())
    assert not (node.root / "record.json").exists()


def test_what_others_have_there_stays(node: Node) -> None:
    node.write("kubepods", EXCLUSIVE, "0-2")
    node.partitions.take(node.directory("kubepods/a/c1"), CpuSet.parse("2-3"))
    assert node.read("kubepods", EXCLUSIVE) == "0-3"
    node.partitions.give_back(node.directory("kubepods/a/c1"))
    assert node.read("kubepods", EXCLUSIVE) == "0-2"


def test_a_partition_of_somebody_else_is_left(node: Node) -> None:
    node.write("kubepods/a/c1", PARTITION, "root")
    with pytest.raises(HostError, match="'root', set by somebody else"):
        node.partitions.take(node.directory("kubepods/a/c1"), CpuSet([2]))
    assert node.read("kubepods/a/c1", PARTITION) == "root"
    assert set(node.exclusive()) == {""}


def test_one_that_the_kernel_took_back_is_made_again(node: Node) -> None:
    directory = node.directory("kubepods/a/c1")
    partitions = node.partitions
    partitions.take(directory, CpuSet([2]))
    node.write("kubepods/a/c1", PARTITION, "isolated invalid (Cpu list in cpuset.cpus not exclusive)")
    partitions.take(directory, CpuSet([2]))
    assert node.read("kubepods/a/c1", PARTITION) == "isolated"


class Refusing(ChangedFiles):
    """A kernel that takes the word and says why it means nothing, as it does."""

    said = "isolated invalid (Invalid cpu list in cpuset.cpus.exclusive)"
    tried = 0

    def set(self, values):  # type: ignore[no-untyped-def]  # as that of the class
        problems = super().set(values)
        for path in values:
            if path.endswith(PARTITION) and Path(path).read_text().strip() == "isolated":
                self.tried += 1
                Path(path).write_text(f"{self.said}\n")
        return problems


def test_what_the_kernel_says_is_told_all_is_undone_and_it_is_not_asked_all_the_time(node: Node) -> None:
    files = Refusing(node.root / "record.json", node.root)
    partitions = CpuPartitions(str(node.mount), files, lambda: node.now_s)
    directory = node.directory("kubepods/a/c1")
    for _ in range(3):
        with pytest.raises(HostError, match=r"isolated invalid \(Invalid cpu list"):
            partitions.take(directory, CpuSet([2]))
        assert (set(node.exclusive()), node.states()) == ({""}, set())
    assert files.tried == 1
    node.now_s += 11
    with pytest.raises(HostError):
        partitions.take(directory, CpuSet([2]))
    assert files.tried == 2
    with pytest.raises(HostError):
        partitions.take(directory, CpuSet([3]))
    assert files.tried == 3


def test_a_kernel_without_the_file_is_named_and_a_cgroup_that_is_gone_is_gone(node: Node) -> None:
    (node.mount / "kubepods/a/c1" / EXCLUSIVE).unlink()
    with pytest.raises(HostError, match=r"cpuset\.cpus\.exclusive: there is no such file.* 6\.7") as raised:
        node.partitions.take(node.directory("kubepods/a/c1"), CpuSet([2]))
    assert not isinstance(raised.value, AbsentError)
    assert set(node.exclusive() if (node.mount / "kubepods/a/c1" / EXCLUSIVE).exists() else {""}) == {""}
    with pytest.raises(AbsentError):
        node.partitions.take(node.directory("kubepods/a/c9"), CpuSet([2]))


def test_a_container_that_has_ended_leaves_nothing_above(node: Node) -> None:
    node.partitions.take(node.directory("kubepods/a/c1"), CpuSet([2]))
    for path in sorted((node.mount / "kubepods/a/c1").iterdir()):
        path.unlink()
    (node.mount / "kubepods/a/c1").rmdir()
    node.partitions.give_back(node.directory("kubepods/a/c1"))
    assert set(node.exclusive()) == {""}
    assert node.partitions.held == {}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["kubepods/a/c1", "kubepods/a/c2", "kubepods/b/c3"]),
        st.sets(st.integers(0, 5), max_size=3).map(CpuSet),
    ),
    max_size=5,
)


@given(STEPS)
def test_whatever_was_taken_and_given_back_each_level_has_what_those_below_have(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, CpuSet]]
) -> None:
    node, wanted = Node(tmp_path_factory.mktemp("node")), dict[str, CpuSet]()
    for name, cpus in steps:
        taken = {key: one - cpus for key, one in wanted.items() if key != name}
        for key, left in taken.items():
            if left != wanted[key]:
                (node.partitions.take if left else lambda path, _: node.partitions.give_back(path))(
                    node.directory(key), left
                )
        wanted = {key: left for key, left in taken.items() if left}
        if cpus:
            node.partitions.take(node.directory(name), cpus)
            wanted[name] = cpus
        else:
            node.partitions.give_back(node.directory(name))
        for level in CGROUPS:
            below = [one for key, one in wanted.items() if f"{key}/".startswith(f"{level}/")]
            expected = CpuSet(cpu for one in below for cpu in one)
            assert node.read(level, EXCLUSIVE) == str(expected)
        assert node.states() == set(wanted)


def test_cpus_are_lost_where_no_cgroup_has_what_the_kernel_keeps_isolated(node: Node) -> None:
    kept = node.mount / "cpuset.cpus.isolated"
    assert node.partitions.lost_cpus(CpuSet()) == CpuSet()
    a1 = node.directory("kubepods/a/c1")
    node.partitions.take(a1, CpuSet.parse("2-3"))
    # Of ours, of somebody else's, of the boot, and of nobody.
    node.write("kubepods/b", PARTITION, "isolated")
    node.write("kubepods/b", "cpuset.cpus", "4")
    kept.write_text("2-6\n")
    assert node.partitions.lost_cpus(CpuSet([5])) == CpuSet([6])
    # It ends while its partition is invalid: that of ours is known, and nowhere.
    rmtree(a1)
    assert node.partitions.lost_cpus(CpuSet([5])) == CpuSet([2, 3, 6])
    kept.write_text("\n")
    assert node.partitions.lost_cpus(CpuSet([5])) == CpuSet()
