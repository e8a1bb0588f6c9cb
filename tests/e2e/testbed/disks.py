"""File systems for the guest, made from directories without mounting anything: ext4 disks and the
initramfs.
"""

import lzma
import re
import shutil
import subprocess
from pathlib import Path

from testbed import debian
from testbed.cache import artefact, digest_files, recipe_key
from testbed.errors import BuildError
from testbed.progress import Step
from testbed.shell import build_command, require

MIB = 1 << 20
ROOT_FREE_MIB = 1024
GUEST_FILES = Path(__file__).parent / "guest"
# In the order of insertion; what is not built in, from the disk driver up.
BOOT_MODULES = ("virtio_blk",)


def root_disk(*, systemd: bool = False) -> Path:
    """A guest's root: the Debian tree and the modules of the kernel that boots it."""
    tree = debian.systemd_root_tree() if systemd else debian.root_tree()
    kernel_tree = debian.tools()

    def build(path: Path) -> None:
        modules = kernel_tree / "usr/lib/modules"
        merged = path.parent / "merged"
        # Links, for speed: what changes in here is a file of its own.
        build_command("The guest's root", ["cp", "-al", tree, merged])
        build_command("The guest's root", ["cp", "-a", modules, merged / "usr/lib/"])
        for version in modules.iterdir():
            build_command("The guest's module list", [require("depmod"), "-b", merged, version.name])
        for name in ("resolv.conf", "hostname", "machine-id"):
            (merged / "etc" / name).unlink(missing_ok=True)
        (merged / "etc/hostname").write_text("node\n")
        # Without an identity systemd takes every boot for the first one, and sets the machine up.
        (merged / "etc/machine-id").write_text(f"{1:032x}\n")
        (merged / "opt/bayplan").mkdir(parents=True)
        make_ext4(merged, path, free_mib=ROOT_FREE_MIB)

    step = Step(f"the virtual machine's disk{' with systemd' if systemd else ''}", 350)
    recipe = {"tree": str(tree), "kernel": str(kernel_tree), "format": 3}
    return artefact("root-disk", recipe, build, keep=4, step=step)


def tree_disk(name: str, tree: Path) -> Path:
    """A read-only disk with the contents of an artefact directory."""
    return artefact(
        f"{name}-disk", {"tree": str(tree), "format": 1}, lambda path: make_ext4(tree, path), keep=4
    )


def make_ext4(tree: Path, path: Path, *, free_mib: int = 8) -> None:
    """An ext4 image with the files of a directory and so much free space; no journal, the image is thrown
    away.
    """
    files = sum(1 for _ in tree.rglob("*"))
    used = int(build_command("A disk", ["du", "-sm", "--apparent-size", tree]).split()[0])
    size_mib = used + used // 8 + files // 200 + free_mib + 4
    argv: list[str | Path] = [require("mkfs.ext4"), "-q", "-F", "-O", "^has_journal,^resize_inode", "-m", "0"]
    argv += ["-E", "lazy_itable_init=1,root_owner=0:0", "-N", str(files + free_mib * 16 + 64)]
    argv += ["-d", tree, path, f"{size_mib}M"]
    build_command(f"The disk image of {tree}", argv)


def kernel() -> Path:
    images = sorted((debian.tools() / "boot").glob("vmlinuz-*"))
    if not images:
        raise BuildError("The guest's kernel", "mmdebstrap", f"no vmlinuz in {debian.tools()}/boot")
    return images[-1]


def initramfs() -> Path:
    """Static busybox, the disk driver, and the files of `guest/` which it carries over into the root's
    /run.
    """
    tree = debian.tools()

    def build(path: Path) -> None:
        root = path.parent / "initramfs-root"
        for directory in ("bin", "dev", "proc", "sys", "root", "modules", "guest"):
            (root / directory).mkdir(parents=True)
        shutil.copy2(tree / "usr/bin/busybox", root / "bin/busybox")
        order = []
        for module in _with_dependencies(tree, BOOT_MODULES):
            compressed = next((tree / "usr/lib/modules").rglob(f"{module}.ko.xz"))
            (root / "modules" / f"{module}.ko").write_bytes(lzma.decompress(compressed.read_bytes()))
            order.append(module)
        (root / "modules/order").write_text("\n".join(order) + "\n")
        for file in GUEST_FILES.iterdir():
            if file.is_file():
                shutil.copy2(file, root / "guest" / file.name)
        shutil.copy2(GUEST_FILES / "initramfs-init", root / "init")
        for script in ("init", "guest/init", "guest/prepare"):
            (root / script).chmod(0o755)
        names = "\0".join(sorted(str(entry.relative_to(root)) for entry in root.rglob("*")))
        packed = subprocess.run(
            [require("cpio"), "--null", "--create", "--format=newc", "--quiet", "--owner=0:0"],
            input=names.encode(),
            cwd=root,
            capture_output=True,
            check=False,
        )
        if packed.returncode:
            raise BuildError("The initramfs", "cpio", packed.stderr.decode(errors="replace"))
        path.write_bytes(packed.stdout)

    return artefact("initramfs", {"tools": str(tree), "guest": digest_files(GUEST_FILES), "format": 1}, build)


def _with_dependencies(tree: Path, modules: tuple[str, ...]) -> list[str]:
    """Modules after what they depend on, from each module's own record (`depends=`)."""
    ordered: list[str] = []

    def visit(module: str) -> None:
        if module in ordered:
            return
        found = next((tree / "usr/lib/modules").rglob(f"{module}.ko.xz"), None)
        if found is None:
            return  # built in
        record = re.search(rb"\0depends=([^\0]*)\0", lzma.decompress(found.read_bytes()))
        for needed in record[1].decode().split(",") if record else []:
            if needed:
                visit(needed.replace("-", "_"))
        ordered.append(module)

    for module in modules:
        visit(module)
    return ordered


def boot_key() -> str:
    """Changes when the kernel or QEMU does."""
    return recipe_key({"tools": str(debian.tools())})
