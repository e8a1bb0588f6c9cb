"""What reaches stderr: JSON or plain lines, never a stuck caller, repeated failures in moderation."""

import contextlib
import io
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator

import pytest

from bayplan import logs
from bayplan.errors import ConfigError, Problem
from bayplan.logs import JsonFormatter, QueueingHandler, RepeatFilter, TextFormatter


def record(
    message: str = "placed", *args: object, level: int = logging.INFO, **extra: object
) -> logging.LogRecord:
    made = logging.getLogger("bayplan.test").makeRecord(
        "bayplan.control.controller", level, __file__, 1, message, args, None, extra=extra
    )
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def failed(error: Exception) -> logging.LogRecord:
    made = record("it failed", level=logging.ERROR)
    made.exc_info = (type(error), error, None)
    return made


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


# --- formats ---


def test_json_lines() -> None:
    line = JsonFormatter().format(record("placed %s", "web", container="default/web", nodes=[0, 1]))
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "bayplan.control.controller",
        "msg": "placed web",
        "container": "default/web",
        "nodes": [0, 1],
    }


def test_json_stays_one_line_and_its_own_fields_stay_theirs() -> None:
    line = JsonFormatter().format(record("two\nlines\x1b", level=logging.WARNING, ts="never", odd={1, 2}))
    assert "\n" not in line
    shown = json.loads(line)
    assert shown["msg"] == r"two\nlines\x1b"
    assert shown["ts"] == "2023-11-14T22:13:20.250Z"
    assert shown["odd"] == "{1, 2}"


def test_json_carries_exceptions() -> None:
    assert "KeyError: 'node 7'" in json.loads(JsonFormatter().format(failed(KeyError("node 7"))))["exception"]


def test_text_for_people() -> None:
    line = TextFormatter().format(record("placed", container="default/web", reasons="fits on 0", mems=""))
    local = time.strftime("%H:%M:%S", time.localtime(1_700_000_000))
    fields = 'container=default/web  reasons="fits on 0"  mems=""'
    assert line == f"{local}.250 INFO     control.controller: placed  {fields}"


def test_text_cannot_move_the_cursor() -> None:
    line = TextFormatter().format(record("created", container="\x1b[2Jevil\x07\r"))
    assert all(one.isprintable() for one in line)
    assert "[2Jevil" in line


@pytest.mark.parametrize(
    ("level", "priority"),
    [
        (logging.DEBUG, "<7>"),
        (logging.INFO, "<6>"),
        (logging.WARNING, "<4>"),
        (logging.ERROR, "<3>"),
        (logging.CRITICAL, "<2>"),
    ],
)
def test_the_journal_gets_a_priority_on_every_line(level: int, priority: str) -> None:
    problems = ConfigError("a.toml", (Problem("x", "1", "2"), Problem("y\n<0>z", "1", "2")))
    text = TextFormatter(priorities=True).format(record("%s", problems, level=level))
    first, *others = text.split("\n")
    assert first.startswith(priority)
    assert others == [f"{priority}    x: found 1, expected 2", rf"{priority}    y\n<0>z: found 1, expected 2"]
    assert "22:13" not in text


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter(), TextFormatter(priorities=True)])
@pytest.mark.parametrize(
    "hostile", ["a\r\n<2>12:00:00.000 CRITICAL x: forged", "\x1b[2J", "\u202e", "\x9b1m"]
)
def test_nothing_that_is_logged_begins_a_line_or_moves_the_cursor(
    formatter: logging.Formatter, hostile: str
) -> None:
    fields = {"name": hostile, "list": [hostile], "table": {hostile: hostile}}
    for made in (record("created %s", hostile, field=fields), failed(ValueError(hostile))):
        first, *others = formatter.format(made).split("\n")
        assert first.isprintable()
        assert all(line.isprintable() for line in others)
        assert all(re.match(r"(<3>)?  ", line) for line in others)
        assert len(others) <= (2 if made.exc_info else 0)


def test_what_is_logged_is_bounded() -> None:
    for formatter in (JsonFormatter(), TextFormatter()):
        assert len(formatter.format(record("x" * 100_000, id="y" * 100_000))) < 10_000


# --- repeats ---


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_repeated_warnings_pass_a_few_times_per_window() -> None:
    clock = Clock()
    repeats = RepeatFilter(clock)
    passed = [repeats.filter(record("no runtime", level=logging.WARNING, why="refused")) for _ in range(12)]
    assert passed == [True] * 5 + [False] * 7
    clock.now_s = 60.0
    next_one = record("no runtime", level=logging.WARNING, why="refused")
    assert repeats.filter(next_one)
    assert logs.extra_fields(next_one) == {"why": "refused", "left_out": 7}
    clean = record("no runtime", level=logging.WARNING, why="refused")
    assert repeats.filter(clean)
    assert "left_out" not in logs.extra_fields(clean)


def test_only_word_for_word_repeats_are_limited() -> None:
    repeats = RepeatFilter(Clock())
    for number in range(50):
        assert repeats.filter(record("created without us", level=logging.WARNING, container=f"c{number}"))
        assert repeats.filter(record("container %s", f"c{number}", level=logging.ERROR))
        assert repeats.filter(record("placed", level=logging.INFO))


def test_the_memory_for_repeats_is_bounded() -> None:
    repeats = RepeatFilter(Clock())
    for number in range(5000):
        repeats.filter(record("x", level=logging.WARNING, number=number))
    assert len(repeats._seen) <= 1000


class Yielding(str):
    """A name that lets another thread run whenever it is looked up: between any two steps of a filter."""

    __slots__ = ()

    def __hash__(self) -> int:
        time.sleep(0)
        return super().__hash__()


def test_threads_that_log_the_same_share_one_count() -> None:
    repeats, passed = RepeatFilter(Clock()), []
    begin = threading.Barrier(8)

    def log() -> None:
        begin.wait()
        for _ in range(50):
            made = record("no runtime", level=logging.WARNING)
            made.name = Yielding(made.name)
            passed.append(repeats.filter(made))

    threads = [threading.Thread(target=log) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == 5
    assert list(repeats._seen.values()) == [(0.0, 400)]


# --- writing ---


class Stuck(io.StringIO):
    """A stream that nobody reads until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.release.wait()
        return super().write(text)


def test_lines_come_out_in_order_and_all_of_them_before_close_returns() -> None:
    stream = io.StringIO()
    handler = QueueingHandler(stream)
    for number in range(500):
        handler.emit(record(f"line {number}"))
    handler.close()
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(500)]


def test_a_stuck_stream_drops_lines_instead_of_waiting() -> None:
    stream = Stuck()
    handler = QueueingHandler(stream, capacity=10)
    handler.emit(record("first"))
    stream.entered.wait()
    for number in range(25):
        handler.emit(record(f"line {number}"))
    stream.release.set()
    handler.close()
    text = stream.getvalue()
    assert "first" in text
    assert "line 9" in text
    assert "line 10" not in text
    assert "15 log lines were dropped" in text


def test_a_stream_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        handler = QueueingHandler(stream)
        handler.emit(record("nobody reads this"))
        handler.close()
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def test_a_record_that_cannot_be_formatted_is_mentioned() -> None:
    stream = io.StringIO()
    handler = QueueingHandler(stream)
    handler.emit(record("%d nodes", "many"))
    handler.close()
    assert stream.getvalue() == "a record of bayplan.control.controller could not be written: '%d nodes'\n"


# --- the whole ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("form", "stream", "is_json"),
    [
        ("auto", io.StringIO, True),
        ("auto", Terminal, False),
        ("json", Terminal, True),
        ("text", io.StringIO, False),
    ],
)
def test_the_format_follows_the_setting_and_the_stream(
    root_logger: logging.Logger, form: str, stream: type[io.StringIO], is_json: bool
) -> None:
    output = stream()
    handler = logs.start("info", form, output, {})
    logging.getLogger("bayplan.x").info("hello")
    logging.getLogger("bayplan.x").debug("not this")
    handler.close()
    lines = output.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("{") is is_json
    assert "<6>" not in lines[0]


def test_text_to_the_journal_has_priorities(root_logger: logging.Logger) -> None:
    reader, writer = os.pipe()
    status = os.fstat(writer)
    with os.fdopen(writer, "w") as stream:
        handler = logs.start("info", "text", stream, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        logging.getLogger("bayplan.x").warning("hello")
        handler.close()
    with os.fdopen(reader) as journal:
        assert journal.read() == "<4>WARNING  x: hello\n"


def test_the_level_can_be_changed_while_running(root_logger: logging.Logger) -> None:
    output = io.StringIO()
    handler = logs.start("warning", "text", output, {})
    assert logs.current_level() == "warning"
    logging.getLogger("bayplan.x").info("quiet")
    logs.set_level("debug")
    assert logs.current_level() == "debug"
    logging.getLogger("bayplan.x").debug("loud")
    handler.close()
    assert "quiet" not in output.getvalue()
    assert "loud" in output.getvalue()


def test_pythons_warnings_are_logged(root_logger: logging.Logger) -> None:
    import warnings

    output = io.StringIO()
    handler = logs.start("info", "json", output, {})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("an old habit", UserWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    handler.close()
    assert "an old habit" in json.loads(output.getvalue())["msg"]
