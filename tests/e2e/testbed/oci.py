"""The two container images of the scenarios, made here: nothing is pulled.

One archive in OCI image layout, with one uncompressed layer (unpacking a compressed one under emulation takes
seconds) that both names share; and that layer alone, for `podman import`.
"""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from testbed.cache import artefact, digest_files
from testbed.debian import tools
from testbed.gobuild import workload

PAUSE_IMAGE = "bayplan.test/pause:1"
WORKLOAD_IMAGE = "bayplan.test/workload:1"
APPLETS = ("sh", "cat", "dd", "echo", "head", "kill", "ls", "sleep", "tail", "true")
FORMAT = 1


def image_archive() -> Path:
    """The OCI archive with both images."""
    busybox, program = _programs()
    return artefact("images", _recipe(busybox, program), lambda path: _write_archive(path, busybox, program))


def root_archive() -> Path:
    """A tar file with the files of the images."""
    busybox, program = _programs()

    def build(path: Path) -> None:
        path.write_bytes(_layer(busybox, program))

    return artefact("image-root", _recipe(busybox, program), build)


def _programs() -> tuple[Path, Path]:
    return tools() / "usr/bin/busybox", workload()


def _recipe(busybox: Path, program: Path) -> dict[str, object]:
    return {
        "busybox": digest_files(busybox),
        "workload": digest_files(program),
        "applets": APPLETS,
        "format": FORMAT,
    }


def _write_archive(path: Path, busybox: Path, program: Path) -> None:
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    layer_bytes = _layer(busybox, program)
    layer = blob(layer_bytes, "application/vnd.oci.image.layer.v1.tar")
    manifests = []
    for name, command in (
        (PAUSE_IMAGE, ["/bin/workload", "pause"]),
        (WORKLOAD_IMAGE, ["/bin/workload", "pause"]),
    ):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": command, "Env": ["PATH=/bin"], "Labels": {"bayplan.test/name": name}},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob(_json(config), "application/vnd.oci.image.config.v1+json"),
            "layers": [layer],
        }
        described = blob(_json(manifest), "application/vnd.oci.image.manifest.v1+json")
        manifests.append({**described, "annotations": {"io.containerd.image.name": name}})
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    }
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", _json(index))
        for name, content in blobs.items():
            _add(archive, name, content)


def _layer(busybox: Path, program: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        _add(layer, "bin/busybox", busybox.read_bytes(), mode=0o755)
        _add(layer, "bin/workload", program.read_bytes(), mode=0o755)
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
