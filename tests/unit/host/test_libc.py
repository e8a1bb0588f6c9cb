"""What is asked of the C library, in a process of its own: it cannot be taken back."""

import subprocess
import sys

BLOCKS = """
from pathlib import Path
from bayplan.host.libc import give_large_blocks_back

def resident_kib():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1])

give_large_blocks_back()
before = resident_kib()
for _ in range(4):
    block = b"x" * (8 << 20)
    del block
print(resident_kib() - before)
"""


def test_freed_blocks_of_the_size_of_a_message_are_not_kept():
    output = subprocess.run([sys.executable, "-c", BLOCKS], check=True, capture_output=True, text=True)
    assert int(output.stdout) < 1024
