"""QEMU as a child process: its command line, the serial console, its death.

The guest never outlives the process that started it: the kernel kills QEMU with its parent, a guest that
panics ends QEMU, and the agent powers off when its channel closes.
"""

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed import debian
from testbed.disks import initramfs, kernel
from testbed.shell import require

ABORT_LIMIT_S = 5
LIBRARY = "usr/lib/x86_64-linux-gnu"
# Without these two features the kernel clears and copies pages in words: emulated, `rep stosb` goes byte by
# byte.
EMULATION = ("-accel", "tcg,thread=multi", "-cpu", "max,erms=off,fsrm=off")
HARDWARE = ("-accel", "kvm", "-cpu", "host")
# Said for each device: QEMU would take the last bus there is, which may be an expander's.
ROOT_BUS = "bus=pcie.0"
# numa_balancing moves pages between allowed nodes: what memory.numa_stat says would depend on the hour.
KERNEL_WORDS = (
    "console=ttyS0",
    "panic=-1",
    "loglevel=5",
    "apparmor=0",
    "mitigations=off",
    "random.trust_cpu=on",
    "numa_balancing=disable",
    "cgroup_no_v1=all",
)


def qemu_program() -> list[str]:
    """QEMU of the tools tree, run with its own C library and modules."""
    tree = debian.tools()
    loader = tree / LIBRARY / "ld-linux-x86-64.so.2"
    return [
        *(require("setpriv"), "--pdeathsig", "KILL"),
        *(str(loader), "--library-path", str(tree / LIBRARY)),
        str(tree / "usr/bin/qemu-system-x86_64"),
        *("-L", str(tree / "usr/share/qemu"), "-L", str(tree / "usr/share/seabios")),
    ]


class Qemu:
    """A running QEMU; the serial console goes to a file."""

    def __init__(
        self,
        *,
        console: Path,
        machine: Sequence[str],
        kernel_words: Sequence[str],
        disks: Mapping[str, Path],
        agent_fd: int | None = None,
    ) -> None:
        self.console = console
        args = [
            *qemu_program(),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-nic",
            "none",
            "-no-reboot",
        ]
        args += ["-serial", f"file:{console}", "-rtc", "base=utc", *machine]
        args += ["-kernel", str(kernel()), "-initrd", str(initramfs())]
        args += ["-append", " ".join([*KERNEL_WORDS, *kernel_words])]
        for serial, image in disks.items():
            args += ["-drive", f"file={image},if=none,id={serial},format=raw,snapshot=on,cache=unsafe"]
            args += ["-device", f"virtio-blk-pci,drive={serial},serial={serial},{ROOT_BUS}"]
        fds = ()
        if agent_fd is not None:
            fds = (agent_fd,)
            args += ["-device", f"virtio-serial-pci,{ROOT_BUS}", "-chardev", f"socket,id=agent,fd={agent_fd}"]
            args += ["-device", "virtserialport,chardev=agent,name=bayplan.agent"]
        tree = debian.tools()
        self._errors = console.with_name("qemu.log")
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                args,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=fds,
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
