"""What comes from Debian: QEMU and a kernel, the guests' roots, containerd of unstable.

Packages are unpacked below the cache and never installed on this machine, so that its own package sources and
versions do not matter: QEMU 7.2 of Debian 12, for one, cannot boot several NUMA nodes reliably.
"""

import os
import shutil
import subprocess
import threading
from functools import cache
from pathlib import Path

from testbed.cache import artefact
from testbed.progress import Step
from testbed.shell import build_command, require, require_root

# apt takes a second of CPU time to answer: it is asked once, not by every build at once.
_asking = threading.Lock()

STABLE = "trixie"
UNSTABLE = "unstable"

TOOL_PACKAGES = ("qemu-system-x86", "qemu-utils", "linux-image-cloud-amd64", "busybox-static")
ROOT_PACKAGES = (
    "containerd",
    "runc",
    "crun",
    "containernetworking-plugins",
    "iproute2",
    "python3",
    "kmod",
    "procps",
)
SYSTEMD_ROOT_PACKAGES = (
    "systemd-sysv",
    "dbus",
    "podman",
    "conmon",
    "runc",
    "crun",
    "libseccomp2",
    "iproute2",
    "python3",
    "kmod",
    "procps",
)

PACKAGE_ROOT_PACKAGES = ("systemd", "python3")

# A mirror that lags, or a clock that is ahead, is no reason to fail: signatures are checked all the same.
APT_OPTIONS = ('Acquire::Check-Valid-Until "false"', 'Acquire::Retries "3"')
UNPACK_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/locale/*",
)


def tools() -> Path:
    """A directory with QEMU, a kernel with its modules, and static busybox, of Debian stable."""
    step = Step("QEMU, kernel and busybox of Debian stable", 230)
    return _bootstrap("tools", "extract", STABLE, TOOL_PACKAGES, step)


def root_tree() -> Path:
    """A directory with the root file system of the guest without systemd, which boots fastest."""
    step = Step("the virtual machine's Debian with containerd 1.7", 330)
    return _bootstrap("root-tree", "minbase", STABLE, ROOT_PACKAGES, step)


def systemd_root_tree() -> Path:
    """A directory with the root file system of the guest with systemd and podman."""
    step = Step("the virtual machine's Debian with systemd and podman", 350)
    return _bootstrap("systemd-root-tree", "minbase", STABLE, SYSTEMD_ROOT_PACKAGES, step)


def package_root(suite: str) -> Path:
    """A directory with a small Debian that has what bayplan's package depends on, and nothing of it."""
    step = Step(f"a bare Debian {suite}", 200)
    return _bootstrap(f"package-root-{suite}", "minbase", suite, PACKAGE_ROOT_PACKAGES, step)


def unstable_containerd() -> Path:
    """A directory with containerd and runc of Debian unstable."""
    step = Step("containerd 2.1 of Debian unstable", 160)
    return _bootstrap("unstable", "extract", UNSTABLE, ("containerd",), step)


def _bootstrap(name: str, variant: str, suite: str, packages: tuple[str, ...], step: Step) -> Path:
    recipe = {
        "variant": variant,
        "suite": suite,
        "packages": packages,
        "options": UNPACK_OPTIONS,
        "format": 1,
    }

    def build(path: Path) -> None:
        require_root()
        argv = [require("mmdebstrap"), "--mode=root", f"--variant={variant}", "--architectures=amd64"]
        argv += [f"--aptopt={option}" for option in (*APT_OPTIONS, *_proxy_options())]
        argv += [f"--dpkgopt={option}" for option in UNPACK_OPTIONS]
        with _asking:
            mirror = _mirror()
        argv += [f"--include={','.join(packages)}", "--format=directory", suite, str(path), *mirror]
        build_command(f"The Debian tree '{name}'", argv, env={"TMPDIR": str(path.parent)})
        path.chmod(0o755)

    return artefact(name, recipe, build, keep=2, step=step)


@cache
def _mirror() -> list[str]:
    """The mirror that this machine's own package sources use, when it is a Debian; else mmdebstrap's
    default.
    """
    if explicit := os.environ.get("BAYPLAN_DEBIAN_MIRROR"):
        return [explicit]
    if shutil.which("apt-get") is None:
        return []
    listed = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(ORIGIN) $(COMPONENT) $(LABEL) $(REPO_URI)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    for line in listed.splitlines():
        match line.split():
            case ["Debian", "main", "Debian", uri] if uri.startswith(("http:", "https:")):
                return [uri]
    return []


def _proxy_options() -> list[str]:
    """mmdebstrap does not read this machine's apt configuration; a proxy set there is still wanted."""
    if shutil.which("apt-config") is None:
        return []
    dumped = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    wanted = ("Acquire::http::Proxy ", "Acquire::https::Proxy ")
    return [
        line.rstrip(";")
        for line in dumped.splitlines()
        if line.startswith(wanted) and not line.endswith('"";')
    ]
