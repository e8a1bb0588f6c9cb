"""The hook and the wrapper as installed programs, with a real daemon, system log and runtime."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.oci_daemon import OciDaemon

HOOKS = Path(__file__).parents[3] / "hooks"
PATIENCE = "60"
"""Seconds; a loaded machine must not turn an answer into a failure."""
PIPE_BYTES = 4096
"""At least so much fits into a pipe, however many there are."""

RUNTIME = """\
#!/bin/sh
# Records how it was called, and does as it is told.
out={out}
printf '%s\\0' "$0" "$@" >$out/argv
echo $$ >$out/pid
# Without a fork: while a shell forks, it blocks signals.
while read -r line; do echo "$line"; done </proc/$$/status >$out/status
cat /proc/$$/environ >$out/environ
# In a child that does not borrow the shell's own descriptors, as a plain redirection does.
(ls -l /proc/$$/fd >$out/fds)
[ -e $out/read-stdin ] && cat >$out/stdin
if [ -e $out/wait ]; then
	echo ready >$out/ready
	read -r never <$out/wait
fi
[ -e $out/exit ] && exit "$(cat $out/exit)"
echo out of the runtime
echo "err of the runtime" >&2
"""


class SystemLog:
    """What /dev/log is on a node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def lines(self) -> list[str]:
        """What has come since the last time."""
        lines = []
        while True:
            try:
                lines.append(self._socket.recv(1 << 16).decode())
            except BlockingIOError:
                return lines

    def close(self) -> None:
        self._socket.close()


class Runtime:
    """A real executable in the place of runc, and what it recorded."""

    def __init__(self, directory: Path, name: str = "runc") -> None:
        self.out = directory / f"{name}.out"
        self.out.mkdir(parents=True)
        self.path = directory / name
        self.path.write_text(RUNTIME.format(out=self.out))
        self.path.chmod(0o755)

    @property
    def ran(self) -> bool:
        return (self.out / "argv").exists()

    @property
    def argv(self) -> list[str]:
        return [os.fsdecode(word) for word in (self.out / "argv").read_bytes().split(b"\0")[:-1]]

    @property
    def environ(self) -> dict[str, str]:
        entries = (self.out / "environ").read_bytes().split(b"\0")
        pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
        return {name: value for name, _, value in pairs}

    @property
    def descriptors(self) -> set[int]:
        """What was open, without the shell's own: the script that it reads."""
        entries = [line.partition(" -> ") for line in (self.out / "fds").read_text().splitlines()]
        return {int(entry.split()[-1]) for entry, _, target in entries if target not in ("", str(self.path))}

    def status(self, field: str) -> str:
        lines = (self.out / "status").read_text().splitlines()
        return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


class Installation:
    """Copies of the two programs whose fixed paths are below a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.libexec = directory / "libexec"
        self.libexec.mkdir()
        self.config = directory / "oci-runtime.conf"
        self.kernel_log = directory / "kmsg"
        self.kernel_log.touch()
        self.system_log = SystemLog(directory / "log")
        self.socket = directory / "oci.sock"
        self.hook = self._copy("oci-hook", 0)
        self.module = self._copy("oci_hook.py", 1)
        self.wrapper = self._copy("bayplan-runtime", 1)

    def _copy(self, name: str, kernel_logs: int) -> Path:
        text = (HOOKS / name).read_text()
        assert text.count("/dev/kmsg") == kernel_logs
        for fixed, own in {
            "/dev/kmsg": self.kernel_log,
            "/dev/log": self.system_log.path,
            "/etc/bayplan/oci-runtime.conf": self.config,
            "/run/bayplan/oci.sock": self.socket,
            "/usr/libexec/bayplan": self.libexec,
        }.items():
            text = text.replace(fixed, str(own))
        path = self.libexec / name
        path.write_text(text)
        shutil.copymode(HOOKS / name, path)
        return path

    def run_hook(
        self, *arguments: str, stdin: bytes = b"{}", **options: Any
    ) -> "subprocess.CompletedProcess[bytes]":
        """The hook, with an empty environment as CRI-O nearly gives it."""
        return _run([self.hook, *arguments], stdin, {"env": {}, "cwd": self.directory} | options)

    def run_wrapper(
        self, *arguments: str, shell: str = "", **options: Any
    ) -> "subprocess.CompletedProcess[bytes]":
        argv = [*([shell] if shell else []), str(self.wrapper), *arguments]
        options = {"cwd": self.directory, "env": {"PATH": os.environ["PATH"]}} | options
        return _run(argv, options.pop("input", b""), options)

    def make_runtime(self, folder: str, name: str = "runc") -> Runtime:
        """One more runtime, below *folder*."""
        return Runtime(self.directory / folder, name)

    def configure(self, runtime: Path | None, **settings: str) -> None:
        said = {"runtime": str(runtime)} if runtime else {}
        said |= {name.replace("_", "-"): value for name, value in settings.items()}
        said.setdefault("timeout", PATIENCE)
        self.config.write_text("".join(f"{name} = {value}\n" for name, value in said.items()))


def _run(argv: list[Any], stdin: bytes, options: dict[str, Any]) -> "subprocess.CompletedProcess[bytes]":
    """Run a program to its end. What fits into a pipe is in it before the program starts: those that wait for
    a fraction of a second only do not wait for this process to write."""
    with contextlib.ExitStack() as stack:
        if "stdin" not in options:
            if len(stdin) <= PIPE_BYTES:
                reading, writing = os.pipe()
                stack.callback(os.close, reading)
                with os.fdopen(writing, "wb") as pipe:
                    pipe.write(stdin)
                options = options | {"stdin": reading}
            else:
                options = options | {"input": stdin}
        return subprocess.run(argv, capture_output=True, check=False, **options)


@pytest.fixture(scope="session", autouse=True)
def interpreter() -> None:
    assert os.access("/usr/bin/python3", os.X_OK), (
        "the hook runs with /usr/bin/python3: make setup installs it"
    )


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    one = Installation(tmp_path)
    yield one
    one.system_log.close()


@pytest.fixture
def daemon(installed: Installation) -> Iterator[OciDaemon]:
    with OciDaemon(installed.socket) as one:
        yield one


@pytest.fixture
def runtime(installed: Installation) -> Runtime:
    one = installed.make_runtime("bin")
    installed.configure(one.path)
    return one
