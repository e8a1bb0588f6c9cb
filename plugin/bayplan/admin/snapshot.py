"""The daemon's state at one moment, as the value that the admin socket shows, and how it is made."""

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import asdict

from bayplan.control.controller import Controller
from bayplan.control.verify import Drift
from bayplan.errors import BayplanError
from bayplan.host import proc
from bayplan.model.decision import Outcome
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.foreign_cpusets import pin_sentences
from bayplan.placement.page_placement import LivePages

logger = logging.getLogger(__name__)


class RuntimeState(Struct, frozen=True):
    """The connected container runtime; ``capabilities`` are those of `bayplan.nri.versions`, by name."""

    name: str
    version: str
    nri_version: str
    capabilities: Mapping[str, bool] = field(default_factory=dict)


class Unmanaged(Struct, frozen=True):
    """A container that the runtime created without asking us."""

    container_id: str
    name: str


class Drifted(Struct, frozen=True):
    """A container whose cgroup is not as decided; ``difference`` is for people."""

    container_id: str
    name: str
    difference: str


class MemoryReservation(Struct, frozen=True):
    """The sources of a node's memory reservation: the settings, and the memory that others than containers
    were found to hold, when (microseconds since the epoch); None where nothing was measured. ``margin_bytes``
    is by how much the reservation may rise next, 0 where it does not depend on measurements."""

    configured_bytes: int = 0
    held_bytes: int | None = None
    measured_us: int | None = None
    margin_bytes: int = 0


class Snapshot(Struct, frozen=True):
    """Everything that the views show, at one moment. Times are microseconds since the epoch.

    ``runtime`` is None while no runtime is connected. ``oom_score_adj`` maps container ids to the value that
    was set by us or carried by the spec, ``kernel_oom_score_adj`` to what the first process has, as far as
    there is one. ``problems`` are conditions that last, each a sentence. ``live`` is what was seen last of
    the nodes' memory, None where it is not watched.
    """

    taken_us: int
    started_us: int
    machine: Machine
    policy: PlacementPolicy
    ledger: Ledger
    engine: str = ""
    runtime: RuntimeState | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    unmanaged: tuple[Unmanaged, ...] = ()
    drift: tuple[Drifted, ...] = ()
    oom_score_adj: Mapping[str, int] = field(default_factory=dict)
    kernel_oom_score_adj: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    reservations: Mapping[int, MemoryReservation] = field(default_factory=dict)
    live: LivePages | None = None


def snapshot_of(
    controller: Controller,
    started_us: int,
    drift: tuple[Drift, ...],
    notices: tuple[str, ...] = (),
    reservations: Mapping[int, MemoryReservation] = MappingProxyType({}),
    kernel_oom_score_adj: Mapping[str, int] = MappingProxyType({}),
    live: LivePages | None = None,
) -> Snapshot:
    """Everything at this moment, with *notices* of settings and hardware. Cheap: the ledger is immutable, and
    so is not copied. *kernel_oom_score_adj* are the values of the containers' first processes,
    *live* is what was seen last of the nodes' memory."""
    known, runtime = controller.known, controller.runtime
    return Snapshot(
        taken_us=time.time_ns() // 1000,
        started_us=started_us,
        machine=controller.machine,
        policy=controller.policy,
        ledger=controller.ledger,
        engine=controller.engine.name,
        runtime=None
        if runtime is None
        else RuntimeState(
            runtime.name, runtime.version, str(runtime.nri_version), asdict(runtime.capabilities)
        ),
        counters=dict(controller.counters),
        unmanaged=tuple(Unmanaged(key, name) for key, name in sorted(known.unmanaged.items())),
        drift=tuple(Drifted(one.expectation.container.id, one.expectation.name, str(one)) for one in drift),
        oom_score_adj=dict(known.oom_score_adj),
        kernel_oom_score_adj=kernel_oom_score_adj,
        problems=tuple(_problems(controller, notices)),
        reservations=reservations,
        live=live,
    )


def kernel_oom_score_adj(controller: Controller, root: Path) -> dict[str, int]:
    """The oom_score_adj that the kernel has for the first process of each container, as far as that is known
    and still there. Two small files each."""
    found = {}
    for container in controller.known.containers.values():
        try:
            value = (
                proc.oom_score_adj_within(container.pid, container.id, root) if container.pid > 1 else None
            )
        except BayplanError as error:
            logger.debug("unknown oom_score_adj", extra={"container": container.id, "problem": str(error)})
            continue
        if value is not None:
            found[container.id] = value
    return found


def _problems(controller: Controller, notices: tuple[str, ...]) -> Iterator[str]:
    if controller.recorder.problem is not None:
        yield controller.recorder.problem
    yield from notices
    decisions = [entry.decision for entry in controller.ledger.entries.values()]
    decided = [one.request for one in decisions if one.outcome is not Outcome.ADOPTED]
    yield from pin_sentences(decided, controller.decision_log.pins.configured)
