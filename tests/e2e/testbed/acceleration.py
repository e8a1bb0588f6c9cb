"""Whether KVM really works here: found out by booting the smallest guest once, and remembered.

/dev/kvm may exist and hang QEMU all the same (nested virtualisation without the instructions the kernel
needs), so the device node alone says nothing.
"""

import contextlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

from testbed.cache import artefact
from testbed.disks import boot_key
from testbed.qemu import EMULATION, EMULATION_BY_CPU, HARDWARE, Qemu

PROBE_LIMIT_S = 20
PROBE_WORD = "bayplan.probe"
PROBE_ANSWER = "bayplan probe: booted"


def acceleration(*, removable_cpus: bool = False) -> tuple[str, ...]:
    """QEMU's arguments for the fastest way that works."""
    emulation = EMULATION_BY_CPU if removable_cpus else EMULATION
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return emulation
    machine = {"boot": boot_key(), **host(), "format": 1}
    answer = artefact("kvm", machine, lambda path: path.write_text("works" if _probe() else "broken"))
    return HARDWARE if answer.read_text() == "works" else emulation


def host() -> dict[str, str]:
    """What a machine that was saved here may depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line for line in lines if line.startswith("model name")), "unknown")
    return {"kernel": platform.release(), "cpu": model}


def _probe() -> bool:
    with tempfile.TemporaryDirectory(prefix="bayplan-probe-") as directory:
        guest = Qemu(
            console=Path(directory) / "console.log",
            machine=["-M", "q35", *HARDWARE, "-m", "512M", "-smp", "2"],
            kernel_words=[PROBE_WORD],
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            guest.process.wait(PROBE_LIMIT_S)
        guest.kill()
        return PROBE_ANSWER in guest.console_text()
