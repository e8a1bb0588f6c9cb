"""Which NRI a container runtime speaks, and what can be asked of it.

Pure: a table, the evidence in the runtime's Configure request, and what follows from both. The table gives
a lower bound; evidence can raise it, and evidence that should be there and is not lowers it. What is not
known is never assumed.

Its events are numbered as on the wire. A subscription is a mask with one bit per event.
"""

import enum
import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from bayplan.printable import pattern


class Event(enum.IntEnum):
    """What happens to pods and containers. The value is NRI's own number.

    SYNCHRONIZE has no number in NRI: it stands for the request of that name where an event is asked for.
    """

    SYNCHRONIZE = 0
    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14

    @property
    def bit(self) -> int:
        """The event's place in a subscription mask; 0 for SYNCHRONIZE, which always comes."""
        return 1 << self.value >> 1


def mask_of(events: Iterable[Event]) -> int:
    """The subscription mask of *events*. Zero would subscribe to everything that the runtime knows."""
    mask = 0
    for event in events:
        mask |= event.bit
    return mask


def events_of(mask: int) -> frozenset[Event]:
    """The events in a subscription *mask*; bits without an event are left out."""
    return frozenset(event for event in Event if mask & event.bit)


SPOKEN: Final = "v0.12.5"
"""The NRI that our messages follow, in the form in which Go modules say it. Runtimes log it."""

RELEASE: Final = 1
_PRE_RELEASE: Final = 0


class Version(Struct, frozen=True, order=True):
    """A version of a runtime or of NRI. ``stage`` is RELEASE, or less for something that came before it."""

    major: int
    minor: int
    patch: int
    stage: int = RELEASE

    @classmethod
    def parse(cls, text: str) -> "Version | None":
        """Read a version as runtimes print it; None if *text* does not say one.

        Only alpha, beta and rc, and the pseudo-versions of Go modules
        (``0.9.1-0.20250219030224-e597e7849f24``), come before the release they are named after. All other
        suffixes are builds of it (``-k3s1``, ``~ds1``, ``+azure-2``, ``-12-gabcdef.m``), which semantic
        versioning would sort the other way.
        """
        match = _VERSION.match(text.strip())
        if match is None:
            return None
        stage = _PRE_RELEASE if _BEFORE_RELEASE.match(match[4]) else RELEASE
        return cls(int(match[1]), int(match[2]), int(match[3] or 0), stage)

    def __str__(self) -> str:
        suffix = "" if self.stage == RELEASE else "-pre"
        return f"{self.major}.{self.minor}.{self.patch}{suffix}"


_VERSION: Final = pattern(r"v?([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?(.*)", re.DOTALL)
_BEFORE_RELEASE: Final = pattern(r"[-.~+]?(?:alpha|beta|rc|0\.[0-9]{14}-[0-9a-f]{12})")

TABLE: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "containerd": (
        ("1.7.0", "0.3.0"),
        ("1.7.7", "0.4.0"),
        ("1.7.14", "0.6.0"),
        ("1.7.16", "0.6.1"),
        ("1.7.26", "0.8.0"),
        ("2.0.0", "0.8.0"),
        ("2.1.0", "0.8.0"),
        ("2.2.0", "0.10.0"),
        ("2.2.1", "0.11.0"),
        ("2.3.0", "0.12.0"),
        ("2.4.0-beta.0", "0.12.1"),
        ("2.4.0", "0.12.3"),
    ),
    "cri-o": (
        ("1.26.0", "0.2.0"),
        ("1.26.2", "0.3.0"),
        ("1.26.4", "0.3.1-0.20230504231226-94185418e253"),
        ("1.27.0", "0.3.0"),
        ("1.27.1", "0.3.1-0.20230504231226-94185418e253"),
        ("1.28.0", "0.3.1-0.20230504231226-94185418e253"),
        ("1.29.0", "0.5.0"),
        ("1.29.2", "0.6.0"),
        ("1.30.0", "0.6.0"),
        ("1.31.0", "0.6.1"),
        ("1.32.0", "0.9.0"),
        ("1.33.0", "0.9.1-0.20250219030224-e597e7849f24"),
        ("1.34.0", "0.10.0"),
        ("1.35.0", "0.11.0"),
    ),
}
"""For each runtime, rising: the first version that has that NRI. From the go.mod of every tag."""


def rows(runtime_name: str) -> Iterator[tuple[Version, Version]]:
    """What `TABLE` has of a runtime; nothing of an unknown one."""
    for row in TABLE.get(runtime_name.lower(), ()):
        first, nri = map(Version.parse, row)
        assert first is not None
        assert nri is not None
        yield first, nri


OLDEST: Final = Version(0, 2, 0)
"""The first NRI with this protocol: what a runtime speaks of which nothing is known."""

_TELLS_TIMEOUTS: Final = Version(0, 7, 0)
_TELLS_VERSION: Final = Version(0, 12, 0)
_LAST_WITHOUT_TIMEOUTS: Final = Version(0, 6, 1)
_LAST_WITHOUT_VERSION: Final = Version(0, 11, 0)
_MORE_EVENTS: Final = Version(0, 10, 0)


class Capabilities(Struct, frozen=True):
    """What a runtime can do.

    ``oom_score_adj``: it can be adjusted at creation; older runtimes drop it silently.
    ``synchronize_chunks``: a list of containers over 4 MiB comes in several messages.
    ``unified_input``: the cgroup v2 values of a spec are shown to us. Setting them works everywhere.
    ``dedicated_rpcs``: one call per event instead of StateChange.
    ``memory_policy``: it can be adjusted at creation, if the OCI runtime below has it too.
    ``safe_update_containers``: updates outside of a reply don't deadlock the runtime.
    ``failure_policy``: it fails a request that is not answered, if the plugin asks for that.
    """

    oom_score_adj: bool
    synchronize_chunks: bool
    unified_input: bool
    dedicated_rpcs: bool
    memory_policy: bool
    safe_update_containers: bool
    failure_policy: bool

    @classmethod
    def of(cls, nri: Version) -> "Capabilities":
        """What runtimes with this version of NRI can do."""
        return cls(
            oom_score_adj=nri >= Version(0, 7, 0),
            synchronize_chunks=nri >= Version(0, 7, 0),
            unified_input=nri >= Version(0, 10, 0),
            dedicated_rpcs=nri >= Version(0, 12, 0),
            memory_policy=nri >= Version(0, 12, 0),
            safe_update_containers=nri >= Version(0, 12, 1),
            failure_policy=nri >= Version(0, 12, 4),
        )


class Runtime(Struct, frozen=True):
    """The runtime at the other end. ``version`` is its own text; ``nri_version`` is at least what it speaks.

    ``config`` is the text of our drop-in file, which only a runtime that launched us passes on. The timeouts
    are 0 when the runtime does not tell them.
    """

    name: str
    version: str
    nri_version: str
    capabilities: Capabilities
    known_events: frozenset[Event]
    config: str = ""
    registration_timeout_ms: int = 0
    request_timeout_ms: int = 0

    def mask(self, events: frozenset[Event]) -> int:
        """The subscription to those of *events* that this runtime knows; never zero, never as a validator.

        A bit that a runtime does not know makes it close the connection. A validator that does not answer
        stops all containers of the node from being created.
        """
        wanted = (events & self.known_events) - {Event.VALIDATE_CONTAINER_ADJUSTMENT}
        return mask_of(wanted) or Event.REMOVE_CONTAINER.bit


def infer_nri_version(
    runtime_name: str, runtime_version: str, *, tells_timeouts: bool, told_version: str
) -> Version:
    """The highest version of NRI that the runtime is known to have.

    *tells_timeouts*: its Configure request has timeouts, as all have since 0.7. *told_version*: what it says
    of itself, as all do since 0.12; a build from a source tree says "(devel)" or "0.0.0-unknown".
    """
    told = Version.parse(told_version)
    if told is not None and (told.major, told.minor) != (0, 0):
        return told
    listed = _listed(runtime_name, runtime_version)
    if told_version:
        return max(listed, _TELLS_VERSION)
    if tells_timeouts:
        return max(_TELLS_TIMEOUTS, min(listed, _LAST_WITHOUT_VERSION))
    return min(listed, _LAST_WITHOUT_TIMEOUTS)


def known_events(nri: Version) -> frozenset[Event]:
    """The events to which a plugin may subscribe."""
    last = Event.VALIDATE_CONTAINER_ADJUSTMENT if nri >= _MORE_EVENTS else Event.REMOVE_CONTAINER
    return frozenset(event for event in Event if Event.SYNCHRONIZE < event <= last)


def _listed(runtime_name: str, runtime_version: str) -> Version:
    version = Version.parse(runtime_version)
    best = OLDEST
    if version is not None:
        for first, nri in rows(runtime_name):
            if first <= version:
                best = nri
    return best
