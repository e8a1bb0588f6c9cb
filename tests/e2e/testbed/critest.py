"""cri-tools' validation suite in a guest: it makes pods and containers as a kubelet might, and says of each
of its tests whether it passed.

It pulls images by the names that public registries have them under. A registry in the guest has images of our
own under these names; all have the same files, and differ by what their configuration says. The runtimes are
told to ask it instead.
"""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import gobuild
from testbed.cache import artefact, digest_files
from testbed.debian import tools
from testbed.errors import TestBedError
from testbed.gobuild import PROGRAMS
from testbed.guest import Guest
from testbed.shell import build_command

DIRECTORY = "/opt/critest"
PROGRAM = f"{DIRECTORY}/critest"
REGISTRY = "image-registry"
REGISTRY_PORT = 5000
REPORT = "/run/critest.json"
LOG = "/var/log/critest.log"
SUITE_LIMIT_S = 3600.0
"""For what runs at once; nothing in it takes more than some minutes."""
LEFT_OUT = ("public image with digest should be pulled", "should support MaskedPaths")
"""The one needs an image whose digest is written down in the suite, the other a shell that starts the program
of a command which it has itself; that of busybox does not."""

STAGING = "k8s-staging-cri-tools"
E2E = "e2e-test-images"
# The other program of an image does not end; the suite looks for its line in the log.
SERVES = "echo httpd; exec httpd -f -p {} -h /www"
USERS = {
    "root": (0, 0),
    "www-data": (33, 33),
    "nobody": (65534, 65534),
    # Of whom the suite knows the group that is not his primary one.
    "default-user": (1000, 1000),
}
GROUPS = "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\ndefault-user:x:1000:\nimage:x:50000:default-user\n"
# What busybox of Debian leaves out.
PGREP = '#!/bin/sh\nexec pidof "$1"\n'
IPCS = "#!/bin/sh\nexec cat /proc/sysvipc/shm\n"

# An image's configuration by its names, which are `repository:tag`.
IMAGES: Mapping[tuple[str, ...], Mapping[str, object]] = {
    (f"{E2E}/busybox:1.29-2",): {"Cmd": ["sh"]},
    (f"{E2E}/nginx:1.14-2",): {"Cmd": ["/bin/nginx"]},
    (f"{E2E}/httpd:2.4.39-4",): {"Cmd": ["sh", "-c", SERVES.format(80)]},
    (f"{STAGING}/hostnet-nginx-amd64:latest",): {"Cmd": ["sh", "-c", SERVES.format(12003)]},
    (f"{E2E}/nonewprivs:1.3",): {"Cmd": ["/bin/effective-uid"]},
    ("pause:3.9",): {"Cmd": ["sleep", "2147483647"]},
    (f"{STAGING}/test-image-latest:latest",): {"Cmd": ["sh"]},
    (f"{STAGING}/test-image-tag:test",): {"Cmd": ["sh"]},
    (f"{STAGING}/test-image-tag:all",): {"Cmd": ["sh"]},
    **{(f"{STAGING}/test-image-{number}:latest",): {"Cmd": ["sh"]} for number in (1, 2, 3)},
    tuple(f"{STAGING}/test-image-tags:{number}" for number in (1, 2, 3)): {"Cmd": ["sh"]},
    (f"{STAGING}/test-image-user-uid:latest",): {"Cmd": ["sh"], "User": "1002"},
    (f"{STAGING}/test-image-user-username:latest",): {"Cmd": ["sh"], "User": "www-data"},
    (f"{STAGING}/test-image-user-uid-group:latest",): {"Cmd": ["sh"], "User": "1003:users"},
    (f"{STAGING}/test-image-user-username-group:latest",): {"Cmd": ["sh"], "User": "www-data:100"},
    (f"{STAGING}/test-image-predefined-group:latest",): {"Cmd": ["sh"], "User": "1000"},
}
PUBLIC = ("gcr.io", "registry.k8s.io", "k8s.gcr.io")
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "critest",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "critest0",
            "isGateway": True,
            "ipMasq": False,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """``state`` is ginkgo's word: passed, failed, skipped, timedout, panicked; ``why`` what it said."""

    state: str
    why: str = ""


def suite_archive() -> Path:
    """The suite and what the registry serves, compressed; a disk would take a machine of its own."""
    busybox, program, critest = tools() / "usr/bin/busybox", gobuild.suite_image(), gobuild.critest()

    def build(path: Path) -> None:
        tree = path.parent / "tree"
        tree.mkdir()
        shutil.copy2(critest, tree / "critest")
        _write_images(tree / "v2", busybox, program)
        build_command(
            "The archive of critest", ["tar", "--create", "--gzip", f"--file={path}", "-C", tree, "."]
        )

    recipe = {
        "critest": str(critest),
        "busybox": digest_files(busybox),
        "program": digest_files(program),
        "images": [(names, dict(config)) for names, config in IMAGES.items()],
        "format": 1,
    }
    return artefact("critest-archive", recipe, build)


class Critest:
    """The suite in a guest; `prepare` before the runtime is started."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def prepare(self) -> None:
        """Have a registry serve, a network for pods, and both runtimes know of them."""
        if self.guest.running(REGISTRY) is not None:
            return
        self.guest.run("mkdir", "-p", DIRECTORY)
        self.guest.run("tar", "--extract", "--gzip", "-C", DIRECTORY, stdin=suite_archive().read_bytes())
        program = f"{DIRECTORY}/image_registry.py"
        self.guest.write(program, (PROGRAMS / "image_registry.py").read_text())
        words = ("-IS", program, DIRECTORY, str(REGISTRY_PORT))
        self.guest.start(REGISTRY, "python3", *words, log="/var/log/image-registry.log")
        for path, text in settings().items():
            self.guest.write(path, text)

    def run(
        self,
        runtime_socket: str,
        *,
        focus: str = "",
        skip: Collection[str] = (),
        nri_socket: str = "",
        handler: str = "",
        limit_s: float = SUITE_LIMIT_S,
    ) -> dict[str, Outcome]:
        """What became of each test, by its name, whose name matches *focus* and nothing of *skip*. Those of
        NRI are skipped by the suite without a socket."""
        self.guest.run("rm", "-f", REPORT)
        words = [
            f"--runtime-endpoint=unix://{runtime_socket}",
            f"--nri-socket={nri_socket}",
            f"--runtime-handler={handler}",
            f"--ginkgo.json-report={REPORT}",
            # The order of the tests is always the same.
            "--ginkgo.seed=1",
            "--ginkgo.no-color",
            f"--ginkgo.focus={focus}",
            *(f"--ginkgo.skip={text}" for text in (*LEFT_OUT, *skip)),
        ]
        shell = f'exec "$@" >{LOG} 2>&1'
        self.guest.run("sh", "-c", shell, "critest", PROGRAM, *words, limit_s=limit_s, check=False)
        found = self.guest.read_files(REPORT).get(REPORT)
        if found is None:
            raise TestBedError(f"critest made no report: {self.guest.read(LOG)[-2000:]}")
        return outcomes(json.loads(found))


def settings() -> dict[str, str]:
    """Files by path: where images are pulled from, and the network of pods, for containerd and CRI-O."""
    host = f"127.0.0.1:{REGISTRY_PORT}"
    here = f'[host."http://{host}"]\n  capabilities = ["pull", "resolve"]\n'
    mirrors = "".join(
        f'[[registry]]\nlocation = "{public}"\n[[registry.mirror]]\nlocation = "{host}"\ninsecure = true\n'
        for public in PUBLIC
    )
    return {
        **{f"/etc/containerd/certs.d/{public}/hosts.toml": here for public in PUBLIC},
        "/etc/containers/registries.conf.d/90-critest.conf": mirrors,
        "/etc/cni/net.d/10-critest.conflist": json.dumps(NETWORK),
    }


CONTAINERD_SETTINGS = """
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/etc/containerd/certs.d"
"""


def outcomes(report: list[dict[str, Any]]) -> dict[str, Outcome]:
    """Of ginkgo's JSON report; what was left out by name is not in it."""
    found = {}
    for spec in report[0]["SpecReports"]:
        if spec["LeafNodeType"] == "It" and not (spec["State"] == "skipped" and not spec.get("Failure")):
            name = " ".join([*(spec["ContainerHierarchyTexts"] or []), spec["LeafNodeText"]])
            found[name] = Outcome(spec["State"], (spec.get("Failure") or {}).get("Message", ""))
    return found


def _write_images(path: Path, busybox: Path, program: Path) -> None:
    """The paths of the registry below v2."""
    layer = _layer(busybox, program)
    kept = path / "layer"
    path.mkdir()
    kept.write_bytes(layer)
    for names, config in IMAGES.items():
        made = {
            "architecture": "amd64",
            "os": "linux",
            # Without it those with the same configuration were the same image.
            "config": {"Env": ["PATH=/bin"], **config, "Labels": {"bayplan.test/name": names[0]}},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        kind = "application/vnd.oci.image"
        described = json.dumps(made).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _described(f"{kind}.config.v1+json", described),
            "layers": [_described(f"{kind}.layer.v1.tar", layer)],
        }
        raw = json.dumps(manifest).encode()
        for name in names:
            repository, _, tag = name.partition(":")
            for place, content in (
                (f"manifests/{tag}", raw),
                (f"manifests/{_digest(raw)}", raw),
                (f"blobs/{_digest(described)}", described),
            ):
                file = path / repository / place
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            blob = path / repository / "blobs" / _digest(layer)
            if not blob.exists():
                blob.hardlink_to(kept)


def _layer(busybox: Path, program: Path) -> bytes:
    """Every applet of busybox, users and groups, a page to serve, and what busybox has not."""
    applets = build_command("The applets of busybox", [busybox, "--list"]).split()
    passwd = "".join(f"{name}:x:{uid}:{gid}::/:/bin/sh\n" for name, (uid, gid) in USERS.items())
    files: dict[str, tuple[bytes, int]] = {
        "bin/busybox": (busybox.read_bytes(), 0o755),
        "bin/nginx": (program.read_bytes(), 0o755),
        "bin/effective-uid": (program.read_bytes(), 0o4755),
        "bin/pgrep": (PGREP.encode(), 0o755),
        "bin/ipcs": (IPCS.encode(), 0o755),
        "etc/passwd": (passwd.encode(), 0o644),
        "etc/group": (GROUPS.encode(), 0o644),
        "www/index.html": (b"here\n", 0o644),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp", "var", "var/run", "www"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            layer.addfile(entry)
        for path, (content, mode) in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            layer.addfile(entry, io.BytesIO(content))
        for applet in applets:
            if f"bin/{applet}" not in files:
                entry = tarfile.TarInfo(f"bin/{applet}")
                # The suite masks one of them, which must not be all of them.
                entry.type, entry.linkname, entry.mode = tarfile.LNKTYPE, "bin/busybox", 0o755
                layer.addfile(entry)
    return buffer.getvalue()


def _described(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
