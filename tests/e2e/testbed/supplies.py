"""Everything that a guest needs, made ready at once: package trees, Go programs, images, the wheel of this
tree.

Downloads, unpacking and compiling overlap; what is in the cache costs nothing.
"""

import platform
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from testbed import gobuild
from testbed.cache import artefact
from testbed.containerd import version_disks
from testbed.disks import initramfs, root_disk, tree_disk
from testbed.errors import MissingError
from testbed.oci import image_archive, root_archive
from testbed.payload import payload_disk


def disks(*versions: str, with_bayplan: bool = True, systemd: bool = False) -> dict[str, Path]:
    """The disks of a guest that can run these containerd versions, by the name under /opt; all else is
    built too.
    """
    if platform.machine() != "x86_64":
        raise MissingError("The virtual machines of the tests are x86-64 and are run on x86-64 only")
    with ThreadPoolExecutor(thread_name_prefix="supply") as pool:
        waiting: list[Future[object]] = [pool.submit(root_disk, systemd=systemd), pool.submit(initramfs)]
        found: list[Future[dict[str, Path]]] = [pool.submit(version_disks, version) for version in versions]
        found.append(pool.submit(lambda: {"crictl": tree_disk("crictl", gobuild.crictl())}))
        found.append(pool.submit(lambda: {"images": tree_disk("images", _images_directory())}))
        if with_bayplan:
            found.append(pool.submit(lambda: {"bayplan": payload_disk()}))
        try:
            for future in waiting:
                future.result()
            return {name: path for future in found for name, path in future.result().items()}
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            raise


def _images_directory() -> Path:
    archive, root = image_archive(), root_archive()

    def build(path: Path) -> None:
        path.mkdir()
        shutil.copy2(archive, path / "images.tar")
        shutil.copy2(root, path / "root.tar")

    return artefact("images-tree", {"archive": str(archive), "root": str(root)}, build)
