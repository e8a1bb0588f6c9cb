"""Files of the kernel that have another value for a while are what others chose, however it ends."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.errors import HostError
from bayplan.host.changed_files import ChangedFiles
from bayplan.host.shadow_mode import shadow_mode

BOOT = "proc/sys/kernel/random/boot_id"


class Node:
    """A tree with a few of the kernel's files, and a record."""

    def __init__(self, root: Path, *values: str) -> None:
        self.root, self.record = root, root / "record.json"
        (root / BOOT).parent.mkdir(parents=True)
        self.boot("first")
        self.paths = [str(root / f"file{number}") for number in range(len(values))]
        for path, value in zip(self.paths, values, strict=True):
            Path(path).write_text(f"{value}\n")

    def boot(self, boot_id: str) -> None:
        (self.root / BOOT).write_text(f"{boot_id}\n")

    @property
    def files(self) -> ChangedFiles:
        """Those of a process that starts now."""
        return ChangedFiles(self.record, self.root)

    def value(self, number: int = 0) -> str:
        return Path(self.paths[number]).read_text().strip()

    def set(self, value: str, number: int = 0) -> None:
        Path(self.paths[number]).write_text(f"{value}\n")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "killed before it is set"]), st.integers(100, 103)),
        st.tuples(st.just("operator"), st.integers(0, 9)),
        st.tuples(st.sampled_from(["end", "another process"]), st.just(0)),
    ),
    max_size=14,
)


@given(STEPS)
def test_at_the_end_it_is_what_others_chose_last(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    node, chosen = Node(tmp_path_factory.mktemp("node"), "7"), "7"
    files = node.files
    for what, number in steps:
        value = str(number)
        if what == "set":
            assert files.set({node.paths[0]: lambda _, value=value: value}) == {}  # type: ignore[misc]  # bound now
            assert node.value() == value
        elif what == "killed before it is set":
            with shadow_mode():
                files.set({node.paths[0]: lambda _, value=value: value})  # type: ignore[misc]  # bound now
            files = node.files
        elif what == "operator":
            node.set(value)
            chosen = value
        elif what == "end":
            files.restore()
            assert node.value() == chosen
        else:
            files = node.files
    node.files.restore()
    assert node.value() == chosen
    assert node.files.changes == {}


def test_a_value_is_made_from_what_others_chose_and_not_from_ours(tmp_path: Path) -> None:
    node = Node(tmp_path, "1")
    for _ in range(3):
        node.files.set({node.paths[0]: lambda before: f"{before}5"})
    assert node.value() == "15"
    node.set("2")
    node.files.set({node.paths[0]: lambda before: f"{before}5"})
    assert (node.value(), node.files.to_restore) == ("25", {node.paths[0]: "2"})


def test_the_last_one_that_was_changed_is_restored_first(tmp_path: Path) -> None:
    node = Node(tmp_path, "1", "2", "3")
    for path in node.paths:
        node.files.set({path: lambda _: "9"})
    assert list(node.files.to_restore) == node.paths[::-1]
    node.files.restore([node.paths[1]])
    assert [node.value(number) for number in range(3)] == ["9", "2", "9"]
    assert list(node.files.changes) == [node.paths[0], node.paths[2]]


def test_what_is_gone_is_passed_over_and_forgotten(tmp_path: Path) -> None:
    node = Node(tmp_path, "1", "2")
    node.files.set({path: lambda _: "9" for path in node.paths})
    Path(node.paths[0]).unlink()
    assert node.files.restore() == {}
    assert node.value(1) == "2"
    assert not node.record.exists()


def test_what_cannot_be_read_is_told_and_the_others_are_set(tmp_path: Path) -> None:
    node = Node(tmp_path, "1", "2")
    Path(node.paths[0]).unlink()
    Path(node.paths[0]).mkdir()
    assert list(node.files.set({path: lambda _: "9" for path in node.paths})) == [node.paths[0]]
    assert node.value(1) == "9"


def test_without_a_record_nothing_is_changed(tmp_path: Path) -> None:
    node = Node(tmp_path, "1")
    with pytest.raises(HostError, match="no state directory"):
        ChangedFiles(None).set({node.paths[0]: lambda _: "9"})
    node.record.mkdir()
    with pytest.raises(HostError, match=r"record\.json"):
        node.files.set({node.paths[0]: lambda _: "9"})
    assert node.value() == "1"


def test_a_record_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    node = Node(tmp_path, "1")
    files = node.files
    files.set({node.paths[0]: lambda _: "9"})
    node.record.unlink()
    files.set({node.paths[0]: lambda _: "9"})
    node.files.restore()
    assert node.value() == "1"


@pytest.mark.parametrize(
    "text",
    ["", "\x00", "\xff", "{", '{"boot": 1}', '{"boot": "first", "files": {"/x": ["1"]}}', '{"files":' * 5000],
)
def test_an_unreadable_record_leaves_all_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    node = Node(tmp_path, "1")
    node.record.write_text(text)
    assert node.files.restore() == {}
    assert node.value() == "1"
    assert caplog.records


def test_a_boot_ends_what_was_set_before_it(tmp_path: Path) -> None:
    node = Node(tmp_path, "1")
    node.files.set({node.paths[0]: lambda _: "9"})
    node.boot("second")
    assert node.files.changes == {}


def test_only_the_first_word_of_a_state_counts(tmp_path: Path) -> None:
    node = Node(tmp_path, "member")
    node.files.set({node.paths[0]: lambda _: "isolated"})
    node.set("isolated invalid (Cpu list in cpuset.cpus not exclusive)")
    assert node.files.to_restore == {node.paths[0]: "member"}
    node.files.restore()
    assert node.value() == "member"
