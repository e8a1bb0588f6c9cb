"""Where tests keep the files of a daemon whose disk is not what they are about."""

from pathlib import Path
from typing import Final

IN_MEMORY: Final = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""For `tempfile`: there nobody waits for a disk that others are writing to."""
