"""The reference page of the kernel's files that a machine is read from, docs/kernel-files.md."""

from typing import Final

from bayplan.host.topology_files import FILES

PAGE: Final = "docs/kernel-files.md"

_OPENING: Final = """\
# The kernel's files

Of these a machine is read, and `bayplan record-topology` records them. What *decides* has to be there and
to make sense, or the machine is not read: the daemon does not start, and a recording is refused with the
name of the file. What only *orders* choices is left out where it is odd (an empty list of a cache's CPUs,
a distance of a node from itself that is not 10), with a remark in `bayplan status`. A NUL ends a text.

A CPU that several nodes list (`numa=fake`) counts in the first of them, and the others are memory near it.
Sockets go by the CPUs that are in one package: the kernel's ids are -1 on POWER and s390 machines, and
repeat in each book of the latter; then sockets are numbered by their lowest CPUs.

| file | since Linux | | without it |
|---|---|---|---|
"""


def page() -> str:
    """The page, in Markdown."""
    roles = {True: "decides", False: "orders"}
    rows = (
        f"| `{one.pattern}` | {one.since or '-'} | {roles[one.decides]} | {one.absent} |\n" for one in FILES
    )
    return _OPENING + "".join(rows)
