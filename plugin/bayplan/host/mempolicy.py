"""Which NUMA memory policies this kernel has, beyond those that all of them have."""

from pathlib import Path
from typing import Final

_WEIGHTS: Final = "sys/kernel/mm/mempolicy/weighted_interleave"


def has_weighted_interleave(root: Path = Path("/")) -> bool:
    """Whether the kernel interleaves by weight: 6.9 added the mode and this directory with it."""
    return (root / _WEIGHTS).is_dir()
