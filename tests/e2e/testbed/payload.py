"""The tree under test as it would be installed: its wheel and the locked dependencies, for the guest's
Python.

Appears in the guest as /opt/bayplan, with bin, lib and share. The dependencies are kept between
runs; the wheel is built from the tree each time and the disk made anew when it differs.
"""

import os
import shutil
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

from testbed import debian
from testbed.cache import artefact, cache_root
from testbed.disks import make_ext4
from testbed.errors import BuildError, MissingError
from testbed.progress import Step
from testbed.qemu import LIBRARY
from testbed.shell import build_command

PROJECT = Path(__file__).parents[3]
LOCK = PROJECT / "requirements.lock"
GUEST_PYTHON = "3.13"
GUEST_PLATFORM = "x86_64-manylinux_2_40"
# A machine that is restored expects a disk of the size that it was saved with.
DISK_BYTES = 256 << 20
PROGRAMS = PROJECT / "packaging" / "programs.py"


def uv_program() -> str:
    """uv of PATH, else the one that setup put into the cache."""
    found = shutil.which("uv", path=f"{os.environ.get('PATH', '')}:{cache_root() / 'bin'}")
    if found is None:
        raise MissingError("uv is not installed: run `packaging/dev/setup.sh test`")
    return found


def payload_disk() -> Path:
    """The disk with this tree's wheel, installed."""
    return _payload("payload", _make_disk)


def payload_tree() -> Path:
    """A directory with the same."""
    return _payload("payload-tree", lambda root, path: root.rename(path))


def _payload(name: str, make: Callable[[Path, Path], object]) -> Path:
    """What *make* makes of a directory with this tree's wheel, installed."""
    with tempfile.TemporaryDirectory(prefix="bayplan-wheel-") as scratch:
        # The build system is locked like all else, and in this environment.
        argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", scratch]
        build_command("The wheel of this tree", argv, cwd=PROJECT)
        wheel = next(Path(scratch).glob("*.whl"), None)
        if wheel is None:
            raise BuildError("The wheel of this tree", "hatchling build", "no wheel was written")
        # Not the archive's own hash: it would follow the files' times.
        with zipfile.ZipFile(wheel) as archive:
            contents = sorted((entry.filename, entry.CRC) for entry in archive.infolist())
        locked = dependencies()
        recipe = {
            "wheel": contents,
            "dependencies": str(locked),
            "programs": PROGRAMS.read_text(),
            "format": 6,
        }
        return artefact(
            name, recipe, lambda path: make(_installed(wheel, locked, path.parent / "root"), path), keep=4
        )


def dependencies() -> Path:
    """A directory with the locked dependencies, compiled for the guest's Python."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["agent"]]

    def build(path: Path) -> None:
        path.mkdir()
        argv = [uv_program(), "pip", "install", "--quiet", "--target", path, "--link-mode", "copy"]
        argv += ["--python-version", GUEST_PYTHON, "--python-platform", GUEST_PLATFORM]
        argv += ["--require-hashes", "--requirements", "pyproject.toml", "--extra", "agent"]
        argv += ["--constraints", LOCK.name, "--build-constraints", LOCK.name]
        build_command("The dependencies for the guest", argv, cwd=PROJECT)
        _compile(path)

    recipe = {"wanted": wanted, "locked": LOCK.read_text(), "python": GUEST_PYTHON, "format": 3}
    step = Step("the Python packages for the virtual machine", 45)
    return artefact("dependencies", recipe, build, step=step)


def _installed(wheel: Path, dependencies: Path, root: Path) -> Path:
    """*root*, with all that /opt/bayplan has."""
    library = root / "lib"
    build_command("The payload", ["cp", "-a", "--reflink=auto", dependencies, _made(root) / "lib"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(library)
        for entry in archive.infolist():
            (library / entry.filename).chmod(entry.external_attr >> 16 & 0o777)
    (data,) = library.glob("bayplan-*.data")
    (data / "data" / "share").rename(root / "share")
    _compile(library / "bayplan")
    argv = [sys.executable, PROGRAMS, wheel, "/opt/bayplan/lib", _made(root / "bin")]
    build_command("The payload's programs", argv)
    return root


def _make_disk(root: Path, path: Path) -> None:
    make_ext4(root, path)
    if path.stat().st_size > DISK_BYTES:
        raise BuildError("The payload", "mkfs.ext4", f"its disk is larger than {DISK_BYTES} bytes")
    os.truncate(path, DISK_BYTES)


def _compile(directory: Path) -> None:
    """Byte-compile with the guest's own Python: the disk is read-only there, and emulation is slow."""
    tree = debian.root_tree()
    python = next((tree / "usr/bin").glob(f"python{GUEST_PYTHON}"))
    argv = [tree / LIBRARY / "ld-linux-x86-64.so.2", "--library-path", tree / LIBRARY, python]
    argv += ["-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", directory]
    build_command("The payload's bytecode", argv, env={"PYTHONHOME": str(tree / "usr")})


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory
