"""The file of a recording: what it may replace, how long it becomes, and disks that do not take it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.control.threads import StoreThread
from bayplan.engines.exact.engine import ExactEngine
from bayplan.errors import ConfigError
from bayplan.model.basis import Basis
from bayplan.model.ledger import Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import GIB
from bayplan.recording.recording import RecordedEngine, Recording, RecordingFile
from bayplan.recording.replay import replay_view
from support.machines import machine
from support.recordings import recording_at
from support.requests import guaranteed_request

MOST_BYTES = 20_000
HARDWARE = machine(2, cpus_per_node=4, memory_bytes=GIB)


def decide(engine: RecordedEngine, count: int) -> None:
    for number in range(count):
        engine.decide(Basis(HARDWARE, PlacementPolicy(), Ledger()), guaranteed_request(f"c{number}"))


@pytest.mark.parametrize("where", ["recording", "recording.1"])
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (os.mkfifo, "a FIFO"),
        (Path.mkdir, "a directory"),
        (lambda path: path.symlink_to("/dev/null"), "a symbolic link"),
        (lambda path: path.write_text("somebody's"), "a file that is no recording"),
    ],
)
def test_nothing_but_a_recording_is_replaced(
    tmp_path: Path, make: Callable[[Path], object], found: str, where: str
) -> None:
    make(tmp_path / where)
    with pytest.raises(ConfigError, match=f"{where}: found {found}, expected nothing, or an earlier"):
        RecordingFile(tmp_path / "recording")
    assert [path.name for path in tmp_path.iterdir()] == [where]


def test_all_that_is_in_the_way_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "recording").mkdir()
    os.mkfifo(tmp_path / "recording.1")
    with pytest.raises(ConfigError, match=r"2 problems:(.|\n)*a directory(.|\n)*a FIFO"):
        RecordingFile(tmp_path / "recording")


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        RecordingFile(tmp_path / "none" / "recording")


def test_the_recording_before_is_kept_and_nobody_else_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    for count in (1, 2, 3):
        with recording_at(path) as recording:
            decide(RecordedEngine(ExactEngine(), recording), count)
    earlier = tmp_path / "recording.1"
    assert replay_view(path)["questions"] == 3
    assert replay_view(earlier)["questions"] == 2
    assert {one.stat().st_mode & 0o777 for one in (path, earlier)} == {0o600}


def test_a_recording_that_is_full_goes_on_in_a_file_that_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    recording = Recording(RecordingFile(path), StoreThread("recording"), MOST_BYTES)
    decide(RecordedEngine(ExactEngine(), recording), 30)
    recording.close()
    assert recording.problem == ""
    for one in (path, tmp_path / "recording.1"):
        assert one.stat().st_size <= MOST_BYTES
        assert replay_view(one)["differences"] == []
    assert replay_view(path)["questions"] < 30


def test_what_fits_no_file_ends_the_recording_and_no_decision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = Recording(RecordingFile(tmp_path / "recording"), StoreThread("recording"), 1000)
    decide(RecordedEngine(ExactEngine(), recording), 3)
    recording.close()
    assert "takes more than 1000 bytes" in recording.problem
    assert [one.message for one in caplog.records] == ["nothing is recorded any more"]


class FullFile(RecordingFile):
    """A file on a disk that has room for so many bytes."""

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path)
        self.room_bytes = room_bytes

    def write(self, lines: bytes) -> None:
        taken = lines[: self.room_bytes]
        self.room_bytes -= len(taken)
        super().write(taken)
        if len(taken) < len(lines):
            raise OSError(28, "No space left on device")


def test_a_full_disk_ends_the_recording_and_what_is_there_can_be_replayed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "recording"
    recording = Recording(FullFile(path, 9000), StoreThread("recording"))
    decide(RecordedEngine(ExactEngine(), recording), 20)
    recording.close()
    assert recording.problem == "No space left on device"
    assert len(caplog.records) == 1
    said = replay_view(path)
    assert said["cutOff"]
    assert 0 < said["questions"] < 20
    assert said["differences"] == []


def test_two_copies_of_an_engine_are_recorded_in_one_file(tmp_path: Path) -> None:
    with recording_at(tmp_path / "recording") as recording:
        engine = RecordedEngine(ExactEngine(), recording)
        decide(engine, 1)
        decide(engine.separate_copy(), 1)
    assert replay_view(tmp_path / "recording")["questions"] == 2
