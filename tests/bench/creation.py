"""What a container's creation waits for us: ``python tests/bench/creation.py [--version V] [--repeat N]``.

The real daemon as its own process, and the real Go side of NRI, as containerd and CRI-O link it, which
measures how long its own call takes: encoding, socket, decision, commit to the disk, reply. Guaranteed
containers come and go beside others in the shared pool. Prints medians and 99th percentiles in milliseconds,
and the daemon's resident memory; compare numbers of one run only. The last row is the disk's own part: a
commit flushes once.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from goside import NEWEST, VERSIONS, GoSide, build

POPULATIONS = (10, 250)
WARM_UP = 30
# The daemon's start goes on for a while in the background: it listens for hotplug, for instance.
SETTLE_S = 2.0
MIB = 1 << 20
PAGE_BYTES = 4096
PARENT = "/kubepods/pod00000000-0000-0000-0000-000000000001"
GUARANTEED = {
    "resources": {
        "memory": {"limit": {"value": MIB}},
        "cpu": {"shares": {"value": 512}, "quota": {"value": 50_000}, "period": {"value": 100_000}},
    },
    "oomScoreAdj": {"value": -997},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", choices=VERSIONS, default=NEWEST, help="of NRI (default: %(default)s)")
    parser.add_argument(
        "--repeat", type=int, default=300, metavar="N", help="creations (default: %(default)s)"
    )
    options = parser.parse_args()
    program = build(options.version)
    print(f"{'NRI ' + options.version:40} {'median':>10} {'p99':>10}")
    for population in POPULATIONS:
        create_ms, stop_ms, resident_mib = measured(program, population, options.repeat)
        show(f"CreateContainer, beside {population} containers", create_ms)
        show(f"StopContainer, beside {population} containers", stop_ms)
        print(f"{'resident memory of the daemon':40} {resident_mib:>6.1f} MiB")
    show("one flush of the disk", flushes_ms(options.repeat))
    return 0


def measured(program: Path, population: int, repeat: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of creations and of stops, and the daemon's resident memory in MiB."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with (
            closing(GoSide(program, directory, "-pods", "1", "-containers", str(population))) as runtime,
            daemon(directory) as process,
        ):
            assert runtime.notice()["error"] == ""
            time.sleep(SETTLE_S)
            create_ms, stop_ms = [], []
            for number in range(WARM_UP + repeat):
                named = {"pod": "measured", "parent": PARENT, "id": f"measured-{number}"}
                created = runtime.do("CreateContainer", **named, linux=GUARANTEED)
                stopped = runtime.do("StopContainer", **named, linux=GUARANTEED)
                assert created["error"] == stopped["error"] == "", (created, stopped)
                # Until it has synchronized, a runtime leaves a plugin out without a word.
                assert "adjust" in created["response"]
                create_ms.append(created["ms"])
                stop_ms.append(stopped["ms"])
            return create_ms[WARM_UP:], stop_ms[WARM_UP:], resident_mib_of(process.pid)


@contextmanager
def daemon(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A baypland that connects to the runtime in *directory*."""
    argv = [sys.executable, "-m", "bayplan.daemon.main", "--nri-socket", directory / "nri.sock"]
    argv += ["--state-dir", directory / "state", "--admin-socket", directory / "admin.sock"]
    argv += ["--oci-socket", "none"]
    with (directory / "daemon.log").open("wb") as log:
        process = subprocess.Popen([*map(str, argv), "--log-format", "json"], stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def flushes_ms(repeat: int) -> list[float]:
    """Milliseconds of flushes of one page each, overwriting a file as the database's log is overwritten."""
    times_ms = []
    with tempfile.TemporaryFile() as file:
        os.write(file.fileno(), bytes(repeat * PAGE_BYTES))
        os.fsync(file.fileno())
        for number in range(repeat):
            os.pwrite(file.fileno(), os.urandom(PAGE_BYTES), number * PAGE_BYTES)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - started) * 1000)
    return times_ms


def resident_mib_of(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS in /proc/PID/status")


def show(name: str, times_ms: list[float]) -> None:
    p99 = sorted(times_ms)[min(len(times_ms) - 1, len(times_ms) * 99 // 100)]
    print(f"{name:40} {statistics.median(times_ms):>7.3f} ms {p99:>7.3f} ms")


if __name__ == "__main__":
    sys.exit(main())
