"""The runtime wrapper as container engines call it, in front of a runtime that is a real executable."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bayplan.control.container_files import Starts
from support.oci_daemon import OciDaemon, Question, error, ok, refused

if TYPE_CHECKING:
    from conftest import Installation, Runtime

SHELLS = ("dash", "bash")


@pytest.fixture(params=SHELLS)
def shell(request: Any, installed: "Installation") -> str:
    """The wrapper below /bin/sh of several systems: its first line says which."""
    found = subprocess.run(
        ["sh", "-c", f"command -v {request.param}"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, f"{request.param} is missing: make setup installs it"
    text = installed.wrapper.read_text()
    assert text.startswith("#!/bin/sh\n")
    installed.wrapper.write_text(f"#!{found.stdout.strip()}\n" + text.removeprefix("#!/bin/sh\n"))
    return str(request.param)


CRIO = ("--systemd-cgroup", "--root=/run/runc", "create", "--bundle", "/b/1", "--pid-file", "/b/1/pid", "c1")
CREATIONS: dict[str, tuple[tuple[str, ...], tuple[str, str, str]]] = {
    "CRI-O": (CRIO, ("/b/1", "c1", "/run/runc")),
    "containerd": (
        ("--root", "/run/r", "--log", "/l.json", "--log-format", "json", "create", "--bundle", "/b", "c1"),
        ("/b", "c1", "/run/r"),
    ),
    "podman": (
        (
            "--log-format=json",
            "--log=/l",
            "--cgroup-manager=systemd",
            "create",
            "-b",
            "/b",
            "--no-pivot",
            "c1",
        ),
        ("/b", "c1", ""),
    ),
    "a bundle called create": (("create", "--bundle", "create", "c1"), ("{cwd}/create", "c1", "")),
    "a root called state": (("--root", "state", "create", "-b", "/b", "c1"), ("/b", "c1", "{cwd}/state")),
    "a container called delete": (("create", "--bundle=/b", "delete"), ("/b", "delete", "")),
    "the current directory": (("--rootless", "auto", "--debug", "create", "c1"), ("{cwd}", "c1", "")),
    "Go's single dash": (
        ("-root", "/r", "create", "-bundle", "/b", "-console-socket=/s", "c1"),
        ("/b", "c1", "/r"),
    ),
    "C's short option": (("create", "-b/b", "c1"), ("/b", "c1", "")),
    "an equals sign": (("create", "--bundle=/a=b", "c1"), ("/a=b", "c1", "")),
    "the end of options": (("create", "--bundle", "/b", "--", "-c1"), ("/b", "-c1", "")),
    "run": (("run", "--detach", "--preserve-fds", "2", "--bundle", "/b", "c1"), ("/b", "c1", "")),
    "restore": (
        ("restore", "--image-path", "/i", "--bundle", "/b", "--tcp-established", "c1"),
        ("/b", "c1", ""),
    ),
    "the last of two": (("create", "-b", "/a", "--bundle", "/b", "c1"), ("/b", "c1", "")),
    "an unknown switch": (("--shiny", "create", "--glossy", "--bundle", "/b", "c1"), ("/b", "c1", "")),
    "spaces and stars": (("create", "--bundle", "/a b/*", "c 1"), ("/a b/*", "c 1", "")),
    "an empty word": (("--log", "", "create", "--bundle", "/b", "c1"), ("/b", "c1", "")),
}


@pytest.mark.parametrize("name", CREATIONS)
def test_a_creation_is_told_and_passes_unchanged(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str, name: str
) -> None:
    arguments, (bundle, container, root) = CREATIONS[name]
    finished = installed.run_wrapper(*arguments)
    assert finished.returncode == 0, finished
    assert (finished.stdout, finished.stderr) == (b"out of the runtime\n", b"err of the runtime\n")
    told = [bundle, container, str(runtime.path), root]
    told = [word.format(cwd=installed.directory) for word in told]
    assert daemon.questions == [Question("create", "\0".join(told).encode())]
    assert runtime.argv == [str(runtime.path), *arguments]
    assert installed.system_log.lines() == []


OTHERS = {
    "state": ("--root", "/run/runc", "state", "c1"),
    "start": ("--systemd-cgroup", "start", "c1"),
    "kill": ("kill", "c1", "15"),
    "exec": ("exec", "--process", "/p.json", "c1", "apt", "update"),
    "exec create": ("--root", "create", "exec", "c1", "create", "--bundle", "/b", "c2"),
    "features": ("features",),
    "version": ("--version",),
    "nothing": (),
    "help": ("create", "--help"),
    "update by flags": ("update", "--cpuset-cpus", "0-3", "--memory=1g", "c1"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_go_straight_to_the_runtime(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str, name: str
) -> None:
    installed.hook.unlink()  # Nobody needs it, then.
    finished = installed.run_wrapper(*OTHERS[name])
    assert finished.returncode == 0
    assert runtime.argv == [str(runtime.path), *OTHERS[name]]
    assert daemon.questions == []
    assert installed.kernel_log.read_text() == ""


ODD = {
    "no id": (("create", "--bundle", "/b"), "create: expected the id of a container"),
    "two names": (("create", "--glossy", "value", "c1"), "create: found two names, value and c1"),
    "an option after the name": (("delete", "c1", "--force"), "delete: found two names, c1 and --force"),
    "no verb": (("--shiny", "value", "create", "c1"), "cannot tell the verb, value is none"),
    "another spec": (("create", "--config", "/c.json", "c1"), "found --config /c.json; only config.json"),
    "many": (("delete", "--regex", "c.*"), "delete --regex: reconciliation will find"),
    "an option without its value": (("create", "c1", "--bundle"), "create: found two names"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_not_understood_passes_and_is_said(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str, name: str
) -> None:
    arguments, words = ODD[name]
    installed.configure(runtime.path, on_failure="refuse")
    finished = installed.run_wrapper(*arguments)
    assert (finished.returncode, finished.stderr) == (0, b"err of the runtime\n")
    assert runtime.argv == [str(runtime.path), *arguments]
    assert daemon.questions == []
    (line,) = installed.system_log.lines()
    assert line.startswith("<28>bayplan: bayplan-runtime: ")
    assert words in line


def test_bytes_that_are_no_text_pass(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime"
) -> None:
    bundle = os.fsdecode(b"/b/\xff\xfe\xc3\xa4")
    finished = installed.run_wrapper("create", "--bundle", bundle, "c1")
    assert finished.returncode == 0
    assert daemon.questions[0].body.split(b"\0")[0] == os.fsencode(bundle)
    assert runtime.argv[3] == bundle


# ---- it is the runtime afterwards: process, descriptors, environment, signals, exit code


@pytest.mark.parametrize("arguments", [("state", "c1"), ("create", "c1"), ("start", "c1"), ("delete", "c1")])
def test_the_process_is_the_runtime(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str, arguments: tuple[str, ...]
) -> None:
    assert Starts(installed.socket).expect("c1")
    (runtime.out / "exit").write_text("37")
    reading, writing = os.pipe()
    environ = {"PATH": os.environ["PATH"], "_OCI_SYNCPIPE": "5", "LANG": "C", "ODD": "a=b\nc"}
    process = subprocess.Popen(
        [installed.wrapper, *arguments],
        pass_fds=[reading],
        env=environ,
        stdin=subprocess.DEVNULL,
        cwd=installed.directory,
    )
    assert process.wait() == 37
    assert int((runtime.out / "pid").read_text()) == process.pid
    assert runtime.descriptors == {0, 1, 2, reading}
    os.close(reading)
    os.close(writing)
    kept = {name: value for name, value in runtime.environ.items() if name in environ}
    assert kept == environ
    # What shells add by themselves. Above all no LC_CTYPE of Python's.
    assert set(runtime.environ) - set(environ) <= {"BAYPLAN_RUNTIME_PASSED", "PWD", "OLDPWD", "SHLVL", "_"}
    # Children inherit what is ignored, whoever set it: a background shell SIGINT and SIGQUIT, some container
    # engines signal 32, which Python has no name for. SIGPIPE and SIGXFSZ are Python's own, and it gives them
    # back to what it starts.
    own = Path("/proc/self/status").read_text().split("SigIgn:")[1].split()[0]
    given_back = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert int(runtime.status("SigIgn"), 16) == int(own, 16) & ~given_back
    assert int(runtime.status("SigBlk"), 16) == 0


@pytest.mark.parametrize("arguments", [("start", "c1"), ("create", "c1")])
def test_signals_reach_the_runtime(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str, arguments: tuple[str, ...]
) -> None:
    os.mkfifo(runtime.out / "wait")
    os.mkfifo(runtime.out / "ready")
    process = subprocess.Popen([installed.wrapper, *arguments], stdin=subprocess.DEVNULL)
    assert (runtime.out / "ready").read_text() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_standard_input_of_a_creation_is_not_touched(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime"
) -> None:
    (runtime.out / "read-stdin").touch()
    installed.run_wrapper("create", "c1", input=b"for the container")
    assert (runtime.out / "stdin").read_bytes() == b"for the container"


# ---- the daemon's answers


def test_a_refusal_fails_the_creation_where_engines_look(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str
) -> None:
    text = 'TopologyAffinityError: default/web: "8Gi" fits on no \\ node'
    daemon.reply = lambda _: refused(text)
    log = installed.directory / "log.json"
    finished = installed.run_wrapper("--log", "log.json", "--log-format", "json", "create", "c1")
    line = f"create of c1: {text}"
    assert (finished.returncode, finished.stdout, finished.stderr.decode()) == (1, b"", f"bayplan: {line}\n")
    assert not runtime.ran
    record = json.loads(log.read_text())
    assert (record["level"], record["msg"]) == ("error", line)
    assert set(record) == {"level", "msg", "time"}
    assert installed.system_log.lines() == [f"<27>bayplan: {line}"]

    finished = installed.run_wrapper(f"--log={log}", "create", "c1")
    assert finished.returncode == 1
    assert 'level=error msg="create of c1: TopologyAffinityError' in log.read_text().splitlines()[1]


def test_a_log_that_cannot_be_written_changes_nothing(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime"
) -> None:
    daemon.reply = lambda _: refused("no")
    finished = installed.run_wrapper("--log", "/nonexistent/log", "create", "c1")
    assert (finished.returncode, finished.stderr) == (1, b"bayplan: create of c1: no\n")


FAILING = {
    "absent": ("60", "no daemon answers at {socket} (No such file or directory)"),
    "slow": ("0.3", "the daemon at {socket} did not answer within 0.3 s"),
    "error": ("60", "the bundle is a link"),
    "garbage": ("60", "what answers at {socket} is not a bayplan daemon"),
}


@pytest.fixture(params=FAILING)
def failing(request: Any, installed: "Installation") -> Any:
    timeout, words = FAILING[request.param]
    said = (timeout, words.format(socket=installed.socket))
    if request.param == "absent":
        yield said
        return
    with OciDaemon(installed.socket) as daemon:
        daemon.reply = lambda _: error("the bundle is a link") if request.param == "error" else b"hello\n"
        if request.param == "slow":
            daemon.hold()
        yield said


@pytest.mark.parametrize("choice", ["allow", "refuse"])
@pytest.mark.parametrize("verb", ["create", "run", "update", "start", "delete"])
def test_a_failing_daemon_is_handled_as_configured(
    installed: "Installation", runtime: "Runtime", failing: Any, verb: str, choice: str
) -> None:
    timeout, words = failing
    installed.configure(runtime.path, timeout=timeout, on_failure=choice)
    (runtime.out / "read-stdin").touch()
    Starts(installed.socket).expect("c1")
    arguments = [verb, "-r", "-", "c1"] if verb == "update" else [verb, "c1"]
    finished = installed.run_wrapper(*arguments, input=b'{"memory":{"limit":1}}')
    name = "create" if verb == "run" else verb
    if choice == "refuse" and verb not in ("start", "delete"):
        line = f"bayplan: {name} of c1: {words}"
        assert (finished.returncode, finished.stderr.decode()) == (1, f"{line}\n")
        assert not runtime.ran
        assert installed.system_log.lines() == [f"<27>{line}"]
    else:
        # Standard error is the container's: nothing of ours goes there.
        assert (finished.returncode, finished.stderr) == (0, b"err of the runtime\n")
        assert runtime.argv[1:] == arguments
        assert (runtime.out / "stdin").read_bytes() == b'{"memory":{"limit":1}}'
        assert installed.system_log.lines() == [f"<28>bayplan: {name} of c1: {words}; let through"]


LIBPOD = {"io.container.manager": "libpod"}
IN_POD = {**LIBPOD, "io.kubernetes.cri-o.SandboxID": "5a" * 32}
ID = "c1" * 32
IN_PODMANS_POD = f"machine-libpod_pod_{ID}.slice:libpod:{ID}"


@pytest.mark.parametrize(
    ("annotations", "cgroups_path", "is_refused"),
    [
        ({"io.kubernetes.cri-o.ContainerType": "sandbox"}, "", False),
        ({"io.kubernetes.cri.container-type": "sandbox"}, "", False),
        ({"io.kubernetes.docker.type": "podsandbox"}, "", False),
        ({"io.kubernetes.cri-o.ContainerType": "container"}, "", True),
        ({}, "", True),
        (None, "", True),
        (["io.kubernetes.cri-o.ContainerType", "sandbox"], "", True),
        (LIBPOD, IN_PODMANS_POD, False),
        (LIBPOD, f"/libpod_parent/{ID}/libpod-{ID}", False),
        (IN_POD, IN_PODMANS_POD, True),
        (LIBPOD, f"machine.slice:libpod:{ID}", True),
        (LIBPOD, f"/libpod_parent/libpod-{ID}", True),
        ({}, IN_PODMANS_POD, True),
    ],
)
def test_a_pods_own_container_is_not_refused_for_want_of_a_daemon(
    installed: "Installation", runtime: "Runtime", annotations: Any, cgroups_path: str, is_refused: bool
) -> None:
    installed.configure(runtime.path, on_failure="refuse")
    spec = {"annotations": annotations, "linux": {"cgroupsPath": cgroups_path}}
    (installed.directory / "config.json").write_text(json.dumps(spec))
    finished = installed.run_wrapper("create", "--bundle", str(installed.directory), "c1")
    assert runtime.ran is not is_refused
    assert (finished.returncode == 1) is is_refused
    (line,) = installed.system_log.lines()
    assert line.endswith("; let through") is not is_refused


@pytest.mark.parametrize("lead", ["a FIFO", "/dev/zero"])
def test_a_bundle_without_a_file_holds_up_nobody(
    installed: "Installation", runtime: "Runtime", lead: str
) -> None:
    """Nobody writes to the FIFO, and the device never ends: such a spec says of no sandbox."""
    installed.configure(runtime.path, on_failure="refuse")
    spec = installed.directory / "config.json"
    os.mkfifo(spec) if lead == "a FIFO" else spec.symlink_to(lead)
    assert installed.run_wrapper("create", "--bundle", str(installed.directory), "c1").returncode == 1
    assert not runtime.ran


def test_settings_that_are_no_file_are_none(installed: "Installation", runtime: "Runtime") -> None:
    installed.config.unlink(missing_ok=True)
    os.mkfifo(installed.config)
    finished = installed.run_wrapper("state", "c1", env={"PATH": str(runtime.path.parent)})
    assert finished.returncode == 0
    assert runtime.ran


def test_a_deletion_is_never_refused(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str
) -> None:
    daemon.reply = lambda _: refused("no")
    finished = installed.run_wrapper("--root", "/r", "delete", "--force", "c1")
    assert finished.returncode == 0
    assert daemon.questions == [Question("delete", b"c1")]
    assert runtime.argv[1:] == ["--root", "/r", "delete", "--force", "c1"]


def test_a_start_is_told_where_the_daemon_waits_for_it(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str
) -> None:
    starts = Starts(installed.socket)
    starts.expect("c1")
    for socket in ("", str(installed.socket)):
        installed.configure(runtime.path, **({"socket": socket} if socket else {}))
        for arguments in (("--root", "/r", "start", "c1"), ("--systemd-cgroup", "start", "--", "c1")):
            assert installed.run_wrapper(*arguments).returncode == 0
            assert runtime.argv[1:] == list(arguments)
            assert daemon.questions.pop() == Question("start", b"c1")
    daemon.reply = lambda _: refused("no")
    assert installed.run_wrapper("start", "c1").returncode == 0
    daemon.questions.clear()
    starts.forget("c1")
    installed.hook.unlink()
    for arguments in (
        ("start", "c1"),
        ("start", "c2"),
        ("start",),
        ("start", "c1", "c2"),
        ("start", "../c1"),
    ):
        assert installed.run_wrapper(*arguments).returncode == 0
        assert runtime.argv[1:] == list(arguments)
    assert (daemon.questions, installed.kernel_log.read_text()) == ([], "")


# ---- exec

PROCESS = b'{"args":["sh","-c","--process"],"cwd":"/","env":["A=\\"{\\n"],"user":{"uid":0}}'
EXECS = [
    ("exec", "--process", "{process}", "c1"),
    ("--root", "/r", "exec", "-d", "--pid-file=/p", "--process={process}", "c1"),
    ("exec", "-t", "-p", "{process}", "--", "c1"),
    ("--systemd-cgroup", "exec", "-p{process}", "-e", "c2", "c1"),
    ("exec", "--process", "{process}", "c1", "--process", "/other", "-d"),
]


def note(installed: "Installation", cpus: str = "0-1,4\n") -> None:
    directory = installed.socket.with_name(f"{installed.socket.name}.execs")
    directory.mkdir()
    (directory / "c1").write_text(cpus)


@pytest.mark.parametrize("arguments", EXECS)
@pytest.mark.parametrize("text", [PROCESS, b"{\n  " + PROCESS[1:] + b"\n"], ids=["compact", "lines"])
def test_a_process_that_enters_later_begins_on_the_noted_cpus(
    installed: "Installation", runtime: "Runtime", shell: str, arguments: tuple[str, ...], text: bytes
) -> None:
    process = installed.socket.with_name("process.json")
    process.write_bytes(text)
    note(installed)
    words = [word.format(process=process) for word in arguments]
    finished = installed.run_wrapper(*words, env={"PATH": "/nonexistent"})
    assert b"not found" in finished.stderr  # The runtime of the test, which is reached: see below.
    assert runtime.argv[1:] == words
    document = json.loads(process.read_bytes())
    assert document.pop("execCPUAffinity") == {"initial": "0-1,4"}
    assert document == json.loads(PROCESS)


@pytest.mark.parametrize(
    ("container", "cpus", "text"),
    [
        ("c2", "0-1", PROCESS),
        ("c1", "", PROCESS),
        ("c1", '0","x":"', PROCESS),
        ("c1", "0-1", b'{"execCPUAffinity":{"final":"3"},"cwd":"/"}'),
        ("c1", "0-1", b""),
        ("c1", "0-1", b"{}"),
        ("c1", "0-1", b"[1]"),
    ],
)
def test_other_processes_begin_as_they_were_to(
    installed: "Installation", runtime: "Runtime", shell: str, container: str, cpus: str, text: bytes
) -> None:
    process = installed.socket.with_name("process.json")
    process.write_bytes(text)
    note(installed, cpus)
    for words in (
        ("exec", "--process", str(process), container),
        ("exec", "--process", "/nonexistent", "c1"),
        ("exec", "c1", "sh", "-p", str(process)),
    ):
        assert installed.run_wrapper(*words).returncode == 0
        assert runtime.argv[1:] == list(words)
    assert process.read_bytes() == text


# ---- update


RESOURCES = b'{"cpu":{"shares":512}}'
MERGED = b'{"cpu":{"shares":512,"cpus":"2-3","mems":"1"},"memory":{"limit":67108864}}' + b" " * 200_000


@pytest.mark.parametrize("how", [("-r", "-"), ("--resources", "-"), ("--resources=-",), ("-r=-",), ("-r-",)])
def test_an_update_from_standard_input_is_merged(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str, how: tuple[str, ...]
) -> None:
    """CRI-O, containerd and docker call it like this. What comes back is longer than a pipe holds."""
    (runtime.out / "read-stdin").touch()
    daemon.reply = lambda _: ok(MERGED)
    finished = installed.run_wrapper("--root", "/r", "update", *how, "c1", input=RESOURCES)
    assert finished.returncode == 0
    assert daemon.questions == [Question("update", b"c1\0" + RESOURCES)]
    assert runtime.argv[1:] == ["--root", "/r", "update", *how, "c1"]
    assert (runtime.out / "stdin").read_bytes() == MERGED


@pytest.mark.parametrize("how", [("-r", "{file}"), ("--resources", "{file}"), ("--resources={file}",)])
def test_an_update_from_a_file_is_merged(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str, how: tuple[str, ...]
) -> None:
    """podman calls it like this. The file stays as it is; the runtime reads what came back."""
    (runtime.out / "read-stdin").touch()
    file = installed.directory / "new resources.json"
    file.write_bytes(RESOURCES)
    for merged in (MERGED, b""):
        daemon.reply = lambda _, merged=merged: ok(merged)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        arguments = [word.format(file=file) for word in how]
        finished = installed.run_wrapper("--root", "/r", "update", *arguments, "--memory", "1g", "c1")
        assert finished.returncode == 0
        assert daemon.questions.pop() == Question("update", b"c1\0" + RESOURCES)
        assert runtime.argv[1:] == ["--root", "/r", "update", "--resources=-", "--memory", "1g", "c1"]
        assert (runtime.out / "stdin").read_bytes() == (merged or RESOURCES)
        assert file.read_bytes() == RESOURCES


def test_a_file_that_cannot_be_read_is_the_runtimes_to_report(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str
) -> None:
    finished = installed.run_wrapper("update", "-r", "/nonexistent.json", "c1")
    assert finished.returncode == 0
    assert runtime.argv[1:] == ["update", "-r", "/nonexistent.json", "c1"]
    assert daemon.questions == []


def test_resources_that_never_end_are_not_passed_on_half(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime"
) -> None:
    installed.configure(runtime.path, timeout="0.3")
    reading, writing = os.pipe()
    os.write(writing, b'{"memory":')
    finished = installed.run_wrapper("update", "-r", "-", "c1", stdin=reading)
    os.close(reading)
    os.close(writing)
    assert finished.returncode == 1
    assert b"standard input did not end within 0.3 s" in finished.stderr
    assert not runtime.ran


# ---- which runtime


def test_without_a_setting_the_first_of_runc_and_crun_is_taken_but_never_itself(
    installed: "Installation", daemon: OciDaemon, shell: str
) -> None:
    masked = installed.directory / "masked"
    masked.mkdir()
    (masked / "runc").symlink_to(installed.wrapper)
    (masked / "crun").mkdir()
    real = installed.make_runtime("real", "crun")
    path = f"/nonexistent:{masked}:{real.path.parent}:{os.environ['PATH']}"
    without_runc = f"{masked}:{real.path.parent}"
    finished = installed.run_wrapper("--version", env={"PATH": without_runc})
    assert finished.returncode == 0, finished
    assert real.argv == [str(real.path), "--version"]
    other = installed.make_runtime("other")
    installed.run_wrapper("--version", env={"PATH": f"{other.path.parent}:{path}"})
    assert other.argv == [str(other.path), "--version"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("{wrapper}", "is bayplan-runtime itself"),
        ("{link}", "is bayplan-runtime itself"),
        ("runc", "found runc,"),
        ("{circle}", "leads back to bayplan-runtime"),
    ],
)
@pytest.mark.parametrize("verb", ["state", "create"])
def test_a_runtime_that_leads_back_is_found_out(
    installed: "Installation", daemon: OciDaemon, shell: str, setting: str, words: str, verb: str
) -> None:
    link = installed.directory / "link"
    link.symlink_to(installed.wrapper)
    circle = installed.directory / "nvidia-container-runtime"
    circle.write_text(f'#!/bin/sh\nexec "{installed.wrapper}" "$@"\n')
    circle.chmod(0o755)
    installed.configure(Path(setting.format(wrapper=installed.wrapper, link=link, circle=circle)))
    finished = installed.run_wrapper(verb, "c1", timeout=60)
    assert finished.returncode == 127
    assert words in finished.stderr.decode()
    assert finished.stderr.count(b"\n") == 1
    assert words in installed.kernel_log.read_text()


def test_nothing_to_become(installed: "Installation", shell: str) -> None:
    finished = installed.run_wrapper("state", "c1", env={"PATH": "/nonexistent"})
    assert finished.returncode == 127
    assert b"found neither runc nor crun on PATH (/nonexistent)" in finished.stderr


def test_a_runtime_that_is_missing(installed: "Installation", daemon: OciDaemon) -> None:
    installed.configure(Path("/nonexistent/runc"))
    for verb in ("state", "create"):
        finished = installed.run_wrapper(verb, "c1")
        assert finished.returncode == 127
        assert b"/nonexistent/runc" in finished.stderr


def test_wrappers_nest(installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str) -> None:
    """Another wrapper below, which passes on what it got, and one above, which started us."""
    below = installed.directory / "nvidia-container-runtime"
    below.write_text(f'#!/bin/sh\nexec "{runtime.path}" --nvidia "$@"\n')
    below.chmod(0o755)
    installed.configure(below)
    above = installed.directory / "above"
    above.write_text(f'#!/bin/sh\nexec "{installed.wrapper}" "$@"\n')
    above.chmod(0o755)
    subprocess.run([above, *CRIO], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    assert runtime.argv == [str(runtime.path), "--nvidia", *CRIO]
    assert daemon.questions[0].body.split(b"\0")[2] == os.fsencode(below)


def test_the_environment_names_a_runtime_only_if_it_is_safe(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str
) -> None:
    other = installed.make_runtime("other")

    def call(name: str, verb: str = "state") -> None:
        environ = {"PATH": os.environ["PATH"], "BAYPLAN_RUNTIME": name}
        assert installed.run_wrapper(verb, "c1", env=environ).returncode == 0

    call(str(other.path))
    assert other.argv == [str(other.path), "state", "c1"]
    assert not runtime.ran
    call(str(other.path), "create")
    assert daemon.questions[0].body.split(b"\0")[2] == os.fsencode(other.path)
    (other.out / "argv").unlink()

    other.path.chmod(0o777)
    for unsafe in (str(other.path), "runc", "/nonexistent", str(other.out), "/etc/passwd"):
        call(unsafe)
        assert not other.ran
        assert runtime.ran
        (runtime.out / "argv").unlink()
        (line,) = installed.system_log.lines()
        assert f"BAYPLAN_RUNTIME: found {unsafe!r}" in line


# ---- the installation itself is broken


@pytest.mark.parametrize("choice", ["allow", "refuse"])
def test_without_the_hook_beside_it(
    installed: "Installation", runtime: "Runtime", shell: str, choice: str
) -> None:
    installed.hook.unlink()
    installed.configure(runtime.path, on_failure=choice)
    assert installed.run_wrapper("delete", "c1").returncode == 0
    assert "oci-hook or /usr/bin/python3 is missing; let through" in installed.kernel_log.read_text()
    finished = installed.run_wrapper("create", "c1")
    assert finished.returncode == (127 if choice == "refuse" else 0)
    assert (b"is missing; refused" in finished.stderr) == (choice == "refuse")


def test_a_link_to_the_wrapper_finds_the_hook(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime", shell: str
) -> None:
    (installed.directory / "sbin").mkdir()
    link = installed.directory / "sbin" / "bayplan-runtime"
    link.symlink_to(installed.wrapper)
    subprocess.run([link, "create", "c1"], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    assert [question.verb for question in daemon.questions] == ["create"]


def test_settings_are_read_whatever_their_layout(
    installed: "Installation", runtime: "Runtime", shell: str
) -> None:
    own = installed.directory / "own.sock"
    installed.config.write_text(
        f"# runtime = /nonexistent\n\n  runtime\t=  {runtime.path}  \nsocket = {own}\nnoise\n"
        "on-failure = allow\ntimeout = 60"
    )
    with OciDaemon(own) as daemon:
        assert installed.run_wrapper("create", "c1").returncode == 0
        assert len(daemon.questions) == 1


def test_wrong_settings_are_said_and_not_taken(
    installed: "Installation", daemon: OciDaemon, runtime: "Runtime"
) -> None:
    installed.configure(runtime.path, timeout="soon", on_failure="maybe")
    daemon.reply = lambda _: error("no")
    assert installed.run_wrapper("create", "c1").returncode == 0
    timeout, on_failure, last = installed.system_log.lines()
    assert "--timeout: found 'soon', expected seconds above 0, at most 3600; the default is used" in timeout
    assert "--on-failure: found 'maybe', expected allow or refuse; the default is used" in on_failure
    assert last == "<28>bayplan: create of c1: no; let through"


def test_a_call_forks_nothing(installed: "Installation", runtime: "Runtime", shell: str) -> None:
    """Only what is built into the shell: a fork costs as much as the rest. Programs would have to be found on
    PATH, and there are none."""
    finished = installed.run_wrapper("state", "c1", env={"PATH": "/nonexistent"})
    # The runtime here is a script that uses programs; it is reached, and fails by itself.
    assert b"cat: not found" in finished.stderr or b"cat: command not found" in finished.stderr
    assert (runtime.out / "argv").exists()
