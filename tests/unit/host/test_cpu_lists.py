"""Lists of CPUs are had back where the kernel gives them back; the sysctl is set back however it ends."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.daemon.shadow import ShadowListLimit
from bayplan.errors import BayplanError, HostError
from bayplan.host.memory_statistics import FRACTION, read_zones
from bayplan.host.reclaim import RECORD, CpuListLimit, shorten_cpu_lists
from bayplan.host.shadow_mode import shadow_mode
from bayplan.quantity import MIB

BOOT = "proc/sys/kernel/random/boot_id"


class Kernel:
    """A tree with the sysctl, and a state directory."""

    def __init__(self, root: Path, value: int = 0) -> None:
        self.root, self.state = root, root / "state"
        self.state.mkdir(parents=True, exist_ok=True)
        self.sysctl = root / FRACTION
        self.sysctl.parent.mkdir(parents=True, exist_ok=True)
        self.boot("first")
        self.set(value)

    def boot(self, boot_id: str) -> None:
        path = self.root / BOOT
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{boot_id}\n")

    def set(self, value: int) -> None:
        self.sysctl.write_text(f"{value}\n")

    @property
    def value(self) -> int:
        return int(self.sysctl.read_text())

    @property
    def limit(self) -> CpuListLimit:
        """That of a daemon, or a release, that starts now."""
        return CpuListLimit(self.state, self.root)


def test_it_is_set_and_set_back(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 8)
    kernel.limit.apply(64)
    assert (kernel.value, kernel.limit.to_restore) == (64, 8)
    assert kernel.limit.restore() == 8
    assert (kernel.value, kernel.limit.to_restore, kernel.limit.restore()) == (8, None, None)
    assert list(kernel.state.iterdir()) == []


def test_a_killed_daemon_is_followed_by_one_that_knows_what_was_before(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.limit.apply(64)
    kernel.limit.apply(64)
    kernel.limit.apply(128)
    assert (kernel.value, kernel.limit.to_restore) == (128, 0)
    kernel.limit.apply(0)
    assert kernel.value == 0


def test_killed_between_record_and_sysctl_nothing_is_changed(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 20)
    kernel.limit.apply(64)
    kernel.set(20)
    assert kernel.limit.restore() is None
    assert kernel.value == 20


def test_what_somebody_else_set_meanwhile_stays_and_is_what_was_before(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.limit.apply(64)
    kernel.set(100)
    assert kernel.limit.to_restore is None
    kernel.limit.apply(64)
    assert kernel.limit.restore() == 100
    kernel.limit.apply(64)
    kernel.set(30)
    kernel.limit.apply(0)
    assert kernel.value == 30


def test_who_has_it_so_already_keeps_it(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 64)
    kernel.limit.apply(64)
    assert kernel.limit.restore() is None
    assert kernel.value == 64


def test_a_boot_ends_what_was_set_before_it(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.limit.apply(64)
    kernel.boot("second")
    assert kernel.limit.restore() is None
    assert kernel.value == 64


def test_a_kernel_without_it_is_named_and_nothing_recorded(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.sysctl.unlink()
    with pytest.raises(HostError, match=r"percpu_pagelist_high_fraction: there is no such file.* 5\.14"):
        kernel.limit.apply(64)
    kernel.limit.apply(0)
    assert list(kernel.state.iterdir()) == []


def test_what_cannot_be_recorded_is_not_changed(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    (kernel.state / RECORD).mkdir()
    with pytest.raises(BayplanError, match=RECORD):
        kernel.limit.apply(64)
    assert kernel.value == 0


def test_an_unreadable_record_leaves_the_sysctl(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel(tmp_path, 64)
    (kernel.state / RECORD).write_text("\xff nothing\n")
    assert kernel.limit.restore() is None
    assert kernel.value == 64
    assert caplog.records


def test_shadow_mode_leaves_it(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.limit.apply(64)
    limit = ShadowListLimit(kernel.state, kernel.root)
    limit.apply(128)
    assert limit.restore() is None
    assert (kernel.value, kernel.limit.to_restore) == (64, 0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("daemon"), st.sampled_from([0, 8, 64, 4096])),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("operator"), st.integers(8, 40)),
    ),
    max_size=12,
)


@given(STEPS)
def test_at_the_end_it_is_what_the_operator_set_last(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Whatever was killed in between: only `end` is an orderly one."""
    kernel, wanted = Kernel(tmp_path_factory.mktemp("kernel")), 0
    for what, value in steps:
        if what == "daemon":
            kernel.limit.apply(value)
        elif what == "end":
            kernel.limit.restore()
        elif value != kernel.value:
            kernel.set(value)
            wanted = value
    kernel.limit.restore()
    assert kernel.value == wanted


LISTED = "Node 0, zone Normal\n  managed 99999\n  cpu: 0\n  count: 9999\n  high_min: 100\n"


def test_lists_that_do_not_become_shorter_are_asked_once(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/zoneinfo").write_text(LISTED)
    assert shorten_cpu_lists([0], tmp_path) == 0  # There is nothing to ask.
    (tmp_path / "proc/sys/vm/stat_refresh").write_text("")
    assert shorten_cpu_lists([0, 7], tmp_path) == 0
    assert (tmp_path / "proc/sys/vm/stat_refresh").read_text() == "1"
    with shadow_mode():
        assert shorten_cpu_lists([0], tmp_path) == 0


def test_short_lists_are_not_worth_it(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/stat_refresh").write_text("")
    (tmp_path / "proc/zoneinfo").write_text(LISTED.replace("9999\n  high", "1000\n  high"))
    assert shorten_cpu_lists([0], tmp_path) == 0
    assert (tmp_path / "proc/sys/vm/stat_refresh").read_text() == ""


@pytest.mark.root
def test_this_machine_has_its_lists_back() -> None:
    def listed() -> int:
        lists = read_zones()[0].lists
        return lists.now_bytes - lists.lasting_bytes

    def is_shorter() -> bool:
        before = listed()
        had_back = shorten_cpu_lists([0])
        return 0 <= had_back <= before and (before < 4 * MIB or not had_back or listed() < before)

    # Whatever else runs on this machine puts pages on the lists meanwhile.
    assert any(is_shorter() for _ in range(10))
