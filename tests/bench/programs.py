"""What programs cost that somebody waits for: the OCI hook, the runtime wrapper, and the command-line tool.

All are measured in turns within one run, so that a busy machine is busy for all of them. The daemon that hook
and wrapper ask answers at once, and decides nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from table import Row

from bayplan.control.container_files import Starts
from support.oci_daemon import OciDaemon

CALLS = 51
HOOKS = Path(__file__).parents[2] / "hooks"
STATE = b'{"ociVersion":"1.2.0","id":"c1","status":"creating","pid":42,"bundle":"/b","annotations":{}}'
TRACE = """
{"arrive": "web", "memory": "4Gi", "cpus": 2}
{"arrive": "db", "memory": "8Gi"}
{"depart": "web"}
"""
TOPOLOGY = """
[[nodes]]
count = 4
cpus = 36
memory = "64Gi"
"""


class Program(NamedTuple):
    """A program, what it is compared with, and the aim."""

    argv: list[str | Path]
    reference: str = ""
    most: float | None = None
    as_ratio: bool = True


def rows() -> Iterator[Row]:
    """A row for each program."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        commands = _commands(directory, _installed(directory))
        Starts(directory / "oci.sock").expect("c2")
        times_ms: dict[str, list[float]] = {name: [] for name in commands}
        with OciDaemon(directory / "oci.sock"):
            for _ in range(CALLS):
                for name, program in commands.items():
                    times_ms[name].append(_run_ms(program.argv))
    for name, (_, reference, most, as_ratio) in commands.items():
        yield Row(name, times_ms[name], times_ms.get(reference, ()), most, as_ratio=as_ratio)


def _commands(directory: Path, programs: Path) -> dict[str, Program]:
    hook, wrapper = programs / "oci-hook", programs / "bayplan-runtime"
    cli = [sys.executable, "-m", "bayplan.cli.bayplan"]
    (directory / "trace").write_text(TRACE)
    (directory / "machine.toml").write_text(TOPOLOGY)
    simulate = [*cli, "simulate", "--topology", directory / "machine.toml", "--trace", directory / "trace"]
    bare, own, runtime = (
        "python3 -IS -c pass",
        "python -c pass, with our packages",
        "the runtime itself (/bin/true)",
    )
    return {
        bare: Program(["/usr/bin/python3", "-IS", "-c", "pass"]),
        own: Program([sys.executable, "-c", "pass"]),
        runtime: Program(["/bin/true", "--root", "/r", "state", "c1"]),
        "oci-hook createRuntime": Program([hook, "createRuntime"], bare, 1.3),
        "oci-hook precreate": Program([hook, "precreate"], bare),
        "bayplan-runtime state": Program([wrapper, "--root", "/r", "state", "c1"], runtime),
        "bayplan-runtime start": Program([wrapper, "--root", "/r", "start", "c1"], runtime),
        "bayplan-runtime start, expected": Program([wrapper, "--root", "/r", "start", "c2"], runtime),
        "bayplan-runtime create": Program([wrapper, "create", "--bundle", "/b", "c1"], bare),
        "bayplan-runtime update -r -": Program([wrapper, "update", "-r", "-", "c1"], bare),
        "bayplan status --help": Program([*cli, "status", "--help"], own, 60.0, as_ratio=False),
        "bayplan simulate, three lines": Program(simulate, own, 300.0, as_ratio=False),
    }


def _installed(directory: Path) -> Path:
    """The two programs, as they are installed, told to use a socket and settings in *directory*."""
    libexec = directory / "libexec"
    libexec.mkdir()
    for name in ("oci-hook", "oci_hook.py", "bayplan-runtime"):
        text = (HOOKS / name).read_text()
        text = text.replace("/run/bayplan/oci.sock", str(directory / "oci.sock"))
        text = text.replace("/etc/bayplan/oci-runtime.conf", str(directory / "oci-runtime.conf"))
        (libexec / name).write_text(text)
        shutil.copymode(HOOKS / name, libexec / name)
    subprocess.run(["/usr/bin/python3", "-I", "-m", "compileall", "-q", libexec], check=True)
    settings = f"runtime = /bin/true\nsocket = {directory}/oci.sock\ntimeout = 60\non-failure = refuse\n"
    (directory / "oci-runtime.conf").write_text(settings)
    return libexec


def _run_ms(argv: list[str | Path]) -> float:
    started = time.perf_counter()
    finished = subprocess.run(argv, input=STATE, env={"PATH": os.defpath}, capture_output=True, check=False)
    elapsed_ms = (time.perf_counter() - started) * 1000
    assert (finished.returncode, finished.stderr) == (0, b""), finished
    return elapsed_ms
