"""cpusets below a cpuset of cgroup v1: every write is one that the kernel takes, whatever is below."""

import errno
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.errors import HostError
from bayplan.host.cgroup import write_with_descendants
from bayplan.host.kernelfs import Directory, RefusedError
from bayplan.sets import CpuSet

CPUS = b"cpuset.cpus"
ROOT = "0-3"
some = st.frozensets(st.integers(0, 3), min_size=1)


class KernelDirectory(Directory):
    """Takes what cpuset1_validate_change() takes: a parent has all that its children have."""

    def write(self, name: bytes, text: str) -> None:
        wanted, here = CpuSet.parse(text), Path(self.path)
        for child in here.iterdir():
            if child.is_dir() and not cpus(child) <= wanted:
                raise RefusedError(f"{self.path}/{name.decode()}", "cannot take it", errno.EBUSY)
        above = here.parent / name.decode()
        if above.exists() and not wanted <= CpuSet.parse(above.read_text()):
            raise RefusedError(f"{self.path}/{name.decode()}", "cannot take it", errno.EACCES)
        super().write(name, text)


def cpus(directory: Path) -> CpuSet:
    return CpuSet.parse((directory / CPUS.decode()).read_text())


def make(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / CPUS.decode()).write_text(f"{text}\n")
    return directory


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["same", "part", "none"]), some), max_size=8),
    some,
    some,
)
def test_any_cpusets_below_follow_in_writes_that_the_kernel_takes(
    tmp_path_factory: pytest.TempPathFactory,
    below: list[tuple[int, str, frozenset[int]]],
    first: frozenset[int],
    second: frozenset[int],
) -> None:
    top = make(make(tmp_path_factory.mktemp("v1") / "root", ROOT) / "top", ROOT)
    tree = [top]
    for number, (index, kind, part) in enumerate(below):
        parent = tree[index % len(tree)]
        its = {"same": cpus(parent), "part": cpus(parent) & CpuSet(part), "none": CpuSet()}[kind]
        tree.append(make(parent / f"c{number}", str(its)))
    for wanted in (CpuSet(first), CpuSet(second)):
        before = {one: cpus(one) for one in tree}
        with KernelDirectory.open(str(top)) as directory:
            write_with_descendants(directory, CPUS, wanted)
        assert cpus(top) == wanted
        for one in tree[1:]:
            mine, parents = cpus(one), cpus(one.parent)
            if before[one] == before[one.parent] and before[one]:
                assert mine == parents
            elif before[one]:
                assert mine == (before[one] & parents or parents)
            else:
                assert mine == CpuSet()


def test_a_refusal_below_names_the_cgroup_there(tmp_path: Path) -> None:
    class Refusing(KernelDirectory):
        def write(self, name: bytes, text: str) -> None:
            if self.path.endswith("inner"):
                raise RefusedError(f"{self.path}/{name.decode()}", "cannot take it", errno.EBUSY)
            super().write(name, text)

    top = make(tmp_path / "top", "0-1")
    make(top / "inner", "0-1")
    with Refusing.open(str(top)) as directory, pytest.raises(HostError) as caught:
        write_with_descendants(directory, CPUS, CpuSet([0]))
    assert caught.value.subject == f"{top}/inner/cpuset.cpus"
    assert cpus(top) == CpuSet([0, 1])


def test_what_is_made_below_meanwhile_is_seen_at_the_next_attempt(tmp_path: Path) -> None:
    top = make(tmp_path / "top", "0-1")

    class Racing(KernelDirectory):
        def write(self, name: bytes, text: str) -> None:
            if not (top / "new").exists():
                make(top / "new", "0-1")
            super().write(name, text)

    with Racing.open(str(top)) as directory:
        write_with_descendants(directory, CPUS, CpuSet([1]))
    assert (cpus(top), cpus(top / "new")) == (CpuSet([1]), CpuSet([1]))
