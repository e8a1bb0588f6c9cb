"""The command as people run it: output, exit statuses, and what it costs to start."""

# ruff: noqa: E501 - tables are as wide as they are

import contextlib
import io
import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from bayplan import __version__
from bayplan.admin.metrics import metrics_view
from bayplan.cli.main import VERBS, main
from bayplan.cli.render import Column, Table, show
from bayplan.model.decision import Affinity, Decision, Outcome, Placement, PodTotals, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine, Node, Performance
from bayplan.model.request import derive_request
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.snapshot import MemoryReservation
from bayplan.views.status import nodes_view, status_view
from support.machines import container, pod
from support.snapshots import make_snapshot
from support.sysfs import SysfsTree

if TYPE_CHECKING:
    from conftest import Daemon

Capture = pytest.CaptureFixture[str]


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bayplan.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_status_as_plain_text(daemon: "Daemon", capsys: Capture) -> None:
    assert main(["--admin-socket", str(daemon.path), "status"]) == 0
    assert (
        capsys.readouterr().out
        == f"""\
bayplan {__version__}, up 1m 40s, engine exact, policy best-effort, shared CPUs 0-1,4-7
containerd v2.1.0, NRI 0.8.0
  the annotation bayplan.dev/memory-policy has no effect: that takes NRI 0.12
counted since start: connections 1, decisions_placed 3

CONTAINER                QOS                   OUTCOME   MEMS               CPUS               MEMORY                   OOM  WHY
default/job/worker       Burstable (inferred)  degraded  any                0-1,4-7 shared     100Mi..108Mi               -  runs on the shared CPUs
default/web-0/nginx      Guaranteed            placed    0                  2-3 exclusive      1Gi, 4Mi hugepages-2Mi  -997  one node has room for all of it
kube-system/agent/agent  BestEffort            adopted   1 (set by others)  7 (set by others)  -                          -  -

(inferred): the pod is outside kubelet's cgroup tree, so that its class was inferred from the resources it asks for.

Created without bayplan (1):
  kube-system/agent/agent

Not as decided (1):
  default/web-0/nginx: mems is 0-1, decided was 0
  What was decided is set again. A container that is to keep other CPUs and nodes is created with them, or with the annotation bayplan.dev/opt-out: "true".

Needs attention:
  the state store cannot record
"""
    )


def test_status_says_of_cpus_that_are_nobodys_business_where_they_come_from(
    daemon: "Daemon", capsys: Capture
) -> None:
    entry = daemon.snapshot.ledger.entries["bbb"]
    decision = replace(entry.decision, request=replace(entry.decision.request, opted_out=True))
    ledger = daemon.snapshot.ledger.with_entry(replace(entry, decision=decision))
    daemon.snapshot = replace(daemon.snapshot, ledger=ledger)
    assert main(["status", "--admin-socket", str(daemon.path)]) == 0
    assert "as in its spec" in capsys.readouterr().out


def test_what_is_kept_for_pods_is_shown_beside_their_engine(daemon: "Daemon", capsys: Capture) -> None:
    """The nodes' FREE column does not know of it, and others are refused because of it."""
    totals = PodTotals(900 * MIB, 3000, {"hugepages-2Mi": 4 * MIB})
    affinity = Affinity(NodeSet([1]), preferred=True, whole=True, mems=NodeSet([1]), cpus=CpuSet([4, 5, 6]))
    home = pod("team", QosClass.GUARANTEED)
    request = derive_request(home, container("i", home, memory_bytes=MIB, milli_cpus=1000), GIB)
    init = Decision(replace(request, pod_totals=totals), Outcome.PLACED, Placement(affinity=affinity))
    ledger = Ledger().with_entry(Entry(init)).after_end_of("i")
    kept = "  default/team: 4Mi hugepages-2Mi, 900Mi memory on node 1 and CPUs 4-6"
    for engine, expected in (("kubelet", True), ("exact", False)):
        daemon.snapshot = replace(make_snapshot(), ledger=ledger, engine=engine)
        for verb in ("status", "nodes"):
            assert main([verb, "--admin-socket", str(daemon.path)]) == 0
            printed = capsys.readouterr().out
            assert (f"Kept for containers that pods are still to get (1):\n{kept}\n" in printed) is expected
            assert verb == "nodes" or f", engine {engine}, policy" in printed


def test_status_of_an_idle_daemon_without_a_runtime(daemon: "Daemon", capsys: Capture) -> None:
    daemon.snapshot = make_snapshot(
        ledger=Ledger(), runtime=None, unmanaged=(), drift=(), problems=(), counters={}
    )
    assert main(["status", "--admin-socket", str(daemon.path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"bayplan {__version__}, up 1m 40s, engine exact, policy best-effort, shared CPUs 0-7",
        "no container runtime is connected; what it creates meanwhile is created without bayplan",
        "",
        "No containers.",
    ]


def test_nodes_as_plain_text(daemon: "Daemon", capsys: Capture) -> None:
    assert main(["nodes", "--admin-socket", str(daemon.path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NODE  RESOURCE        TOTAL  RESERVED  BOOKED    FREE  SAFE TO ASK FOR  SHARED CPUS  EXCLUSIVE CPUS",
        "   0  memory         4032Mi       1Gi     1Gi  1984Mi           1984Mi  0-1          2-3",
        "      hugepages-2Mi    64Mi         0     4Mi    60Mi             60Mi",
        "   1  memory            4Gi         0       0     4Gi           4096Mi  4-7          -",
        "",
        "DISTANCE FROM  TO 0  TO 1",
        "            0    10    21",
        "            1    31    10",
        "",
        "NODE  CONTAINER                BOOKED HERE                    HELD HERE  EXCLUSIVE CPUS HERE  DEVICES HERE",
        "   0  default/web-0/nginx      1Gi memory, 4Mi hugepages-2Mi          -  2-3                  /dev/vdb",
        "   1  kube-system/agent/agent  -                                      -  -                    -",
    ]


def test_nodes_say_what_kind_of_memory_they_have_and_why_they_keep_some(
    daemon: "Daemon", capsys: Capture
) -> None:
    fast, slow = daemon.snapshot.machine.nodes
    nodes = (
        replace(fast, tier=0, initiators=NodeSet([0])),
        replace(slow, cpus=CpuSet(), tier=1, performance=Performance(250, 250, 30 * 1024, 0)),
        Node(9, CpuSet(), 1 << 30, owner="0009:01:00.0"),
    )
    daemon.snapshot = make_snapshot(
        machine=Machine(nodes, daemon.snapshot.machine.cpus),
        reservations={0: MemoryReservation(512 << 20, 900 << 20, 1_700_000_050_000_000)},
    )
    assert main(["nodes", "--admin-socket", str(daemon.path)]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    start = next(place for place, line in enumerate(lines) if "NEAREST" in line)
    assert lines[start : start + 9] == [
        "NODE  TIER  ALSO CALLED  FOR                           NEAREST TO NODES  READ LATENCY  READ BANDWIDTH",
        "   0     0  dram         all containers                0                            -               -",
        "   1     1  slow, cxl    containers that ask for it    -                       250 ns          30Gi/s",
        "   9     -  -            containers with 0009:01:00.0  -                            -               -",
        "",
        "NODE  KEEPS  BECAUSE     CONFIGURED  HELD OUTSIDE OF CONTAINERS  MEASURED AT",
        "   0    1Gi  measured         512Mi                       900Mi  2023-11-14T22:14:10Z",
        "   1      0  configured           0                           -  -",
        "   9      0  configured           0                           -  -",
    ]


@pytest.mark.parametrize(("verb", "view"), [("status", status_view), ("nodes", nodes_view)])
def test_json_is_the_view_itself(
    daemon: "Daemon", capsys: Capture, verb: str, view: Callable[[Any], dict[str, Any]]
) -> None:
    assert main([verb, "--output", "json", "--admin-socket", str(daemon.path)]) == 0
    assert json.loads(capsys.readouterr().out) == view(daemon.snapshot)


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
            [sys.executable, "-m", "bayplan.cli.main", *arguments],
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


def test_a_name_cannot_pretend_to_be_a_row() -> None:
    stream = io.StringIO()
    show([Table((Column("NAME"), Column("CPUS")), (("one\nroot/real  0-7", "1"),))], stream)
    assert stream.getvalue().count("\n") == 2
    assert "one\\nroot/real" in stream.getvalue()


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


HEAVY = {"rich", "yaml", "google.protobuf", "sqlite3", "asyncio", "msgspec", "grpc", "pyroute2", "logging"}


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
    command = f'exec "{sys.executable}" -m bayplan.cli.main {words} --admin-socket "{socket_path}"'
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
        "import sys\nfrom bayplan.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "status" in finished.stdout
    assert finished.stderr.strip() == "[]"


def test_a_status_in_a_pipe_imports_no_rich(daemon: "Daemon") -> None:
    program = (
        "import sys\nfrom bayplan.cli.main import main\n"
        f"main(['status', '--admin-socket', {str(daemon.path)!r}])\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "default/web-0/nginx" in finished.stdout
    assert finished.stderr.strip() == "[]"


def test_help_names_every_verb_and_exit_status() -> None:
    text = run("--help").stdout
    for words in ("status", "nodes", "log-level", "--output", "--admin-socket", "--no-color", "3 no daemon"):
        assert words in text


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
        "metrics": ("metrics",),
        "explain": ("explain", name),
        "what-if": ("what-if", str(tmp_path / "pod.yaml")),
        "simulate": (*simulate, "--steps"),
        "doctor": ("doctor", "--root", str(root)),
        "record-topology": ("record-topology", "--root", str(root)),
        "log-level": ("log-level", "\u00e4"),
        "release": ("release", "--state-directory", "\u00e4"),
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
    command = [sys.executable, "-m", "bayplan.cli.main", "status", "--admin-socket", str(daemon.path)]
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
