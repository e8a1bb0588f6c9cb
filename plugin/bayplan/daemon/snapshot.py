"""The daemon's state as the value that the admin socket shows."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from types import MappingProxyType

from bayplan.daemon.controller import Controller
from bayplan.daemon.verify import Drift
from bayplan.domain.decision import Outcome
from bayplan.domain.pins import sentences
from bayplan.service.views import Drifted, MemoryReservation, RuntimeState, Snapshot, Unmanaged


def snapshot_of(
    controller: Controller,
    started_us: int,
    drift: tuple[Drift, ...],
    notices: tuple[str, ...] = (),
    reservations: Mapping[int, MemoryReservation] = MappingProxyType({}),
) -> Snapshot:
    """Everything at this moment, with *notices* of settings and hardware. Cheap: the ledger is immutable, and
    so is not copied."""
    residents, runtime = controller.residents, controller.runtime
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
        unmanaged=tuple(Unmanaged(key, name) for key, name in sorted(residents.found.items())),
        drift=tuple(Drifted(one.expectation.container.id, one.expectation.name, str(one)) for one in drift),
        oom_score_adj=dict(residents.oom_score_adj),
        problems=tuple(_problems(controller, notices)),
        reservations=reservations,
    )


def _problems(controller: Controller, notices: tuple[str, ...]) -> Iterator[str]:
    if controller.recorder.problem is not None:
        yield controller.recorder.problem
    yield from notices
    decisions = [entry.decision for entry in controller.ledger.entries.values()]
    decided = [one.request for one in decisions if one.outcome is not Outcome.ADOPTED]
    yield from sentences(decided, controller.journal.pins.configured)
