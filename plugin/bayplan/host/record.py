"""A machine's sysfs as one text, and back: to reproduce elsewhere what a daemon read on a node.

    python -m bayplan.host.record > machine.txt             record this machine
    python -m bayplan.host.record --unpack machine.txt DIR  make a tree of it, to be used as a root directory

One line per line of a file, ``path:text``, as ``grep -r ""`` prints it, but with ``%3A`` for a colon in the
path (PCI addresses have some); a path that ends in ``/`` is a directory of which only the name counts.
Nothing is recorded but topology, sizes and the kernel's version.
"""

import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from bayplan.errors import BayplanError, HostError, ParseError, excerpt
from bayplan.host.kernelfs import read_optional, read_text
from bayplan.host.topology_files import is_superseded, recorded_patterns
from bayplan.standard_streams import CommandLineParser

COMMENT: Final = "#"
COLON: Final = "%3A"
RECORDED_BELOW: Final = ("proc/", "sys/")
"""Every path in a listing begins so."""


def record(root: Path = Path("/")) -> str:
    """The listing of the machine below *root*.

    Raises:
        HostError: a file is there and can't be read.
    """
    paths = {path for pattern in recorded_patterns(root) for path in root.glob(pattern)}
    kept = sorted((path for path in paths if not is_superseded(path)), key=_natural)
    return "".join(line for path in kept for line in _lines(root, path))


def unpack(listing: str, directory: Path) -> None:
    """Write the tree that *listing* describes below *directory*.

    Raises:
        ParseError: a line is not part of a listing, or its path leads out of *directory*.
        HostError: the tree can't be written.
    """
    files: dict[str, list[str]] = {}
    for line in listing.splitlines():
        if line.startswith(COMMENT) or not line:
            continue
        quoted, colon, text = line.partition(":")
        path = quoted.replace(COLON, ":")
        if not colon or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ParseError("machine listing", line, "a line 'relative/path:text'")
        files.setdefault(path, []).append(text)
    try:
        for path, lines in files.items():
            target = directory / path
            if path.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("".join(f"{text}\n" for text in lines), encoding="ascii")
    except (OSError, ValueError) as error:
        # ValueError: a path with a NUL, a text outside ASCII.
        raise HostError(str(directory), f"cannot hold the tree: {excerpt(str(error))}") from error


def listed(path: str) -> str:
    """*path* as a listing has it."""
    return path.replace(":", COLON)


def _lines(root: Path, path: Path) -> Iterator[str]:
    name = listed(str(path.relative_to(root)))
    if path.is_dir():
        yield f"{name}/:\n"
        return
    text = read_optional(str(path))
    for line in [] if text is None else text.splitlines() or [""]:
        yield f"{name}:{line}\n"


def _natural(path: Path) -> list[tuple[int, str]]:
    """cpu2 before cpu10: text and the numbers in it by turns."""
    return [(int("".join(filter(str.isdigit, part)) or -1), part) for part in path.parts]


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code is the error's own."""
    parser = CommandLineParser(
        prog="python -m bayplan.host.record", description="Record a machine's NUMA and CPU topology as text."
    )
    parser.add_argument("--root", type=Path, default=Path("/"), help="record the tree below this directory")
    parser.add_argument(
        "--unpack", nargs=2, type=Path, metavar=("LISTING", "DIR"), help="turn a recording into a tree"
    )
    options = parser.parse_args(arguments)
    try:
        if options.unpack:
            listing, directory = options.unpack
            unpack(read_text(str(listing)), directory)
        else:
            sys.stdout.write(record(options.root))
    except BayplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
