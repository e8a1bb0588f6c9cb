"""What a node needs before a daemon that is asked over NRI alone can place containers.

For the step that comes before the daemon in a pod. Like the doctor it changes nothing: how a runtime is
configured is its operator's business.
"""

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bayplan.oci.container_engines import ContainerEngine, read_container_engines
from bayplan.oci.doctor import NRI_SOCKETS, Examination, how_to_switch_on, nri_name, view_of
from bayplan.oci.findings import Finding, Level
from bayplan.oci.node_checks import node_findings

_FOLLOWS: Final = ", so that nobody would ask bayplan about containers"


def prerequisites(root: Path, nri_socket: Path | None = None) -> dict[str, Any]:
    """The examination of the node below *root*, as far as it matters before the start; ready for JSON. Of the
    node is *nri_socket*, too; None: it is where runtimes have it by default."""
    sockets = NRI_SOCKETS if nri_socket is None else (str(nri_socket),)
    findings = (*_of_runtimes(root, sockets), *node_findings(root, None))
    return view_of(Examination(root, None).forms, findings)


def _of_runtimes(root: Path, sockets: Sequence[str]) -> Iterator[Finding]:
    if any(_is_socket(root / path.lstrip("/")) for path in sockets):
        return
    runtimes = [engine for engine in read_container_engines(root) if nri_name(engine)]
    if not runtimes:
        text = f"is not there, and neither containerd nor CRI-O was found below {root}"
        yield Finding(Level.ERROR, sockets[-1], text, "bayplan needs one of them, with NRI switched on")
    for engine in runtimes:
        yield Finding(Level.ERROR, engine.name, f"serves no {sockets[-1]}{_FOLLOWS}", _advice(engine))


def _advice(engine: ContainerEngine) -> str:
    if engine.nri:
        return "NRI is switched on in its configuration: restart it, and see its log"
    return how_to_switch_on(engine)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
