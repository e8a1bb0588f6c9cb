# noqa: INP001 - a program
"""Has the generated modules named on the command line make their classes by `bayplan._proto.generate`: for
those that import no other one, and that no other one imports."""

import re
import sys
from pathlib import Path

HEAD = re.compile(r"\A((?:#[^\n]*\n)+)")
FILE = re.compile(r"AddSerializedFile\((b'.*')\)$", re.MULTILINE)

for path in map(Path, sys.argv[1:]):
    text = path.read_text()
    head, file = HEAD.search(text), FILE.search(text)
    if head is None or file is None:
        sys.exit(f"{path}: not what protoc writes")
    path.write_text(
        f'{head[1]}"""Generated protocol buffer code."""\n'
        "from bayplan import _proto\n\n"
        f"DESCRIPTOR = _proto.generate({file[1]}, __name__, globals())\n"
    )
