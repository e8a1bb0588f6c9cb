"""A virtual machine, booted once, saved when it is ready for scenarios, and restored within a second or two.

What is saved: the memory of each NUMA node as a file, which restored machines map privately, the state of
the devices (QEMU's migration to a file), and an overlay of the root disk. The disk with bayplan is exchanged
when the machine is restored: it changes with every change of the tree.
"""

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.acceleration import acceleration, host
from testbed.cache import artefact, digest_files
from testbed.channel import LIMIT_S, Channel
from testbed.disks import initramfs, root_disk
from testbed.errors import GuestError
from testbed.forwarding import Forwarding
from testbed.guest import Guest
from testbed.monitor import Monitor
from testbed.payload import DISK_BYTES
from testbed.progress import Step
from testbed.qemu import Drive, Qemu, make_overlay
from testbed.topology import Topology

# On a busy machine QEMU 10 was seen to abort on an assertion of its own, once in some fifty boots.
ATTEMPTS = 3
POLL_S = 0.05
PAYLOAD = "bayplan"
SAVED_MB = 500
PORTS = ("bayplan.agent", "bayplan.streams")
STATE, ROOT, PLACEHOLDER = "state", "root.qcow2", "payload"
# The memory is in files already; without this it would be written to the state as well.
MEMORY_APART = ({"capability": "x-ignore-shared", "state": True},)
# What decides how a saved machine is made, beside its disks.
MADE_BY = tuple(Path(__file__).parent / f"{name}.py" for name in ("containerd", "machine", "qemu"))
# Units that a machine of one hour has no use for, and that cost seconds under emulation.
MASKED_UNITS = (
    "ldconfig.service",
    "systemd-journal-catalog-update.service",
    "systemd-random-seed.service",
    "systemd-sysusers.service",
    "systemd-update-done.service",
    "systemd-update-utmp.service",
    "timers.target",
)
SYSTEMD_WORDS = (
    "systemd.unit=bayplan-guest.target",
    "systemd.show_status=no",
    *(f"systemd.mask={unit}" for unit in MASKED_UNITS),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """`disks` appear read-only as /opt/NAME. With `systemd`, that is process 1 and owns the cgroups, and
    podman is there.
    """

    topology: Topology
    disks: Mapping[str, Path]
    systemd: bool = False

    def saved(self, purpose: str, settle: Callable[[Guest], None]) -> Path:
        """The directory of this machine, booted and settled for a purpose; kept between runs."""
        recipe = {
            "machine": self._machine_args(Path(), restored=False),
            "disks": {name: str(path) for name, path in self.disks.items()},
            "root": str(root_disk(systemd=self.systemd)),
            "initramfs": str(initramfs()),
            "kernel words": self._kernel_words(),
            **host(),
            "made by": digest_files(*MADE_BY),
        }

        def build(path: Path) -> None:
            path.mkdir()
            guest = self.boot(path)
            try:
                settle(guest)
                _save(guest, path)
            finally:
                guest.shut_down()

        name = f"machine-{self.topology.name}-{purpose}"
        return artefact(name, recipe, build, keep=2, step=Step(f"{name}, booted and saved", SAVED_MB))

    def boot(self, directory: Path) -> Guest:
        """A guest whose memory and root disk are in a directory."""
        make_overlay(directory / ROOT, root_disk(systemd=self.systemd))
        placeholder = directory / PLACEHOLDER
        placeholder.touch()
        os.truncate(placeholder, DISK_BYTES)
        return self._start(lambda: self._launch(directory, placeholder, restored=False), LIMIT_S)

    def restore(self, saved: Path, payload: Path) -> Guest:
        """A guest that goes on where the saved machine stopped, with bayplan as /opt/bayplan."""
        guest = self._start(lambda: self._restore(saved, payload), LIMIT_S)
        guest.resume(disk=PAYLOAD)
        return guest

    def _start(self, launch: Callable[[], Guest], limit_s: float) -> Guest:
        for attempt in range(1, ATTEMPTS + 1):
            guest = launch()
            try:
                guest.await_agent(limit_s)
            except GuestError:
                guest.shut_down()
                if attempt == ATTEMPTS or not guest.qemu.aborted():
                    raise
            else:
                break
        return guest

    def _restore(self, saved: Path, payload: Path) -> Guest:
        guest = self._launch(saved, payload, restored=True)
        # What goes wrong from here on ends QEMU, which is told by who waits for the agent.
        with contextlib.suppress(GuestError):
            guest.monitor("migrate-set-capabilities", capabilities=MEMORY_APART)
            guest.monitor("migrate-incoming", uri=f"file:{saved / STATE}")
            _await_migrated(guest.monitor)
            # It was stopped when it was saved.
            guest.monitor("cont")
        return guest

    def _launch(self, directory: Path, payload: Path, *, restored: bool) -> Guest:
        own = Path(tempfile.mkdtemp(prefix="bayplan-guest-"))
        ends = {name: socket.socketpair() for name in (*PORTS, "monitor")}
        root = Drive("root", directory / ROOT, "qcow2", kept=not restored)
        disks = [Drive(name, image) for name, image in {**self.disks, PAYLOAD: payload}.items()]
        qemu = Qemu(
            console=own / "console.log",
            machine=self._machine_args(directory, restored=restored),
            kernel_words=self._kernel_words(),
            drives=[root, *disks],
            ports={name: ends[name][1].fileno() for name in PORTS},
            monitor=ends["monitor"][1].fileno(),
            incoming=restored,
        )
        for _, theirs in ends.values():
            theirs.close()
        agent, streams, monitor = (ours for ours, _ in ends.values())
        return Guest(qemu, Channel(agent), Forwarding(streams, own), Monitor(monitor), own)

    def _machine_args(self, directory: Path, *, restored: bool) -> list[str]:
        how = acceleration(removable_cpus=self.topology.removable_cpus > 0)
        options = ["-M", self.topology.machine_options(), *how]
        return [*options, *self.topology.qemu_args(directory, restored=restored)]

    def _kernel_words(self) -> list[str]:
        return [*self.topology.kernel_words(), *(SYSTEMD_WORDS if self.systemd else ())]


def _save(guest: Guest, directory: Path) -> None:
    """Write the state of a guest and end it."""
    guest.monitor("stop")
    guest.monitor("migrate-set-capabilities", capabilities=MEMORY_APART)
    guest.monitor("migrate", uri=f"file:{directory / STATE}")
    _await_migrated(guest.monitor)
    guest.monitor("quit")
    guest.qemu.process.wait(LIMIT_S)


def _await_migrated(monitor: Monitor) -> None:
    """Wait until QEMU has written, or read, the state of a machine."""
    while (answer := monitor("query-migrate")).get("status") != "completed":
        if answer.get("status") == "failed":
            raise GuestError(
                f"QEMU did not write or read the machine: {answer.get('error-desc', 'no reason given')}"
            )
        time.sleep(POLL_S)
