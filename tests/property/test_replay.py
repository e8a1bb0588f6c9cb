"""What any schedule of creations, resizes, ends, reloads, hot-plug, faults and kills has recorded comes out
the same when it is replayed by the same version; also if the recording ends in the middle."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from bayplan.recording.replay import read_recording, replay, replay_view
from support.interleaving.schedule import play
from support.interleaving.simulated_host import SimulatedHost
from support.recordings import RECORDINGS, TRACE, recorded_engine, recording_at


@given(st.integers(0, 1 << 32))
@example(151593)  # several containers are found at once, and each is booked beside those before it
def test_a_recording_of_any_schedule_replays_without_a_difference(seed):
    with TemporaryDirectory() as directory:
        path = Path(directory) / "recording"
        with recording_at(path) as recording:
            play(seed, partial(SimulatedHost, engine_for=partial(recorded_engine, recording)))
        said = replay_view(path)
        assert said["questions"]
        assert not said["cutOff"]
        assert said["differences"] == []


@given(st.data())
def test_a_recording_that_ends_anywhere_can_be_replayed(data):
    content = (RECORDINGS / TRACE).read_bytes()
    begin = content.index(b"\n") + 1
    end = data.draw(st.integers(begin, len(content)))
    with TemporaryDirectory() as directory:
        path = Path(directory) / "recording"
        path.write_bytes(content[:end])
        read = read_recording(path)
        assert read.cut_off == (not content[:end].endswith(b"\n"))
        assert len(read.lines) == content[begin:end].count(b"\n")
        assert all(difference is None or difference.explanation for _, difference in replay(path, read))
