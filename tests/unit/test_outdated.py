"""`make outdated`: what is pinned is found in the tree, and what registries say is read as they say it."""

import re
from pathlib import Path

import pytest

from outdated import GO, PYTHON, Newest, Pin, lines, newest_of, newest_packages, pins, published

ROOT = Path(__file__).parents[2]

# As uv 0.13 and go 1.26 say it; the third is of a module whose versions the proxy does not list.
PIP = '[{"name": "PyYAML", "version": "6.0.3", "latest_version": "6.0.4", "latest_filetype": "wheel"}]'
GO_LIST = """{
\t"Path": "k8s.io/kubernetes",
\t"Versions": [
\t\t"v1.36.3",
\t\t"v1.36.10",
\t\t"v1.37.2",
\t\t"v1.38.0-alpha.1"
\t]
}
{
\t"Path": "example.com/untagged"
}
{
\t"Path": "github.com/cri-o/cri-o",
\t"Error": {
\t\t"Err": "module github.com/cri-o/cri-o: reading it:\\n\\tserver response: This is not available."
\t}
}
"""


def test_the_tree_pins_what_is_installed_and_built() -> None:
    found = {(pin.kind, pin.name): pin for pin in pins(ROOT)}
    assert found[PYTHON, "msgspec"].where == ("requirements.lock",)
    for name in ("k8s.io/kubernetes", "sigs.k8s.io/cri-tools", "github.com/cri-o/cri-o"):
        assert found[GO, name].version.startswith("v1.")
    assert found[GO, "github.com/containerd/nri"].where == ("tests/interop/adaptation/go.mod",)
    series = {pin.version[:4] for pin in pins(ROOT) if pin.name == "github.com/containerd/containerd/v2"}
    assert {"v2.1", "v2.3", "v2.4"} <= series
    kubelets = {pin.version[:5] for pin in pins(ROOT) if pin.name == "k8s.io/kubernetes"}
    assert kubelets == {"v1.36", "v1.37"}
    # Nothing has a name that no registry knows.
    assert all("/" in pin.name for pin in pins(ROOT) if pin.kind == GO)


PROGRAMS = {
    "k8s.io/kubernetes": ("kubelet", "Kubernetes", "kube-apiserver", "kube-scheduler", "control plane"),
    "github.com/containerd/containerd/v2": ("containerd",),
    "github.com/cri-o/cri-o": ("CRI-O",),
    "sigs.k8s.io/cri-tools": ("cri-tools", "critest", "validation suite"),
    "go.etcd.io/etcd/server/v3": ("etcd",),
    "sigs.k8s.io/scheduler-plugins": ("scheduler-plugins",),
    "github.com/containers/nri-plugins": ("nri-plugins",),
}
"""What documents call the programs of a module."""
PATCH_RELEASE = r"v?[0-9]+\.[0-9]+\.[0-9]+"


def test_documents_name_the_versions_that_are_pinned() -> None:
    """Patch releases, that is; a minor version says since when something is so."""
    pages = [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "tests/e2e/README.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    found: dict[str, set[tuple[str, str]]] = {module: set() for module in PROGRAMS}
    for module, programs in PROGRAMS.items():
        more = rf"(?:(?:,| and|, then| to) {PATCH_RELEASE})*"
        named = rf"\b(?:{'|'.join(programs)}),? \(?({PATCH_RELEASE}{more})"
        for page in pages:
            for versions in re.findall(named, " ".join(page.read_text().split())):
                found[module] |= {(str(page), one.strip("v")) for one in re.findall(PATCH_RELEASE, versions)}
    pinned = {module: {pin.version[1:] for pin in pins(ROOT) if pin.name == module} for module in PROGRAMS}
    assert all(found.values())
    stale = {one for module, named in found.items() for one in named if one[1] not in pinned[module]}
    assert stale == set()


def test_what_pip_and_go_say() -> None:
    assert newest_packages(PIP) == {"pyyaml": "6.0.4"}
    assert published(GO_LIST) == {
        "k8s.io/kubernetes": ["v1.36.3", "v1.36.10", "v1.37.2", "v1.38.0-alpha.1"],
        "example.com/untagged": "no version is tagged",
        "github.com/cri-o/cri-o": "server response: This is not available.",
    }
    assert published("") == {}


@pytest.mark.parametrize(
    ("pinned", "versions", "newest"),
    [
        ("v1.36.3", ["v1.37.2", "v1.36.3", "v1.36.10", "v1.38.0-rc.0"], Newest("v1.36.10", "v1.37.2")),
        ("v2.3.7", ["v2.4.2+incompatible"], Newest("", "v2.4.2+incompatible")),
        ("v1.0.0", ["v1.1.0-rc.1", "odd"], Newest(problem="nothing but previews")),
    ],
)
def test_the_newest_is_no_preliminary_one(pinned: str, versions: list[str], newest: Newest) -> None:
    assert newest_of(pinned, versions) == newest


def test_what_is_the_newest_has_no_line_and_what_is_unknown_has_one() -> None:
    newest, older, ahead = (Pin(GO, f"m/{one}", "v1.36.3", ("go.mod",)) for one in ("a", "b", "c"))
    silent = Pin(PYTHON, "p", "1.0", ("requirements.lock",))
    answers = {
        ("m/a", "v1.36.3"): Newest("v1.36.3", "v1.36.3"),
        ("m/b", "v1.36.3"): Newest("v1.36.10", "v1.37.2"),
        ("m/c", "v1.36.3"): Newest("", "v1.35.0"),
        ("p", "1.0"): Newest(problem="no route to host"),
    }
    behind, unknown = lines([newest, older, ahead, silent], answers)
    assert ("v1.37.2" in behind, "v1.36.10" in behind) == (True, True)
    assert "unknown: no route to host" in unknown
    assert len(lines([newest], {})) == 1
