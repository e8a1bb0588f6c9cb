"""The hook as a runtime starts it: createRuntime, poststop, precreate; the daemon is a real server."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.coroutines import PATIENCE_S
from support.oci_daemon import OciDaemon, Question, error, ok, refused

if TYPE_CHECKING:
    from conftest import Installation

STATE = (
    b'{"ociVersion":"1.2.0","id":"c1","status":"creating","pid":42,"bundle":"/b","annotations":{"id":"x"}}'
)
SPEC = b'{"ociVersion":"1.2.0","process":{"args":["true"]}}\n'
PATIENT = ("--timeout", "60")
BRIEF = ("--timeout", "0.3")
STAGES = ("createRuntime", "poststop", "precreate")


def everything_on(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    assert process.stdout
    assert process.stderr
    with process:
        return process.stdout.read(), process.stderr.read()


@pytest.mark.parametrize("stage", ["createRuntime", "poststop"])
def test_the_state_reaches_the_daemon_as_it_came(
    installed: "Installation", daemon: OciDaemon, stage: str
) -> None:
    finished = installed.run_hook(*PATIENT, stage, stdin=STATE)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, b"", b"")
    assert daemon.questions == [Question(stage, STATE)]
    assert installed.system_log.lines() == []


@pytest.mark.parametrize("length", [0, 1, 65_535, 65_536, 65_537, 3_000_000, 16 << 20])
def test_a_state_of_any_length_arrives_whole(
    installed: "Installation", daemon: OciDaemon, length: int
) -> None:
    state = random.Random(length).randbytes(length)
    assert installed.run_hook(*PATIENT, "createRuntime", stdin=state).returncode == 0
    assert daemon.questions == [Question("createRuntime", state)]


def test_a_refusal_fails_the_creation_whatever_is_configured(
    installed: "Installation", daemon: OciDaemon
) -> None:
    daemon.reply = lambda _: refused("TopologyAffinityError: default/web: no node has room for 8Gi")
    for choice in ("allow", "refuse"):
        finished = installed.run_hook(*PATIENT, "--on-failure", choice, "createRuntime", stdin=STATE)
        text = "bayplan: createRuntime of c1: TopologyAffinityError: default/web: no node has room for 8Gi"
        assert (finished.returncode, finished.stdout, finished.stderr) == (1, b"", f"{text}\n".encode())
        assert installed.system_log.lines() == [f"<27>{text}"]


CALLER = """
import subprocess, sys
log = open(sys.argv[-1], "a")
with open(sys.argv[1], "rb") as given:
    hook = subprocess.run(sys.argv[2].split("|"), stdin=given, stdout=-3, stderr=-3)
if hook.returncode:
    log.write('{"msg": "error executing hook"}\\n')
sys.exit(hook.returncode)
"""


@pytest.mark.parametrize("verdict", ["refused", "failed", "let through"])
@pytest.mark.parametrize(
    ("caller", "stage", "body"),
    [("podman", "precreate", SPEC), ("crun", "createRuntime", STATE), ("runc", "createRuntime", STATE)],
)
@pytest.mark.parametrize("logged", ["", "earlier\n"])
def test_why_there_is_no_container_reaches_whoever_asked_for_it(
    installed: "Installation",
    daemon: OciDaemon,
    caller: str,
    stage: str,
    body: bytes,
    verdict: str,
    logged: str,
) -> None:
    """podman and crun throw away what their hooks say; runc makes it part of its own error. In a log that has
    nothing else the reason stays alone; one that others use is kept."""
    daemon.reply = lambda _: (
        refused('no "node" has room') if verdict == "refused" else error("the disk is full")
    )
    choice = "allow" if verdict == "let through" else "refuse"
    given, log = installed.directory / "given", installed.directory / "runtime.log"
    given.write_bytes(body)
    log.write_text(logged)
    words = [str(installed.hook), *PATIENT, f"--on-failure={choice}", stage]
    called = [f"/usr/bin/{caller}", "-c", CALLER, str(given), "|".join(words)]
    finished = subprocess.run(
        [*called, "--log-format=json", "--log", str(log)],
        executable="/usr/bin/python3",
        capture_output=True,
        text=True,
        check=False,
    )
    if verdict == "let through":
        assert (finished.returncode, finished.stderr, log.read_text()) == (0, "", logged)
        return
    assert finished.returncode == 1
    why = 'no "node" has room' if verdict == "refused" else "the disk is full; refused"
    about = " of c1" if stage == "createRuntime" else ""
    expected = f"bayplan: {stage}{about}: {why}"
    assert finished.stderr == ("" if caller == "runc" else f"{expected}\n")
    found = [json.loads(line) for line in log.read_text().removeprefix(logged).splitlines()]
    ours, theirs = {"level": "error", "msg": expected}, {"msg": "error executing hook"}
    if caller == "podman":
        assert found == [theirs]
    else:
        assert found == ([ours, theirs] if logged else [ours])


def test_after_the_end_nothing_is_refused(installed: "Installation", daemon: OciDaemon) -> None:
    daemon.reply = lambda _: refused("no")
    assert installed.run_hook(*PATIENT, "--on-failure=refuse", "poststop", stdin=STATE).returncode == 0
    daemon.reply = lambda _: error("the disk is full")
    finished = installed.run_hook(*PATIENT, "--on-failure=refuse", "poststop", stdin=STATE)
    assert finished.returncode == 0
    assert finished.stderr == b"bayplan: poststop of c1: the disk is full; reconciliation will find it\n"


# How a daemon can fail, and the words that say so. The time is so short that the test need not wait for it,
# or so long that it does not matter.
FAILURES: dict[str, tuple[tuple[str, ...], str]] = {
    "absent": (PATIENT, "no daemon answers at {socket} (No such file or directory)"),
    "dead": (PATIENT, "no daemon answers at {socket} (Connection refused)"),
    "slow": (BRIEF, "the daemon at {socket} did not answer within 0.3 s"),
    "full queue": (BRIEF, "the daemon at {socket} did not answer within 0.3 s"),
    "hangs up at once": (PATIENT, "the daemon at {socket} hung up before it had answered"),
    "no answer": (PATIENT, "the daemon at {socket} hung up before it had answered"),
    "half a head": (PATIENT, "the daemon at {socket} hung up before it had answered"),
    "half a body": (PATIENT, "the daemon at {socket} hung up before it had answered"),
    "half a refusal": (PATIENT, "the daemon at {socket} hung up before it had answered"),
    "garbage": (PATIENT, "what answers at {socket} is not a bayplan daemon"),
    "another protocol": (PATIENT, "what answers at {socket} is not a bayplan daemon"),
    "negative": (PATIENT, "what answers at {socket} is not a bayplan daemon"),
    "huge": (PATIENT, "{socket} announced 99999999999 bytes, above 16777216"),
    "error": (PATIENT, "the store cannot record: disk full"),
}
REPLIES = {
    "no answer": b"",
    "half a head": b"ok 1",
    "half a body": b'ok 20\n{"a":1}',
    "half a refusal": b"refused 100\nTopology",
    "garbage": bytes(range(256)) * 100,
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "negative": b"ok -1\n",
    "huge": b"ok 99999999999\n{",
    "error": error("the store cannot record: disk full"),
}


@pytest.fixture(params=FAILURES)
def failure(request: Any, installed: "Installation") -> Any:
    """A daemon that fails in one way: the options to run with, and what is to be said."""
    options, words = FAILURES[request.param]
    said = (options, words.format(socket=installed.socket))
    if request.param == "absent":
        yield said
    elif request.param in ("dead", "full queue"):
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as queued:
            listener.bind(str(installed.socket))
            if request.param == "full queue":
                listener.listen(0)
                queued.connect(str(installed.socket))
            yield said
    else:
        with OciDaemon(installed.socket) as daemon:
            daemon.reply = lambda _: REPLIES.get(request.param, ok())
            daemon.deaf = request.param == "hangs up at once"
            if request.param == "slow":
                daemon.hold()
            yield said


@pytest.mark.parametrize("choice", ["allow", "refuse"])
def test_a_failing_daemon_is_one_line_and_what_is_configured(
    installed: "Installation", failure: Any, choice: str
) -> None:
    options, words = failure
    finished = installed.run_hook(*options, "--on-failure", choice, "createRuntime", stdin=STATE)
    outcome, priority = {"allow": ("let through", 28), "refuse": ("refused", 27)}[choice]
    line = f"bayplan: createRuntime of c1: {words}; {outcome}"
    assert finished.returncode == (choice == "refuse")
    assert finished.stdout == b""
    assert finished.stderr.decode() == f"{line}\n"
    assert installed.system_log.lines() == [f"<{priority}>{line}"]


@pytest.mark.parametrize("choice", ["allow", "refuse"])
def test_precreate_under_a_failing_daemon_is_all_or_nothing(
    installed: "Installation", failure: Any, choice: str
) -> None:
    options, words = failure
    finished = installed.run_hook(*options, f"--on-failure={choice}", "precreate", stdin=SPEC)
    assert (finished.returncode, finished.stdout) == ((0, SPEC) if choice == "allow" else (1, b""))
    assert words in finished.stderr.decode()
    assert finished.stderr.count(b"\n") == 1


def test_precreate_hands_out_what_the_daemon_made_of_the_spec(
    installed: "Installation", daemon: OciDaemon
) -> None:
    rewritten = b'{"linux":{"resources":{"cpu":{"mems":"1"}}},"padding":"' + b"x" * 3_000_000 + b'"}\n'
    daemon.reply = lambda _: ok(rewritten)
    finished = installed.run_hook(*PATIENT, "precreate", stdin=SPEC)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, rewritten, b"")
    assert daemon.questions == [Question("precreate", SPEC)]


def test_precreate_without_a_change_hands_out_the_spec(installed: "Installation", daemon: OciDaemon) -> None:
    finished = installed.run_hook(*PATIENT, "precreate", stdin=SPEC)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, SPEC, b"")
    assert daemon.questions == [Question("precreate", SPEC)]


def test_precreate_hands_out_no_refused_spec_and_nothing_that_is_none(
    installed: "Installation", daemon: OciDaemon
) -> None:
    daemon.reply = lambda _: refused("TopologyAffinityError: no")
    finished = installed.run_hook(*PATIENT, "precreate", stdin=SPEC)
    assert (finished.returncode, finished.stdout) == (1, b"")
    assert finished.stderr == b"bayplan: precreate: TopologyAffinityError: no\n"
    daemon.reply = lambda _: ok(b'{"cut":')
    finished = installed.run_hook(*PATIENT, "precreate", stdin=SPEC)
    assert (finished.returncode, finished.stdout) == (0, SPEC)
    assert b"something that is no spec; let through" in finished.stderr


@pytest.mark.parametrize("stage", STAGES)
def test_standard_input_that_never_ends_is_not_waited_for(
    installed: "Installation", daemon: OciDaemon, stage: str
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"half":')
    argv = [installed.hook, *BRIEF, stage]
    finished = subprocess.run(argv, stdin=reading, capture_output=True, env={}, check=False)
    os.close(reading)
    os.close(writing)
    assert b"standard input did not end within 0.3 s" in finished.stderr
    # There is no whole spec that could be let through.
    assert finished.returncode == (stage == "precreate")
    assert finished.stdout == b""
    assert daemon.questions == []


def test_standard_input_has_a_bound(installed: "Installation", daemon: OciDaemon) -> None:
    finished = installed.run_hook(*PATIENT, "createRuntime", stdin=b"x" * ((16 << 20) + 1))
    assert b"standard input is longer than 16777216 bytes; let through" in finished.stderr
    assert daemon.questions == []


def test_the_deadline_is_for_the_whole_exchange(installed: "Installation") -> None:
    """A daemon that gives a byte each millisecond would outlive a time-out that starts anew at each read."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(installed.socket))
        listener.listen()
        # A hook that had no time to connect is no reason to wait for ever.
        listener.settimeout(PATIENCE_S)
        argv = [installed.hook, "--timeout", "1", "createRuntime"]
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}
        )
        assert process.stdin
        process.stdin.write(STATE)
        process.stdin.close()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"ok 1000000\n")
            sent = 0
            while process.poll() is None and sent < 100_000:
                # It may hang up at any moment now.
                with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                    connection.sendall(b".")
                    process.wait(0.001)
                sent += 1
        _, stderr = everything_on(process)
    assert b"did not answer within 1 s; let through" in stderr
    assert 0 < sent < 100_000


def test_a_daemon_that_does_not_read_to_the_end_may_still_say_why(installed: "Installation") -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(installed.socket))
        listener.listen()
        argv = [installed.hook, *PATIENT, "createRuntime"]
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}
        )
        assert process.stdin
        process.stdin.write(b"x" * 8_000_000)
        process.stdin.close()
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(18) == b"bayplan-oci/1 crea"
            connection.sendall(refused("the state is longer than 4 MiB"))
        _, stderr = everything_on(process)
    assert stderr == b"bayplan: createRuntime: the state is longer than 4 MiB\n"
    assert process.returncode == 1


def test_what_the_daemon_says_stays_one_harmless_line(installed: "Installation", daemon: OciDaemon) -> None:
    daemon.reply = lambda _: refused("one\ntwo\x1b[2J\x00three" + "x" * 10_000)
    finished = installed.run_hook(*PATIENT, "createRuntime", stdin=STATE)
    assert finished.stderr.startswith(b"bayplan: createRuntime of c1: one two [2J threexxx")
    assert finished.stderr.count(b"\n") == 1
    assert len(finished.stderr) < 4100


@pytest.mark.parametrize("choice", ["allow", "refuse"])
def test_a_defect_of_the_hook_decides_nothing(
    installed: "Installation", daemon: OciDaemon, choice: str
) -> None:
    text = installed.module.read_text()
    assert "        connect(settings, connection)\n" in text
    installed.module.write_text(text.replace("        connect(settings, connection)\n", "        1 / 0\n"))
    finished = installed.run_hook(*PATIENT, "--on-failure", choice, "precreate", stdin=SPEC)
    assert (finished.returncode, finished.stdout) == ((0, SPEC) if choice == "allow" else (1, b""))
    assert b"precreate: a defect of oci-hook: ZeroDivisionError" in finished.stderr
    assert finished.stderr.count(b"\n") == 1


def test_a_path_that_no_socket_can_have(installed: "Installation") -> None:
    finished = installed.run_hook("--socket", "/x" * 100, "createRuntime", stdin=STATE)
    assert finished.returncode == 0
    assert b"(AF_UNIX path too long); let through" in finished.stderr


def test_without_a_system_log_the_kernels_log_hears_of_it(installed: "Installation") -> None:
    installed.run_hook(*PATIENT, "--log-socket", "/nonexistent", "createRuntime", stdin=STATE)
    logged = installed.kernel_log.read_bytes()
    assert logged.startswith(b"<28>bayplan: createRuntime of c1: no daemon answers")
    assert len(logged) <= 900


def test_closed_standard_streams_are_no_reason_to_fail(installed: "Installation", daemon: OciDaemon) -> None:
    script = f'exec "{installed.hook}" --timeout 60 createRuntime 2>&- >&-'
    assert subprocess.run(["sh", "-c", script], input=STATE, env={}, check=False).returncode == 0
    assert daemon.questions == [Question("createRuntime", STATE)]
    script = f'exec "{installed.hook}" --timeout 60 createRuntime <&-'
    finished = subprocess.run(["sh", "-c", script], env={}, capture_output=True, check=False)
    assert b"standard input" in finished.stderr


def test_a_reader_of_the_spec_that_left_is_a_failure(installed: "Installation", daemon: OciDaemon) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = [installed.hook, *PATIENT, "precreate"]
    finished = subprocess.run(argv, input=SPEC, stdout=writing, stderr=subprocess.PIPE, env={}, check=False)
    os.close(writing)
    assert finished.returncode == 1
    assert finished.stderr == b"bayplan: precreate: nobody reads the spec (Broken pipe); refused\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "unknown mode (none)"),
        (("createContainer",), "unknown mode createContainer"),
        (("startContainer",), "unknown mode startContainer"),
        (("createRuntime", "poststop"), "unknown mode createRuntime poststop"),
        (("--dance", "1", "createRuntime"), "unknown option --dance"),
        (
            ("--timeout", "soon", "createRuntime"),
            "--timeout: found 'soon', expected seconds above 0, at most 3600",
        ),
        (("--timeout", "-1", "createRuntime"), "--timeout: found '-1'"),
        (("--timeout", "nan", "createRuntime"), "--timeout: found 'nan'"),
        (("--on-failure", "maybe", "createRuntime"), "--on-failure: found 'maybe', expected allow or refuse"),
        (("--timeout=0", "--on-failure=x", "poststop"), "at most 3600; --on-failure: found 'x'"),
    ],
)
def test_wrong_usage_is_status_2_and_says_what_is_wrong(
    installed: "Installation", daemon: OciDaemon, arguments: tuple[str, ...], words: str
) -> None:
    finished = installed.run_hook(*arguments)
    assert finished.returncode == 2
    assert words in finished.stderr.decode()
    assert b"usage: oci-hook" in finished.stderr
    assert finished.stdout == b""
    assert daemon.questions == []


def start(installed: "Installation", stage: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [installed.hook, *PATIENT, stage],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd=installed.directory,
        start_new_session=True,
    )


def kill_and_look(installed: "Installation", process: "subprocess.Popen[bytes]", before: set[str]) -> bytes:
    """Kill the hook; nothing of it is left, neither processes nor files. What it had written."""
    process.send_signal(signal.SIGKILL)
    assert process.stdin
    process.stdin.close()
    stdout, stderr = everything_on(process)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert {path.name for path in installed.directory.rglob("*")} == before
    assert stderr == b""
    return stdout


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("moment", ["before stdin", "in stdin", "asked", "in the answer"])
def test_killed_at_any_step_it_leaves_nothing(
    installed: "Installation", daemon: OciDaemon, stage: str, moment: str
) -> None:
    before = {path.name for path in installed.directory.rglob("*")}
    daemon.hold()
    process = start(installed, stage)
    assert process.stdin
    if moment != "before stdin":
        process.stdin.write(SPEC[:10])
        process.stdin.flush()
    if moment in ("asked", "in the answer"):
        process.stdin.write(SPEC[10:])
        process.stdin.close()
        daemon.asked.acquire()
    if moment == "in the answer":
        daemon.reply = lambda _: b'ok 1000\n{"half":'
        # The daemon hangs up after its half: the hook would see that, if it lived.
        process.send_signal(signal.SIGSTOP)
        daemon.release()
    assert kill_and_look(installed, process, before) == b""


def test_killed_at_random_moments_it_leaves_nothing(installed: "Installation", daemon: OciDaemon) -> None:
    before = {path.name for path in installed.directory.rglob("*")}
    moments = random.Random(5)
    daemon.reply = lambda _: ok(SPEC)
    for _ in range(25):
        process = start(installed, "precreate")
        assert process.stdin
        try:
            process.stdin.write(SPEC)
            process.stdin.close()
            process.wait(moments.uniform(0, 0.04))
        except (subprocess.TimeoutExpired, BrokenPipeError):
            pass
        assert kill_and_look(installed, process, before) in (b"", SPEC)


ALLOWED = {"sys", "posix", "time", "_socket", "select", "__main__"}


def test_nothing_heavy_is_imported_on_the_way_on_which_all_goes_well(
    installed: "Installation", daemon: OciDaemon
) -> None:
    """`import json` alone takes as long as the whole hook."""
    program = (
        "import sys\n"
        "bare = set(sys.modules)\n"
        f"source = open({str(installed.module)!r}).read().replace('posix._exit(', 'raise SystemExit(')\n"
        f"sys.argv = ['oci-hook', '--timeout', '60', 'createRuntime']\n"
        "try:\n    exec(compile(source, 'oci_hook.py', 'exec'))\n    run()\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "sys.stderr.write(' '.join(set(sys.modules) - bare))"
    )
    argv = ["/usr/bin/python3", "-IS", "-c", program]
    finished = subprocess.run(argv, input=STATE, capture_output=True, env={}, check=True)
    assert set(finished.stderr.decode().split()) <= ALLOWED
    assert len(daemon.questions) == 1


def test_the_hook_says_how_it_is_started(installed: "Installation") -> None:
    first = installed.hook.read_text().splitlines()[0]
    assert first == "#!/usr/bin/python3 -BIS"


def compiled(installed: "Installation") -> Path:
    """The module as the installation compiles it."""
    argv = ["/usr/bin/python3", "-I", "-m", "compileall", "-q", str(installed.libexec)]
    subprocess.run(argv, check=True)
    (found,) = installed.libexec.rglob("*.pyc")
    return found


def test_what_was_compiled_is_run(installed: "Installation", daemon: OciDaemon) -> None:
    compiled(installed)
    before = installed.module.stat()
    installed.module.write_text("1 / 0".ljust(before.st_size))
    os.utime(installed.module, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert installed.run_hook(*PATIENT, "createRuntime", stdin=STATE).returncode == 0
    assert daemon.questions == [Question("createRuntime", STATE)]


@pytest.mark.parametrize("length", [0, 8, 16, 17, 1000, -1])
@pytest.mark.parametrize("rest", [b"", b"\xff" * 64])
def test_what_was_compiled_and_is_damaged_keeps_no_container_from_starting(
    installed: "Installation", daemon: OciDaemon, length: int, rest: bytes
) -> None:
    path = compiled(installed)
    damaged = path.read_bytes()[:length] + rest
    path.write_bytes(damaged)
    finished = installed.run_hook(*PATIENT, "createRuntime", stdin=STATE)
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert daemon.questions == [Question("createRuntime", STATE)]
    assert path.read_bytes() == damaged
