"""Where a container comes from that no NRI session announced, and what was set for it.

Part of its entry in the ledger: the daemon cannot ask a runtime for such a container again, so the record
alone must be enough to check it, to change it and to notice that it is gone.
"""

import enum
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.model.workload import Adjustment, Container, Pod


class Form(enum.Enum):
    """How a container came: its process was placed before its start (HOOK), or its spec was rewritten before
    it existed, as text (PRECREATE) or in its bundle (WRAPPER)."""

    HOOK = "hook"
    PRECREATE = "precreate"
    WRAPPER = "wrapper"


class Origin(Struct, frozen=True):
    """The way on which a container came.

    ``pod`` and ``container`` are as the spec had them before we changed anything, without annotations,
    labels and devices. ``container.pid`` is its first process, 0 until it is known; ``start_ticks``
    distinguishes it from a later one with its id. ``cgroups`` are the paths below the mounts, by
    controller; empty until they are known. ``applied`` is what was set. ``engine`` is the container engine
    that calls the OCI runtime (``cri-o``, ``libpod``), empty where nothing says so.
    """

    form: Form
    pod: Pod
    container: Container
    bundle: str = ""
    cgroups: Mapping[str, str] = field(default_factory=dict)
    start_ticks: int = 0
    applied: Adjustment = field(default_factory=Adjustment)
    engine: str = ""

    @classmethod
    def of(cls, form: Form, pod: Pod, container: Container, bundle: str = "", engine: str = "") -> "Origin":
        """The origin of a container that is described by *pod* and *container*."""
        bare = replace(container, annotations={}, labels={}, devices=(), device_mounts=(), cdi_devices=())
        return cls(form, replace(pod, annotations={}, labels={}), bare, bundle, engine=engine)
