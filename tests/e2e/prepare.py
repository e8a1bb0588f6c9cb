"""Builds everything that the virtual machines need into the cache, so that the tests find it there.

python tests/e2e/prepare.py [containerd version ...]
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from testbed.acceleration import acceleration
from testbed.containerd import DEFAULT_VERSIONS
from testbed.errors import TestBedError
from testbed.supplies import disks


def main(versions: list[str]) -> int:
    started = time.monotonic()
    try:
        with ThreadPoolExecutor() as pool:
            parts = [pool.submit(disks, *(versions or DEFAULT_VERSIONS), with_bayplan=False)]
            if not versions:
                parts.append(pool.submit(disks, with_bayplan=False, systemd=True))
            for part in parts:
                part.result()
        acceleration()
    except TestBedError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    took_s = time.monotonic() - started
    if took_s > 5:
        print(f"prepare: the virtual machines' parts are built and kept, after {took_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
