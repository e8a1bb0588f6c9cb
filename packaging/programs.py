"""Writes the commands of a wheel as programs: ``programs.py WHEEL LIBRARY DIRECTORY``.

They see what is installed in LIBRARY and Python's own library, and nothing else of the machine.
"""

import configparser
import sys
import zipfile
from pathlib import Path

PROGRAM = """\
#!/usr/bin/python3 -IS
import sys

sys.path.insert(0, {library!r})

from {module} import {function}

sys.exit({function}())
"""


def main(wheel: str, library: str, directory: str) -> None:
    """Write one program for each entry point of *wheel* into *directory*."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/entry_points.txt"))
        entry_points = configparser.ConfigParser()
        entry_points.read_string(archive.read(name).decode())
    for command, target in entry_points["console_scripts"].items():
        module, _, function = target.partition(":")
        path = Path(directory, command)
        path.write_text(PROGRAM.format(library=library, module=module, function=function))
        path.chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
