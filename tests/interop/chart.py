"""The Helm chart, by Helm itself, which is built once. As a program it writes the manifests for
`kubectl apply` (`make manifests`)."""

import subprocess
import sys
from pathlib import Path

from testbed import gobuild

from support.chart_manifests import CHART, chart_files, with_heading

# Everybody's is another one; the manifests' is there to be replaced.
IMAGE = "--set=image.repository=registry.example.com/bayplan"


def helm(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    """What Helm says to *words*."""
    return subprocess.run([gobuild.helm(), *words], capture_output=True, text=True, check=False)


def rendered(*flags: str | Path) -> str:
    """The chart's objects for a release ``bayplan`` in the namespace ``bayplan``."""
    finished = helm("template", "bayplan", CHART, "--namespace=bayplan", IMAGE, *flags)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def manifests() -> str:
    """What `kubectl apply` needs: with the namespace, which Helm itself expects to be there, and without the
    version of a cluster that nobody asked."""
    return with_heading(
        rendered("--set=namespace.create=true", "--set=daemon.clusterVersion=none"), chart_files()
    )


if __name__ == "__main__":
    sys.stdout.write(manifests())
