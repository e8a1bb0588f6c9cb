"""What the doctor says: a problem of a node, how bad it is, and what to do about it."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct


class Level(Enum):
    """With an ERROR containers are not placed, or soon will not be; with a WARNING they are. A NOTE says how
    far bayplan reaches where nothing is wrong."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Finding(Struct, frozen=True):
    """A problem: ``subject`` is the thing, ``text`` what is wrong with it, ``advice`` what to do."""

    level: Level
    subject: str
    text: str
    advice: str = ""


class DaemonState(Struct, frozen=True):
    """Of a running daemon: the runtime that is connected over NRI ("" for none) with its version, the
    daemon's own process, 0 where it is not known, and what does not hold of its ledger, each sentence with
    whether it was put right. ``assumed_kubelet`` is the version of kubelet whose rules it goes by without
    having found out which one the node has, else "". ``placement_directory`` is where it keeps placement
    files, "" where it does not say; ``wishes`` are the annotations, without prefix, that containers have of
    those that need something of the node; ``hugepage_pools``: some are to grow and shrink; ``refuses``:
    what it cannot decide about is not to start."""

    nri_runtime: str = ""
    runtime_version: str = ""
    nri_version: str = ""
    pid: int = 0
    faults: Mapping[str, bool] = {}
    assumed_kubelet: str = ""
    placement_directory: str = ""
    wishes: frozenset[str] = frozenset()
    hugepage_pools: bool = False
    refuses: bool = False
