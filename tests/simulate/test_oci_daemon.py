"""The real daemon and the real hook on this kernel: killed in the middle, record and kernel agree again."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayplan.cli.client import ask
from bayplan.errors import UnavailableError
from bayplan.host.hierarchy import Hierarchy
from support.allowed import allowed_cpus
from support.coroutines import PATIENCE_S
from support.oci_node import guaranteed, spec, state

pytestmark = pytest.mark.root

HOOK = Path(__file__).parents[2] / "hooks" / "oci-hook"
STARTS = 12


class Daemon:
    """A baypland process, started as often as it is killed."""

    def __init__(self, directory: Path) -> None:
        self.oci, self.admin = directory / "oci.sock", directory / "admin.sock"
        self._argv = [
            *(sys.executable, "-m", "bayplan.daemon.baypland", "--reserved-cpus", "0"),
            *("--oci-socket", str(self.oci), "--admin-socket", str(self.admin), "--oci-deadline", "30s"),
            *("--agent-socket", "none"),
            *("--state-dir", str(directory / "state"), "--nri-socket", str(directory / "nri.sock")),
        ]
        self._log = (directory / "log").open("wb")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._argv, stderr=self._log)
        self.until(lambda: self.containers() is not None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._log.close()

    def containers(self) -> dict[str, str] | None:
        """The CPUs of each container by its id; None while nobody answers."""
        try:
            answer = ask(self.admin, "status")
        except UnavailableError:
            return None
        return {one["id"]: one["cpus"] for one in answer["containers"]}

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)


class Containers:
    """Processes in cgroups of their own, created as a runtime creates them: the hook decides their fate."""

    def __init__(self, directory: Path, hierarchy: Hierarchy, parent: str) -> None:
        self._directory = directory
        self._mounts = sorted(set(hierarchy.mounts.values()))
        self._unified = hierarchy.unified
        self._parent = parent
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for mount in self._mounts:
            self._make(Path(mount + parent))

    @property
    def alive(self) -> dict[str, int]:
        return {container_id: process.pid for container_id, process in self._processes.items()}

    def create(self, number: int) -> tuple[str, bytes]:
        """A process that has not started yet, so to say; its id and the state for its hooks."""
        container_id = f"{number:064x}"
        path = f"{self._parent}/crio-{container_id}"
        process = subprocess.Popen(["sleep", "600"])
        for mount in self._mounts:
            (self._make(Path(mount + path)) / "cgroup.procs").write_text(str(process.pid))
        self._processes[container_id] = process
        bundle = self._directory / container_id
        bundle.mkdir()
        resources = guaranteed(1, 1 << 20) if number == 3 else {}
        (bundle / "config.json").write_text(json.dumps(spec(path, resources=resources)))
        (bundle / "config.json").chmod(0o600)
        return container_id, state(container_id, bundle, process.pid)

    def end(self, container_id: str) -> None:
        process = self._processes.pop(container_id)
        process.kill()
        process.wait()
        for mount in self._mounts:
            Path(f"{mount}{self._parent}/crio-{container_id}").rmdir()

    def close(self) -> None:
        for container_id in list(self._processes):
            self.end(container_id)
        for mount in self._mounts:
            Path(mount + self._parent).rmdir()

    def _make(self, directory: Path) -> Path:
        if self._unified:
            (directory.parent / "cgroup.subtree_control").write_text("+cpuset +memory")
        directory.mkdir()
        if not self._unified and (directory / "cpuset.cpus").exists():
            for name in ("cpuset.cpus", "cpuset.mems"):
                (directory / name).write_text((directory.parent / name).read_text())
        return directory


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    made = Containers(tmp_path, Hierarchy.detect(), f"/bayplan-test-daemon-{os.getpid()}")
    with contextlib.closing(made):
        yield made


@pytest.mark.parametrize("seed", [5, pytest.param(6, marks=pytest.mark.matrix)])
def test_a_killed_daemon_comes_back_to_what_the_kernel_has(
    containers: Containers, tmp_path: Path, seed: int
) -> None:
    daemon, chance, refused = Daemon(tmp_path), random.Random(seed), 0
    try:
        for number in range(STARTS):
            container_id, announced = containers.create(number)
            hook = subprocess.Popen(
                [
                    *(sys.executable, "-IS", str(HOOK), "--socket", str(daemon.oci), "--timeout", "60"),
                    *("--on-failure", "refuse", "createRuntime"),
                ],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            if number % 3 == 2:
                # A fault at some moment, not a synchronisation: before, while or after the daemon decides.
                assert hook.stdin is not None
                hook.stdin.write(announced)
                hook.stdin.close()
                time.sleep(chance.uniform(0, 0.04))
                daemon.kill()
                failed = hook.wait() != 0
                daemon.start()
            else:
                hook.communicate(announced)
                failed = hook.returncode != 0
            if failed:
                # The daemon knows nothing of it, or believes that it lives. Nobody tells.
                refused += 1
                containers.end(container_id)
        daemon.kill()
        # One ends while nobody is there to hear it.
        containers.end(next(iter(containers.alive)))
        daemon.start()
        daemon.until(lambda: set(daemon.containers() or ()) == set(containers.alive))
        assert refused < STARTS // 2

        def as_decided() -> bool:
            expected = daemon.containers() or {}
            found = {key: str(allowed_cpus(pid)) for key, pid in containers.alive.items()}
            return found == expected

        daemon.until(as_decided)
    finally:
        daemon.close()
