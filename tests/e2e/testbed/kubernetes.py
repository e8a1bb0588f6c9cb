"""Kubernetes' programs from the Go module proxy, at pinned versions: kubelet, the API server with etcd,
controllers, its scheduler and that of scheduler-plugins.

A module's `replace` directives count only where it is the main one. Those of Kubernetes name folders that
are not in the module itself, its staging modules: they are replaced by what was published for the same tag,
v0.37.2 for v1.37.2.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from testbed.cache import artefact
from testbed.gobuild import GO_ENVIRONMENT, GO_MINIMUM, go_build, go_program
from testbed.progress import Step
from testbed.shell import build_command

KUBERNETES = "k8s.io/kubernetes"
KUBERNETES_VERSION = "v1.37.2"
# Of kubelet itself, the newest one first: the rules of these two differ.
KUBELET_VERSIONS = (KUBERNETES_VERSION, "v1.36.3")
# The one whose client that API server has: what both have is compiled once.
ETCD = "go.etcd.io/etcd/server/v3"
ETCD_VERSION = "v3.7.0"
SCHEDULER_PLUGINS = "sigs.k8s.io/scheduler-plugins"
SCHEDULER_PLUGINS_VERSION = "v0.34.7"
# It asks for patch release 7 of Kubernetes 1.34, of which the proxy does not have all modules.
SCHEDULER_PATCH_RELEASE = (".34.7", ".34.1")
# Has the CustomResourceDefinition of NodeResourceTopology.
TOPOLOGY_API = "github.com/k8stopologyawareschedwg/noderesourcetopology-api"
TOPOLOGY_API_VERSION = "v0.1.2"
TOPOLOGY_CRD = "noderesourcetopologies.yaml"


def kubelet(version: str) -> Path:
    """A directory with bin/kubelet of that tag."""

    def build(path: Path) -> None:
        _compile(path, KUBERNETES, version, f"{KUBERNETES}/cmd/kubelet")

    return artefact("kubelet", {"version": version, "format": 1}, build, step=_step("kubelet", version, 75))


def api_server() -> Path:
    """A directory with bin/kube-apiserver, bin/etcd and TOPOLOGY_CRD, a CustomResourceDefinition."""

    def build(path: Path) -> None:
        api_server = f"{KUBERNETES}/cmd/kube-apiserver"
        scratch = _compile(
            path, KUBERNETES, KUBERNETES_VERSION, api_server, ETCD, beside=f"{ETCD} {ETCD_VERSION}"
        )
        (path / "bin/server").rename(path / "bin/etcd")
        crd = Path(_downloaded(scratch, TOPOLOGY_API, TOPOLOGY_API_VERSION)["Dir"], "manifests/crd.yaml")
        shutil.copyfile(crd, path / TOPOLOGY_CRD)

    recipe = {
        "kubernetes": KUBERNETES_VERSION,
        "etcd": ETCD_VERSION,
        "crd": TOPOLOGY_API_VERSION,
        "format": 1,
    }
    return artefact("kube-apiserver", recipe, build, step=_step("kube-apiserver", KUBERNETES_VERSION, 130))


def topology_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of NodeResourceTopology."""
    found: dict[str, Any] = yaml.safe_load((api_server() / TOPOLOGY_CRD).read_text())
    return found


def controller_manager() -> Path:
    """A directory with bin/kube-controller-manager."""

    def build(path: Path) -> None:
        _compile(path, KUBERNETES, KUBERNETES_VERSION, f"{KUBERNETES}/cmd/kube-controller-manager")

    step = _step("kube-controller-manager", KUBERNETES_VERSION, 90)
    return artefact("kube-controller-manager", {"version": KUBERNETES_VERSION, "format": 1}, build, step=step)


def kube_scheduler() -> Path:
    """A directory with bin/scheduler, Kubernetes' own."""

    def build(path: Path) -> None:
        _compile(path, KUBERNETES, KUBERNETES_VERSION, f"{KUBERNETES}/cmd/kube-scheduler")
        (path / "bin/kube-scheduler").rename(path / "bin/scheduler")

    step = _step("kube-scheduler", KUBERNETES_VERSION, 80)
    return artefact("kube-scheduler", {"version": KUBERNETES_VERSION, "format": 1}, build, step=step)


def scheduler() -> Path:
    """A directory with bin/scheduler, that of scheduler-plugins."""

    def build(path: Path) -> None:
        command = f"{SCHEDULER_PLUGINS}/cmd/scheduler"
        _compile(path, SCHEDULER_PLUGINS, SCHEDULER_PLUGINS_VERSION, command, other=SCHEDULER_PATCH_RELEASE)

    recipe = {"version": SCHEDULER_PLUGINS_VERSION, "kubernetes": SCHEDULER_PATCH_RELEASE, "format": 1}
    step = _step("scheduler-plugins", SCHEDULER_PLUGINS_VERSION, 70)
    return artefact("scheduler-plugins", recipe, build, step=step)


def _compile(
    path: Path, module: str, version: str, *commands: str, beside: str = "", other: tuple[str, str] = ("", "")
) -> Path:
    """Build the commands into bin/ of a directory, from a module with its own replacements, and from another
    one beside it; the directory of the module that requires both. The first of *other* is replaced by the
    second in the module's replacements."""
    scratch = path.parent / "module"
    scratch.mkdir()
    required = "".join(f"require {one}\n" for one in (f"{module} {version}", beside) if one)
    head = f"module scratch\n\ngo {'.'.join(map(str, GO_MINIMUM))}\n\n{required}"
    (scratch / "go.mod").write_text(head)
    own = Path(_downloaded(scratch, module, version)["GoMod"]).read_text().replace(*other)
    replaced = "".join(f"\t{one}\n" for one in _replacements(own, version))
    (scratch / "go.mod").write_text(f"{head}\nreplace (\n{replaced})\n")
    what = f"{module} {version}"
    listing = [str(go_program()), "list", "-mod=mod", "-deps", *commands]
    # Fetches the sources, which needs the network more than the CPUs, before it is this build's turn.
    build_command(f"The sources of {what}", listing, env=GO_ENVIRONMENT, cwd=scratch)
    (path / "bin").mkdir(parents=True)
    named = f"-X k8s.io/component-base/version.gitVersion={version}" if module == KUBERNETES else ""
    go_build(what, scratch, path / "bin", commands, ("-mod=mod",), link=named)
    return scratch


def _replacements(go_mod: str, version: str) -> Iterator[str]:
    """The replacements in a go.mod, as lines of another one."""
    for name, target in re.findall(r"^(?:replace|\t)\s*(\S+) => (.+)$", go_mod, re.MULTILINE):
        staged = target.startswith("./staging/")
        yield f"{name} => {name} v0{version.removeprefix('v1')}" if staged else f"{name} => {target}"


def _downloaded(scratch: Path, module: str, version: str) -> dict[str, str]:
    """Where the files of a module are."""
    argv = [str(go_program()), "mod", "download", "-json", f"{module}@{version}"]
    found = build_command(f"{module} {version}", argv, env=GO_ENVIRONMENT, cwd=scratch)
    where: dict[str, str] = json.loads(found[found.index("{") :])
    return where


def _step(name: str, version: str, size_mb: int) -> Step:
    return Step(f"{name} {version}, compiled", size_mb)
