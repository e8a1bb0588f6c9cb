"""What daemons once recorded is decided the same by the present engines."""

import pytest

from bayplan.recording.replay import replay_view
from support.recordings import RECORDINGS, SCHEDULES, TRACE


@pytest.mark.parametrize("name", [*SCHEDULES, TRACE])
def test_what_was_recorded_is_decided_the_same(name: str) -> None:
    said = replay_view(RECORDINGS / name)
    assert said["questions"] > 20
    assert [one for one in said["differences"] if not one["explanationOnly"]] == []


def test_every_recording_is_looked_at() -> None:
    assert {path.name for path in RECORDINGS.glob("*.jsonl")} == {*SCHEDULES, TRACE}
