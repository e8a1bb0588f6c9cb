"""memory.high is bound and given back, also by a later process, and what somebody else sets stays."""

from pathlib import Path

import pytest

from bayplan.host.kernelfs import AbsentError
from bayplan.host.memory_high import LEAST_BYTES, Brake, KernelAttributes, release_all
from bayplan.host.shadow_mode import ShadowModeError, shadow_mode
from bayplan.quantity import GIB, MIB
from support.racing_nodes import MarksInMemory


class Cgroups:
    """Directories with memory.high, below *root*."""

    def __init__(self, root: Path) -> None:
        self.root, self.marks = root, MarksInMemory()

    def make(self, name: str = "pod/one", high: str = "max") -> str:
        directory = self.root / name
        directory.mkdir(parents=True)
        (directory / "memory.high").write_text(f"{high}\n")
        return str(directory)

    def high(self, name: str = "pod/one") -> str:
        return (self.root / name / "memory.high").read_text().strip()

    def set(self, value: str, name: str = "pod/one") -> None:
        (self.root / name / "memory.high").write_text(f"{value}\n")


@pytest.fixture
def cgroups(tmp_path: Path) -> Cgroups:
    return Cgroups(tmp_path)


def test_it_is_bound_raised_and_given_back(cgroups: Cgroups) -> None:
    brake = Brake(cgroups.make(), cgroups.marks)
    assert brake.bind(640 * MIB)
    # The kernel lets it go on for an 80th.
    assert cgroups.high() == str(630 * MIB)
    assert int(cgroups.high()) * 81 // 80 <= 640 * MIB
    assert brake.bind(1280 * MIB)
    assert cgroups.high() == str(1260 * MIB)
    brake.release()
    assert cgroups.high() == "max"
    assert cgroups.marks.marks == {}


def test_nobody_is_bound_to_less_than_a_program_needs_to_start(cgroups: Cgroups) -> None:
    brake = Brake(cgroups.make(), cgroups.marks)
    assert brake.bind(0)
    assert brake.most_bytes == LEAST_BYTES
    assert int(cgroups.high()) > LEAST_BYTES * 62 // 64


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_later_process_gives_it_back(cgroups: Cgroups, steps: int) -> None:
    brake = Brake(cgroups.make(high=str(2 * GIB)), cgroups.marks)
    for number in range(steps):
        brake.bind((100 + number) * MIB)
    assert release_all(str(cgroups.root), cgroups.marks) == ["/pod/one"]
    assert cgroups.high() == str(2 * GIB)
    assert release_all(str(cgroups.root), cgroups.marks) == []


@pytest.mark.parametrize("mib", [90, 100, 110])
@pytest.mark.parametrize("before", ["max", str(2 * GIB)])
def test_a_later_process_goes_on_and_gives_back_what_was_there_at_first(
    cgroups: Cgroups, mib: int, before: str
) -> None:
    directory = cgroups.make(high=before)
    Brake(directory, cgroups.marks).bind(100 * MIB)
    later = Brake(directory, cgroups.marks)
    assert later.bind(mib * MIB)
    assert cgroups.high() == str(mib * MIB * 63 // 64 // 4096 * 4096)
    later.release()
    assert (cgroups.high(), cgroups.marks.marks) == (before, {})


def test_also_one_that_was_killed_between_mark_and_value(cgroups: Cgroups) -> None:
    directory = cgroups.make()
    brake = Brake(directory, cgroups.marks)
    brake.bind(100 * MIB)
    before = cgroups.high()
    brake.bind(200 * MIB)
    cgroups.set(before)
    assert release_all(str(cgroups.root), cgroups.marks) == ["/pod/one"]
    assert cgroups.high() == "max"


def test_what_somebody_else_has_set_meanwhile_stays(cgroups: Cgroups) -> None:
    brake = Brake(cgroups.make(), cgroups.marks)
    brake.bind(100 * MIB)
    cgroups.set(str(300 * MIB))
    brake.release()
    assert cgroups.high() == str(300 * MIB)
    brake.bind(100 * MIB)
    cgroups.set(str(50 * MIB))
    release_all(str(cgroups.root), cgroups.marks)
    assert cgroups.high() == str(50 * MIB)


def test_who_is_bound_to_less_by_somebody_else_is_left_alone(cgroups: Cgroups) -> None:
    brake = Brake(cgroups.make(high=str(64 * MIB)), cgroups.marks)
    assert not brake.bind(100 * MIB)
    assert (cgroups.high(), cgroups.marks.marks) == (str(64 * MIB), {})
    # And one that somebody bounds to more gets that back.
    cgroups.set(str(GIB))
    assert brake.bind(100 * MIB)
    brake.release()
    assert cgroups.high() == str(GIB)


def test_a_garbled_mark_changes_no_value(cgroups: Cgroups) -> None:
    directory = cgroups.make(high="4096")
    cgroups.marks.write(directory, "nonsense 4096")
    release_all(str(cgroups.root), cgroups.marks)
    assert (cgroups.high(), cgroups.marks.marks) == ("4096", {})


def test_a_cgroup_that_is_gone_needs_nothing(cgroups: Cgroups) -> None:
    directory = Path(cgroups.make())
    brake = Brake(str(directory), cgroups.marks)
    brake.bind(100 * MIB)
    (directory / "memory.high").unlink()
    directory.rmdir()
    brake.release()
    with pytest.raises(AbsentError):
        brake.bind(100 * MIB)


def test_attributes_of_the_kernel(tmp_path: Path) -> None:
    attributes = KernelAttributes()
    assert attributes.read(str(tmp_path)) is None
    attributes.remove(str(tmp_path))
    with shadow_mode(), pytest.raises(ShadowModeError):
        attributes.write(str(tmp_path), "max 4096")
    with pytest.raises(AbsentError):
        attributes.read(str(tmp_path / "gone"))
