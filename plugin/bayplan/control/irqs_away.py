"""The owner of the interrupts' affinity: away from the CPUs of containers that ask for it, by the ledger.

20 ms after a change of the ledger, several changes together, and every ten seconds, because interrupts come
with devices and irqbalance moves them. Invariant: at rest no interrupt that can be moved is on such a CPU,
and where nobody asks, every file is as others chose, and none is read.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from bayplan.control.threads import InThread
from bayplan.errors import HostError
from bayplan.host.irq_affinity import IrqAffinity, Staying
from bayplan.model.basis import Basis
from bayplan.model.ledger import Ledger
from bayplan.model.machine import union
from bayplan.model.sentences import irqs_stay
from bayplan.sets import CpuSet

logger = logging.getLogger(__name__)

LOOK_S: Final = 10.0
"""Between two looks, where nothing changes."""


class IrqsAway:
    """Keeps them away. ``staying`` are those that the kernel does not move."""

    def __init__(self, affinity: IrqAffinity, in_thread: InThread, basis: Callable[[], Basis]) -> None:
        self.staying: tuple[Staying, ...] = ()
        self.problem = ""
        """Why nothing could be changed, "" where it could."""
        self._affinity = affinity
        self._do = in_thread
        self._basis = basis

    def sentences(self) -> list[str]:
        """What is not as it should be, for people."""
        by_problem: dict[str, list[Staying]] = {}
        for one in self.staying:
            by_problem.setdefault(one.problem, []).append(one)
        stay = [
            irqs_stay(union(one.cpus for one in found), [one.irq for one in found], problem)
            for problem, found in by_problem.items()
        ]
        return [*stay, self.problem] if self.problem else stay

    async def update(self) -> None:
        """Have them as the ledger says now."""
        basis = self._basis()
        cpus = _wanted(basis.ledger)
        if cpus or self._affinity.is_changed:
            await self._do(partial(self._update, cpus, basis.machine.online_cpus))

    def _update(self, cpus: CpuSet, online: CpuSet) -> None:
        try:
            staying, problem = self._affinity.keep_away(cpus, online), ""
        except HostError as error:
            staying, problem = self.staying, str(error)
        changed = (staying, problem) != (self.staying, self.problem)
        self.staying, self.problem = staying, problem
        if changed and self.sentences():
            logger.warning("interrupts stay", extra={"problems": self.sentences()})


def _wanted(ledger: Ledger) -> CpuSet:
    """The CPUs that are to be without interrupts."""
    decisions = (ledger.entries[key].decision for key in ledger.followed_ids)
    return union(one.placement.exclusive_cpus for one in decisions if one.request.irqs_away)
