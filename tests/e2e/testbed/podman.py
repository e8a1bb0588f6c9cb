"""podman in the guest, the way an administrator uses it: create, init (created by the runtime, not started),
start, stop, rm.

The image is made of the test bed's own files. Which runtime, hooks and cgroup driver a container
gets is one value, an `Engine`; podman wants the same one with every later command about that container.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from testbed.channel import LIMIT_S
from testbed.errors import CommandError
from testbed.guest import Completed, Guest
from testbed.oci import WORKLOAD_IMAGE
from testbed.pods import size

IMAGE_ROOT = "/opt/images/root.tar"
LOGS = "/var/log/podman"
NO_HOOKS = "/run/podman-no-hooks"
RUNTIMES = ("runc", "crun")
DRIVERS = ("systemd", "cgroupfs")


@dataclass(frozen=True, slots=True)
class Engine:
    """How podman is told to make containers. `runtime` is a name of podman's or an absolute path."""

    runtime: str = "runc"
    cgroup_manager: str = "systemd"
    hooks_dir: str = ""

    def flags(self) -> tuple[str, ...]:
        flags = (f"--runtime={self.runtime}", f"--cgroup-manager={self.cgroup_manager}")
        # An empty directory, so that nothing of the machine's own is ever used.
        return (*flags, f"--hooks-dir={self.hooks_dir or NO_HOOKS}")


@dataclass(frozen=True, slots=True)
class Asked:
    """A container as podman's words describe it."""

    name: str
    command: tuple[str, ...] = ("/bin/workload", "pause")
    memory: str = ""
    cpus: float | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()

    def touching(self, amount: str | int) -> "Asked":
        """The same container, whose program fills so much memory and says "touched"."""
        return replace(self, command=("/bin/workload", "touch", str(size(amount))))

    def words(self) -> tuple[str, ...]:
        words = ["--name", self.name, "--network=none", "--no-hosts", "--image-volume=ignore"]
        words += ["--log-driver=k8s-file", f"--log-opt=path={LOGS}/{self.name}.log"]
        if self.memory:
            words.append(f"--memory={self.memory}")
        if self.cpus is not None:
            words.append(f"--cpus={self.cpus}")
        for key, value in self.annotations.items():
            words += ["--annotation", f"{key}={value}"]
        return (*words, *self.more, WORKLOAD_IMAGE, *self.command)


class Podman:
    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._engines: dict[str, Engine] = {}

    def __call__(self, *words: str, engine: Engine | None = None, check: bool = True) -> Completed:
        """podman with these words, told of runtime, driver and hooks when `engine` is given."""
        return self.guest.run("podman", *(engine.flags() if engine else ()), *words, check=check)

    def import_image(self) -> None:
        """The image, once per machine."""
        self.guest.run("mkdir", "-p", LOGS, NO_HOOKS)
        self("import", "--quiet", IMAGE_ROOT, WORKLOAD_IMAGE)

    def create(self, engine: Engine, asked: Asked) -> str:
        """Describe the container and have the runtime create it, without starting it; its id."""
        made = self("create", *asked.words(), engine=engine).stdout.strip()
        self._engines[made] = engine
        self("init", made, engine=engine)
        return made

    def made(self, container_id: str) -> bool:
        """Whether the container is one of this podman's."""
        return container_id in self._engines

    def start(self, container_id: str) -> None:
        self("start", container_id, engine=self._engines[container_id])

    def run(self, engine: Engine, asked: Asked) -> str:
        """Create and start; the id."""
        made = self.create(engine, asked)
        self.start(made)
        return made

    def refused(self, engine: Engine, asked: Asked) -> str:
        """Try to create a container, which must fail; what podman said."""
        try:
            made = self.create(engine, asked)
        except CommandError as error:
            return f"{error.stdout}\n{error.stderr}"
        raise AssertionError(f"the container {asked.name} was created, as {made}, and not refused")

    def stop(self, *container_ids: str) -> None:
        for one in container_ids:
            self("stop", "--time=0", one, engine=self._engines[one])

    def remove(self, *container_ids: str) -> None:
        for one in container_ids:
            self("rm", "--force", "--time=0", one, engine=self._engines[one])

    def remove_everything(self) -> None:
        """Whatever was made, and is still there in whatever state."""
        for engine in set(self._engines.values()):
            theirs = [one for one, its in self._engines.items() if its == engine]
            self("rm", "--force", "--time=0", "--ignore", *theirs, engine=engine, check=False)
        self._engines.clear()

    def update(self, container_id: str, *words: str) -> None:
        """podman update: what it changes of a container that runs."""
        self("update", *words, container_id, engine=self._engines[container_id])

    def inspect(self, container_id: str) -> dict[str, Any]:
        (found,) = json.loads(self("inspect", container_id).stdout)
        return dict(found)

    def state(self, container_id: str) -> str:
        """created, initialized, running, exited."""
        return str(self.inspect(container_id)["State"]["Status"])

    def pid(self, container_id: str) -> int:
        """The process id of a container's first process, on the node."""
        return int(self.inspect(container_id)["State"]["Pid"])

    def await_log(self, name: str, text: str, *, limit_s: float = LIMIT_S) -> None:
        """Wait until the program of a container said something, "touched" for instance."""
        self.guest.await_text(f"{LOGS}/{name}.log", text, limit_s=limit_s)
