"""QEMU as a child process: its command line, the serial console, its death.

The guest never outlives the process that started it: the kernel kills QEMU with its parent, a guest that
panics ends QEMU, and the agent powers off when its port closes.
"""

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from testbed import debian
from testbed.disks import initramfs, kernel
from testbed.shell import build_command, require

ABORT_LIMIT_S = 5
LIBRARY = "usr/lib/x86_64-linux-gnu"
# Without these two features the kernel clears and copies pages in words: emulated, `rep stosb` goes byte by
# byte. One thread for all CPUs: atomic instructions need no lock then, and nobody spins for somebody else;
# that halves the CPU time of a pod, and leaves this machine's other CPU to another guest. Only QEMU 10 ends
# when a CPU is removed that shares its thread.
# Page tables of five levels, checks of the kernel's accesses to programs' memory, and wide vectors cost a
# tenth.
EMULATED_CPU = "max,erms=off,fsrm=off,la57=off,smap=off,smep=off,avx=off,avx2=off"
EMULATION = ("-accel", "tcg,thread=single", "-cpu", EMULATED_CPU)
EMULATION_BY_CPU = ("-accel", "tcg,thread=multi", *EMULATION[2:])
HARDWARE = ("-accel", "kvm", "-cpu", "host")
# Said for each device: QEMU would take the last bus there is, which may be an expander's.
ROOT_BUS = "bus=pcie.0"
# numa_balancing moves pages between allowed nodes: what memory.numa_stat says would depend on the hour.
# Without tsc=reliable the kernel reads the time from an emulated timer, several thousand times dearer.
# Without no_timer_check it looks whether timer interrupts come, and panics where a busy machine delays them.
KERNEL_WORDS = (
    "console=ttyS0",
    "panic=-1",
    "loglevel=5",
    "apparmor=0",
    "mitigations=off",
    "random.trust_cpu=on",
    "numa_balancing=disable",
    "tsc=reliable",
    "no_timer_check",
    "init_on_alloc=0",
    "cgroup_no_v1=all",
)


def tool(program: str) -> list[str]:
    """A program of the tools tree, run with its own C library."""
    tree = debian.tools()
    loader = tree / LIBRARY / "ld-linux-x86-64.so.2"
    return [str(loader), "--library-path", str(tree / LIBRARY), str(tree / "usr/bin" / program)]


def make_overlay(path: Path, base: Path) -> None:
    """A disk that keeps what is written to it, and reads the rest from another."""
    argv = [*tool("qemu-img"), "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, path]
    build_command("A disk for a machine", argv)


@dataclass(frozen=True, slots=True)
class Drive:
    """A disk of the guest, which knows it by its serial number. Writes are lost unless it is `kept`."""

    serial: str
    image: Path
    format: str = "raw"
    kept: bool = False

    def qemu_args(self) -> list[str]:
        writes = "" if self.kept else ",snapshot=on"
        image = f"file={self.image},if=none,id={self.serial},format={self.format},cache=unsafe{writes}"
        device = f"virtio-blk-pci,drive={self.serial},serial={self.serial},{ROOT_BUS}"
        return ["-drive", image, "-device", device]


class Qemu:
    """A running QEMU; the serial console goes to a file. `ports` are virtio-serial ports, by name, and
    `monitor` is QMP's: file descriptors of sockets. `incoming`: it waits for the state of a saved machine.
    """

    def __init__(
        self,
        *,
        console: Path,
        machine: Sequence[str],
        kernel_words: Sequence[str],
        drives: Sequence[Drive] = (),
        ports: Mapping[str, int] = MappingProxyType({}),
        monitor: int | None = None,
        incoming: bool = False,
    ) -> None:
        self.console = console
        tree = debian.tools()
        args = [*(require("setpriv"), "--pdeathsig", "KILL"), *tool("qemu-system-x86_64")]
        args += ["-L", str(tree / "usr/share/qemu"), "-L", str(tree / "usr/share/seabios")]
        args += ["-nodefaults", "-no-user-config", "-display", "none", "-nic", "none", "-no-reboot"]
        args += ["-serial", f"file:{console}", "-rtc", "base=utc", *machine]
        args += ["-kernel", str(kernel()), "-initrd", str(initramfs())]
        args += ["-append", " ".join([*KERNEL_WORDS, *kernel_words])]
        for drive in drives:
            args += drive.qemu_args()
        if ports:
            args += ["-device", f"virtio-serial-pci,{ROOT_BUS}"]
        for number, (name, fd) in enumerate(ports.items()):
            args += ["-chardev", f"socket,id=port{number},fd={fd}"]
            args += ["-device", f"virtserialport,chardev=port{number},name={name}"]
        if monitor is not None:
            args += ["-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"]
        if incoming:
            args += ["-incoming", "defer"]
        self._errors = console.with_name("qemu.log")
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                args,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[*ports.values(), *([] if monitor is None else [monitor])],
                env={
                    "QEMU_MODULE_DIR": str(tree / LIBRARY / "qemu"),
                    "PATH": "/usr/bin:/bin",
                    "TMPDIR": str(console.parent),
                },
                start_new_session=True,
            )

    def alive(self) -> bool:
        return self.process.poll() is None

    def aborted(self) -> bool:
        """Whether QEMU ended itself, as it does when an assertion of its own fails."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(ABORT_LIMIT_S) == -signal.SIGABRT
        return False

    def kill(self) -> None:
        if self.alive():
            self.process.kill()
        self.process.wait()

    def console_text(self) -> str:
        try:
            return self.console.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def why(self) -> str:
        """The end of what QEMU and the guest's console said."""
        said = self._errors.read_bytes().decode(errors="replace").strip()
        console = "\n".join(self.console_text().splitlines()[-25:])
        return f"QEMU: {said or 'said nothing'}; the console ends with:\n{console}"
