"""Gives every managed container back its parent's CPUs and nodes, and the kernel its setting: in the running
daemon, or, where none runs, by what the state directory says.

The record comes first, so that no verification undoes what is written, then the cgroups. If the program is
killed in between, the next release writes all of them again. From then on a container is left as it is, as
if it had opted out; what it uses stays accounted, so that it is not promised again.
"""

import logging
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bayplan.admin.questions import Question
from bayplan.admin_protocol import API_VERSION
from bayplan.control.state import NodeState
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError
from bayplan.files import check_kind
from bayplan.host import shadow_mode
from bayplan.host.container import ContainerCgroup, paths_by_id
from bayplan.host.cpu_partitions import CpuPartitions
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy
from bayplan.host.irq_affinity import IrqAffinity
from bayplan.host.kernelfs import AbsentError
from bayplan.host.memory_high import KernelAttributes, release_all
from bayplan.host.reclaim import SYSCTL, CpuListLimit
from bayplan.model.ledger import Entry
from bayplan.placement.decide import RELEASED
from bayplan.sets import CpuSet
from bayplan.state import Step, Store
from bayplan.state.directory import DirectoryLock
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import View

logger = logging.getLogger(__name__)

_NOTHING_CHANGED: Final[View] = {"sysctls": {}, "partitions": [], "irqs": {}}
GONE: Final = "gone"
GIVEN_BACK: Final = "given back"


class GivenBack(Struct, frozen=True):
    """A container, and which of its cpusets we have set and give back."""

    container_id: str
    name: str
    cpus: bool
    mems: bool


class KernelSettings(NamedTuple):
    """The settings of the kernel that are changed for several containers at once; what they were is recorded
    in the state directory."""

    cpu_lists: CpuListLimit
    partitions: CpuPartitions
    irqs: IrqAffinity

    @classmethod
    def recorded(cls, hierarchy: Hierarchy, directory: Path) -> "KernelSettings":
        """The settings that are changed, by the record in the state *directory*."""
        return cls(
            CpuListLimit(directory, hierarchy.root),
            CpuPartitions.recorded(hierarchy.mounts[CPUSET], directory, hierarchy.root),
            IrqAffinity(directory, hierarchy.root),
        )

    def changed(self) -> View:
        """What differs from what it was, for a view."""
        fraction = self.cpu_lists.to_restore
        return {
            "sysctls": {} if fraction is None else {SYSCTL: fraction},
            "partitions": sorted(self.partitions.held),
            "irqs": dict(self.irqs.to_restore),
        }

    def restore(self) -> None:
        """Have all as it was. What the kernel will not let go is logged."""
        self.cpu_lists.restore()
        for error in self.partitions.give_all_back().values():
            logger.warning("a partition cannot be given back", extra={"problem": str(error)})
        self.irqs.restore()


def releasing(
    state: NodeState,
    settings: KernelSettings,
    hierarchy: Hierarchy,
    in_thread: InThread,
    follow_ledger: Callable[[], Awaitable[None]],
) -> Question:
    """The question ``release``, for the running daemon; a ``dryRun`` changes nothing. *follow_ledger* has
    partitions and interrupts be as the ledger says."""

    async def release(_: Snapshot, request: Mapping[str, object]) -> dict[str, Any]:
        shadow_mode.check_off("CPUs and nodes of containers")
        dry_run = request.get("dryRun") is not False
        async with state.transaction() as transaction:
            ledger = transaction.basis.ledger
            wanted = _wanted(ledger.entries.values())
            if not dry_run:
                for one in wanted:
                    ledger = ledger.with_entry(given_back(ledger.entries[one.container_id]))
                transaction.accept(ledger=ledger)
        outcomes: dict[str, str] = {}
        changed = await in_thread(settings.changed)
        if not dry_run:
            await state.wait_written()
            await follow_ledger()
            await in_thread(settings.cpu_lists.restore)
            outcomes = await in_thread(partial(give_back, hierarchy, wanted))
            logger.warning("every container was given back", extra={"containers": len(wanted)})
        return _view(wanted, outcomes, changed, dry_run=dry_run, running=True)

    return release


def release_recorded(directory: Path, hierarchy: Hierarchy | None = None, *, dry_run: bool) -> dict[str, Any]:
    """The same where no daemon runs, by the records in the state *directory*.

    Raises:
        ConfigError: there is something else than a directory.
        UnavailableError: a daemon runs after all.
        BayplanError: the directory or the cgroups cannot be used.
    """
    check_kind(directory, stat.S_IFDIR, "the daemon's state directory")
    if not directory.is_dir():
        return _view((), {}, _NOTHING_CHANGED, dry_run=dry_run, running=False)
    with DirectoryLock(directory):
        hierarchy = Hierarchy.detect() if hierarchy is None else hierarchy
        settings = KernelSettings.recorded(hierarchy, directory)
        changed = settings.changed()
        store = Store.open(directory)
        try:
            entries = {entry.container_id: entry for entry in store.entries()}
            wanted = _wanted(entries.values())
            outcomes: dict[str, str] = {}
            if not dry_run and wanted:
                store.commit(Step.of((), unlisted=[given_back(entries[one.container_id]) for one in wanted]))
            if not dry_run:
                settings.restore()
                outcomes = give_back(hierarchy, wanted) if wanted else {}
                _speed_up(hierarchy)
        finally:
            store.close()
    return _view(wanted, outcomes, changed, dry_run=dry_run, running=False)


def _speed_up(hierarchy: Hierarchy) -> None:
    """Release the containers that a daemon which has ended left slowed down."""
    if hierarchy.unified:
        release_all(hierarchy.mounts[MEMORY], KernelAttributes())


def give_back(hierarchy: Hierarchy, wanted: Sequence[GivenBack]) -> dict[str, str]:
    """Let the containers use what their parents may use; what became of each, by id. Blocks."""
    paths = paths_by_id(hierarchy, [one.container_id for one in wanted])
    outcomes = {}
    for one in wanted:
        try:
            if one.container_id not in paths:
                outcomes[one.container_id] = GONE
                continue
            with ContainerCgroup(hierarchy, paths[one.container_id]) as cgroup:
                cgroup.inherit(cpus=one.cpus, mems=one.mems)
            outcomes[one.container_id] = GIVEN_BACK
        except AbsentError:
            outcomes[one.container_id] = GONE
        except BayplanError as error:
            outcomes[one.container_id] = str(error)
    return outcomes


def _wanted(entries: Iterable[Entry]) -> tuple[GivenBack, ...]:
    found = [one for entry in entries if (one := to_give_back(entry)) is not None]
    return tuple(sorted(found, key=lambda one: (one.name, one.container_id)))


def _view(
    wanted: Sequence[GivenBack],
    outcomes: Mapping[str, str],
    changed: View,
    *,
    dry_run: bool,
    running: bool,
) -> dict[str, Any]:
    failed = any(outcome not in (GONE, GIVEN_BACK) for outcome in outcomes.values())
    return {
        "apiVersion": API_VERSION,
        "kind": "Release",
        "health": "error" if failed else "ok",
        "dryRun": dry_run,
        "daemonRuns": running,
        **changed,
        "containers": [
            {
                "id": one.container_id,
                "name": one.name,
                "cpus": one.cpus,
                "mems": one.mems,
                "outcome": outcomes.get(one.container_id),
            }
            for one in wanted
        ],
    }


def to_give_back(entry: Entry) -> GivenBack | None:
    """What of a container is to be given back; None for nothing. A container that was given back before is
    given back again: whoever did that may have died in between."""
    request = entry.decision.request
    if entry.ended or (request.opted_out and RELEASED not in entry.decision.reasons):
        return None
    cpus, mems = request.pinned_cpus is None, request.pinned_mems is None
    return GivenBack(entry.container_id, request.name, cpus, mems) if cpus or mems else None


def given_back(entry: Entry) -> Entry:
    """*entry* once its container was given back."""
    decision = entry.decision
    placement = replace(
        decision.placement.staying(),
        mems=None,
        exclusive_cpus=CpuSet(),
        claimed_cpus=None,
        pool_cpus=CpuSet(),
        original_nodes=None,
        previous_mems=None,
    )
    reasons = decision.reasons if RELEASED in decision.reasons else (*decision.reasons, RELEASED)
    request = replace(decision.request, opted_out=True)
    released = replace(decision, request=request, placement=placement, reasons=reasons)
    return replace(entry, decision=released, notified_cpus=None)
