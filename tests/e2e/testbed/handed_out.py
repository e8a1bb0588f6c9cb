"""What is handed out of this commit, made by the project's own tools: packages, and the container image.

The image's base is a small Debian of the test bed's, in place of the one that a registry has.
"""

import subprocess
from pathlib import Path

from support.console_blocks import commands
from testbed.cache import artefact
from testbed.debian import STABLE, package_root
from testbed.progress import Step
from testbed.shell import build_command, require, require_root

PROJECT = Path(__file__).parents[3]
IMAGE = "registry.example.com/bayplan"
ARCHIVE = "bayplan.tar"


def packages() -> Path:
    """The directory with all that `make deb` makes."""

    def build(path: Path) -> None:
        build_command("The Debian package", [PROJECT / "packaging" / "build.sh", "deb", path])

    return artefact("handed-out", {"commit": _commit()}, build, keep=2)


def image(tag: str) -> Path:
    """A directory with ARCHIVE, the image of the Containerfile under IMAGE and *tag*."""
    handed_out, base = packages(), package_root(STABLE)

    def build(path: Path) -> None:
        require_root()
        path.mkdir()
        # Layers and containers of its own; no namespaces, since a machine of tests may have none to give.
        store = [require("buildah"), f"--root={path.parent}/store", f"--runroot={path.parent}/run"]
        buildah = [*store, "--storage-driver=vfs"]
        container = build_command("The base of the image", [*buildah, "from", "scratch"]).strip()
        build_command("The base of the image", [*buildah, "copy", "--quiet", container, base, "/"])
        build_command("The base of the image", [*buildah, "commit", "--quiet", container, "localhost/base"])
        context = path.parent / "context"
        context.mkdir()
        build_command("The context of the image", ["cp", "-r", handed_out, context / "dist"])
        where = ["--isolation=chroot", "--network=host"]
        containerfile = f"--file={PROJECT / 'Containerfile'}"
        # As it is documented, with podman's own builder and this tag beside the documented one.
        _, documented, _ = commands("run by tests/e2e/testbed/handed_out.py")
        *words, _ = documented.removeprefix("podman build").split()
        asked = ["--build-arg=BASE=localhost/base", f"--tag={IMAGE}:{tag}", containerfile, *words, context]
        build_command("The container image", [*buildah, "build", *where, *asked])
        target = f"oci-archive:{path / ARCHIVE}:{IMAGE}:{tag}"
        # Under emulation it takes longer to decompress than to read.
        push = [*buildah, "push", "--disable-compression", f"{IMAGE}:{tag}", target]
        build_command("The container image", push)

    recipe = {"packages": str(handed_out), "base": str(base), "tag": tag, "format": 1}
    return artefact("container-image", recipe, build, keep=2, step=Step("the container image", 210))


def _commit() -> str:
    asked = ["git", "rev-parse", "HEAD"]
    return subprocess.run(asked, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()
