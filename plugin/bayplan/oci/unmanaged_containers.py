"""Containers that run although nobody decided about them: let through while the daemon was away, or could not
decide. They are entered as they are, so that they are counted and kept off the exclusive CPUs of others.

CRI-O and podman have one storage: each container has a directory DRIVER-containers/ID/userdata below the
storage's run root. The OCI runtime writes the id of the first process there, after its createRuntime hooks.
CRI-O has the bundle there too; podman has it below the graph root. Containers of other users than root are in
storages of their own, which are not read.

NRI lists them, but for those that are created meanwhile: these the runtime is asked for over CRI. podman's,
and CRI-O's without NRI, are found in their storage; those of an engine that has neither hook nor wrapper are
not looked for.
"""

import asyncio
import logging
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.control.controller import Controller
from bayplan.control.ended_containers import CRIO, ListContainers
from bayplan.control.state import Transaction
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError
from bayplan.files import read_text
from bayplan.host.container_processes import Occupancy, Place
from bayplan.host.hierarchy import Hierarchy
from bayplan.model.ledger import Ledger
from bayplan.model.life import Action, Report
from bayplan.model.origin import NRI, Nri, Origin
from bayplan.model.workload import Container, Pod
from bayplan.oci import announced_container
from bayplan.oci.announced_container import AnnouncedContainer, with_process
from bayplan.oci.bundle import CONFIG
from bayplan.oci.documents import State
from bayplan.oci.workloads import PODMAN

USERDATA: Final = "userdata"
_SETTINGS: Final = ("etc/containers/storage.conf", "usr/share/containers/storage.conf")
"""The first that is there counts, and hides the other."""
_RUN_ROOT: Final = "/run/containers/storage"
_GRAPH_ROOT: Final = "/var/lib/containers/storage"
_CONTAINERS: Final = "*-containers"


class Storage(Struct, frozen=True):
    """Both directories of the storage, below our root."""

    run_root: Path
    graph_root: Path


class Started(Struct, frozen=True):
    """A container that was started: its id, its bundle, and the text of the file with its process id."""

    container_id: str
    bundle: Path
    pid: str


def read_storage(root: Path) -> Storage:
    """The storage of root's containers below *root*; the defaults where its settings cannot be read."""
    settings: object = {}
    for path in _SETTINGS:
        try:
            settings = tomllib.loads(read_text(root / path)).get("storage")
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            pass
        break
    options = settings if isinstance(settings, dict) else {}
    return Storage(
        _at(root, options.get("runroot"), _RUN_ROOT), _at(root, options.get("graphroot"), _GRAPH_ROOT)
    )


def started(storage: Storage, elsewhere: Collection[Path] = ()) -> Iterator[Started]:
    """The containers that have, or had, a process. *elsewhere* is more that is like DRIVER-containers."""
    for directory in sorted({*storage.run_root.glob(_CONTAINERS), *elsewhere}):
        for one in sorted(directory.glob(f"*/{USERDATA}")):
            try:
                pid = read_text(one / "pidfile", errors="replace").strip()
            except OSError:
                continue
            container_id = one.parent.name
            podman = storage.graph_root / directory.name / container_id / USERDATA
            bundle = podman if not (one / CONFIG).exists() and podman.is_dir() else one
            yield Started(container_id, bundle, pid)


def failed_creations(root: Path, sandbox_ids: Mapping[str, str]) -> set[str]:
    """The ids of the containers that CRI-O gave up creating: the directory of each is gone, that of its
    sandbox is not. *sandbox_ids* are those of the sandboxes by those of the containers.

    CRI-O makes it before it asks over NRI, and removes it with the container, or when the creation fails.
    Without the sandbox's it is another storage than CRI-O's, which says nothing.
    """
    directories = tuple(read_storage(root).run_root.glob(_CONTAINERS))

    def is_there(name: str) -> bool:
        return any((one / name).is_dir() for one in directories)

    return {key for key, sandbox_id in sandbox_ids.items() if is_there(sandbox_id) and not is_there(key)}


def _at(root: Path, found: object, default: str) -> Path:
    path = found if isinstance(found, str) and found.startswith("/") else default
    return root / path.lstrip("/")


logger = logging.getLogger(__name__)

LOOKS_S: Final = (0.2, 1.0, 5.0)
"""When it is looked, after a Synchronize. A creation takes a second or two; one that takes longer is entered
with the first event that reports it."""

DescribeContainers = Callable[[str, Collection[str]], Sequence[tuple[Pod, Container]]]
"""Called with a runtime's name and ids of containers: those that the runtime still has, each with its pod."""

_ENGINES: Final = {"CRI-O": CRIO, "podman": PODMAN}


class _Search(Struct, frozen=True):
    """What one look needs: the engines whose containers count, and the origins of the recorded containers by
    id."""

    engines: frozenset[str]
    known: Mapping[str, Origin]


class UnmanagedContainers:
    """Finds and enters the unmanaged containers of CRI-O and podman."""

    def __init__(
        self,
        controller: Controller,
        hierarchy: Hierarchy,
        in_thread: InThread,
        verify_soon: Callable[[], None],
    ) -> None:
        self._controller = controller
        self._state = controller.state
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._verify_soon = verify_soon
        self._passed_over: set[Started] = set()
        """What was found and is not a container to be entered."""
        self._installed: frozenset[str] = frozenset()
        """The engines that are set up to ask us."""
        self._asked: bool | None = None
        """Whether any container had come by hook or wrapper when the engines were looked up last."""
        self._ledger: Ledger | None = None
        self._recorded: set[str] = set()
        """The engines of those in that ledger, the last look's, that did not come over NRI."""
        self._searched: frozenset[str] = frozenset()
        self._has_nri = True
        """Whether a runtime was connected over NRI at the last look; taken for granted before the first."""

    async def enter_found(self) -> None:
        """Look once, and enter the containers that run without a record."""
        controller = self._controller
        ledger = controller.state.ledger
        if ledger is not self._ledger:
            origins = (entry.origin for entry in ledger.entries.values())
            self._recorded = {one.engine for one in origins if not one.runtime_applies}
            self._ledger = ledger
        engines = await self._engines(self._recorded)
        if not engines:
            return
        known = {key: entry.origin for key, entry in controller.state.ledger.entries.items()}
        known |= dict.fromkeys(controller.state.lives.refused, NRI)
        search = _Search(engines, known)
        for announced in await self._in_thread(partial(self._found, search)):
            async with controller.state.transaction() as transaction:
                taken = self._take_in(transaction, announced, search)
            if taken:
                self._verify_soon()

    def _take_in(self, transaction: Transaction, announced: AnnouncedContainer, search: _Search) -> bool:
        """Enter it, unless it became known otherwise since it was found; whether it was entered."""
        controller, container = self._controller, announced.container
        entry, before = controller.state.ledger.entries.get(container.id), search.known.get(container.id)
        step = controller.state.lives.step(Report.FOUND, container.id)
        if step.action is Action.ENTER:
            controller.placements.enter(transaction, announced.pod, container, step.phase, announced.origin)
            return True
        if entry is None or entry.origin is not before or isinstance(before, Nri):
            return False
        controller.placements.amend(transaction, with_process(entry, announced.origin))
        if before.container.pid:
            extra = {"container": entry.decision.request.name, "container_id": container.id}
            logger.warning("container was restarted without bayplan; its decision still applies", extra=extra)
        return True

    async def _engines(self, recorded: Collection[str]) -> frozenset[str]:
        """The engines whose containers are looked for: only those that are meant to ask us."""
        controller = self._controller
        asked = any(name.startswith("oci_") for name in controller.state.counters)
        if self._asked is not asked:
            # Reading their files takes some milliseconds; what is installed later is noticed when it asks.
            self._installed = await self._in_thread(partial(_engines_that_ask, self._hierarchy.root))
            self._asked = asked
        had_nri, self._has_nri = self._has_nri, controller.state.runtime is not None
        engines = self._installed.union(recorded, {CRIO} if asked or recorded else ())
        if self._has_nri or (had_nri and not asked and not recorded):
            # NRI tells of CRI-O's, if it is there; it may be about to connect.
            engines -= {CRIO}
        return engines & {CRIO, PODMAN}

    def _found(self, search: _Search) -> list[AnnouncedContainer]:
        if search.engines != self._searched:
            self._passed_over.clear()
            self._searched = search.engines
        seen, unannounced = set(), []
        bundles = [Path(one.bundle) for one in search.known.values() if one.engine == CRIO]
        elsewhere = {one.parent.parent for one in bundles if one.name == USERDATA}
        for one in started(read_storage(self._hierarchy.root), elsewhere):
            if not _is_unrecorded(one, search.known):
                continue
            seen.add(one)
            if one in self._passed_over:
                continue
            announced = self._announced(one)
            if announced is not None and announced.origin.engine in search.engines:
                unannounced.append(announced)
            else:
                self._passed_over.add(one)
        self._passed_over &= seen
        return unannounced

    def _announced(self, started: Started) -> AnnouncedContainer | None:
        """The container; None if it does not run."""
        try:
            state = State(started.container_id, str(started.bundle), int(started.pid))
            announced = announced_container.from_hook_state(self._hierarchy, state)
            place = (
                None if announced is None else Place.of(announced.pod, announced.container, announced.origin)
            )
            if place is not None and not Occupancy(self._hierarchy).has_process(place):
                return None  # a process that ended and whose parent has not asked for it yet
        except (ValueError, BayplanError) as error:
            logger.debug(
                "a container that was started cannot be read",
                extra={"bundle": str(started.bundle), "problem": str(error)},
            )
            return None
        return announced


class UnlistedContainers:
    """Finds and enters those that the NRI runtime has not told of, after each Synchronize.

    A container that is created while a plugin connects can be in neither of the two: the list of Synchronize
    was made before it existed, and its CreateContainer went to the plugins that were connected then
    (kubernetes-sigs/cri-tools#2137). Nobody would hear of it before its next event, which may be its end. The
    runtime is asked several times, because one that is being created is listed only afterwards.
    *list_containers* and *describe_containers* block.
    """

    def __init__(
        self,
        controller: Controller,
        in_thread: InThread,
        list_containers: ListContainers,
        describe_containers: DescribeContainers,
    ) -> None:
        self._controller = controller
        self._state = controller.state
        self._in_thread = in_thread
        self._list_containers = list_containers
        self._describe_containers = describe_containers

    async def follow(self) -> None:
        """Look after each Synchronize, until cancelled."""
        synchronized = self._state.synchronized
        while True:
            await synchronized.wait()
            synchronized.clear()
            waited_s = 0.0
            for at_s in LOOKS_S:
                await asyncio.sleep(at_s - waited_s)
                waited_s = at_s
                if synchronized.is_set():
                    break  # it begins again
                await self.enter_unlisted()

    async def enter_unlisted(self) -> None:
        """Look once, and enter the containers that the runtime has not told of."""
        runtime = self._state.runtime
        if runtime is None:
            return
        try:
            listed = await self._in_thread(partial(self._list_containers, runtime.name))
            lives = self._state.lives
            unknown = [key for key, alive in listed.items() if alive and lives.is_unheard_of(key)]
            if not unknown:
                return
            found = await self._in_thread(partial(self._describe_containers, runtime.name, unknown))
        except BayplanError as error:
            extra = {"runtime": runtime.name, "problem": str(error)}
            logger.debug("a runtime does not say which containers it has", extra=extra)
            return
        for pod, container in found:
            await self._controller.enter_listed(pod, container)


def _is_unrecorded(one: Started, known: Mapping[str, Origin]) -> bool:
    """Whether nothing is recorded of the container, or not this process of it: wrapper and precreate come
    before there is a process, and podman starts a container again under its id."""
    if one.container_id not in known:
        return True
    origin = known[one.container_id]
    return not isinstance(origin, Nri) and str(origin.container.pid) != one.pid


def _engines_that_ask(root: Path) -> frozenset[str]:
    """The engines that hook, precreate or wrapper are installed for."""
    from bayplan.oci.doctor import Examination  # noqa: PLC0415 - all that knows container engines comes with it

    forms = Examination(root, None).forms
    asking = {one.engine for one in forms if one.hook or one.precreate or one.wrapper}
    return frozenset(name for engine, name in _ENGINES.items() if engine in asking)
