"""packaging/kubernetes/bayplan.yaml beside the Helm chart that it is rendered from.

Its first line has a digest of the chart's files and of all lines below it. So where there is no Helm a test
still finds that one of them was changed without the other.
"""

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "packaging" / "helm" / "bayplan"
MANIFESTS = PROJECT / "packaging" / "kubernetes" / "bayplan.yaml"
IGNORED = (CHART / ".helmignore").read_text(encoding="utf-8").split()
"""By Helm too: hidden files, and what editors leave."""


def chart_files() -> dict[str, bytes]:
    """The chart's files by their path in it, without those that its .helmignore names."""
    files = (path for path in CHART.rglob("*") if path.is_file())
    return {
        str(path.relative_to(CHART)): path.read_bytes()
        for path in files
        if not any(fnmatch(path.name, pattern) for pattern in IGNORED)
    }


def with_heading(rendered: str, files: Mapping[str, bytes]) -> str:
    """*rendered*, what Helm makes of the chart's *files*, as it is kept."""
    digest = hashlib.sha256()
    for name, content in (*sorted(files.items()), ("", rendered.encode())):
        digest.update(f"{name}:{len(content)}:".encode() + content)
    how = "Rendered from packaging/helm/bayplan with its defaults by `make manifests`"
    return f"# {how}; sha256 of the chart and of what follows: {digest.hexdigest()}\n{rendered}"
