"""A directory in the mount namespace of another process, whose root is an image's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.host.kernelfs import RefusedError
from bayplan.host.namespaces import mount_in_container
from bayplan.host.shadow_mode import ShadowModeError, shadow_mode

pytestmark = pytest.mark.root
PLACE = "/run/told"


class Created:
    """A container as it is at createRuntime: a mount namespace, and a root that nobody has entered."""

    def __init__(self, directory: Path) -> None:
        self.root, self.source = directory / "bundle/rootfs", directory / "source"
        for one in (self.root, self.source):
            one.mkdir(parents=True)
        (self.source / "file").write_text("told")
        command = ["unshare", "--mount", "--propagation", "private", "sleep", "600"]
        self.process = subprocess.Popen(command)
        mine, self.namespace = Path("/proc/self/ns/mnt").readlink(), f"/proc/{self.process.pid}/ns/mnt"
        while Path(self.namespace).readlink() == mine or self._name() != "sleep":
            assert self.process.poll() is None

    def _name(self) -> str:
        return Path(f"/proc/{self.process.pid}/comm").read_text().strip()

    def mount(self) -> None:
        """Mount the source."""
        mount_in_container(self.namespace, str(self.source), str(self.root), PLACE)

    def seen(self, path: str, flags: int = os.O_RDONLY) -> bytes:
        """A file as the container sees it once its root is entered."""
        inside = f"/proc/{self.process.pid}/root{self.root}{path}"
        with open(os.open(inside, flags), "rb") as file:  # noqa: PTH123 - a descriptor
            return file.read()


@pytest.fixture
def created(tmp_path: Path) -> Iterator[Created]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    one = Created(tmp_path)
    yield one
    one.process.kill()
    one.process.wait()


def test_the_container_sees_it_and_nobody_else(created: Created) -> None:
    created.mount()
    assert created.seen(f"{PLACE}/file") == b"told"
    assert list((created.root / "run/told").iterdir()) == []
    (created.source / "new").write_text("later")
    (created.source / "new").rename(created.source / "file")
    assert created.seen(f"{PLACE}/file") == b"later"


def test_it_cannot_be_written_there(created: Created) -> None:
    created.mount()
    with pytest.raises(OSError, match="Read-only file system"):
        created.seen(f"{PLACE}/other", os.O_WRONLY | os.O_CREAT)


@pytest.mark.parametrize("link", ["../../../outside", "/outside", "../../../../../../../../{outside}"])
def test_a_link_of_the_image_leads_nowhere_out_of_it(created: Created, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (created.root / "outside").mkdir()
    (created.root / "run").symlink_to(link.format(outside=str(outside).lstrip("/")))
    inside = created.root / str(outside).lstrip("/")
    inside.mkdir(parents=True, exist_ok=True)
    created.mount()
    assert list(outside.iterdir()) == []
    mounts = Path(f"/proc/{created.process.pid}/mountinfo").read_text()
    (line,) = [one for one in mounts.splitlines() if one.split()[4].endswith("/told")]
    assert line.split()[4].startswith(str(created.root))


def test_what_the_kernel_refuses_is_said(created: Created) -> None:
    (created.root / "run").write_text("")
    with pytest.raises(RefusedError, match=f"{PLACE}: cannot be mounted in the container: Not a directory"):
        created.mount()
    with pytest.raises(RefusedError, match="No such file or directory"):
        mount_in_container("/proc/0/ns/mnt", str(created.source), str(created.root), PLACE)


def test_the_capabilities_of_the_unit_are_enough(created: Created) -> None:
    unit = (Path(__file__).parents[3] / "packaging/systemd/bayplan.service").read_text()
    (line,) = [one for one in unit.splitlines() if one.startswith("CapabilityBoundingSet=")]
    bounds = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in line.partition("=")[2].split())
    limited = ["setpriv", "--inh-caps=-all", f"--bounding-set=-all,{bounds}", sys.executable, "-c"]
    mount = "import sys; from bayplan.host.namespaces import mount_in_container as m; m(*sys.argv[1:])"
    arguments = (created.namespace, str(created.source), str(created.root), PLACE)
    done = subprocess.run([*limited, mount, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert created.seen(f"{PLACE}/file") == b"told"


def test_in_shadow_mode_nothing_is_mounted(created: Created) -> None:
    with shadow_mode(), pytest.raises(ShadowModeError):
        created.mount()
