"""The kernel's brake on one cgroup: memory.high, set for a while and given back (cgroup v2).

A process in a cgroup that uses more than its memory.high waits at each further page, up to two seconds for 64
of them, and is never killed for it (mm/memcontrol.c: calculate_high_delay). If this program dies in between
no cgroup may stay slowed down: so before a value is written, the cgroup gets an attribute that says what was
there, and which values are ours. It is gone with the cgroup. A value that another program has set meanwhile
stays.
"""

import errno
import os
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from bayplan.host import shadow_mode
from bayplan.host.kernelfs import (
    AbsentError,
    RefusedError,
    parse_file,
    parse_number,
    read_text,
    refusal,
    write_text,
)
from bayplan.quantity import MIB

MARK: Final = "user.bayplan.memory_high"
"""The attribute: the value before, and the last two of ours. The kernel has attributes of cgroups for any
program that may write to them since 5.7."""
NO_LIMIT: Final = "max"
FREE_OF_DELAY: Final = 64
"""Up to an 80th above memory.high nothing waits (10 ms, mm/memcontrol.c), so that a bound on what is used has
to be set this part lower."""
LEAST_BYTES: Final = 8 * MIB
"""No cgroup is bound to less: to start a program takes as much."""

_HIGH: Final = "memory.high"
_CURRENT: Final = "memory.current"
_ABSENT: Final = (errno.ENODATA, errno.ENOTSUP)


class Attributes(Protocol):
    """The attributes of directories."""

    def read(self, directory: str) -> str | None:
        """The mark of a cgroup; None without one."""

    def write(self, directory: str, text: str) -> None:
        """Set the mark."""

    def remove(self, directory: str) -> None:
        """Remove the mark, if there is one."""


class KernelAttributes:
    """The attributes that the file system itself has."""

    def read(self, directory: str) -> str | None:
        """See `Attributes`."""
        try:
            return os.getxattr(directory, MARK).decode("ascii", "replace")
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise refusal(directory, f"{MARK} cannot be read", error) from error

    def write(self, directory: str, text: str) -> None:
        """See `Attributes`."""
        shadow_mode.check_off(directory)
        try:
            os.setxattr(directory, MARK, text.encode("ascii"))
        except OSError as error:
            raise refusal(directory, f"{MARK} cannot be set", error) from error

    def remove(self, directory: str) -> None:
        """See `Attributes`."""
        shadow_mode.check_off(directory)
        try:
            os.removexattr(directory, MARK)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise refusal(directory, f"{MARK} cannot be removed", error) from error


class Mark(NamedTuple):
    """What memory.high was before, and which values of it are ours."""

    before: str
    ours: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Mark":
        """The mark with that *text*; if it is garbled, no value of another program is taken for ours."""
        before, *ours = text.split() or [NO_LIMIT]
        garbled = before != NO_LIMIT and not (before.isascii() and before.isdigit())
        return cls(NO_LIMIT) if garbled else cls(before, tuple(ours[-2:]))

    def __str__(self) -> str:
        return " ".join((self.before, *self.ours))


def used_bytes(directory: str) -> int:
    """All memory of a cgroup, page cache and the kernel's part included; what memory.high is held against.

    Raises:
        AbsentError: it is gone.
    """
    return parse_file(f"{directory}/{_CURRENT}", parse_number)


class Brake:
    """memory.high of the cgroup *directory*, held by us from the first `bind` until `release`. ``most_bytes``
    is what it may use, ``bound_bytes`` the value that was written for it; 0 before the first time."""

    def __init__(self, directory: str, attributes: Attributes) -> None:
        self.directory = directory
        self.most_bytes = self.bound_bytes = 0
        self._attributes = attributes
        self._mark: Mark | None = None

    def bind(self, most_bytes: int) -> bool:
        """Let the container use *most_bytes* in all, or as little more as the kernel lets it. False if
        another program has set memory.high to less than that meanwhile: then that value stays, and is not
        ours any more.

        Raises:
            AbsentError: the cgroup is gone.
            RefusedError: the kernel refused.
        """
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        bound_bytes = max(LEAST_BYTES, most_bytes) * (FREE_OF_DELAY - 1) // FREE_OF_DELAY
        self.bound_bytes = bound_bytes // page_bytes * page_bytes
        value = str(self.bound_bytes)
        found = read_text(f"{self.directory}/{_HIGH}").strip()
        mark = self._mark or _mark_of(self.directory, self._attributes)
        if mark is None or found not in mark.ours:
            mark = Mark(found)
        if mark.before != NO_LIMIT and int(mark.before) <= int(value):
            self.release()
            return False
        if value == found:
            self._mark = mark
        else:
            mark = Mark(mark.before, (*mark.ours[-1:], value))
            self._attributes.write(self.directory, str(mark))
            self._mark = mark
            write_text(f"{self.directory}/{_HIGH}", value)
        self.most_bytes = max(LEAST_BYTES, most_bytes)
        return True

    def release(self) -> None:
        """Give back what was there before, unless somebody else has set another value since; nothing where
        the cgroup is gone.

        Raises:
            RefusedError: the kernel refused.
        """
        if self._mark is not None:
            _give_back(self.directory, self._mark, self._attributes)
            self._mark, self.most_bytes, self.bound_bytes = None, 0, 0


def left_slowed_down(root: str, attributes: Attributes) -> list[str]:
    """The directories of all cgroups below *root* that an earlier process has left slowed down.

    Raises:
        RefusedError: the kernel refused.
    """
    return [one for one in _directories(root) if _mark_of(one, attributes) is not None]


def give_back(directory: str, attributes: Attributes) -> None:
    """Give back memory.high of a cgroup that an earlier process has left slowed down, unless somebody else
    has set another value since; nothing where it is gone, or is not one.

    Raises:
        RefusedError: the kernel refused.
    """
    mark = _mark_of(directory, attributes)
    if mark is not None:
        _give_back(directory, mark, attributes)


def release_all(root: str, attributes: Attributes) -> list[str]:
    """Give back memory.high of every cgroup below *root* that an earlier process has left slowed down; their
    paths below *root*.

    Raises:
        RefusedError: the kernel refused.
    """
    found = left_slowed_down(root, attributes)
    for directory in found:
        give_back(directory, attributes)
    return [directory.removeprefix(root) for directory in found]


def _mark_of(directory: str, attributes: Attributes) -> Mark | None:
    """What was noted when the cgroup was slowed down; None if it was not, or is gone."""
    try:
        text = attributes.read(directory)
    except AbsentError:
        return None
    return None if text is None else Mark.parse(text)


def _give_back(directory: str, mark: Mark, attributes: Attributes) -> None:
    try:
        if read_text(f"{directory}/{_HIGH}").strip() in mark.ours:
            write_text(f"{directory}/{_HIGH}", mark.before)
        attributes.remove(directory)
    except AbsentError:
        return


def _directories(root: str) -> Iterator[str]:
    waiting = [root]
    while waiting:
        directory = waiting.pop()
        yield directory
        try:
            with os.scandir(directory) as entries:
                waiting += [one.path for one in entries if one.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RefusedError(directory, "cannot be listed", error.errno or errno.EIO) from error
