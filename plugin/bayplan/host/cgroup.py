"""The files of a cgroup as typed attributes, for cgroup v2 and v1. Which cgroup: `bayplan.host.container`.

The only importer of cgroupspy, whose descriptors make files into attributes. It is a cgroup v1 library:
its flags, process lists, and the writing of numbers and lists are right on v2 too and are used here. Limits
that may be ``max`` and statistics by node are fields of our own, and every read goes through a directory
descriptor and names the file and its text where that text cannot be.
"""

import errno
import os
from typing import Final, Generic, Self, TypeVar, overload

from cgroupspy.controllers import Controller
from cgroupspy.interfaces import (
    BaseFileInterface,
    CommaDashSetFile,
    FlagFile,
    IntegerFile,
    MultiLineIntegerFile,
)

from bayplan.host.kernelfs import AbsentError, Directory, RefusedError, garbage, parse_file, parse_number
from bayplan.sets import CpuSet, IdSet, NodeSet

T = TypeVar("T")

_MAX: Final = "max"
_LEGACY_UNLIMITED: Final = (1 << 63) - (1 << 16)
"""cgroup v1 shows "no limit" as 2^63-1 rounded down to a page, of at most 64 KiB."""

_ATTEMPTS: Final = 3
"""Somebody may make a cgroup below, with all that its parent has, between a look and a write."""


class Field(BaseFileInterface, Generic[T]):  # type: ignore[misc]  # the library's classes have no types
    """A file as an attribute of `CgroupFiles`, read and written as a T.

    Reading raises AbsentError (no such file), RefusedError, or HostError with the text found; writing
    raises AbsentError or RefusedError.
    """

    expected = ""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: "CgroupFiles", owner: type | None = None) -> T: ...
    def __get__(self, instance: "CgroupFiles | None", owner: type | None = None) -> "T | Self":
        if instance is None:
            return self
        return self.parse(instance.get_property(self.filename), instance.directory.path)

    def __set__(self, instance: "CgroupFiles", value: T) -> None:
        super().__set__(instance, value)

    def parse(self, text: str, below: str) -> T:
        """The value that *text* stands for; where it stands for none, a HostError that names this file
        in the directory *below*."""
        try:
            value: T = self.sanitize_get(text)
        except ValueError as error:
            raise garbage(f"{below}/{os.fsdecode(self.filename)}", text, self.expected) from error
        return value


class FlagField(Field[bool], FlagFile):  # type: ignore[misc]  # the library's classes have no types
    """A flag: 0 or 1."""

    expected = "0 or 1"


class PidsField(Field[list[int]], MultiLineIntegerFile):  # type: ignore[misc]  # the library's classes have no types
    """One process id per line."""

    expected = "one process id per line"
    readonly = True


class BytesField(Field[int], IntegerFile):  # type: ignore[misc]  # the library's classes have no types
    """A number that is never a limit: cgroupspy would read -1 as None."""

    expected = "a number of 0 or more"
    sanitize_get = staticmethod(parse_number)


class TextField(Field[str]):
    """A text of words."""

    expected = "text"

    def sanitize_get(self, value: str) -> str:
        """Leave it as it is."""
        return value


class CpusField(Field[CpuSet], CommaDashSetFile):  # type: ignore[misc]  # the library's classes have no types
    """A list of CPUs. Parsed as a bitmask: cgroupspy unrolls 0-1023 into a thousand objects."""

    expected = "a list of CPUs such as 0-3,8"
    sanitize_get = staticmethod(CpuSet.parse)


class MemsField(Field[NodeSet], CommaDashSetFile):  # type: ignore[misc]  # the library's classes have no types
    """A list of NUMA nodes."""

    expected = "a list of NUMA nodes such as 0-3,8"
    sanitize_get = staticmethod(NodeSet.parse)


class LegacyCpusField(CpusField):
    """CPUs of a cpuset of cgroup v1, written with those of the cpusets below it."""

    def __set__(self, instance: "CgroupFiles", value: CpuSet) -> None:
        write_with_descendants(instance.directory, self.filename, value)


class LegacyMemsField(MemsField):
    """NUMA nodes of a cpuset of cgroup v1, written with those of the cpusets below it."""

    def __set__(self, instance: "CgroupFiles", value: NodeSet) -> None:
        write_with_descendants(instance.directory, self.filename, value)


class LimitField(Field[int | None]):
    """A number of bytes, or None for ``max``."""

    expected = "a number of bytes, or max"

    def sanitize_get(self, value: str) -> int | None:
        """Read ``max`` or a number."""
        return None if value == _MAX else parse_number(value)

    def sanitize_set(self, value: int | None) -> str:
        """Write ``max`` or a number."""
        return _MAX if value is None else str(value)


class LegacyLimitField(Field[int | None], IntegerFile):  # type: ignore[misc]  # the library's classes have no types
    """A number of bytes, or None for no limit: huge when read, -1 when written (as cgroupspy has it)."""

    expected = "a number of bytes"

    def sanitize_get(self, value: str) -> int | None:
        """Read a number; the largest ones mean that there is no limit."""
        limit_bytes = parse_number(value)
        return None if limit_bytes >= _LEGACY_UNLIMITED else limit_bytes


class CgroupFiles(Controller):  # type: ignore[misc]  # the library's classes have no types
    """cgroupspy's controller, whose files are read through an open directory instead of by path."""

    procs = PidsField("cgroup.procs")

    def __init__(self, directory: Directory) -> None:
        super().__init__(directory)
        self.directory = directory

    def get_property(self, filename: bytes) -> str:
        """The text of a file, for cgroupspy's descriptors."""
        return self.directory.read(filename)

    def set_property(self, filename: bytes, value: object) -> None:
        """Write a file, for cgroupspy's descriptors."""
        self.directory.write(filename, str(value))

    def has(self, field: "Field[T]") -> bool:
        """Whether the kernel has this file here."""
        try:
            self.directory.read(field.filename)
        except AbsentError:
            return False
        return True


class UnifiedFiles(CgroupFiles):
    """A cgroup of cgroup v2, with the controllers cpuset and memory."""

    cpus = CpusField("cpuset.cpus")
    mems = MemsField("cpuset.mems")
    cpus_effective = CpusField("cpuset.cpus.effective", readonly=True)
    mems_effective = MemsField("cpuset.mems.effective", readonly=True)
    memory_max = LimitField("memory.max")
    memory_high = LimitField("memory.high")
    memory_low = LimitField("memory.low")
    memory_min = LimitField("memory.min")
    memory_current = BytesField("memory.current", readonly=True)
    memory_oom_group = FlagField("memory.oom.group")
    partition = TextField("cpuset.cpus.partition", readonly=True)


class LegacyCpusetFiles(CgroupFiles):
    """A cgroup of cgroup v1's cpuset hierarchy."""

    cpus = LegacyCpusField("cpuset.cpus")
    mems = LegacyMemsField("cpuset.mems")
    cpus_effective = CpusField("cpuset.effective_cpus", readonly=True)
    mems_effective = MemsField("cpuset.effective_mems", readonly=True)


class LegacyMemoryFiles(CgroupFiles):
    """A cgroup of cgroup v1's memory hierarchy; ``memory_and_swap_max`` is there with swap accounting."""

    memory_max = LegacyLimitField("memory.limit_in_bytes")
    memory_and_swap_max = LegacyLimitField("memory.memsw.limit_in_bytes")
    memory_current = BytesField("memory.usage_in_bytes", readonly=True)


def write_with_descendants(top: Directory, name: bytes, wanted: IdSet) -> None:
    """Make *wanted*, which is not empty, the ids in the file *name* (cpuset.cpus or cpuset.mems) of *top*, a
    cpuset of cgroup v1, with the cpusets below it, such as those of containers within a container.

    cgroup v1 keeps every cpuset within its parent's by refusing what would break that (the kernel's
    kernel/cgroup/cpuset-v1.c, cpuset1_validate_change()): a cpuset cannot lose a CPU that one below it still
    has (EBUSY), and cannot get one that its parent does not have (EACCES). On cgroup v2 those below follow by
    themselves. So what comes is written from the top downwards, and then what goes from the bottom upwards.

    A cpuset below that had all that its parent had goes on so; runtimes copy the parent's where nobody asks
    for another. One that had only some keeps what is left of them, or gets all that its parent has where
    nothing is left. What it had before is not known any more when its parent gets more again.

    Raises:
        AbsentError: *top* is gone.
        RefusedError: the kernel refuses it there, or in a cgroup below, whose file is named then.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _change_below(top, name, _read_ids(top, name, type(wanted)), wanted)
        except RefusedError as error:
            if error.errno != errno.EBUSY or attempt == _ATTEMPTS:
                raise
        else:
            return


def _change_below(directory: Directory, name: bytes, before: IdSet, wanted: IdSet) -> None:
    both = before | wanted
    if both != before:
        directory.write(name, str(both))
    for child_name in directory.children():
        try:
            with directory.child(child_name) as child:
                its = _read_ids(child, name, type(wanted))
                # One without any has no processes, and nor has any below it.
                after = wanted if its == before else its & wanted or wanted
                if its and its != after:
                    _change_below(child, name, its, after)
        except AbsentError:
            continue  # removed since it was listed
    if wanted != both:
        directory.write(name, str(wanted))


def _read_ids(directory: Directory, name: bytes, kind: type[IdSet]) -> IdSet:
    return parse_file(directory.path_of(name), kind.parse, directory.read(name))
