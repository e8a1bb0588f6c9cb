"""How a container came: over NRI, by the hook, or with a spec that was rewritten; and what follows from that.

An NRI runtime lists its containers, reports their ends, and applies what is decided about them. About the
other containers no runtime can be asked again: their origins are part of the record, which alone must be
enough to check them, to change them and to notice that they are gone. What differs between the ways is here,
and nowhere else.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, Self

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.model.life import Phase
from bayplan.model.qos import OOM_GROUP
from bayplan.model.workload import Adjustment, Container, Pod

_NOTHING: Final = Adjustment()
_OOM_GROUP_ONLY: Final = Adjustment(unified={OOM_GROUP: "1"})


class Nri(Struct, frozen=True):
    """Over NRI: the runtime describes it whenever it is asked, so that nothing of it is recorded."""

    name: ClassVar[str] = "nri"
    runtime_applies: ClassVar[bool] = True
    """Whether an NRI runtime applies what is decided: with the reply to its creation, and by updates."""
    is_listed: ClassVar[bool] = True
    """Whether a runtime that does not list it when it connects says that it is gone."""
    reports_end_of_pod: ClassVar[bool] = True
    """Whether the end of its pod is reported."""
    changes_spec: ClassVar[bool] = True
    """Whether its spec is read after it was decided about, so that all can be set that a spec has."""
    asks_at_start: ClassVar[bool] = False
    """Whether its start waits until we have answered, so that its cpusets can be made right then."""
    phase: ClassVar[Phase] = Phase.DECIDED
    """The phase right after its decision."""
    phase_when_recorded: ClassVar[Phase] = Phase.RUNNING
    """The phase that is assumed of a container which was recorded a while ago, until the runtime says
    more."""
    had_process: ClassVar[bool] = False
    """Whether it came with a process, or got one since, as far as the record says."""
    recorded: ClassVar[None] = None
    """The origin as its entry has it."""
    applied: ClassVar[Adjustment] = _NOTHING
    """What was set, as far as that is recorded."""
    cgroups: ClassVar[Mapping[str, str]] = {}
    """The paths of its cgroups below the mounts, by controller, as far as they are recorded."""
    start_ticks: ClassVar[int] = 0
    bundle: ClassVar[str] = ""
    engine: ClassVar[str] = ""

    def known(self, container: Container) -> Container:
        """*container* as it is known best: as the runtime describes it."""
        return container

    def with_applied(self, applied: Adjustment) -> "Nri":  # noqa: ARG002 - the runtime keeps it
        """This origin with what was set."""
        return self

    def amounts(self, *, oom_group: bool) -> Adjustment:
        """What bayplan set beside the cpusets, where only bayplan can restore it: memory.oom.group alone, if
        that was set. runc keeps the rest in its record and in the unit, but does not pass this one to
        systemd; it was seen back at 0 after an update."""
        return _OOM_GROUP_ONLY if oom_group else _NOTHING

    def listed_by(self, runtime: str) -> str:
        """The runtime that lists it: *runtime*, the one that is connected."""
        return runtime


class Described(Struct, frozen=True, tag_field="form"):
    """A container that came by hook, precreate or wrapper.

    ``pod`` and ``container`` are as the spec had them before we changed anything, without annotations, labels
    and devices. ``container.pid`` is its first process, 0 until it is known; ``start_ticks`` distinguishes it
    from a later one with its id. ``cgroups`` are the paths below the mounts, by controller; empty until they
    are known. ``applied`` is what was set. ``engine`` is the container engine that calls the OCI runtime
    (``cri-o``, ``libpod``), empty where nothing says so.
    """

    runtime_applies: ClassVar[bool] = False
    is_listed: ClassVar[bool] = False
    reports_end_of_pod: ClassVar[bool] = False
    changes_spec: ClassVar[bool] = True

    pod: Pod
    container: Container
    bundle: str = ""
    cgroups: Mapping[str, str] = field(default_factory=dict)
    start_ticks: int = 0
    applied: Adjustment = field(default_factory=Adjustment)
    engine: str = ""

    @classmethod
    def of(cls, pod: Pod, container: Container, bundle: str = "", engine: str = "") -> Self:
        """The origin of a container that is described by *pod* and *container*."""
        bare = replace(container, annotations={}, labels={}, devices=(), device_mounts=(), cdi_devices=())
        return cls(replace(pod, annotations={}, labels={}), bare, bundle, engine=engine)

    @property
    def recorded(self) -> Self:
        """As of `Nri`."""
        return self

    @property
    def asks_at_start(self) -> bool:
        """As of `Nri`."""
        return False

    @property
    def had_process(self) -> bool:
        """As of `Nri`."""
        return self.container.pid > 0

    @property
    def phase(self) -> Phase:
        """As of `Nri`."""
        return Phase.RUNNING if self.had_process else Phase.REWRITTEN

    @property
    def phase_when_recorded(self) -> Phase:
        """As of `Nri`: nothing more will be reported of it."""
        return self.phase

    def known(self, container: Container) -> Container:  # noqa: ARG002 - the record is all that is known
        """As of `Nri`: as the record has it."""
        return self.container

    def with_applied(self, applied: Adjustment) -> Self:
        """As of `Nri`."""
        return replace(self, applied=applied)

    def amounts(self, *, oom_group: bool) -> Adjustment:  # noqa: ARG002 - it is part of what was set
        """As of `Nri`: all that was set."""
        return self.applied

    def listed_by(self, runtime: str) -> str:  # noqa: ARG002 - nothing of theirs is told to it
        """As of `Nri`: its own engine."""
        return self.engine


class Hook(Described, frozen=True, tag="hook"):
    """Its process and cgroup existed before it was decided about, and nothing had started."""

    name: ClassVar[str] = "hook"
    changes_spec: ClassVar[bool] = False

    @property
    def had_process(self) -> bool:
        """As of `Nri`: it came with one."""
        return True


class Precreate(Described, frozen=True, tag="precreate"):
    """Its spec was rewritten before it existed, as text."""

    name: ClassVar[str] = "precreate"


class Wrapper(Described, frozen=True, tag="wrapper"):
    """Its spec was rewritten in its bundle before it existed."""

    name: ClassVar[str] = "wrapper"

    @property
    def asks_at_start(self) -> bool:
        """As of `Nri`: until it has a process."""
        return not self.container.pid


WithoutNri = Hook | Precreate | Wrapper
Origin = Nri | WithoutNri

NRI: Final = Nri()
