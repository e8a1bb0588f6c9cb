"""The files that tell containers what they were given follow the ledger, and nobody else's are left."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.control.container_files import GRACE_S, UNLISTED_S, PlacementFileWriter
from bayplan.control.state import Current
from bayplan.engines.exact.engine import ExactEngine
from bayplan.errors import HostError
from bayplan.host.placement_files import FILE, PlacementDirectory
from bayplan.host.shadow_mode import ShadowModeError, shadow_mode
from bayplan.model.decision import Decision, Outcome, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import CpuSet, NodeSet
from support.controllers import MACHINE, here
from support.requests import guaranteed_request


class Node:
    """The files below a directory, and what they follow."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.basis = Current(MACHINE, PlacementPolicy(), Ledger(), engine=ExactEngine())
        self.ended: set[str] = set()
        self.listed = True
        self.now_s = root.stat().st_mtime if root.exists() else root.parent.stat().st_mtime
        self.counters: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """A daemon starts."""
        self.files = PlacementFileWriter(
            PlacementDirectory(self.root),
            here,
            lambda: self.basis,
            lambda key: key in self.ended,
            lambda: self.listed,
            self.counters,
            lambda: self.now_s,
        )

    async def create(self, key: str, cpus: CpuSet = CpuSet()) -> Entry:
        """A container with a file is created."""
        request = replace(guaranteed_request(key, exclusive_cpus=len(cpus)), placement_file=True)
        entry = Entry(Decision(request, Outcome.PLACED, Placement(NodeSet([0]), cpus)))
        ledger = self.basis.ledger.with_entry(entry)
        shared = self.basis.with_ledger(ledger).shared_cpus
        assert await self.files.prepare(MACHINE, shared, entry) == f"{self.root}/{key}"
        self.basis = self.basis.with_ledger(ledger)
        self.ended.discard(key)
        return entry

    def end(self, key: str) -> None:
        """A container ends."""
        self.basis = self.basis.with_ledger(self.basis.ledger.without(key))
        self.ended.add(key)

    def told(self, key: str) -> tuple[int, str, str]:
        """Generation, exclusive and shared CPUs that a container reads."""
        written = json.loads((self.root / key / FILE).read_text())
        return written["metadata"]["generation"], written["cpus"]["exclusive"], written["cpus"]["shared"]


def names(directory: Path) -> list[str]:
    """What is in a directory."""
    return sorted(one.name for one in directory.iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "placements")


async def test_it_is_there_before_the_container_and_follows_it(node: Node) -> None:
    await node.create("a")
    assert node.told("a") == (1, "", "0-7")
    await node.files.update()
    assert node.told("a") == (1, "", "0-7")
    await node.create("b", CpuSet([6, 7]))
    await node.files.update()
    assert (node.told("a"), node.told("b")) == ((2, "", "0-5"), (1, "6-7", ""))
    node.end("b")
    await node.files.update()
    assert (node.told("a"), names(node.root)) == ((3, "", "0-7"), ["a"])


async def test_who_had_it_open_sees_one_version_whole_and_a_reader_of_the_directory_the_next(
    node: Node,
) -> None:
    await node.create("a")
    directory = os.open(node.root / "a", os.O_RDONLY)
    try:
        with open(node.root / "a" / FILE) as old:  # noqa: ASYNC230, PTH123 - a file in memory, held open
            await node.create("b", CpuSet([7]))
            await node.files.update()
            assert json.load(old)["cpus"]["shared"] == "0-7"
        descriptor = os.open(FILE, os.O_RDONLY, dir_fd=directory)
        with open(descriptor) as new:  # noqa: ASYNC230, PTH123 - as above
            assert json.load(new)["cpus"]["shared"] == "0-6"
    finally:
        os.close(directory)


async def test_everybody_may_read_and_nobody_but_root_write(node: Node) -> None:
    before = os.umask(0o077)
    try:
        await node.create("a")
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o7777 for path in (node.root, node.root / "a", node.root / "a" / FILE)]
    assert modes == [0o755, 0o755, 0o444]


async def test_a_daemon_that_starts_again_goes_on_counting_and_writes_what_changed_alone(node: Node) -> None:
    await node.create("a")
    await node.create("b", CpuSet([7]))
    await node.files.update()
    (node.root / "b" / f".{FILE}").write_text("half of")
    unchanged = (node.root / "b" / FILE).stat().st_ino
    node.begin()
    await node.create("c", CpuSet([6]))
    await node.files.update()
    assert (node.told("a")[0], node.told("b")[0], node.told("c")[0]) == (3, 1, 1)
    assert (node.root / "b" / FILE).stat().st_ino == unchanged


async def test_one_that_was_damaged_is_written_again_by_the_next_daemon(node: Node) -> None:
    await node.create("a")
    for text in ("", "{", "[]", '{"metadata": {"generation": "2"}}', '{"metadata": {"generation": 3}}'):
        (node.root / "a" / FILE).unlink()
        (node.root / "a" / FILE).write_text(text)
        node.begin()
        await node.files.update()
        assert node.told("a")[1:] == ("", "0-7")


async def test_the_directory_of_an_unknown_container_stays_while_it_may_be_about_to_start(node: Node) -> None:
    await node.create("a")
    node.basis = node.basis.with_ledger(Ledger())
    node.ended.clear()
    node.begin()
    node.listed = False
    await node.files.update()
    node.now_s += GRACE_S + 1
    await node.files.sweep()
    assert names(node.root) == ["a"]
    node.listed = True
    await node.files.sweep()
    assert names(node.root) == []
    await node.create("b")
    node.basis = node.basis.with_ledger(Ledger())
    node.listed = False
    node.now_s += UNLISTED_S + 1
    await node.files.sweep()
    assert names(node.root) == []


async def test_a_container_that_begins_again_by_its_id_keeps_its_directory(node: Node) -> None:
    await node.create("a")
    node.end("a")
    request = replace(guaranteed_request("a"), placement_file=True)
    entry = Entry(Decision(request, Outcome.PLACED, Placement(NodeSet([0]))))
    await node.files.prepare(MACHINE, CpuSet([0]), entry)
    await node.files.update()
    await node.files.sweep()
    assert names(node.root) == ["a"]


async def test_a_directory_that_somebody_removed_is_made_again(node: Node) -> None:
    await node.create("a")
    (node.root / "a" / FILE).unlink()
    (node.root / "a").rmdir()
    await node.files.sweep()
    assert node.told("a")[1:] == ("", "0-7")


async def test_one_that_cannot_be_written_is_said_and_tried_again(node: Node) -> None:
    await node.create("a")
    (node.root / "a" / f".{FILE}").mkdir()
    await node.create("b", CpuSet([7]))
    await node.files.update()
    await node.files.update()
    assert (len(node.files.sentences()), node.counters["placement_files_failed"]) == (1, 1)
    assert node.told("a")[2] == "0-7"
    (node.root / "a" / f".{FILE}").rmdir()
    await node.files.update()
    assert (node.files.sentences(), node.told("a")[2]) == ([], "0-6")


async def test_what_others_put_there_stays(node: Node) -> None:
    await node.create("a")
    (node.root / "a" / "mine").touch()
    (node.root / "no directory").touch()
    node.end("a")
    await node.files.update()
    assert names(node.root / "a") == ["mine"]
    assert len(node.files.sentences()) == 1
    (node.root / "a" / "mine").unlink()
    await node.files.sweep()
    assert (names(node.root), node.files.sentences()) == (["no directory"], [])


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "/etc", "x" * 256])
async def test_an_id_that_is_no_name_gets_no_directory(node: Node, key: str) -> None:
    request = replace(guaranteed_request(key), placement_file=True)
    entry = Entry(Decision(request, Outcome.PLACED))
    with pytest.raises(HostError, match="no name of a directory"):
        await node.files.prepare(MACHINE, CpuSet([0]), entry)
    assert not node.root.exists()


async def test_a_place_that_is_no_directory_is_named(node: Node) -> None:
    node.root.write_text("")
    request = replace(guaranteed_request("a"), placement_file=True)
    with pytest.raises(HostError, match=f"{node.root}"):
        await node.files.prepare(MACHINE, CpuSet([0]), Entry(Decision(request, Outcome.PLACED)))
    await node.files.sweep()
    assert len(node.files.sentences()) == 1


async def test_in_shadow_mode_nothing_is_written(node: Node) -> None:
    request = replace(guaranteed_request("a"), placement_file=True)
    with shadow_mode(), pytest.raises(ShadowModeError):
        await node.files.prepare(MACHINE, CpuSet([0]), Entry(Decision(request, Outcome.PLACED)))
    assert not node.root.exists()
