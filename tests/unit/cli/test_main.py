"""The command as people run it: output, exit statuses, and what it costs to start."""

# ruff: noqa: E501 - tables are as wide as they are

import contextlib
import io
import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from msgspec.structs import replace

from bayplan import __version__
from bayplan.cli.bayplan import EXIT_STATUSES, VERBS, main
from bayplan.model.ledger import Ledger
from bayplan.views.metrics import metrics_view
from bayplan.views.status import nodes_view, status_view
from support.snapshots import make_snapshot
from support.sysfs import SysfsTree

if TYPE_CHECKING:
    from conftest import Daemon

Capture = pytest.CaptureFixture[str]


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bayplan.cli.bayplan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_json_is_the_view_itself(daemon: "Daemon", capsys: Capture) -> None:
    assert main(["nodes", "--output", "json", "--admin-socket", str(daemon.path)]) == 0
    assert json.loads(capsys.readouterr().out) == {**nodes_view(daemon.snapshot), "shadow": False}
    assert main(["status", "--json", "--admin-socket", str(daemon.path)]) == 0
    expected = {**status_view(daemon.snapshot), "refusals": [], "shadow": False}
    assert json.loads(capsys.readouterr().out) == expected


def test_options_before_the_verb_count_too(daemon: "Daemon", capsys: Capture) -> None:
    assert main(["--output", "json", "--admin-socket", str(daemon.path), "nodes"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "Nodes"


def test_metrics_come_out_as_they_are(daemon: "Daemon", capsys: Capture) -> None:
    assert main(["--admin-socket", str(daemon.path), "metrics"]) == 0
    assert capsys.readouterr().out == metrics_view(daemon.snapshot)["text"]


def test_the_log_level_is_shown_and_changed(daemon: "Daemon", capsys: Capture) -> None:
    assert main(["log-level", "--admin-socket", str(daemon.path)]) == 0
    assert main(["log-level", "debug", "--admin-socket", str(daemon.path)]) == 0
    assert capsys.readouterr().out == "info\ndebug\n"
    assert daemon.level == "debug"


def on_a_terminal(*arguments: str, **environ: str) -> str:
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "bayplan.cli.bayplan", *arguments],
            stdout=follower,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", **environ},
        )
        os.close(follower)
        output = bytearray()
        while True:
            try:
                chunk = os.read(leader, 1 << 16)
            except OSError:  # the end of a terminal is EIO
                break
            output += chunk
        assert process.wait() == 0
    finally:
        os.close(leader)
    return output.decode()


def test_a_terminal_gets_colours_unless_told_otherwise(daemon: "Daemon") -> None:
    arguments = ("status", "--admin-socket", str(daemon.path))
    coloured = on_a_terminal(*arguments, NO_COLOR="")
    assert "\x1b[32mplaced" in coloured
    for plain in (
        on_a_terminal(*arguments, NO_COLOR="1"),
        on_a_terminal(*arguments, "--no-color", NO_COLOR=""),
    ):
        assert "\x1b[32m" not in plain
        assert "default/web-0/nginx" in plain
        assert "Burstable (inferred)" in plain


def test_names_cannot_move_the_cursor(daemon: "Daemon", capsys: Capture) -> None:
    from bayplan.views.snapshot import Unmanaged

    daemon.snapshot = make_snapshot(unmanaged=(Unmanaged("x", "default/\x1b[2J\x1b]0;pwned\x07/[bold]c"),))
    assert main(["status", "--admin-socket", str(daemon.path)]) == 0
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    assert "\\x1b[2J" in plain
    terminal = on_a_terminal("status", "--admin-socket", str(daemon.path))
    assert "\x1b[2J" not in terminal
    assert "\x07" not in terminal
    assert "[bold]c" in terminal


def test_an_answer_cannot_move_the_cursor(serve_once: Callable[[bytes], Path], capsys: Capture) -> None:
    path = serve_once(b'{"apiVersion":"bayplan/v1","kind":"Error","message":"\\u001b[2J"}\n')
    assert main(["explain", "x", "--admin-socket", str(path)]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_no_socket_is_one_sentence_with_its_path_and_what_to_do(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "none.sock"
    assert main(["status", "--admin-socket", str(path)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert str(path) in captured.err
    assert "systemctl start bayplan" in captured.err


def test_a_dead_daemons_socket(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert main(["status", "--admin-socket", str(path)]) == 3
    assert "is gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"", 3, "ended before the answer"),
        (b'{"apiVersion":"bayplan/v1"', 3, "ended before the answer"),
        (b"hello\n", 1, "not JSON"),
        (b"[" * 100_000 + b"\n", 1, "not JSON"),
        (b"[]\n", 1, "apiVersion"),
        (b'{"apiVersion":"bayplan/v9","kind":"Status"}\n', 1, "bayplan/v9"),
        (b'{"apiVersion":"bayplan/v1","kind":"Error","code":"Internal","message":"oh no"}\n', 1, "oh no"),
    ],
)
def test_strange_answers(
    serve_once: Callable[[bytes], Path], capsys: Capture, answer: bytes, status: int, words: str
) -> None:
    path = serve_once(answer)
    assert main(["status", "--admin-socket", str(path)]) == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert str(path) in captured.err
    assert "Traceback" not in captured.err


def test_a_daemon_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    from bayplan.cli.client import ask
    from bayplan.errors import UnavailableError

    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        with pytest.raises(UnavailableError, match="too long"):
            ask(path, "ping", timeout_s=0.05)


def test_wrong_usage_is_status_2(capsys: Capture) -> None:
    for arguments in ([], ["dance"], ["status", "--output", "xml"], ["log-level", "loud"]):
        with pytest.raises(SystemExit) as raised:
            main(arguments)
        assert raised.value.code == 2


def test_the_version_names_the_python(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert raised.value.code == 0
    python = ".".join(str(part) for part in sys.version_info[:3])
    assert capsys.readouterr().out == f"bayplan {__version__} (python {python})\n"


HEAVY = {"yaml", "difflib", "google.protobuf", "sqlite3", "asyncio", "msgspec", "grpc", "pyroute2", "logging"}


WRITTEN = "bayplan: the answer cannot be written: "


@pytest.mark.parametrize(
    ("redirected", "status", "complaint"),
    [
        (">&-", 1, f"{WRITTEN}Bad file descriptor\n"),
        (">/dev/full", 1, f"{WRITTEN}No space left on device\n"),
        (">&3", 141, ""),
        (">&- 2>&-", 1, ""),
        (">/dev/full 2>/dev/full", 1, ""),
        (">&3 2>&3", 141, ""),
    ],
    ids=["closed", "full", "nobody reads", "both closed", "both full", "nobody reads either"],
)
@pytest.mark.parametrize(
    "words", ["status", "status --json", "nodes", "metrics", "log-level", "doctor", "--help"]
)
def test_an_answer_that_cannot_be_written_is_one_sentence_at_most(
    daemon: "Daemon", words: str, redirected: str, status: int, complaint: str
) -> None:
    if words == "--help" and ">&-" in redirected:
        return  # argparse then writes to standard error
    ended = redirected_to(redirected, words, daemon.path)
    assert (ended.returncode, ended.stderr) == (status, complaint)


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", "2>&3", ">&- 2>&-"])
@pytest.mark.parametrize(("words", "status"), [("status", 3), ("explain x", 3), ("what-if", 2), ("dance", 2)])
def test_an_error_that_nobody_can_read_keeps_its_exit_status(
    tmp_path: Path, words: str, status: int, redirected: str
) -> None:
    ended = redirected_to(redirected, words, tmp_path / "missing.sock")
    assert (ended.returncode, ended.stderr) == (status, "")


def redirected_to(redirected: str, words: str, socket_path: Path) -> subprocess.CompletedProcess[str]:
    """bayplan as a shell starts it with such redirections; its descriptor 3 is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    command = f'exec "{sys.executable}" -m bayplan.cli.bayplan {words} --admin-socket "{socket_path}"'
    # With it Python has no buffer, and argparse swallows what goes wrong with the help.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    try:
        return subprocess.run(
            ["bash", "-c", f"exec 3>&{writer}; {command} {redirected}"],
            capture_output=True,
            text=True,
            check=False,
            pass_fds=[writer],
            env=environment,
        )
    finally:
        os.close(writer)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom bayplan.cli.bayplan import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "status" in finished.stdout
    assert finished.stderr.strip() == "[]"


def test_a_status_imports_nothing_heavy(daemon: "Daemon") -> None:
    program = (
        "import sys\nfrom bayplan.cli.bayplan import main\n"
        f"main(['status', '--admin-socket', {str(daemon.path)!r}])\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "default/web-0/nginx" in finished.stdout
    assert finished.stderr.strip() == "[]"


def test_manifests_are_read_without_what_only_the_daemon_needs() -> None:
    program = (
        "import sys\nimport bayplan.config.yaml_text\n"
        f"print(sorted({HEAVY - {'yaml', 'difflib'}!r} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"


def test_help_names_every_verb_and_exit_status() -> None:
    text = run("--help").stdout
    for words in (*VERBS, "--output", "--admin-socket", "--no-color"):
        assert words in text
    for status, meaning in EXIT_STATUSES.items():
        assert re.search(rf"^ +{status} +{re.escape(meaning)}$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("typed", "meant"), [("stauts", "status"), ("explian", "explain"), ("node", "nodes")]
)
def test_a_mistyped_verb_gets_the_nearest_one(typed: str, meant: str) -> None:
    finished = run(typed)
    assert finished.returncode == 2
    assert finished.stderr.endswith(f"found '{typed}'; did you mean {meant}?\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--jsn", "status"], "bayplan: error: unrecognized arguments: --jsn; did you mean --json?"),
        (
            ["status", "--outcmoe=placed"],
            "bayplan status: error: unrecognized arguments: --outcmoe=placed; did you mean --outcome?",
        ),
        (["status", "web"], "bayplan status: error: unrecognized arguments: web"),
        (
            ["simulate", "--topology=x", "--trace=x", "--set=placementStratgy=spread"],
            "--set.placementStratgy: found an unknown key, expected placementStrategy, perhaps",
        ),
    ],
)
def test_a_mistyped_flag_or_key_gets_the_nearest_one(typed: list[str], meant: str) -> None:
    finished = run(*typed)
    assert finished.returncode == 2
    assert finished.stderr.endswith(f"{meant}\n")


def test_what_is_nothing_like_a_verb_gets_all_of_them() -> None:
    assert f"expected one of {', '.join(VERBS)}" in run("dance").stderr


def test_output_as_yaml_says_the_same_as_json(daemon: "Daemon", capsys: Capture) -> None:
    for verb in ("status", "nodes", "refused"):
        assert main([verb, "-o", "json", "--admin-socket", str(daemon.path)]) == 0
        as_json = json.loads(capsys.readouterr().out)
        assert main([verb, "-o", "yaml", "--admin-socket", str(daemon.path)]) == 0
        assert yaml.safe_load(capsys.readouterr().out) == as_json


def test_names_are_lines_and_only_of_verbs_that_list_something(daemon: "Daemon", capsys: Capture) -> None:
    assert main(["status", "-o", "name", "--admin-socket", str(daemon.path)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [one["name"] for one in status_view(daemon.snapshot)["containers"]]
    assert main(["nodes", "-o", "name", "--admin-socket", str(daemon.path)]) == 0
    assert capsys.readouterr().out.split() == ["0", "1"]
    assert main(["metrics", "-o", "name", "--admin-socket", str(daemon.path)]) == 2
    assert "name is for status, refused, nodes" in capsys.readouterr().err


TRACE = '{"arrive": "team/\\u00e4\\u2603", "memory": "1Gi"}\n{"depart": "team/\\u00e4\\u2603"}\n'


@pytest.fixture
def foreign_words(daemon: "Daemon", tmp_path: Path) -> dict[str, tuple[str, ...]]:
    """The arguments of every verb, so that all of them have something to say that no ASCII terminal can show."""
    name, names = "team/\u00e4\u2603/\ufb01", {}
    for entry in list(daemon.snapshot.ledger.entries.values()):
        decision = replace(entry.decision, request=replace(entry.decision.request, name=name))
        names[entry.container_id] = replace(entry, decision=decision)
    daemon.snapshot = replace(
        daemon.snapshot, ledger=Ledger(names), problems=(name,), engine=name, counters={name: 1}
    )
    (tmp_path / "trace.jsonl").write_text(TRACE)
    (tmp_path / "pod.yaml").write_text(
        "kind: Pod\nmetadata: {name: \u00e4}\nspec: {containers: [{name: \u2603}]}\n"
    )
    root = tmp_path / "node"
    SysfsTree(daemon.snapshot.machine).write(root)
    settings = root / "etc/docker/daemon.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        '{"runtimes": {"\u2603": {"path": "/\u00e4/bayplan-runtime"}}, "default-runtime": "\u2603"}'
    )
    (tmp_path / "\u00e4.yaml").write_text("kind: \u2603\n")
    simulate = ("simulate", "--topology", str(root), "--trace", str(tmp_path / "trace.jsonl"))
    return {
        "status": ("status",),
        "nodes": ("nodes",),
        "claims": ("claims",),
        "metrics": ("metrics",),
        "refused": ("refused",),
        "history": ("history", name),
        "report": ("report",),
        "top": ("top", "--interval", "0.01"),
        "explain": ("explain", name),
        "what-if": ("what-if", str(tmp_path / "pod.yaml")),
        "simulate": (*simulate, "--steps"),
        "doctor": ("doctor", "--root", str(root)),
        "record-topology": ("record-topology", "--root", str(root)),
        "import-state": ("import-state", "--kubelet-directory", str(tmp_path / "\u00e4")),
        "export-state": ("export-state", str(tmp_path / "\u00e4.yaml")),
        "replay": ("replay", str(tmp_path / "\u00e4.yaml")),
        "map": ("map", "--svg", str(tmp_path / "\u00e4.svg")),
        "log-level": ("log-level", "\u00e4"),
        "release": ("release", "--state-directory", "\u00e4"),
        "ping": ("ping",),
        "an error": (*simulate, "--config", str(tmp_path / "\u00e4.yaml")),
    }


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_verb_is_written_in_any_encoding(
    daemon: "Daemon",
    foreign_words: dict[str, tuple[str, ...]],
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert VERBS.keys() <= foreign_words.keys()
    for words in foreign_words.values():
        for form in ("table", "json"):
            streams = {name: io.TextIOWrapper(io.BytesIO(), encoding) for name in ("stdout", "stderr")}
            with monkeypatch.context() as patch:
                for name, stream in streams.items():
                    patch.setattr(sys, name, stream)
                try:
                    status: object = main(["--admin-socket", str(daemon.path), "--output", form, *words])
                except SystemExit as left:
                    status = left.code
            assert status in (0, 1, 2)
            written = [stream.detach().getvalue().decode(encoding) for stream in streams.values()]
            assert any(written)


@pytest.mark.parametrize("encoding", ["ascii:strict", "latin-1:strict"])
def test_a_terminal_that_has_few_characters_gets_whole_tables(daemon: "Daemon", encoding: str) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "60", "TERM": "xterm"}
    command = [sys.executable, "-m", "bayplan.cli.bayplan", "status", "--admin-socket", str(daemon.path)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    shown = bytearray()
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)
    assert process.wait() == 0
    shown.decode("ascii")
    assert b"nginx" in shown
    assert b"\\u" not in shown
