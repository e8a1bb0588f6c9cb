"""The resource claims that the node holds: booked before kubelet hears of it, and told to containers by CDI
specs.

Order of a preparation: decide, record, write the spec, answer. Whoever is killed in between leaves a booking
that the next preparation of the same claim finds, and a start writes the specs that the ledger says: they
are on a tmpfs, which a reboot empties, while the record stays. So ledger and specs agree whenever nobody is
at work. Where the record is lost and not the specs, these say what claims hold: kubelet, which has them
prepared, does not ask again before it is restarted.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from bayplan.control.placements import Placements
from bayplan.control.state import Current, NodeState, Transaction
from bayplan.control.threads import InThread
from bayplan.engines.interface import Engine
from bayplan.errors import BayplanError, HostError, UnavailableError
from bayplan.host import shadow_mode
from bayplan.host.devices import ClaimSpecs
from bayplan.host.hierarchy import kubepods_path, pod_path
from bayplan.host.kernelfs import AbsentError
from bayplan.model.basis import Basis
from bayplan.model.claims import HeldClaim, ResourceClaim, claim_key
from bayplan.model.decision import Decision, Outcome
from bayplan.model.ledger import Entry, Ledger
from bayplan.placement.hugepage_pools import lacks_pages
from bayplan.placement.resource_claims import (
    all_hugepages,
    decide_claim,
    is_void,
    pod_hugepages,
    users_of,
)

logger = logging.getLogger(__name__)

SWEEP_S: Final = 30.0
"""Between two looks whether the specs are there."""


class ResourceClaims:
    """Holds claims in the ledger, and has their CDI specs in *specs*. One at a time.
    *raise_limits* has a cgroup allow so much of huge pages, as `host.container.raise_hugepage_limits`."""

    def __init__(
        self,
        state: NodeState,
        placements: Placements,
        specs: ClaimSpecs,
        in_thread: InThread,
        raise_limits: Callable[[str, Mapping[int, int]], None] = lambda _, __: None,
    ) -> None:
        self._state = state
        self._placements = placements
        self._specs = specs
        self._raise_limits = raise_limits
        self._do = in_thread
        self._one_at_a_time = asyncio.Lock()
        self.problem = ""
        """Why the specs could not be looked at; empty when they could."""

    async def prepare(self, claim: ResourceClaim) -> HeldClaim:
        """Hold *claim* from now on; for the same claim the same again. A claim that was allocated anew and
        cannot be held so is not held as before either: the scheduler has given that away.

        Raises:
            PlacementError: there is no room for it, or it cannot be held here.
            StateError: it could not be recorded.
            HostError: its CDI spec cannot be written; it is held, and the next preparation tries again.
        """
        shadow_mode.check_off("resource claims")
        async with self._one_at_a_time:
            async with self._state.transaction() as transaction:
                entry = await self._decided(transaction, claim)
                basis = transaction.basis
                if entry.decision.outcome is Outcome.REFUSED:
                    if is_void(basis.ledger, claim):
                        await self._placements.hold_no_longer(transaction, claim.key)
                        await self._do(partial(self._specs.remove, claim.uid))
                    self._placements.refuse(entry.decision)
                if basis.ledger.retained.get(claim.key) != entry:
                    await self._placements.hold(transaction, entry)
            held = entry.resource_claim
            assert held is not None, "what is not refused is held"
            await self._do(partial(self._specs.write, held))
            return held

    async def _decided(self, transaction: Transaction, claim: ResourceClaim) -> Entry:
        """The entry of *claim*, once pools of huge pages have grown to what was allocated if they lack some:
        they may have shrunk since the scheduler saw them."""

        def beside(now: Current) -> Basis:
            return now

        def decide(basis: Basis, engine: Engine) -> Decision:
            return decide_claim(basis, engine, claim).decision

        basis = transaction.basis
        entry = decide_claim(basis, basis.engine, claim)
        if not lacks_pages(entry.decision, basis.policy):
            return entry
        decision = await self._placements.once_pools_grew(
            transaction, beside, decide, entry.decision, claim.parts
        )
        if decision.outcome is not Outcome.REFUSED:
            entry = decide_claim(transaction.basis, basis.engine, claim)
        return replace(entry, decision=decision)

    async def restore(self) -> None:
        """Hold the claims that the specs describe, if nothing at all is recorded. A claim that was released
        just before is released again: by kubelet, which had no answer, or by the agent."""
        ledger = self._state.ledger
        if ledger.entries or ledger.retained:
            return
        try:
            found = await self._do(self._specs.held)
        except HostError:
            return  # The sweep says so.
        for one in found:
            async with self._state.transaction() as transaction:
                entry = decide_claim(transaction.basis, transaction.basis.engine, one.claim, one.cpus)
                if entry.decision.outcome is not Outcome.REFUSED:
                    await self._placements.hold(transaction, entry)
            claim = f"{one.claim.namespace}/{one.claim.name}"
            fields = {"claim": claim, "problem": entry.decision.explanation()}
            if entry.resource_claim is None:
                logger.warning("a resource claim that was not recorded is held no longer", extra=fields)
            else:
                logger.warning("a resource claim that was not recorded is held again", extra={"claim": claim})

    async def release(self, uid: str) -> bool:
        """Hold that claim no longer; whether it was held.

        Raises:
            UnavailableError: containers run on what it holds.
            StateError: it could not be recorded.
            HostError: its CDI spec cannot be removed; it is not held any more.
        """
        shadow_mode.check_off("resource claims")
        async with self._one_at_a_time:
            key = claim_key(uid)
            async with self._state.transaction() as transaction:
                ledger = transaction.basis.ledger
                if users := users_of(ledger, uid):
                    names = ", ".join(sorted(one.decision.request.name for one in users))
                    raise UnavailableError(
                        f"resource claim {uid}", f"containers run on what it holds: {names}"
                    )
                held = ledger.resource_claims.get(key)
                if held is not None:
                    if held.adopted is not None:
                        # Before, as nothing but the record knows whose these files are.
                        await self._do(partial(self._specs.remove_adopted, held.adopted))
                    await self._placements.hold_no_longer(transaction, key)
            await self._do(partial(self._specs.remove, uid))
            return held is not None

    async def before_start(self, container_id: str) -> None:
        """Have the cgroups above a container that is about to start allow what it was promised of huge pages.
        kubelet's limit of a pod is the sum of its requests, which is nothing for those of claims, and that of
        all pods together what the pools of the node had when kubelet started."""
        entry, container = (
            self._state.ledger.entries.get(container_id),
            self._state.known.containers.get(container_id),
        )
        pod = None if container is None else self._state.known.pods.get(container.pod_id)
        if entry is None or pod is None or not pod.cgroup_parent:
            return
        claimed = entry.decision.request.claimed
        ledger, path = self._state.ledger, pod_path(pod.cgroup_parent)
        limits = {} if claimed is None else pod_hugepages(ledger, pod.uid)
        above = kubepods_path(path)
        if above and (limits or entry.decision.request.hugepages_bytes):
            await self._raise(above, all_hugepages(ledger), entry.decision.request.name)
        if limits:
            await self._raise(path, limits, entry.decision.request.name)

    async def _raise(self, path: str, limits: Mapping[int, int], name: str) -> None:
        try:
            await self._do(partial(self._raise_limits, path, limits))
        except AbsentError:
            logger.debug("no limit of huge pages is there", extra={"cgroup": path})
        except BayplanError as error:
            self._state.counters["hugepage_limits_failed"] += 1
            fields = {"container": name, "problem": str(error)}
            logger.warning("huge pages that were promised cannot be used: a limit stays", extra=fields)

    async def follow(self) -> None:
        """See that the CDI specs are what the ledger says, until cancelled."""
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_S)

    async def sweep(self) -> None:
        """Have a spec of each claim that is held, and of no other."""
        async with self._one_at_a_time:
            try:
                await self._do(partial(self._sweep, self._state.ledger))
                problem = ""
            except HostError as error:
                problem = str(error)
        if problem and problem != self.problem:
            logger.warning(
                "the CDI specs of resource claims are not as they should be", extra={"problem": problem}
            )
        self.problem = problem

    def _sweep(self, ledger: Ledger) -> None:
        held = ledger.resource_claims
        for uid in self._specs.uids():
            if claim_key(uid) not in held:
                self._specs.remove(uid)
        for one in held.values():
            self._specs.write(one)
