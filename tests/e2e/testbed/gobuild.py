"""Go programs at pinned versions, static, so that they run in the guest whatever this machine's C library.

They are built as the dependency of an empty module, not with `go install`: that asks the module proxy for
lists of versions, which some proxies do not serve, and would give the same programs.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from testbed.cache import artefact, cache_root, digest_files, locked
from testbed.errors import MissingError
from testbed.progress import Step
from testbed.shell import build_command, require

GO_MINIMUM = (1, 26, 3)
CRI_TOOLS_VERSION = "v1.37.0"
# crictl is built with the dependencies of this containerd where they are newer than its own: what both have
# is then compiled once.
SHARED_MODULE = "github.com/containerd/containerd/v2 v2.3.7"
RUNC_VERSION = "v1.4.3"
CRIO_VERSION = "v1.36.3"
# Whatever needs a C library beside libc is left out: seccomp, btrfs, ostree, gpgme. The last three are for
# linking all of it statically.
CRIO_TAGS = (
    "containers_image_ostree_stub",
    "containers_image_openpgp",
    "exclude_graphdriver_btrfs",
    "btrfs_noversion",
    "netgo",
    "osusergo",
    "sqlite_omit_load_extension",
)
GO_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-buildvcs=false",
    "GOWORK": "off",
}
TESTS = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"


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


def containerd_from_source(version: str, beside: str = "") -> Path:
    """A directory with bin/containerd, bin/containerd-shim-runc-v2 and bin/ctr of that tag; *beside* is a
    module that it is to have in no older version ("MODULE VERSION")."""
    module = "github.com/containerd/containerd/v2"
    commands = ("containerd", "containerd-shim-runc-v2", "ctr")
    step = Step(f"containerd {version}, compiled", 75)
    return _from_module(
        "containerd-go",
        module,
        version,
        tuple(f"{module}/cmd/{name}" for name in commands),
        step,
        beside=beside,
    )


def crictl() -> Path:
    """A directory with bin/crictl: the one on PATH, else built."""
    if installed := shutil.which("crictl"):

        def copy(path: Path) -> None:
            (path / "bin").mkdir(parents=True)
            shutil.copy2(installed, path / "bin/crictl")

        return artefact("crictl-installed", {"crictl": digest_files(Path(installed).resolve())}, copy)
    module = "sigs.k8s.io/cri-tools"
    step = Step(f"crictl {CRI_TOOLS_VERSION}, compiled", 27)
    return _from_module(
        "crictl", module, CRI_TOOLS_VERSION, (f"{module}/cmd/crictl",), step, beside=SHARED_MODULE
    )


def critest() -> Path:
    """cri-tools' validation suite; it is published as tests of a package."""
    module = "sigs.k8s.io/cri-tools"
    what = f"critest {CRI_TOOLS_VERSION}"

    def build(path: Path) -> None:
        scratch = _module_requiring(path, module, CRI_TOOLS_VERSION, SHARED_MODULE)
        version = f"-X {module}/pkg/version.Version={CRI_TOOLS_VERSION}"
        go_build(what, scratch, path, (f"{module}/cmd/critest",), ("-mod=mod",), link=version, verb="test -c")

    recipe = {"version": CRI_TOOLS_VERSION, "beside": SHARED_MODULE, "format": 1}
    return artefact("critest", recipe, build, step=Step(f"{what}, compiled", 31))


def crio(version: str = CRIO_VERSION) -> Path:
    """A directory with bin/crio and bin/pinns of that tag. The one needs cgo, the other is C itself."""
    module = "github.com/cri-o/cri-o"

    def build(path: Path) -> None:
        scratch = _module_requiring(path, module, version)
        what = f"CRI-O {version}"
        (path / "bin").mkdir(parents=True)
        flags = ("-mod=mod", f"-tags={','.join(CRIO_TAGS)}")
        go_build(
            what,
            scratch,
            Path(f"{path}/bin/"),
            (f"{module}/cmd/crio",),
            flags,
            link="-linkmode=external -extldflags=-static",
            env={"CGO_ENABLED": "1"},
        )
        asking = [str(go_program()), "list", "-mod=mod", "-m", "-f", "{{.Dir}}", module]
        source = build_command(what, asking, env=GO_ENVIRONMENT, cwd=scratch).strip()
        programs = sorted(Path(source, "pinns/src").glob("*.c"))
        argv = [require("gcc"), "-std=c99", "-Os", "-static", "-s", "-o", path / "bin/pinns", *programs]
        build_command(f"pinns of {what}", argv)

    step = Step(f"CRI-O {version}, compiled", 60)
    return artefact("crio", {"version": version, "tags": CRIO_TAGS, "format": 1}, build, step=step)


def runc(version: str = RUNC_VERSION) -> Path:
    """A directory with bin/runc of that tag, without seccomp: it sets memory policies."""
    module = "github.com/opencontainers/runc"

    def build(path: Path) -> None:
        scratch = _module_requiring(path, module, version)
        (path / "bin").mkdir(parents=True)
        go_build(
            f"runc {version}",
            scratch,
            Path(f"{path}/bin/"),
            (module,),
            ("-mod=mod", "-tags=netgo,osusergo"),
            link="-linkmode=external -extldflags=-static",
            env={"CGO_ENABLED": "1"},
        )

    return artefact(
        "runc", {"version": version, "format": 1}, build, step=Step(f"runc {version}, compiled", 12)
    )


def workload() -> Path:
    """The program of the containers' image; its source is beside this package."""
    return compiled(TESTS / "e2e/workload", "workload")


def memory_load() -> Path:
    """The program that uses memory in scenarios about memory pressure; not in any image."""
    return compiled(PROGRAMS / "memory_load", "memory-load")


def suite_image() -> Path:
    """The program in the images of the validation suite, beside busybox."""
    return compiled(PROGRAMS / "suite_image", "suite-image")


def allocator() -> Path:
    """The program that allocates claims by Kubernetes' own code."""
    return compiled(TESTS / "interop/allocator", "allocator", size_mb=20)


def helm() -> Path:
    """Helm."""
    return compiled(TESTS / "interop/helm", "helm", package="helm.sh/helm/v4/cmd/helm", size_mb=66)


def kubectl() -> Path:
    """kubectl."""
    return compiled(TESTS / "interop/helm", "kubectl", package="./kubectl", size_mb=60)


def compiled(
    source: Path,
    name: str,
    module: str = "go",
    flags: tuple[str, ...] = (),
    package: str = ".",
    size_mb: int = 0,
) -> Path:
    """The Go program *package* of the module in *source*, with the versions of *module*.mod there. A step is
    shown for one that has a size."""
    inputs = [*sorted(source.rglob("*.go")), *sorted(source.glob(f"{module}.*"))]

    def build(path: Path) -> None:
        go_build(f"The program {name}", source, path, (package,), (f"-modfile={module}.mod", *flags))

    recipe = {
        "source": [digest_files(one) for one in inputs],
        "package": package,
        "flags": flags,
        "go": GO_MINIMUM,
    }
    step = Step(f"{name}, compiled", size_mb) if size_mb else None
    return artefact(name, recipe, build, step=step)


def _from_module(
    name: str, module: str, version: str, commands: tuple[str, ...], step: Step, *, beside: str = ""
) -> Path:
    def build(path: Path) -> None:
        scratch = _module_requiring(path, module, version, beside)
        (path / "bin").mkdir(parents=True)
        what = f"{module.rsplit('/', 1)[0] if module.endswith('/v2') else module} {version}"
        # Fetches the sources, which needs the network more than the CPUs, before it is this build's turn.
        argv = [str(go_program()), "list", "-mod=mod", "-deps", *commands]
        build_command(f"The sources of {what}", argv, env=GO_ENVIRONMENT, cwd=scratch)
        go_build(what, scratch, Path(f"{path}/bin/"), commands, ("-mod=mod",))

    recipe = {"module": module, "version": version, "commands": commands, "format": 1}
    return artefact(name, {**recipe, "beside": beside} if beside else recipe, build, step=step)


def _module_requiring(path: Path, module: str, version: str, *beside: str) -> Path:
    """A new module beside the artefact, with this one as its only requirement, and what is to be no older."""
    scratch = path.parent / "module"
    scratch.mkdir()
    required = "\n".join(f"require {one}" for one in (f"{module} {version}", *filter(None, beside)))
    (scratch / "go.mod").write_text(f"module scratch\n\ngo {'.'.join(map(str, GO_MINIMUM))}\n\n{required}\n")
    return scratch


def go_build(
    what: str,
    directory: Path,
    output: Path,
    packages: tuple[str, ...],
    flags: tuple[str, ...],
    *,
    link: str = "",
    env: Mapping[str, str] | None = None,
    verb: str = "build",
) -> None:
    """Compile packages of the module in a directory, into a file or a directory that exists."""
    linked = f"-ldflags=-s -w {link}".rstrip()
    argv = [str(go_program()), *verb.split(), *flags, "-trimpath", linked, "-o", f"{output}", *packages]
    if output.is_dir():
        argv[argv.index(f"{output}")] = f"{output}/"
    # Two builds at once want twice the memory and are not faster on the few cores there are.
    with locked("go-build"):
        build_command(what, argv, env={**GO_ENVIRONMENT, **(env or {})}, cwd=directory)
