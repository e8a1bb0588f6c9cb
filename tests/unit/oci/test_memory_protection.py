"""Which cgroups take the effect from what containers below them are protected by."""

from collections.abc import Mapping
from pathlib import Path

from bayplan.oci.node_checks import MOST_NAMED, void_protections
from bayplan.quantity import MIB

ONE, OTHER = "1" * 64, "2" * 64


def tree(root: Path, values: Mapping[str, int | str]) -> Path:
    """Cgroups with their memory.min; those above that are not named have 0."""
    for path, value in values.items():
        directory = root / path
        directory.mkdir(parents=True, exist_ok=True)
        text = str(value) if isinstance(value, str) else str(value * MIB)
        (directory / "memory.min").write_text(f"{text}\n")
        (directory / "memory.low").write_text("0\n")
    return root


def said(root: Path) -> list[tuple[str, str]]:
    return [(one.subject, one.text) for one in void_protections(root)]


def test_each_one_above_has_to_protect_as_much_as_all_below_together(tmp_path: Path) -> None:
    both = {f"kubepods/poda/{ONE}": 100, f"kubepods/podb/crio-{OTHER}.scope": 50}
    tree(tmp_path, both)
    assert said(tmp_path) == [
        (
            "/sys/fs/cgroup/kubepods/memory.min",
            "is 0, so that the containers below, with 150Mi together, are protected not at all",
        ),
        (
            "/sys/fs/cgroup/kubepods/poda/memory.min",
            "is 0, so that the containers below, with 100Mi together, are protected not at all",
        ),
        (
            "/sys/fs/cgroup/kubepods/podb/memory.min",
            "is 0, so that the containers below, with 50Mi together, are protected not at all",
        ),
    ]
    tree(tmp_path, {"kubepods/poda": 100, "kubepods/podb": 60, "kubepods": 149})
    (only,) = said(tmp_path)
    assert (
        only[1] == "is 149Mi, so that the containers below, with 150Mi together, are protected only in part"
    )
    tree(tmp_path, {"kubepods": "max"})
    assert said(tmp_path) == []


def test_services_that_are_no_containers_are_their_owners_business(tmp_path: Path) -> None:
    tree(tmp_path, {"system.slice/journald.service": 100, f"system.slice/cri-containerd-{ONE}.scope": 0})
    (tmp_path / "system.slice/cpuset.mems").write_text("")
    assert said(tmp_path) == []


def test_it_says_no_more_than_anybody_reads(tmp_path: Path) -> None:
    tree(tmp_path, {f"kubepods/pod{number}/{number:064x}": 10 for number in range(100)})
    found = said(tmp_path)
    assert len(found) == MOST_NAMED
    assert found[0][0] == "/sys/fs/cgroup/kubepods/memory.min"


def test_garbage_protects_nothing_and_stops_nothing(tmp_path: Path) -> None:
    tree(tmp_path, {f"a/{ONE}": 10, "a": "garbage"})
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [subject for subject, _ in said(tmp_path)] == ["/sys/fs/cgroup/a/memory.min"]


def test_what_others_write_into_kubelets_tree_does_not_last(tmp_path: Path) -> None:
    trees = ("kubepods", "kubepods.slice", "other.slice", "deep/kubepods")
    tree(tmp_path, {f"{top}/pod/{number:064x}": 10 for number, top in enumerate(trees)})
    advice = {one.subject.split("/")[4]: one.advice for one in void_protections(tmp_path)}
    assert advice["kubepods"] == advice["kubepods.slice"] != advice["other.slice"]
    tree(tmp_path / "below", {f"deep/kubepods/pod/{ONE}": 10, "deep": 10})
    assert {one.advice for one in void_protections(tmp_path / "below")} == {advice["kubepods"]}
