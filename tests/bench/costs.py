"""What bayplan costs a node, as one table: ``python tests/bench/costs.py [--beside N...] [PART...]``.

The parts are those of `PARTS`; all of them take less than ten minutes. The reference of requests is a Go
plugin that does nothing on the same Go side of NRI, in turns with the daemon; that of programs is a bare
interpreter. Compare numbers of one run only: commits wait for the disk, and everything for the machine.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import files
import merge
import nri_requests
import pressure
import programs
import rest
import worst
from table import Row, show

PARTS: dict[str, Callable[[Sequence[int]], Iterator[Row]]] = {
    "disk": lambda _: nri_requests.flushes(),
    "requests": nri_requests.creations,
    "starts": nri_requests.starts,
    "rest": rest.rows,
    "programs": lambda _: programs.rows(),
    "decisions": lambda _: worst.rows(),
    "merges": lambda _: merge.rows(),
    "pressure": lambda _: pressure.rows(),
    "files": lambda _: files.rows(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument(
        "--beside", type=int, nargs="+", default=(10, 100, 250), metavar="N", help="containers that exist"
    )
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    show(row for name in options.parts or PARTS for row in PARTS[name](options.beside))


if __name__ == "__main__":
    main()
