"""Everything that a guest needs, made ready at once: package trees, Go programs, images, the wheel of this
tree.

Downloads, unpacking and compiling overlap; what is in the cache costs nothing.
"""

import platform
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from testbed import gobuild
from testbed.cache import artefact, missing_steps
from testbed.containerd import VERSIONS, version_disks
from testbed.disks import initramfs, root_disk, tree_disk
from testbed.errors import MissingError
from testbed.oci import image_archive, root_archive
from testbed.payload import dependencies, payload_disk
from testbed.progress import Step


def disks(*versions: str, with_bayplan: bool = True, systemd: bool = False) -> dict[str, Path]:
    """The disks of a guest that can run these containerd versions, by the name under /opt; all else is
    built too.
    """
    if platform.machine() != "x86_64":
        raise MissingError("The virtual machines of the tests are x86-64 and are run on x86-64 only")
    pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="supply")
    try:
        # crictl first: what it shares with a containerd from source is compiled when that one's turn comes.
        found: list[Future[dict[str, Path]]] = [
            pool.submit(lambda: {"crictl": tree_disk("crictl", gobuild.crictl())})
        ]
        waiting: list[Future[object]] = [pool.submit(root_disk, systemd=systemd), pool.submit(initramfs)]
        waiting.append(pool.submit(gobuild.memory_load))
        found += [pool.submit(version_disks, version) for version in versions]
        found.append(pool.submit(lambda: {"images": tree_disk("images", images_directory())}))
        if with_bayplan:
            found.append(pool.submit(lambda: {"bayplan": payload_disk()}))
        # The first that fails is heard of at once, whatever else still runs.
        for future in as_completed([*waiting, *found]):
            future.result()
        return {name: path for future in found for name, path in future.result().items()}
    finally:
        pool.shutdown(cancel_futures=True, wait=False)


def missing(*versions: str, systemd: bool = False) -> list[Step]:
    """What takes long and is not built yet: for a machine, and for one with systemd as well."""
    sources = [source for version in versions if (source := VERSIONS[version]) is not None]
    both = [lambda: root_disk(systemd=True)] if systemd else []
    return missing_steps(gobuild.crictl, root_disk, *both, *sources, dependencies)


def images_directory() -> Path:
    """A directory with the archives of the images."""
    archive, root = image_archive(), root_archive()

    def build(path: Path) -> None:
        path.mkdir()
        shutil.copy2(archive, path / "images.tar")
        shutil.copy2(root, path / "root.tar")

    return artefact("images-tree", {"archive": str(archive), "root": str(root)}, build)
