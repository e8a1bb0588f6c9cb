"""Handles the requests on the OCI socket: decide, record, apply, answer; and release.

The controller is the same as for NRI, and decides one request at a time. A request whose decision is recorded
is carried out to its end, also when the client has disconnected or its deadline has passed: a container that
starts after that has what the ledger says, and the entry of one that never starts is found to be stale. Only
a decision that could not be applied is released at once. What is written to the kernel is what the ledger
says at the time of the write, not at the time of the decision.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.config.settings import Undecided
from bayplan.control.controller import Controller
from bayplan.control.cpusets import Cpusets
from bayplan.control.lives import Life
from bayplan.control.state import Transaction
from bayplan.control.threads import WorkThread
from bayplan.errors import BayplanError, PlacementError
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.unix_socket import Peer
from bayplan.model.decision import Decision
from bayplan.model.ledger import Entry
from bayplan.model.life import Action, Report
from bayplan.model.machine import Machine
from bayplan.model.workload import Adjustment, Update
from bayplan.oci import announced_container
from bayplan.oci.announced_container import (
    AnnouncedContainer,
    is_same_start,
    origin_of,
    was_rewritten,
    with_process,
    without_ours,
)
from bayplan.oci.bundle import replace_config
from bayplan.oci.documents import (
    State,
    check_id,
    exec_patch,
    merged,
    parse_resources,
    parse_state,
    resources_patch,
    spec_patch,
)
from bayplan.oci.protocol import Answer, Status, Verb, container_id_in, id_and_rest, texts
from bayplan.oci.runtime_update import (
    RuntimeCommand,
    RuntimeUpdater,
    UpdateContent,
    resources_for,
    runtime_of,
)
from bayplan.oci.workloads import resources_from
from bayplan.placement.adjustment import exec_cpus_of
from bayplan.placement.memory_policy import node_for_the_kernel
from bayplan.placement.page_owners import PAGES_TO_MOVE
from bayplan.placement.placement_file import without_file

logger = logging.getLogger(__name__)

_DONE: Final = Answer(Status.OK)

WriteBack = Callable[[str, bytes, bytes], None]
"""Called with a bundle, its expected config and the new one: replaces the former by the latter."""


class OciRequestSettings(Struct, frozen=True):
    """``deadline_s`` is the longest time until a client has its answer; ``undecided`` is the answer where no
    decision could be made; ``end_pauses_s`` are the pauses before each check whether a container that is
    being deleted has ended."""

    deadline_s: float = 1.5
    undecided: Undecided = Undecided.CLIENT
    end_pauses_s: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class OciRequestHandler:
    """Answers the requests. ``close`` it once the socket is closed."""

    def __init__(
        self,
        controller: Controller,
        hierarchy: Hierarchy,
        cpusets: Cpusets,
        settings: OciRequestSettings = OciRequestSettings(),
        runtime_updater: RuntimeUpdater | None = None,
    ) -> None:
        self.settings = settings
        self._controller = controller
        self._state = controller.state
        self._hierarchy = hierarchy
        self._cpusets = cpusets
        # Not the thread that verifies: a verification may take a second, and here a container waits.
        self._thread = WorkThread("oci")
        self._runtime_updater = runtime_updater or RuntimeUpdater()
        self.endings: set[asyncio.Task[None]] = set()
        """The tasks that wait for the end of a container that is being deleted."""
        self._migrations: set[asyncio.Future[None]] = set()
        self._requests: set[asyncio.Task[Answer]] = set()

    async def settled(self) -> None:
        """Wait until all requests are carried out, whether or not their clients still wait."""
        await asyncio.gather(*self._requests, return_exceptions=True)
        await asyncio.gather(*self._migrations, return_exceptions=True)

    async def close(self) -> None:
        """Wait until all requests are carried out, and end."""
        await self.settled()
        await self._runtime_updater.close()
        for ending in self.endings:
            ending.cancel()
        await asyncio.gather(*self.endings, return_exceptions=True)
        self._thread.end()

    async def serve(self, verb: Verb, body: bytes, peer: Peer) -> Answer:
        """The answer to a request, within the deadline; the request is carried out also after that."""
        work = asyncio.get_running_loop().create_task(self._answer(verb, body, peer))
        self._requests.add(work)
        work.add_done_callback(self._requests.discard)
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                return await asyncio.shield(work)
        except TimeoutError:
            return self._undecided(verb, body, f"no decision within {self.settings.deadline_s:g} s")

    async def _answer(self, verb: Verb, body: bytes, peer: Peer) -> Answer:
        self._state.counters[f"oci_{verb.value}"] += 1
        try:
            match verb:
                case Verb.CREATE_RUNTIME:
                    return await self._create_runtime(parse_state(body), peer)
                case Verb.POSTSTOP:
                    return await self._ended(parse_state(body).id)
                case Verb.START | Verb.DELETE:
                    known = check_id(body.decode("ascii", "backslashreplace"))
                    return await (self._start(known) if verb is Verb.START else self._ended(known))
                case Verb.PRECREATE:
                    return await self._precreate(body)
                case Verb.CREATE:
                    return await self._create(body)
                case Verb.UPDATE:
                    return await self._update(body)
        except PlacementError as error:
            return Answer.saying(Status.REFUSED, str(error))
        except BayplanError as error:
            return self._undecided(verb, body, str(error))
        except Exception:
            logger.exception("an OCI request failed", extra={"verb": verb.value, "client": peer.pid})
            return self._undecided(verb, body, "the request failed inside the daemon; its log says why")

    async def _create_runtime(self, state: State, peer: Peer) -> Answer:
        """Place a container whose process exists and has not started. Body: the state, as hooks get it."""
        if self._is_of_nri(state.id):
            return _DONE
        # At once, as the client's process may have ended later.
        runtime = await self._thread.do(partial(runtime_of, peer.pid, self._hierarchy.root))
        announced = await self._thread.do(
            partial(announced_container.from_hook_state, self._hierarchy, state)
        )
        if announced is None:
            return _DONE
        async with self._state.transaction() as transaction:
            if self._is_of_nri(state.id):
                return _DONE
            known = transaction.basis.ledger.entries.get(state.id)
            if known is not None and was_rewritten(known, announced.origin):
                # A precreate hook or the wrapper rewrote its spec; new are its process and cgroup.
                self._controller.placements.amend(transaction, with_process(known, announced.origin))
                entry = None
            else:
                entry, updates = await self._decide(transaction, announced)
        if entry is None:
            await self._controller.sync_before_start(state.id)
        else:
            await self._apply(entry, updates, announced, runtime, peer)
        return _DONE

    async def _apply(
        self,
        entry: Entry,
        updates: Sequence[Update],
        announced: AnnouncedContainer,
        runtime: RuntimeCommand | None,
        peer: Peer,
    ) -> None:
        """Apply a decision about a container whose process exists."""
        await self._mount(entry, announced)
        await self._carry_out(entry, updates)
        if runtime is not None:
            self._update_runtime(runtime, announced)
        else:
            logger.debug(
                "the runtime is not known", extra={"container_id": entry.container_id, "hook": peer.pid}
            )

    async def _mount(self, entry: Entry, announced: AnnouncedContainer) -> None:
        """Mount the placement file of a container that has its process already. One that cannot have it
        starts without."""
        origin = origin_of(entry)
        if not origin.applied.placement_source:
            return
        try:
            mount = partial(announced_container.mount_placement, self._hierarchy, announced, origin.applied)
            await self._thread.do(mount)
        except BayplanError as error:
            async with self._state.transaction() as transaction:
                present = transaction.basis.ledger.entries.get(entry.container_id)
                if present is not None and is_same_start(entry, present):
                    decision = without_file(present.decision, str(error))
                    self._controller.placements.amend(transaction, replace(present, decision=decision))

    def _update_runtime(self, runtime: RuntimeCommand, announced: AnnouncedContainer) -> None:
        """Have the OCI runtime set the same values itself, once the container is created."""
        container_id = announced.container.id
        decided = self._state.ledger.entries.get(container_id)

        def resources() -> bytes | None:
            # After a resize the spec of its creation is out of date.
            present = self._state.ledger.entries.get(container_id)
            if decided is None or present is None or not is_same_start(decided, present):
                return None
            return resources_for(announced.document, announced.spec, self._state.wanted(present))

        if decided is not None and origin_of(decided).applied != Adjustment():
            amounts = partial(announced_container.amounts_shown, self._hierarchy, origin_of(decided))
            self._runtime_updater.begin(runtime, container_id, UpdateContent(resources, amounts))

    async def _precreate(self, body: bytes) -> Answer:
        """Rewrite a spec before the container exists. Body: the spec; answer: the rewritten one, or
        nothing."""
        announced = await self._thread.do(partial(announced_container.from_spec, body))
        if announced is None:
            return _DONE
        return Answer(Status.OK, await self._rewrite(announced) or b"")

    async def _create(self, body: bytes) -> Answer:
        """Rewrite the spec in the bundle that a runtime is about to read. Body: the bundle, the container's
        id, the runtime's path and its root, with a zero byte between them."""
        bundle, container_id, *_ = texts(body, 4, "BUNDLE, ID, RUNTIME and ROOT")
        check_id(container_id)
        if self._is_of_nri(container_id):
            await self._add_exec_cpus(bundle, container_id)
            return _DONE
        announced = await self._thread.do(partial(announced_container.from_bundle, bundle, container_id))
        if announced is not None:
            await self._rewrite(announced, replace_config)
            entry = self._state.ledger.entries.get(container_id)
            if entry is not None and _asks_at_start(self._state.machine, entry.decision):
                self._cpusets.starts.expect(container_id)
        return _DONE

    async def _add_exec_cpus(self, bundle: str, container_id: str) -> None:
        """Write into a bundle what NRI has no field for."""
        basis = self._state.basis
        entry = basis.ledger.entries.get(container_id)
        cpus = None if entry is None else exec_cpus_of(basis.machine, entry.decision)
        if cpus is None:
            return
        announced = await self._thread.do(partial(announced_container.from_bundle, bundle, container_id))
        patch = {} if announced is None else exec_patch(cpus, announced.spec)
        if announced is not None and patch:
            rewritten = merged(announced.document, {"process": patch}, "spec")
            await self._thread.do(partial(replace_config, bundle, announced.document, rewritten))

    async def _start(self, container_id: str) -> Answer:
        """As NRI's StartContainer: the container has its cgroup, with values that may be older than the
        ledger's, and starts after the answer. Body: the id."""
        self._cpusets.starts.forget(container_id)
        if not self._is_of_nri(container_id):
            async with self._state.transaction() as transaction:
                await self._controller.report(transaction, Report.RUNTIME_STARTS, container_id)
            await self._controller.sync_before_start(container_id)
        return _DONE

    async def _rewrite(
        self, announced: AnnouncedContainer, write_back: WriteBack | None = None
    ) -> bytes | None:
        """Decide, and rewrite the spec accordingly, None if nothing is to be changed; *write_back* puts it
        into the bundle. If that fails, the decision is released."""
        async with self._state.transaction() as transaction:
            if self._is_of_nri(announced.container.id):
                return None
            entry, updates = await self._decide(transaction, announced)
        return await self._rewritten(entry, updates, announced, write_back)

    async def _rewritten(
        self,
        entry: Entry,
        updates: Sequence[Update],
        announced: AnnouncedContainer,
        write_back: WriteBack | None,
    ) -> bytes | None:
        """As `_rewrite`, for a decision."""
        origin = origin_of(entry)
        patch = spec_patch(origin.applied, announced.spec)
        rewritten = None
        try:
            if patch:
                rewritten = await self._thread.do(partial(merged, announced.document, patch, "spec"))
            if rewritten is not None and write_back is not None:
                await self._thread.do(partial(write_back, origin.bundle, announced.document, rewritten))
        except BaseException:
            await self.release(entry)
            raise
        await self._update_others(updates, leave=bool(entry.decision.placement.apart_cpus))
        return rewritten

    async def _update(self, body: bytes) -> Answer:
        """Merge what was decided into an update, which may change what is asked for. Body: the id, a zero
        byte, the resources; answer: the merged resources, or nothing."""
        container_id, document = id_and_rest(body)
        entry = self._state.ledger.entries.get(container_id)
        if entry is None or entry.origin.runtime_applies:
            return _DONE
        resources = parse_resources(document)
        async with self._state.transaction() as transaction:
            entry = transaction.basis.ledger.entries.get(container_id)
            if entry is None or entry.origin.runtime_applies:
                return _DONE
            origin = origin_of(entry)
            change = without_ours(entry, self._state.wanted(entry), resources_from(resources))
            pod, container = origin.pod, origin.container
            before = transaction.basis.ledger.exclusive_cpus
            updates = await self._controller.placements.change(transaction, pod, container, change)
            leave = not transaction.basis.ledger.exclusive_cpus <= before
            wanted = self._state.wanted(transaction.basis.ledger.entries[container_id])
        others = [one for one in updates if one.container_id != container_id]
        await self._update_others(others, leave=leave)
        if resources.memory is not None and resources.memory.limit:
            wanted = replace(wanted, memory_limit_bytes=None)
        patch = resources_patch(wanted, resources)
        return Answer(Status.OK, merged(document, patch, "resources of the update") if patch else b"")

    async def _ended(self, container_id: str) -> Answer:
        """Release what a deleted container held; if it still has processes, once they have ended."""
        life = self._state.lives.of(container_id)
        if not self._is_of_nri(container_id) and not await self._has_ended(container_id):
            # The wrapper asks before it runs the OCI runtime, which then kills the processes that are left.
            task = asyncio.get_running_loop().create_task(self._await_end(container_id, life))
            self.endings.add(task)
            task.add_done_callback(self.endings.discard)
        return _DONE

    async def _has_ended(self, container_id: str) -> bool:
        """Whether a container that is being deleted has ended; if so, it is released."""
        async with self._state.transaction() as transaction:
            step = await self._controller.report(transaction, Report.DELETED, container_id)
            if step.action is Action.RELEASE:
                self._cpusets.starts.forget(container_id)
        await self._state.wait_written()
        return step.action is not Action.KEEP

    async def _await_end(self, container_id: str, life: Life | None) -> None:
        """Release what a container holds once it has no process, unless that is another *life* by then. After
        the last check it is left to the search for containers that have ended."""
        for pause_s in self.settings.end_pauses_s:
            await asyncio.sleep(pause_s)
            same = self._state.lives.of(container_id) is life
            if not same or await self._has_ended(container_id):
                return
        extra = {"container_id": container_id}
        logger.info("a container that is to be deleted has not ended yet: it has processes", extra=extra)

    async def release(self, entry: Entry) -> None:
        """Release what *entry* holds, if it is still the entry of its container."""
        async with self._state.transaction() as transaction:
            if not is_same_start(entry, transaction.basis.ledger.entries.get(entry.container_id)):
                return
            self._controller.placements.release(transaction, entry.container_id, Report.NOT_APPLIED)
            self._cpusets.starts.forget(entry.container_id)
        await self._state.wait_written()

    async def _decide(
        self, transaction: Transaction, announced: AnnouncedContainer
    ) -> tuple[Entry, Sequence[Update]]:
        """Decide and record; the new entry, and what is due for others."""
        controller = self._controller
        container = controller.state.known.without_default_cpus(announced.container)
        _, updates = await controller.placements.place(
            transaction, announced.pod, container, announced.origin
        )
        return transaction.basis.ledger.entries[container.id], updates

    async def _carry_out(self, entry: Entry, updates: Collection[Update]) -> None:
        """Write a decision to the kernel: for the new container, then for the others. If that fails for the
        new one, its decision is released."""
        origin = origin_of(entry)
        try:
            oom_score_adj = await self._thread.do(partial(self._place, entry))
        except BaseException:
            await self.release(entry)
            raise
        await self._update_others(updates, leave=False)
        await self._controller.sync_before_start(entry.container_id)
        if oom_score_adj == origin.applied.oom_score_adj:
            return
        async with self._state.transaction() as transaction:
            present = transaction.basis.ledger.entries.get(entry.container_id)
            if present is not None and is_same_start(entry, present):
                applied = replace(origin.applied, oom_score_adj=oom_score_adj)
                placed = replace(present, recorded_origin=replace(origin, applied=applied))
                self._controller.placements.amend(transaction, placed)

    def _place(self, entry: Entry) -> int | None:
        """Write what the ledger says of a container that has not started, again if the ledger changed
        meanwhile; returns the oom_score_adj that was set. Blocks."""
        origin, written = origin_of(entry), None
        applied = origin.applied
        while True:
            present = self._state.ledger.entries.get(entry.container_id)
            if present is None or not is_same_start(entry, present):
                return applied.oom_score_adj
            wanted = self._state.wanted(present)
            if wanted == written:
                return applied.oom_score_adj
            applied = announced_container.place(self._hierarchy, replace(origin, applied=wanted))
            written = wanted

    async def _update_others(self, moved: Collection[Update], *, leave: bool) -> None:
        """Write what a decision means for others; a write that fails is repeated by the verification.

        *leave*: a container got CPUs of its own that it had not before, and this waits until all others have
        left them. The memory of those that are *moved* to other nodes goes along, which can take long: after
        half of the client's deadline it continues in the background.
        """
        if leave:
            await self._cpusets.sync()
        if moved:
            mems = [one.container_id for one in moved]
            moving = asyncio.ensure_future(asyncio.to_thread(self._cpusets.move_memory, mems))
            self._migrations.add(moving)
            moving.add_done_callback(self._migrations.discard)
            await asyncio.wait({moving}, timeout=self.settings.deadline_s / 2)

    def _is_of_nri(self, container_id: str) -> bool:
        entry = self._state.ledger.entries.get(container_id)
        return entry is not None and entry.origin.runtime_applies

    def _undecided(self, verb: Verb, body: bytes, problem: str) -> Answer:
        self._state.counters["oci_undecided"] += 1
        extra = {"verb": verb.value, "container_id": container_id_in(verb, body), "problem": problem}
        logger.error("no decision about a container", extra=extra)
        if verb in (Verb.POSTSTOP, Verb.DELETE, Verb.START) or self.settings.undecided is Undecided.CLIENT:
            return Answer.saying(Status.ERROR, problem)
        if self.settings.undecided is Undecided.REFUSE:
            return Answer.saying(Status.REFUSED, problem)
        return _DONE


def _asks_at_start(machine: Machine, decision: Decision) -> bool:
    """Whether the wrapper has to ask before the container starts: because others have to leave its CPUs or
    make room for its memory, or because it is to be seen whether its memory is bound."""
    if node_for_the_kernel(machine, decision) is not None:
        return True
    apart = bool(decision.placement.apart_cpus)
    return apart or any(one.code == PAGES_TO_MOVE for one in decision.reasons)
