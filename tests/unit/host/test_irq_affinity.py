"""Interrupts leave CPUs, and have afterwards what others chose, whoever was killed in between."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.daemon.shadow import ShadowIrqs
from bayplan.host.irq_affinity import IrqAffinity, Staying
from bayplan.host.shadow_mode import shadow_mode
from bayplan.sets import CpuSet

ALL = CpuSet.parse("0-7")


class Node:
    """A tree of /proc/irq of a machine with eight CPUs."""

    def __init__(self, root: Path, affinity: dict[int, str], default: str = "ff") -> None:
        self.root, self.irqs, self.state = root, root / "proc/irq", root / "state"
        self.state.mkdir(parents=True)
        for irq, cpus in affinity.items():
            (self.irqs / str(irq)).mkdir(parents=True)
            (self.irqs / str(irq) / "smp_affinity_list").write_text(f"{cpus}\n")
        self.irqs.mkdir(exist_ok=True, parents=True)
        (self.irqs / "default_smp_affinity").write_text(f"{default}\n")

    @property
    def affinity(self) -> IrqAffinity:
        """That of a daemon, or a release, that starts now."""
        return IrqAffinity(self.state, self.root)

    def all(self) -> dict[str, str]:
        files = sorted(path for path in self.irqs.rglob("*affinity*") if "effective" not in path.name)
        return {str(path.relative_to(self.irqs)): path.read_text().strip() for path in files}

    def list_of(self, irq: int) -> str:
        return (self.irqs / str(irq) / "smp_affinity_list").read_text().strip()


def test_they_leave_and_come_back(tmp_path: Path) -> None:
    node = Node(tmp_path, {4: "0-7", 9: "2", 11: "0,3-5", 30: "0-1"})
    before = node.all()
    assert node.affinity.keep_away(CpuSet.parse("2-3"), ALL) == ()
    assert node.all() == {
        "4/smp_affinity_list": "0-1,4-7",
        "9/smp_affinity_list": "0-1,4-7",
        "11/smp_affinity_list": "0,4-5",
        "30/smp_affinity_list": "0-1",
        "default_smp_affinity": "f3",
    }
    assert node.affinity.to_restore == {key: text for key, text in before.items() if not key.startswith("30")}
    node.affinity.keep_away(CpuSet.parse("3"), ALL)
    assert (node.list_of(9), node.list_of(4)) == ("2", "0-2,4-7")
    changed = {"4/smp_affinity_list", "11/smp_affinity_list", "default_smp_affinity"}
    assert node.affinity.restore().keys() == changed
    assert node.all() == before
    assert list(node.state.iterdir()) == []


def test_what_irqbalance_chose_meanwhile_counts(tmp_path: Path) -> None:
    node = Node(tmp_path, {4: "0-7"})
    affinity = node.affinity
    affinity.keep_away(CpuSet([2]), ALL)
    (node.irqs / "4/smp_affinity_list").write_text("2\n")
    affinity.keep_away(CpuSet([2]), ALL)
    assert node.list_of(4) == "0-1,3-7"
    (node.irqs / "4/smp_affinity_list").write_text("5\n")
    affinity.keep_away(CpuSet([2]), ALL)
    assert node.list_of(4) == "5"
    affinity.restore()
    assert node.list_of(4) == "5"


@pytest.mark.parametrize(("default", "meanwhile"), [("3fff", "3e0f"), ("000f", "000f")])
def test_the_default_is_what_it_was_after_each_of_many_containers(
    tmp_path: Path, default: str, meanwhile: str
) -> None:
    """On a machine with 14 CPUs (CRI-O#9227, CRI-O#9741): the next container on CPUs comes before the end of
    the last one is known. tuned may keep interrupts from some already (performance-addon-operators#447)."""
    node = Node(tmp_path, {4: "0-13"}, default)
    before, machine = node.all(), CpuSet.parse("0-13")
    first, second = CpuSet.parse("4-6"), CpuSet.parse("7-8")
    for _ in range(20):
        for away in (first, first | second, first | second):
            node.affinity.keep_away(away, machine)
        assert (node.all()["default_smp_affinity"], node.list_of(4)) == (meanwhile, "0-3,9-13")
        node.affinity.keep_away(second, machine)
        assert node.list_of(4) == "0-6,9-13"
        node.affinity.keep_away(CpuSet(), machine)
        assert node.all() == before


def test_where_all_cpus_are_to_be_without_it_stays(tmp_path: Path) -> None:
    node = Node(tmp_path, {4: "0-7"})
    before = node.all()
    node.affinity.keep_away(ALL, ALL)
    assert node.all() == before


def test_an_interrupt_that_the_kernel_keeps_is_named_where_it_is_used(tmp_path: Path) -> None:
    node = Node(tmp_path, {0: "0-7", 7: "0-7", 8: "0-7", 9: "0-7"})
    for irq, effective in ((0, "0"), (7, "2"), (8, "")):
        path = node.irqs / str(irq) / "smp_affinity_list"
        path.unlink()
        path.mkdir()  # It can neither be read nor written.
        (node.irqs / str(irq) / "effective_affinity_list").write_text(f"{effective}\n")
    staying = node.affinity.keep_away(CpuSet.parse("2-3"), ALL)
    assert [(one.irq, str(one.cpus)) for one in staying] == [(7, "2")]
    assert isinstance(staying[0], Staying)
    assert node.list_of(9) == "0-1,4-7"


def test_in_shadow_mode_nothing_moves(tmp_path: Path) -> None:
    node = Node(tmp_path, {4: "0-7"})
    before = node.all()
    affinity = ShadowIrqs(node.state, node.root)
    assert affinity.keep_away(CpuSet([2]), ALL) == ()
    assert affinity.restore() == {}
    assert node.all() == before


@pytest.mark.parametrize(
    ("before", "cpus", "after"),
    [
        ("f", "0", "e"),
        ("ff,ffffffff", "0,39", "7f,fffffffe"),
        ("00000000,00000000,ffffffff", "1-30", "00000000,00000000,80000001"),
        ("3,00000000", "32-33", "0,0000ffff"),
    ],
)
def test_a_mask_keeps_its_shape(tmp_path: Path, before: str, cpus: str, after: str) -> None:
    node = Node(tmp_path, {}, before)
    node.affinity.keep_away(CpuSet.parse(cpus), CpuSet.parse("0-15"))
    assert node.all() == {"default_smp_affinity": after}
    node.affinity.restore()
    assert node.all() == {"default_smp_affinity": before}


LISTS = st.sets(st.integers(0, 7), min_size=1).map(lambda ids: str(CpuSet(ids)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["away", "killed"]), st.sets(st.integers(0, 7)).map(CpuSet)),
        st.tuples(st.just("restart"), st.just(CpuSet())),
    ),
    max_size=8,
)


@given(st.lists(LISTS, min_size=1, max_size=4), STEPS)
def test_none_is_left_on_those_cpus_and_all_is_as_before_at_the_end(
    tmp_path_factory: pytest.TempPathFactory, lists: list[str], steps: list[tuple[str, CpuSet]]
) -> None:
    node = Node(tmp_path_factory.mktemp("node"), dict(enumerate(lists)))
    before, affinity = node.all(), node.affinity
    for what, cpus in steps:
        if what == "killed":
            with shadow_mode():
                affinity.keep_away(cpus, ALL)
        if what == "away":
            affinity.keep_away(cpus, ALL)
            for irq in range(len(lists)):
                assert cpus == ALL or CpuSet.parse(node.list_of(irq)).isdisjoint(cpus)
        else:
            affinity = node.affinity
    node.affinity.restore()
    assert node.all() == before
