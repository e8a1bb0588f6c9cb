"""Where memory.min and memory.low of containers have no effect, or less than they say: cgroup v2.

The kernel protects a cgroup by no more than what all cgroups above it are protected by, the root apart. Those
above containers are kubelet's, systemd's or the runtime's: nobody here writes them. Reads files, and changes
nothing.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bayplan.files import read_text
from bayplan.oci.findings import Finding, Level
from bayplan.quantity import format_bytes, whole_number

_FILES: Final = ("memory.min", "memory.low")
MOST_LEVELS: Final = 16
MOST_NAMED: Final = 4
_SHOWN: Final = "/sys/fs/cgroup"
_CONTAINER: Final = re.compile(r"(?:^|[^0-9a-f])[0-9a-f]{64}(?:$|[^0-9a-f])")
"""In the name of a container's cgroup, whatever runtime made it."""
_KUBELETS: Final = re.compile(r"kubepods(?:[-./].*)?")
"""The beginning of the paths in kubelet's tree, below whatever cgroupRoot it has."""
_BY_KUBELET: Final = (
    "let kubelet write sums: MemoryQoS and memoryReservationPolicy: TieredReservation in its own file; what "
    "others write there lasts until kubelet starts again (from 1.37 on it writes 0 into kubepods)"
)
_ADVICE: Final = "set MemoryMin= or MemoryLow= of the slice, or write the file"


def void_protections(mount: Path) -> Iterator[Finding]:
    """The cgroups below *mount* that protect less than what their containers are to be protected by, the
    outermost first."""
    for name in _FILES:
        lacking: list[tuple[Path, int, int]] = []
        for top in _children(mount):
            _protected(top, name, MOST_LEVELS, lacking)
        # The outermost has the last word.
        lacking.sort(key=lambda one: (len(one[0].parts), one[0]))
        for directory, own_bytes, wanted_bytes in lacking[:MOST_NAMED]:
            wanted, own = format_bytes(wanted_bytes), format_bytes(own_bytes)
            effect = "only in part" if own_bytes else "not at all"
            text = f"is {own}, so that the containers below, with {wanted} together, are protected {effect}"
            path = directory.relative_to(mount)
            advice = _BY_KUBELET if any(map(_KUBELETS.fullmatch, path.parts)) else _ADVICE
            yield Finding(Level.WARNING, f"{_SHOWN}/{path}/{name}", text, advice)


def _protected(directory: Path, name: str, levels: int, lacking: list[tuple[Path, int, int]]) -> int:
    """What the containers in *directory* and below are to be protected by; what protects less is added to
    *lacking*."""
    own_bytes = _value(directory / name)
    if _CONTAINER.search(directory.name):
        return own_bytes
    below = _children(directory) if levels else []
    wanted_bytes = sum(_protected(one, name, levels - 1, lacking) for one in below)
    if wanted_bytes > own_bytes:
        lacking.append((directory, own_bytes, wanted_bytes))
    return wanted_bytes


def _value(file: Path) -> int:
    """What a file of the kernel says in bytes; 0 where it is not there. ``max`` is more than anything."""
    try:
        text = read_text(file, errors="replace").strip()
    except OSError:
        return 0
    return 1 << 62 if text == "max" else whole_number(text) or 0


def _children(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(one.path) for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []  # It ended meanwhile.
