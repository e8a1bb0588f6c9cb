"""Logs on stderr: JSON lines, or plain lines for people.

Nothing that logs ever waits: lines go through a bounded queue to a thread that writes them, because a stuck
terminal or journal must not stop the event loop that the container runtime waits for. Whatever is logged is
printable: only an exception, and our own list of problems, have more lines than one, each indented.
"""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TextIO

from bayplan.errors import EXIT_FAILURE, BayplanError, ConfigError
from bayplan.printable import printable, printable_lines, printable_values

logger = logging.getLogger(__name__)

QUEUED_LINES: Final = 10_000
"""About 3 MB of lines."""

REPEAT_WINDOW_S: Final = 60.0
REPEAT_BURST: Final = 5
"""So many equal warnings pass in a window; the next one after it has the number of those left out."""

_REMEMBERED_REPEATS: Final = 1000
_JSON: Final = json.JSONEncoder(ensure_ascii=False)
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PRIORITIES: Final = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}
"""Those of syslog(3), as the journal reads them at the start of a line (sd-daemon(3)); else debug, 7."""


class JsonFormatter(logging.Formatter):
    """One JSON object per record: ts, level, logger, msg, then the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """*record* as a line without its end."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _message(record),
        }
        for key, value in extra_fields(record).items():
            line.setdefault(key, printable_values(value))
        if record.exc_info:
            line["exception"] = printable_lines(self.formatException(record.exc_info))
        return _JSON.encode(line)


class TextFormatter(logging.Formatter):
    """One line per record for people; with *priorities* every line starts with the journal's ``<n>``."""

    def __init__(self, *, priorities: bool = False) -> None:
        super().__init__()
        self._priorities = priorities

    def format(self, record: logging.LogRecord) -> str:
        """*record* as lines without the last end."""
        moment = datetime.fromtimestamp(record.created).astimezone()
        clock = "" if self._priorities else f"{moment:%H:%M:%S}.{int(record.msecs):03d} "
        fields = "".join(f"  {key}={_shown(value)}" for key, value in extra_fields(record).items())
        name = record.name.removeprefix("bayplan.")
        text = f"{clock}{record.levelname:<8} {name}: {_message(record)}{fields}"
        if record.exc_info:
            text += "\n" + printable_lines(self.formatException(record.exc_info))
        priority = f"<{_PRIORITIES.get(record.levelno, 7)}>" if self._priorities else ""
        return priority + text.replace("\n", f"\n{priority}  ")


class RepeatFilter(logging.Filter):
    """Lets a warning or error that repeats word for word, fields included, through a few times per window.
    Any thread may log."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}
        self._counting = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether *record* passes; one that passes after others did not gets the field ``left_out``."""
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, record.levelno, record.getMessage(), repr(extra_fields(record)))
        with self._counting:
            now_s = self._clock_s()
            start_s, count = self._seen.pop(key, (now_s, 0))
            if now_s - start_s >= REPEAT_WINDOW_S:
                if count > REPEAT_BURST:
                    record.left_out = count - REPEAT_BURST
                start_s, count = now_s, 0
            self._seen[key] = (start_s, count + 1)
            if len(self._seen) > _REMEMBERED_REPEATS:
                del self._seen[next(iter(self._seen))]
        return count < REPEAT_BURST


class QueueingHandler(logging.Handler):
    """Formats where the record is made and writes in a thread of its own; drops lines rather than wait."""

    def __init__(self, stream: TextIO, capacity: int = QUEUED_LINES) -> None:
        super().__init__()
        self._stream = stream
        # Unlike `queue.Queue` it has no locks at which threads wait for each other.
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._capacity = capacity
        self._dropped = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue *record*."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - a record that can't be formatted must not break what logged it
            line = f"a record of {record.name} could not be written: {record.msg!r}"
        if self._queue.qsize() < self._capacity:
            self._queue.put(line)
        else:
            with self._counting:
                self._dropped += 1

    def close(self) -> None:
        """Write what is queued, for at most two seconds, and stop."""
        super().close()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout=2)

    def _write_all(self) -> None:
        while (line := self._queue.get()) is not None:
            with self._counting:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                lost = "%d log lines were dropped: they were not read in time"
                record = logging.LogRecord(__name__, logging.ERROR, "", 0, lost, (dropped,), None)
                line = f"{line}\n{self.format(record)}"
            # There is no other place to report that stderr is gone.
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line + "\n")
                self._stream.flush()


def start(
    level: str, form: str, stream: TextIO | None = None, environ: Mapping[str, str] | None = None
) -> QueueingHandler:
    """Send all logs to *stream* (stderr) from now on; the caller closes the handler at the end.

    *form* is ``json``, ``text``, or ``auto``: text on a terminal, else json. Text gets priorities if the
    stream is the journal.
    """
    stream = sys.stderr if stream is None else stream
    environ = os.environ if environ is None else environ
    terminal = stream.isatty()
    handler = QueueingHandler(stream)
    handler.addFilter(RepeatFilter())
    if form == "text" or (form == "auto" and terminal):
        handler.setFormatter(TextFormatter(priorities=not terminal and _is_journal(stream, environ)))
    else:
        handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.captureWarnings(capture=True)
    set_level(level)
    return handler


def exit_status(level: str, form: str, run: Callable[[], int]) -> int:
    """The exit status of *run*, during which logs are written as `start` says. An error of ours is logged as
    one message; any other exception, which is a defect, with its traceback."""
    handler = start(level, form)
    try:
        return run()
    except BayplanError as error:
        logger.critical("%s", error)
        return error.exit_code
    except Exception:
        logger.critical("this is a defect of bayplan; please report it", exc_info=True)
        return EXIT_FAILURE
    finally:
        handler.close()


def set_level(level: str) -> None:
    """Log *level* (debug, info, warning, error) and above from now on."""
    logging.getLogger().setLevel(level.upper())


def current_level() -> str:
    """The level in force."""
    return logging.getLevelName(logging.getLogger().level).lower()


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """What the caller gave as ``extra``, in its order."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether systemd connected the stream to the journal; JOURNAL_STREAM is the identity of its socket."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _message(record: logging.LogRecord) -> str:
    """The message on one line. Only that of a `ConfigError` has lines of its own: see there."""
    show = printable_lines if _is_config_error(record) else printable
    return show(record.getMessage())


def _is_config_error(record: logging.LogRecord) -> bool:
    return isinstance(record.args, tuple) and [type(one) for one in record.args] == [ConfigError]


def _shown(value: object) -> str:
    text = printable(str(value))
    return (
        text if text and not any(letter.isspace() or letter in '="' for letter in text) else json.dumps(text)
    )


class Condition:
    """*failing* is the log line while there is a problem, *again* the one when there is none any more."""

    def __init__(self, failing: str, again: str) -> None:
        self._failing = failing
        self._again = again
        self._problem = ""
        self._times = 0

    def holds(self, problem: str) -> int:
        """Note that there is *problem*; how many times in a row."""
        if problem != self._problem:
            self._problem, self._times = problem, 0
            logger.warning("%s", self._failing, extra={"problem": problem})
        self._times += 1
        return self._times

    def over(self) -> None:
        """Note that there is no problem any more."""
        if self._problem:
            self._problem = ""
            logger.info("%s", self._again)
