"""meminfo of a NUMA node or of the whole machine, the only parser of it."""

import re
from typing import Final

from bayplan.errors import ParseError
from bayplan.host.kernelfs import parse_file
from bayplan.quantity import KIB

_LINE: Final = re.compile(r"^(?:Node \d+ )?([^:\n]+): +(\d{1,20}) kB$", re.MULTILINE)

MEM_TOTAL: Final = "MemTotal"
MEM_FREE: Final = "MemFree"
FILES: Final = ("Active(file)", "Inactive(file)")


def read_meminfo(path: str, *needed: str, text: str | None = None) -> dict[str, int]:
    """The lines of the file *path* that are in kB, in bytes: those *needed*, and others; *text* where the
    file has been read already.

    Raises:
        HostError: the file is absent, or one of *needed* is missing or garbled.
    """

    def parse(text: str) -> dict[str, int]:
        amounts = {name: int(number) * KIB for name, number in _LINE.findall(text)}
        if not amounts.keys() >= set(needed):
            raise ParseError("meminfo", text, f"lines {', '.join(needed)} in kB")
        return amounts

    return parse_file(path, parse, text)
