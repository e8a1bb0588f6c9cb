"""Writes the commands of a wheel as programs of the Debian package: ``programs.py WHEEL DIRECTORY``.

They see the packages that came with them and Python's own library, and nothing else of the machine.
"""

import configparser
import sys
import zipfile
from pathlib import Path

PROGRAM = """\
#!/usr/bin/python3 -IS
import sys

sys.path.insert(0, "/usr/lib/bayplan")

from {module} import {function}

sys.exit({function}())
"""


def main(wheel: str, directory: str) -> None:
    """Write one program for each entry point."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/entry_points.txt"))
        entry_points = configparser.ConfigParser()
        entry_points.read_string(archive.read(name).decode())
    for command, target in entry_points["console_scripts"].items():
        module, _, function = target.partition(":")
        path = Path(directory, command)
        path.write_text(PROGRAM.format(module=module, function=function))
        path.chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
