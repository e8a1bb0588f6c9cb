"""Files of the kernel that are set to another value for a while, and then to what they were.

Invariant: what a file was before it was first changed is on the disk before it is changed, so that a later
process, however this one ended, can set it to that again. If another program writes such a file meanwhile,
its value counts as what the file was from then on. A boot ends all that was set before it.

Each file has one word: a number, a list of ids, a mask, or a state of which the first word counts (``isolated
invalid (...)`` of cpuset.cpus.partition).
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from bayplan.errors import HostError
from bayplan.host.kernelfs import AbsentError, read_optional, read_text, refusal, write_text

logger = logging.getLogger(__name__)

_BOOT: Final = "proc/sys/kernel/random/boot_id"

Value = Callable[[str], str]
"""Gives what a file is to have, from what others chose for it; if it returns that, the file is left to
them."""


class FileChange(Struct, frozen=True, array_like=True):
    """What a file was, what it has instead, and what we had set before that: if the process is killed between
    record and file, the file still has the latter."""

    before: str
    ours: str
    earlier: str


class _Record(Struct):
    boot: str
    files: dict[str, FileChange] = field(default_factory=dict)


class ChangedFiles:
    """The files that one record in the state directory is about. ``root`` is where /proc and /sys are. All
    calls block, and come from one thread at a time."""

    def __init__(self, record: Path | None, root: Path = Path("/")) -> None:
        """Without a *record* nothing is ever changed."""
        self._path = record
        self._boot = (read_optional(str(root / _BOOT)) or "").strip()
        self._changes: dict[str, FileChange] | None = None

    @property
    def changes(self) -> dict[str, FileChange]:
        """What is recorded, by path, in the order in which it was first changed."""
        if self._changes is None:
            self._changes = self._read()
        return self._changes

    def set(self, values: Mapping[str, Value]) -> dict[str, HostError]:
        """Have the files be so, one after the other; why some are not, by path. Those that are not there are
        passed over, and forgotten.

        Raises:
            HostError: what they were cannot be recorded; nothing is changed.
        """
        now: dict[str, str] = {}
        wanted: dict[str, FileChange] = {}
        problems: dict[str, HostError] = {}
        for path, value in values.items():
            try:
                now[path] = _word(read_text(path))
                wanted[path] = self._wanted(path, now[path], value)
            except AbsentError:
                continue
            except HostError as error:
                problems[path] = error
        ours = {path: one for path, one in wanted.items() if one.before != one.ours}
        self._save({**self.changes, **ours})
        for path, one in wanted.items():
            if now[path] == one.ours:
                continue
            try:
                write_text(path, one.ours or "\n")
            except AbsentError:
                continue
            except HostError as error:
                problems[path] = error
        self._forget(values.keys() - ours.keys() - problems.keys())
        return problems

    def restore(self, paths: Iterable[str] | None = None) -> dict[str, HostError]:
        """Have those files be what they were, all if none are named, the last one that was changed first; why
        some are not, by path."""
        chosen = set(self.changes if paths is None else paths)
        return self.set({path: _same for path in reversed(self.changes) if path in chosen})

    @property
    def to_restore(self) -> dict[str, str]:
        """What `restore` would write, by path."""
        found = {}
        for path, one in reversed(self.changes.items()):
            text = read_optional(path)
            if text is not None and _word(text) in (one.ours, one.earlier) and _word(text) != one.before:
                found[path] = one.before
        return found

    def _wanted(self, path: str, now: str, value: Value) -> FileChange:
        known = self.changes.get(path)
        if known is None or now not in (known.ours, known.earlier):
            return FileChange(now, value(now), now)
        ours = value(known.before)
        return known if ours == known.ours else FileChange(known.before, ours, now)

    def _forget(self, paths: Collection[str]) -> None:
        left = {path: one for path, one in self.changes.items() if path not in paths}
        try:
            self._save(left)
        except HostError:
            # What is too much in the record is not what the files have, and counts for nothing.
            self._changes = left

    def _read(self) -> dict[str, FileChange]:
        try:
            text = None if self._path is None else read_optional(str(self._path))
            record = _Record(self._boot) if text is None else msgspec.json.decode(text, type=_Record)
        except (msgspec.MsgspecError, ValueError, RecursionError, HostError) as error:
            extra = {"file": str(self._path), "problem": str(error)}
            logger.warning("unreadable, so what it is about is left as it is", extra=extra)
            return {}
        return record.files if record.boot == self._boot else {}

    def _save(self, changes: dict[str, FileChange]) -> None:
        """Make *changes* the recorded ones. Whoever removed the record gets it again."""
        if changes == self.changes and (not changes or self._path is None or self._path.exists()):
            return
        if self._path is None:
            raise HostError(
                next(iter(changes)), "is not changed: there is no state directory to record it in"
            )
        unfinished = self._path.with_suffix(".new")
        try:
            if not changes:
                self._path.unlink(missing_ok=True)
            else:
                with unfinished.open("wb") as file:
                    file.write(msgspec.json.encode(_Record(self._boot, changes)))
                    file.flush()
                    os.fsync(file.fileno())
                unfinished.replace(self._path)
        except OSError as error:
            raise refusal(str(self._path), "cannot be written", error) from error
        self._changes = changes


def _word(text: str) -> str:
    return next(iter(text.split(maxsplit=1)), "")


def _same(before: str) -> str:
    return before
