"""Go programs at pinned versions, static, so that they run in the guest whatever this machine's C library.

They are built as the dependency of an empty module, not with `go install`: that asks the module proxy for
lists of versions, which some proxies do not serve, and would give the same programs.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from testbed.cache import artefact, cache_root, digest_files, locked
from testbed.errors import MissingError
from testbed.shell import build_command

GO_MINIMUM = (1, 26, 3)
CRI_TOOLS_VERSION = "v1.36.0"
KUBELET_VERSION = "v1.36.3"
GO_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-buildvcs=false",
    "GOWORK": "off",
}
WORKLOAD_SOURCE = Path(__file__).parent.parent / "workload"


def go_program() -> Path:
    """A Go toolchain that is new enough: of PATH, else the one that setup put into the cache."""
    candidates = [shutil.which("go"), str(cache_root() / "go-toolchain" / "bin" / "go")]
    for candidate in candidates:
        if candidate and Path(candidate).exists() and _go_version(candidate) >= GO_MINIMUM:
            return Path(candidate)
    wanted = ".".join(map(str, GO_MINIMUM))
    raise MissingError(f"No Go {wanted} or newer was found: run `packaging/dev/setup.sh e2e` as root")


def _go_version(go: str) -> tuple[int, ...]:
    said = subprocess.run(
        [go, "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GOTOOLCHAIN": "local"},
    ).stdout
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", said)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)


def containerd_from_source(version: str) -> Path:
    """A directory with bin/containerd, bin/containerd-shim-runc-v2 and bin/ctr of that tag."""
    module = "github.com/containerd/containerd/v2"
    commands = ("containerd", "containerd-shim-runc-v2", "ctr")
    return _from_module("containerd-go", module, version, tuple(f"{module}/cmd/{name}" for name in commands))


def crictl() -> Path:
    """A directory with bin/crictl: the one on PATH, else built."""
    if installed := shutil.which("crictl"):

        def copy(path: Path) -> None:
            (path / "bin").mkdir(parents=True)
            shutil.copy2(installed, path / "bin/crictl")

        return artefact("crictl-installed", {"crictl": digest_files(Path(installed).resolve())}, copy)
    return _from_module(
        "crictl", "sigs.k8s.io/cri-tools", CRI_TOOLS_VERSION, ("sigs.k8s.io/cri-tools/cmd/crictl",)
    )


def kubelet(version: str = KUBELET_VERSION) -> Path:
    """A directory with bin/kubelet of that tag.

    Kubernetes' own go.mod replaces the modules that are published apart by folders that are not in the module
    itself; here they are replaced by what was published for the same tag, v0.36.3 for v1.36.3.
    """
    module = "k8s.io/kubernetes"

    def build(path: Path) -> None:
        scratch = path.parent / "module"
        scratch.mkdir()
        head = f"module scratch\n\ngo {'.'.join(map(str, GO_MINIMUM))}\n\nrequire {module} {version}\n"
        (scratch / "go.mod").write_text(head)
        what = f"kubelet {version}"
        found = build_command(
            what,
            [str(go_program()), "mod", "download", "-json", f"{module}@{version}"],
            env=GO_ENVIRONMENT,
            cwd=scratch,
        )
        own_modules = Path(json.loads(found[found.index("{") :])["GoMod"]).read_text()
        staged = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", own_modules, re.MULTILINE)
        replacements = "".join(f"\t{name} => {name} v0{version.removeprefix('v1')}\n" for name in staged)
        (scratch / "go.mod").write_text(f"{head}\nreplace (\n{replacements})\n")
        (path / "bin").mkdir(parents=True)
        named = f"-X k8s.io/component-base/version.gitVersion={version}"
        _go_build(what, scratch, Path(f"{path}/bin/"), (f"{module}/cmd/kubelet",), ("-mod=mod",), link=named)

    return artefact("kubelet", {"version": version, "format": 1}, build)


def workload() -> Path:
    """The program that runs in the containers; its source is beside this package."""

    def build(path: Path) -> None:
        _go_build("The containers' program", WORKLOAD_SOURCE, path, (".",), ())

    return artefact("workload", {"source": digest_files(WORKLOAD_SOURCE), "go": GO_MINIMUM}, build)


def _from_module(name: str, module: str, version: str, commands: tuple[str, ...]) -> Path:
    def build(path: Path) -> None:
        scratch = path.parent / "module"
        scratch.mkdir()
        go = ".".join(map(str, GO_MINIMUM))
        (scratch / "go.mod").write_text(f"module scratch\n\ngo {go}\n\nrequire {module} {version}\n")
        (path / "bin").mkdir(parents=True)
        what = f"{module.rsplit('/', 1)[0] if module.endswith('/v2') else module} {version}"
        _go_build(what, scratch, Path(f"{path}/bin/"), commands, ("-mod=mod",))

    return artefact(name, {"module": module, "version": version, "commands": commands, "format": 1}, build)


def _go_build(
    what: str,
    directory: Path,
    output: Path,
    packages: tuple[str, ...],
    flags: tuple[str, ...],
    *,
    link: str = "",
) -> None:
    linked = f"-ldflags=-s -w {link}".rstrip()
    argv = [str(go_program()), "build", *flags, "-trimpath", linked, "-o", f"{output}", *packages]
    if output.is_dir():
        argv[argv.index(f"{output}")] = f"{output}/"
    # Two builds at once want twice the memory and are not faster on the few cores there are.
    with locked("go-build"):
        build_command(what, argv, env=GO_ENVIRONMENT, cwd=directory)
