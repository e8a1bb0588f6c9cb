"""/proc/zoneinfo, summed over the zones of each node. With many CPUs it is long: not for every second."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Final

from bayplan.host.kernelfs import read_optional

LOW: Final = "low"
HIGH: Final = "high"
"""The watermarks: below the low one the kernel begins to reclaim, above the high one it ends."""
AT_HAND: Final = "count:"
"""Free pages in the lists of single CPUs, which MemFree leaves out: since Linux 6.7 up to an eighth of a
zone."""

_LINE: Final = re.compile(rf"^Node (\d+), zone|^ +({LOW}|{HIGH}|{AT_HAND}) +(\d+)$", re.MULTILINE)


def read_zones(root: Path = Path("/")) -> Counter[tuple[int, str]]:
    """Bytes by node and `LOW`, `HIGH` or `AT_HAND`; none where the file is absent.

    Raises:
        RefusedError: it cannot be read.
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    sums: Counter[tuple[int, str]] = Counter()
    node = 0
    for zone, name, pages in _LINE.findall(read_optional(str(root / "proc/zoneinfo")) or ""):
        if zone:
            node = int(zone)
        else:
            sums[node, name] += int(pages) * page_bytes
    return sums
