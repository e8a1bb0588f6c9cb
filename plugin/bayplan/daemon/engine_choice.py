"""The engine that decides, recorded where that is switched on. Only then is loaded what it takes."""

from pathlib import Path
from typing import TYPE_CHECKING

from bayplan.config.kubelet_rules import engine_of
from bayplan.config.settings import Settings
from bayplan.engines.interface import Engine

if TYPE_CHECKING:
    from bayplan.recording.recording import Recording


def open_recording(path: Path | None) -> "Recording | None":
    """Begin a recording at *path*; None where nothing is to be recorded.

    Raises:
        ConfigError: something else is there, or the file cannot be made.
    """
    if path is None:
        return None
    from bayplan.recording.recording import Recording  # noqa: PLC0415 - only where it is switched on

    return Recording.open(path)


def engine_for(settings: Settings, recording: "Recording | None") -> Engine:
    """The engine of *settings*, whose answers go into *recording*."""
    engine = engine_of(settings)
    if recording is None:
        return engine
    from bayplan.recording.engine import RecordedEngine  # noqa: PLC0415 - only where it is switched on

    return RecordedEngine(engine, recording)
