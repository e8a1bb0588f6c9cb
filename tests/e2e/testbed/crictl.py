"""crictl, as an administrator uses it, on this machine: the runtime's socket is forwarded from the guest,
where a start of crictl takes twenty times as long. Every value comes back typed.

`launch` is what scenarios want: sandbox, containers created and started. The steps are there one by one as
well.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from testbed import gobuild
from testbed.channel import LIMIT_S
from testbed.errors import CommandError, TestBedError
from testbed.guest import Completed, Guest
from testbed.pods import Container, Pod

# In the guest, for scenarios about crictl itself and for other programs.
CRICTL = "/opt/crictl/bin/crictl"
SOCKET = "/run/containerd/containerd.sock"
RUNTIME_LIMIT = f"{LIMIT_S}s"
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Running:
    """A pod that runs: its sandbox id and the container ids by name."""

    pod: Pod
    sandbox_id: str
    container_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def container_id(self) -> str:
        """The id of the only container."""
        (only,) = self.container_ids.values()
        return only


class Crictl:
    """It speaks to containerd unless told another socket."""

    def __init__(self, guest: Guest, *, socket: str = SOCKET) -> None:
        self.guest = guest
        self._socket = socket

    def __call__(self, *words: str, check: bool = True) -> Completed:
        """crictl with these words. Raises CommandError unless it ends with 0, or `check` is off."""
        flags = (
            f"--timeout={RUNTIME_LIMIT}",
            f"--runtime-endpoint=unix://{self.guest.forwarded(self._socket)}",
        )
        argv = [_program(), *flags, *words]
        ended = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=2 * LIMIT_S,
            check=False,
        )
        if check and ended.returncode:
            raise CommandError(["crictl", *words], ended.returncode, ended.stdout, ended.stderr)
        return Completed(ended.returncode, ended.stdout, ended.stderr)

    def await_serving(self, *, limit_s: float) -> None:
        """Wait until the runtime answers."""
        deadline = time.monotonic() + limit_s
        while (asked := self("version", check=False)).exit_code:
            if time.monotonic() > deadline:
                raise TestBedError(f"{self._socket} did not serve within {limit_s:g} s: {asked.stderr}")
            time.sleep(POLL_S)

    def launch(self, pod: Pod, *, handler: str = "") -> Running:
        """Sandbox, then create and start every container. What fails raises CommandError and leaves the
        rest. `handler` is a runtime handler's name.
        """
        sandbox_id = self.run_sandbox(pod, handler=handler)
        containers = {}
        for container in pod.containers:
            containers[container.name] = self.create(sandbox_id, pod, container)
            self.start(containers[container.name])
        return Running(pod, sandbox_id, containers)

    def refused(self, pod: Pod, *, handler: str = "") -> str:
        """Try to create the pod's first container, which must fail; what crictl said. The sandbox is
        removed.
        """
        sandbox_id = self.run_sandbox(pod, handler=handler)
        try:
            created = self.create(sandbox_id, pod, pod.containers[0])
        except CommandError as error:
            return f"{error.stdout}\n{error.stderr}"
        else:
            raise AssertionError(f"the container of {pod.name} was created, as {created}, and not refused")
        finally:
            self.remove_sandbox(sandbox_id)

    def run_sandbox(self, pod: Pod, *, handler: str = "") -> str:
        chosen = (f"--runtime={handler}",) if handler else ()
        with _files(pod.config()) as (pod_file,):
            return self("runp", *chosen, pod_file).stdout.strip()

    def create(self, sandbox_id: str, pod: Pod, container: Container) -> str:
        with _files(container.config(), pod.config()) as (container_file, pod_file):
            return self("create", sandbox_id, container_file, pod_file).stdout.strip()

    def start(self, *container_ids: str) -> None:
        self("start", *container_ids)

    def stop(self, *container_ids: str, timeout_s: int = 0) -> None:
        self("stop", f"--timeout={timeout_s}", *container_ids)

    def remove(self, *container_ids: str) -> None:
        self("rm", "--force", *container_ids)

    def remove_sandbox(self, *sandbox_ids: str) -> None:
        """Stop and remove sandboxes with everything in them."""
        self("rmp", "--force", *sandbox_ids)

    def remove_everything(self) -> None:
        """Remove all sandboxes. What is being started when its kubelet is killed can be removed once it has
        started."""
        deadline = time.monotonic() + LIMIT_S
        while self("pods", "--quiet").stdout.strip():
            if self("rmp", "--force", "--all", check=time.monotonic() > deadline).exit_code:
                time.sleep(POLL_S)

    def update(self, container_id: str, **fields: str | int) -> None:
        """crictl update: `cpu_shares=512` becomes --cpu-share 512; the names are crictl's, with
        underscores.
        """
        self(
            "update", *(f"--{name.replace('_', '-')}={value}" for name, value in fields.items()), container_id
        )

    def resize_hugepages(self, container_id: str, page_size: str, limit_bytes: int) -> None:
        """What crictl has no words for: UpdateContainerResources with a limit of huge pages alone. Raises
        CommandError with what the runtime says."""
        limit = _field(1, page_size.encode()) + b"\x10" + _varint(limit_bytes)
        request = _field(1, container_id.encode()) + _field(2, _field(8, limit))
        with grpc.insecure_channel(f"unix:{self.guest.forwarded(self._socket)}") as channel:
            update = channel.unary_unary("/runtime.v1.RuntimeService/UpdateContainerResources")
            try:
                update(request, timeout=LIMIT_S)
            except grpc.RpcError as error:
                words = ["UpdateContainerResources", container_id]
                raise CommandError(words, 1, "", str(error.details())) from error

    def execute(self, container_id: str, *argv: str) -> Completed:
        # --sync: the other way goes through a port of the guest's loopback interface.
        return self("exec", "--sync", container_id, *argv)

    def inspect(self, container_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("inspect", container_id).stdout)
        return found

    def state(self, container_id: str) -> str:
        """CONTAINER_RUNNING and so on."""
        return str(self.inspect(container_id)["status"]["state"])

    def pid(self, container_id: str) -> int:
        """The process id of a container's first process, on the node."""
        return int(self.inspect(container_id)["info"]["pid"])

    def containers(self) -> list[dict[str, Any]]:
        """All containers, in whatever state."""
        return list(json.loads(self("ps", "--all", "--output", "json").stdout).get("containers") or [])

    def logs(self, running: Running, container: str = "main") -> str:
        """What the program of a container wrote so far."""
        path = self._log_path(running, container)
        return self.guest.read_files(path).get(path, "")

    def await_log(
        self, running: Running, text: str, container: str = "main", *, limit_s: float = LIMIT_S
    ) -> None:
        """Wait until the program of a container said something, "touched" for instance."""
        self.guest.await_text(self._log_path(running, container), text, limit_s=limit_s)

    def _log_path(self, running: Running, container: str) -> str:
        return f"/var/log/pods/{running.pod.name}/{container}.log"


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that has a length."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@cache
def _program() -> str:
    return str(gobuild.crictl() / "bin/crictl")


@contextmanager
def _files(*configs: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """The paths of files with these configurations, for as long as crictl reads them."""
    with tempfile.TemporaryDirectory(prefix="bayplan-crictl-") as directory:
        paths = [Path(directory, f"{number}.json") for number in range(len(configs))]
        for path, config in zip(paths, configs, strict=True):
            path.write_text(json.dumps(config))
        yield tuple(str(path) for path in paths)
