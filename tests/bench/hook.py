"""What the OCI hook and the runtime wrapper cost the start of a container, beside what they need anyway.

`make bench` prints the table. All rows are measured in turns within one run, so that a busy machine is busy
for all of them; compare rows of one table only. The daemon answers at once, and decides nothing.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bayplan.control.starts import Starts
from support.oci_daemon import OciDaemon

REPETITIONS = 101
HOOKS = Path(__file__).parents[2] / "hooks"
STATE = b'{"ociVersion":"1.2.0","id":"c1","status":"creating","pid":42,"bundle":"/b","annotations":{}}'


def main() -> int:
    """Measure everything and print it."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        programs = _installed(directory)
        commands = {
            "a program that does nothing (/bin/true)": ["/bin/true"],
            "a bare interpreter (python3 -IS -c pass)": ["/usr/bin/python3", "-IS", "-c", "pass"],
            "a bare interpreter with import json": ["/usr/bin/python3", "-IS", "-c", "import json"],
            "oci-hook createRuntime": [programs / "oci-hook", "createRuntime"],
            "oci-hook precreate": [programs / "oci-hook", "precreate"],
            "the runtime itself (here /bin/true)": ["/bin/true", "--root", "/r", "state", "c1"],
            "bayplan-runtime state": [programs / "bayplan-runtime", "--root", "/r", "state", "c1"],
            "bayplan-runtime start": [programs / "bayplan-runtime", "--root", "/r", "start", "c1"],
            "bayplan-runtime start, expected": [programs / "bayplan-runtime", "--root", "/r", "start", "c2"],
            "bayplan-runtime create": [programs / "bayplan-runtime", "create", "--bundle", "/b", "c1"],
            "bayplan-runtime update -r -": [programs / "bayplan-runtime", "update", "-r", "-", "c1"],
        }
        Starts(directory / "oci.sock").expect("c2")
        with OciDaemon(directory / "oci.sock"):
            times_ms: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(REPETITIONS):
                for name, argv in commands.items():
                    times_ms[name].append(_run_ms(argv))
    width = max(map(len, commands))
    print(f"{'':{width}}  {'median':>9}  {'fastest tenth':>13}")
    for name, times in times_ms.items():
        tenth = sorted(times)[len(times) // 10]
        print(f"{name:{width}}  {statistics.median(times):6.2f} ms  {tenth:10.2f} ms")
    return 0


def _installed(directory: Path) -> Path:
    """The two programs, told to use a socket and settings in *directory*."""
    libexec = directory / "libexec"
    libexec.mkdir()
    for name in ("oci-hook", "bayplan-runtime"):
        text = (HOOKS / name).read_text()
        text = text.replace("/run/bayplan/oci.sock", str(directory / "oci.sock"))
        text = text.replace("/etc/bayplan/oci-runtime.conf", str(directory / "oci-runtime.conf"))
        (libexec / name).write_text(text)
        shutil.copymode(HOOKS / name, libexec / name)
    settings = f"runtime = /bin/true\nsocket = {directory}/oci.sock\ntimeout = 60\non-failure = refuse\n"
    (directory / "oci-runtime.conf").write_text(settings)
    return libexec


def _run_ms(argv: list[str | Path]) -> float:
    started = time.perf_counter()
    finished = subprocess.run(argv, input=STATE, env={"PATH": os.defpath}, capture_output=True, check=False)
    elapsed_ms = (time.perf_counter() - started) * 1000
    assert (finished.returncode, finished.stderr) == (0, b""), finished
    return elapsed_ms


if __name__ == "__main__":
    sys.exit(main())
