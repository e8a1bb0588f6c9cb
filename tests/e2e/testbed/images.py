"""What the virtual machines are made of: Debian, container runtimes, tools, OCI images.

Everything is fetched with mmdebstrap and Go from their default sources. The suites move on, so an artefact's
key holds the week it was made in.
"""

import hashlib
import io
import json
import lzma
import os
import shutil
import tarfile
import time
from pathlib import Path

from testbed.cache import BuildError, artefact, run

HERE = Path(__file__).parent
STABLE, UNSTABLE = "trixie", "sid"

GUEST_PACKAGES = (
    "busybox-static", "ca-certificates", "containerd", "containernetworking-plugins", "crun", "iproute2", "kmod",
    "linux-image-cloud-amd64", "nftables", "procps", "python3", "runc",
)  # fmt: skip

CONTAINERD_2_3 = "v2.3.4"
CRICTL = "v1.36.0"

PAUSE_NAMES = ("registry.k8s.io/pause:3.8", "registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10.1")
"""What containerd 1.7, 2.1 and 2.3 expect by default; the configuration names the first for all."""
BUSYBOX_NAME = "bayplan.test/busybox:1"


def _week() -> str:
    return time.strftime("%G-%V")


def qemu() -> Path:
    """A folder with QEMU from Debian stable and everything that it needs, whatever the host's own version is.

    QEMU 7.2 (Debian 12) lost 3 boots of 10 to oopses early in the guest; 10.0 none of 25.
    """

    def make(folder: Path) -> None:
        mmdebstrap(STABLE, ("qemu-system-x86",), folder / "root", variant="extract")

    return artefact("qemu", (STABLE,), make) / "root"


def guest_root() -> Path:
    """The guest's root file system, unpacked: Debian stable with containerd 1.7, runc, crun and CNI plugins."""

    def make(folder: Path) -> None:
        mmdebstrap(STABLE, GUEST_PACKAGES, folder / "root", variant="minbase")
        root = folder / "root"
        for path in (*root.glob("boot/initrd*"), *root.glob("boot/System.map*"), root / "var/lib/apt/lists"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return artefact("guest-root", (STABLE, *GUEST_PACKAGES, _week()), make) / "root"


def containerd_2_1() -> Path:
    """containerd 2.1 of Debian unstable, with the runc that comes with it."""

    def make(folder: Path) -> None:
        mmdebstrap(UNSTABLE, ("containerd",), folder / "root", variant="extract")
        (folder / "bin").mkdir()
        for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
            shutil.copy2(folder / "root/usr/bin" / name, folder / "bin" / name)
        shutil.rmtree(folder / "root")

    return artefact("containerd-2.1", (UNSTABLE, _week()), make) / "bin"


def containerd_2_3() -> Path:
    """containerd 2.3, built from its public Go module at a pinned version."""
    module = "github.com/containerd/containerd/v2"
    commands = tuple(f"{module}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr"))
    return go_build("containerd-2.3", module, CONTAINERD_2_3, commands)


def crictl() -> Path:
    """The folder of crictl: the host's own if there is one, else built from its public Go module."""
    present = shutil.which("crictl")
    if present:
        return Path(present).parent
    module = "sigs.k8s.io/cri-tools"
    return go_build("crictl", module, CRICTL, (f"{module}/cmd/crictl",))


def go_build(name: str, module: str, version: str, commands: tuple[str, ...]) -> Path:
    """Build *commands* of a Go module into one folder, static, without the builder's paths in them."""

    def make(folder: Path) -> None:
        (folder / "bin").mkdir()
        # A module of our own that requires the other one: `go install PACKAGE@VERSION` would also ask the
        # proxy for the list of all versions, which not every proxy answers.
        source = folder / "source"
        source.mkdir()
        (source / "go.mod").write_text(f"module testbed\n\ngo 1.25\n\nrequire {module} {version}\n")
        imports = "".join(f'import _ "{command}"\n' for command in commands)
        (source / "tools.go").write_text(f"//go:build tools\n\npackage testbed\n\n{imports}")
        env = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -trimpath -buildvcs=false", "GOBIN": str(folder / "bin")}
        run(["go", "build", "-o", f"{folder}/bin/", *commands], f"building {name} {version} with Go", cwd=source, env=env)
        shutil.rmtree(source)

    return artefact(name, (module, version, *commands), make) / "bin"


def disk() -> Path:
    """The folder with ``root.img`` (ext4), ``vmlinuz`` and ``initramfs``; the image is booted as a snapshot."""
    root = guest_root()
    parts = {"2.1": containerd_2_1(), "2.3": containerd_2_3()}
    tool = crictl() / "crictl"
    scripts = [(HERE / name).read_text() for name in ("init.sh", "initramfs.sh")]
    own = Path(__file__).read_text()
    ingredients = (str(root), *map(str, parts.values()), _fingerprint(tool), *scripts, own)

    def make(folder: Path) -> None:
        tree = folder / "tree"
        run(["cp", "-a", "--reflink=auto", str(root), str(tree)], "copying the root file system")
        _add(tree, HERE / "init.sh", "sbin/bayplan-init", 0o755)
        _add(tree, tool, "usr/local/bin/crictl", 0o755)
        for version, binaries in parts.items():
            for binary in binaries.iterdir():
                _add(tree, binary, f"opt/containerd/{version}/{binary.name}", 0o755)
        busybox = (root / "usr/bin/busybox").read_bytes()
        images = tree / "opt/images"
        images.mkdir(parents=True)
        (images / "busybox.tar").write_bytes(oci_image(busybox_layer(busybox), (BUSYBOX_NAME,), ("/bin/sleep", "inf")))
        (images / "pause.tar").write_bytes(oci_image(busybox_layer(busybox), PAUSE_NAMES, ("/bin/sleep", "inf")))
        for name in ("hostname", "resolv.conf"):
            (tree / "etc" / name).unlink(missing_ok=True)
        (tree / "etc/hostname").write_text("bay\n")
        kernel = next((tree / "boot").glob("vmlinuz-*"))
        shutil.copy2(kernel, folder / "vmlinuz")
        version = kernel.name.removeprefix("vmlinuz-")
        (folder / "initramfs").write_bytes(initramfs(busybox, tree / "lib/modules" / version))
        image = folder / "root.img"
        run(
            ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(tree), str(image), "3G"],
            "making the root image with mkfs.ext4",
        )
        shutil.rmtree(tree)

    return artefact("disk", ingredients, make)


def mmdebstrap(suite: str, packages: tuple[str, ...], target: Path, variant: str) -> None:
    """Unpack Debian *packages* into *target*."""
    if os.geteuid() != 0:
        raise BuildError("the test bed builds Debian images and needs root for it")
    excludes = [
        f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale", "info", "gtk-doc")
    ]
    argv = ["mmdebstrap", f"--variant={variant}", f"--include={','.join(packages)}", "--quiet", *excludes]
    run(
        [*argv, '--aptopt=APT::Install-Recommends "false"', "--format=directory", suite, str(target)],
        f"fetching Debian {suite} packages with mmdebstrap",
        env={"TMPDIR": "/var/tmp"},
    )


def busybox_layer(busybox: bytes) -> bytes:
    """An uncompressed layer: busybox under the names that the scenarios use, and empty mount points."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(busybox), 0o755
        archive.addfile(entry, io.BytesIO(busybox))
        for name in ("cat", "dd", "echo", "head", "mount", "sh", "sleep", "tail", "true"):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    return layer.getvalue()


def oci_image(layer: bytes, names: tuple[str, ...], command: tuple[str, ...]) -> bytes:
    """An OCI image layout as one tar, with a single layer, that containerd imports under *names*."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def document(value: object) -> bytes:
        return json.dumps(value, sort_keys=True).encode()

    layer_descriptor = blob(layer, "application/vnd.oci.image.layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
    }
    config_descriptor = blob(document(config), "application/vnd.oci.image.config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_descriptor,
        "layers": [layer_descriptor],
    }
    manifest_descriptor = blob(document(manifest), "application/vnd.oci.image.manifest.v1+json")
    index = {
        "schemaVersion": 2,
        "manifests": [
            {**manifest_descriptor, "annotations": {"io.containerd.image.name": name}} for name in names
        ],
    }
    files = {"oci-layout": document({"imageLayoutVersion": "1.0.0"}), "index.json": document(index), **blobs}
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return output.getvalue()


def initramfs(busybox: bytes, modules: Path) -> bytes:
    """A cpio archive with busybox, the disk driver and the script that finds the root disk."""
    archive = _Cpio()
    for folder in ("bin", "modules"):
        archive.add(folder, b"", 0o040755)
    archive.add("bin/busybox", busybox, 0o100755)
    archive.add("init", (HERE / "initramfs.sh").read_bytes(), 0o100755)
    for module in sorted(modules.rglob("virtio_blk.ko*")):
        content = module.read_bytes()
        archive.add("modules/virtio_blk.ko", lzma.decompress(content) if module.suffix == ".xz" else content, 0o100644)
    return archive.finish()


class _Cpio:
    """The kernel's initramfs format: cpio "newc", see Documentation/driver-api/early-userspace."""

    def __init__(self) -> None:
        self._output = io.BytesIO()
        self._inode = 0

    def add(self, name: str, content: bytes, mode: int) -> None:
        self._inode += 1
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        self._write(b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0")
        self._write(content)

    def finish(self) -> bytes:
        self.add("TRAILER!!!", b"", 0)
        return self._output.getvalue()

    def _write(self, part: bytes) -> None:
        self._output.write(part + b"\0" * (-len(part) % 4))


def _add(tree: Path, source: Path, target: str, mode: int) -> None:
    path = tree / target
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    path.chmod(mode)


def _fingerprint(path: Path) -> str:
    status = path.stat()
    return f"{path}:{status.st_size}:{status.st_mtime_ns}"
