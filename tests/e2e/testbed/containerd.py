"""containerd in the guest: which versions there are, how each is configured, start, stop, kill, restart.

To offer another version add one line to VERSIONS.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbed import debian, gobuild
from testbed.cache import artefact
from testbed.channel import LIMIT_S
from testbed.crictl import SOCKET, Crictl
from testbed.disks import tree_disk
from testbed.errors import TestBedError
from testbed.guest import Guest
from testbed.oci import PAUSE_IMAGE

SERVICE = "containerd"
NRI_SOCKET = "/var/run/nri/nri.sock"
CONFIG = "/etc/containerd/config.toml"
LOG = "/var/log/containerd.log"
IMAGES = "/opt/images/images.tar"
UNSTABLE_FALLBACK = "v2.1.9"

# The plugins that these tests never need; each costs start-up time under emulation.
UNUSED_PLUGINS = (
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
)


def _unstable() -> Path:
    """containerd of Debian unstable while that is a 2.1, else built from source."""
    tree = debian.unstable_containerd()
    said = subprocess.run(
        [tree / "usr/bin/containerd", "--version"], capture_output=True, text=True, check=False
    )
    if " 2.1." not in said.stdout:
        return gobuild.containerd_from_source(UNSTABLE_FALLBACK)

    def pick(path: Path) -> None:
        (path / "bin").mkdir(parents=True)
        for program in ("containerd", "containerd-shim-runc-v2", "ctr", "runc"):
            shutil.copy2(tree / "usr/bin" / program, path / "bin" / program)

    return artefact("containerd-unstable", {"tree": str(tree), "format": 1}, pick)


# None: the one in the guest's root, Debian stable's.
VERSIONS: dict[str, Callable[[], Path] | None] = {
    "1.7": None,
    "2.1": _unstable,
    "2.2": lambda: gobuild.containerd_from_source("v2.2.9"),
    "2.3": lambda: gobuild.containerd_from_source("v2.3.7"),
    "2.4": lambda: gobuild.containerd_from_source("v2.4.2"),
    # No release has this NRI yet.
    "2.4-nri": lambda: gobuild.containerd_from_source("v2.4.2", "github.com/containerd/nri v0.12.5"),
}
# Where a scenario names none; the first is that of `make test`. Nodes should have one of the first two;
# 2.1 and 1.7 have had their last release, but nodes still have them.
DEFAULT_VERSIONS = tuple(os.environ.get("CONTAINERD_VERSIONS", "2.3 2.4 2.1 1.7").split())
PLUGIN_TIMEOUT_S = 20
"""What NRI waits for an answer: its own 2 s a busy machine may take."""


def version_disks(*versions: str) -> dict[str, Path]:
    """Disks with these versions, for a Guest; each appears as /opt/containerd-VERSION."""
    disks = {}
    for version in versions:
        if version not in VERSIONS:
            raise TestBedError(f"containerd {version} is not one of {', '.join(VERSIONS)}")
        source = VERSIONS[version]
        if source is not None:
            disks[f"containerd-{version}"] = tree_disk("containerd", source())
    return disks


@dataclass(frozen=True, slots=True)
class Handler:
    """A runtime handler beside the ordinary one: another OCI runtime, the systemd driver, hooks.

    `hooks` are the OCI's own (path, args, timeout) by stage: containerd reads no directory of hooks, but the
    base of its specs may have some.
    """

    name: str
    binary: str = ""
    systemd_cgroup: bool = False
    hooks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class Containerd:
    """The containerd of a guest; `version` None: there is none."""

    def __init__(self, guest: Guest, version: str | None) -> None:
        self.guest = guest
        self.version = version

    def start(
        self,
        *,
        nri: bool = True,
        settings: str = "",
        handlers: Sequence[Handler] = (),
        plugin_timeout_s: int = PLUGIN_TIMEOUT_S,
    ) -> None:
        """Start it and wait until it serves. `settings`: more TOML.

        Only a 2.x takes `handlers`, beside the one called runc that pods get without a word.
        """
        for handler in handlers:
            settings += self._handler_table(handler)
        self.guest.write(CONFIG, self._config_text(nri=nri, plugin_timeout_s=plugin_timeout_s) + settings)
        self._launch()

    def import_images(self) -> None:
        """Once per machine."""
        self.ctr("images", "import", "--snapshotter", "overlayfs", IMAGES)

    def restart(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End the running process with a signal and start it again; containers keep running."""
        self.end(how)
        self._launch()

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.guest.signal(SERVICE, how)

    def running(self) -> bool:
        return self.guest.running(SERVICE) is not None

    def _handler_table(self, handler: Handler) -> str:
        table = f'[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{handler.name}'
        lines = [f"{table}]", 'runtime_type = "io.containerd.runc.v2"']
        if handler.hooks:
            spec = json.loads(self.guest.run(f"{self._binaries()}/ctr", "oci", "spec").stdout)
            spec["hooks"] = {stage: [dict(hook)] for stage, hook in handler.hooks.items()}
            path = f"/etc/containerd/{handler.name}.json"
            self.guest.write(path, json.dumps(spec))
            lines.append(f'base_runtime_spec = "{path}"')
        lines += [f"{table}.options]", f"SystemdCgroup = {str(handler.systemd_cgroup).lower()}"]
        if handler.binary:
            lines.append(f'BinaryName = "{handler.binary}"')
        return "\n".join([*lines, ""])

    def ctr(self, *words: str) -> str:
        return self.guest.run(f"{self._binaries()}/ctr", "-n", "k8s.io", *words).stdout

    def log(self) -> str:
        return self.guest.read_files(LOG).get(LOG, "")

    def _config_text(self, *, nri: bool, plugin_timeout_s: int) -> str:
        return config_text(self._known_version(), nri=nri, plugin_timeout_s=plugin_timeout_s)

    def _known_version(self) -> str:
        if self.version is None:
            raise TestBedError("this node has no containerd")
        return self.version

    def _binaries(self) -> str:
        version = self._known_version()
        return "/usr/bin" if VERSIONS[version] is None else f"/opt/containerd-{version}/bin"

    def _launch(self) -> None:
        binaries = self._binaries()
        path = f"{binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.guest.start(SERVICE, f"{binaries}/containerd", "--config", CONFIG, log=LOG, env={"PATH": path})
        self.guest.await_socket(SOCKET, service=SERVICE, limit_s=LIMIT_S)
        # The socket is served before the CRI service has recovered its containers.
        Crictl(self.guest).await_serving(limit_s=LIMIT_S)


def config_text(version: str, *, nri: bool = True, plugin_timeout_s: int = PLUGIN_TIMEOUT_S) -> str:
    """The configuration file: cgroupfs driver, our sandbox image, huge page limits, NRI as asked."""
    disabled = ", ".join(f'"{name}"' for name in UNUSED_PLUGINS)
    table = _nri_table(plugin_timeout_s, nri=nri)
    return _v2_config(disabled, table) if version.startswith("1.") else _v3_config(disabled, table)


def _nri_table(plugin_timeout_s: int, *, nri: bool) -> str:
    """NRI's table. By default a plugin that containerd launches has 5 s, of which emulation takes most."""
    return f"""
[plugins."io.containerd.nri.v1.nri"]
  disable = {str(not nri).lower()}
  disable_connections = false
  socket_path = "{NRI_SOCKET}"
  plugin_registration_timeout = "60s"
  plugin_request_timeout = "{plugin_timeout_s}s"
"""


def _v2_config(disabled: str, nri_table: str) -> str:
    return f"""version = 2
disabled_plugins = [{disabled}]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_hugetlb_controller = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
{nri_table}"""


def _v3_config(disabled: str, nri_table: str) -> str:
    return f"""version = 3
disabled_plugins = [{disabled}]
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_hugetlb_controller = false
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    SystemdCgroup = false
{nri_table}"""
