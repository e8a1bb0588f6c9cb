"""The sysfs tree of a Machine, printed as the kernel prints it, so that tests can garble it and read it back.

Only what `bayplan.host.sysfs` and `bayplan.host.devices` read, and a little that they must ignore. Offline
CPUs have no topology and no caches, as on a real machine; caches other than the L3 are one L1 each.
"""

import os
from pathlib import Path
from typing import Self

from bayplan.host.record import files_of, listed, pools_of, unpack
from bayplan.host.topology_files import SYSTEM
from bayplan.model.machine import Machine

__all__ = ["SYSTEM", "SysfsTree"]


class SysfsTree:
    """Files by path relative to the root, to be changed freely before they are written.

    A path that ends in ``/`` is an empty directory. ``links`` are symbolic links: path -> where it leads,
    both relative to the root.
    """

    def __init__(self, machine: Machine) -> None:
        self.links: dict[str, str] = {}
        self.files = files_of(machine)

    @classmethod
    def without_numa(cls, machine: Machine) -> Self:
        """The tree that a kernel built without NUMA shows of a machine with a single node 0."""
        tree = cls(machine)
        tree.remove(f"{SYSTEM}/node/")
        tree.files |= pools_of(machine.nodes[0], "sys/kernel/mm/hugepages")
        return tree

    def remove(self, prefix: str) -> None:
        """Drop the file *prefix*, or everything below it."""
        self.files = {path: text for path, text in self.files.items() if not path.startswith(prefix)}

    def add_device(
        self, directory: str, *, node: int | None = None, numbers: str = "", bus: str = ""
    ) -> None:
        """A device with its *directory* below ``sys/devices``: its NUMA *node* if it says one, its *numbers*
        (``block/8:0``, ``char/226:1``) if it has a device node, and the *bus* that lists it."""
        path = f"sys/devices/{directory}"
        self.files[f"{path}/uevent"] = ""
        if node is not None:
            self.files[f"{path}/numa_node"] = f"{node}\n"
        if numbers:
            self.links[f"sys/dev/{numbers}"] = path
        if bus:
            self.links[f"sys/bus/{bus}/devices/{directory.rpartition('/')[2]}"] = path

    def write(self, root: Path) -> Path:
        """Write the tree below *root*, and return *root*."""
        unpack(
            "".join(
                f"{listed(path)}:{line}\n"
                for path, text in self.files.items()
                for line in (text.splitlines() or [""])
            ),
            root,
        )
        for path, target in self.links.items():
            link = root / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(root / target, link.parent))
        return root
