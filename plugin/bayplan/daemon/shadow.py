"""The parts by which the daemon changes something outside of itself, and those that leave it as it is.

In shadow mode everything is decided and recorded as if the runtime had carried out each answer. Answers go to
the runtime through a handler only.

An oom_score_adj is written here where a runtime cannot set it: the container exists and has not started yet.
What fails is logged and counted; the container starts all the same.

Shadow mode is the choice between the two (`Parts.of_process`), made once where the daemon's parts are put
together. Everything else is the same code: all is decided and recorded as if it had been carried out. Behind
it is the gate (`bayplan.host.shadow_mode`), which lets nothing through.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from bayplan.admin.release import KernelSettings
from bayplan.agent_protocol import EvictionAnswer
from bayplan.control.container_files import Execs, PlacementFileWriter, Starts
from bayplan.control.cpusets import Cpusets
from bayplan.control.expectations import Expectation
from bayplan.control.promised_nodes import PromisedNodes
from bayplan.control.resource_claims import ResourceClaims
from bayplan.control.state import Transaction
from bayplan.control.threads import InThread
from bayplan.control.verify import Drift, Verifier
from bayplan.daemon.eviction import PodEnd
from bayplan.daemon.page_relief import STEP_S, PageRelief
from bayplan.daemon.pool_growth import HugepagePools
from bayplan.errors import BayplanError, PlacementError
from bayplan.host import proc, shadow_mode
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.irq_affinity import IrqAffinity, Staying
from bayplan.host.reclaim import CpuListLimit
from bayplan.host.unix_socket import Peer
from bayplan.model.decision import Move, PageMoveRecord
from bayplan.model.ledger import Entry
from bayplan.model.machine import Machine
from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri import Event, Handler, Runtime
from bayplan.oci.announced_container import AnnouncedContainer
from bayplan.oci.protocol import Answer, Status, Verb
from bayplan.oci.request_handler import OciRequestHandler, WriteBack
from bayplan.oci.runtime_update import RuntimeCommand
from bayplan.placement.hugepage_pools import Pools
from bayplan.placement.page_placement import LivePages, PageMove, Return, Risk
from bayplan.sets import CpuSet

logger = logging.getLogger(__name__)

_NOTHING: Final[Sequence[Update]] = ()


class ShadowHandler:
    """See the module; *decides* is the real handler, and `bayplan.nri.handler` says what each method is."""

    def __init__(self, decides: Handler) -> None:
        self._decides = decides

    def events(self, runtime: Runtime) -> frozenset[Event]:
        """The events that the real handler needs."""
        return self._decides.events(runtime)

    def connected(self, runtime: Runtime) -> None:
        """Pass it on: decisions depend on the runtime."""
        self._decides.connected(runtime)

    def disconnected(self, why: str) -> None:
        """Pass it on: decisions depend on the runtime."""
        self._decides.disconnected(why)

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Record what runs; update nothing."""
        await self._decides.synchronize(pods, containers)
        return _NOTHING

    async def create_container(self, pod: Pod, container: Container) -> tuple[Adjustment, Sequence[Update]]:
        """Decide and change nothing; a container that would be refused is created."""
        try:
            await self._decides.create_container(pod, container)
        except PlacementError as error:
            _log_not_applied(container, error)
        return Adjustment(), _NOTHING

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """Decide and change nothing; a change that would be refused is made."""
        try:
            await self._decides.update_container(pod, container, resources)
        except PlacementError as error:
            _log_not_applied(container, error)
        return _NOTHING

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Release what it would have held; update nothing."""
        await self._decides.stop_container(pod, container)
        return _NOTHING

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Pass it on: these events have no answer."""
        await self._decides.state_changed(event, pod, container)

    def refuses_undecided(self) -> bool:
        """False: nothing is refused."""
        return False

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """No change, as for every other container."""
        return Adjustment()

    def missed(
        self, event: Event, container_id: str, why: str, described: tuple[Pod, Container] | None = None
    ) -> None:
        """Pass it on: what is not known of the container is found later."""
        self._decides.missed(event, container_id, why, described)


def _log_not_applied(container: Container, error: PlacementError) -> None:
    logger.warning(
        "would be refused, but for shadow mode", extra={"container_id": container.id, "problem": str(error)}
    )


class OomScoreAdjWriter:
    """Call it to set the value for all processes of a container. *failed* is called when that fails."""

    def __init__(self, hierarchy: Hierarchy, in_thread: InThread, failed: Callable[[], object]) -> None:
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._failed = failed

    async def __call__(self, pod: Pod, container: Container, value: int) -> None:
        """Write *value*."""

        def processes() -> tuple[int, ...]:
            with ContainerCgroup.find(
                self._hierarchy, container.cgroups_path, pod.cgroup_parent, container.id
            ) as cgroup:
                return cgroup.processes()

        try:
            await self._in_thread(lambda: proc.write_oom_score_adj_of_all(processes, value))
        except BayplanError as error:
            self._failed()
            logger.warning("oom_score_adj not set", extra={"container": container.id, "problem": str(error)})


class ShadowCpusets(Cpusets):
    """Every cpuset stays as it is."""

    async def sync(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """As of `Cpusets`."""

    def sync_soon(self) -> None:
        """As of `Cpusets`."""

    def write(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """As of `Cpusets`."""

    def move_memory(self, container_ids: Iterable[str]) -> None:
        """As of `Cpusets`."""


class ShadowVerifier(Verifier):
    """The kernel has nothing that was decided, and is not compared."""

    async def verify(self, *, at_once: bool) -> tuple[Drift, ...]:
        """As of `Verifier`."""
        return ()


class ShadowStarts(Starts):
    """The wrapper asks for no start."""

    def expect(self, container_id: str) -> bool:
        """As of `Starts`."""
        return False


class ShadowExecs(Execs):
    """The wrapper is told of no CPUs."""

    async def update(self) -> None:
        """As of `Execs`."""


class ShadowRequests(OciRequestHandler):
    """Every answer is that there is nothing to do."""

    async def serve(self, verb: Verb, body: bytes, peer: Peer) -> Answer:
        """As of `OciRequestHandler`."""
        await super().serve(verb, body, peer)
        return Answer(Status.OK)

    async def _apply(
        self,
        entry: Entry,
        updates: Sequence[Update],
        announced: AnnouncedContainer,
        runtime: RuntimeCommand | None,
        peer: Peer,
    ) -> None:
        pass

    async def _rewritten(
        self,
        entry: Entry,
        updates: Sequence[Update],
        announced: AnnouncedContainer,
        write_back: WriteBack | None,
    ) -> bytes | None:
        return None

    async def _add_exec_cpus(self, bundle: str, container_id: str) -> None:
        pass


class ShadowOomScoreAdj(OomScoreAdjWriter):
    """Writes nothing."""

    async def __call__(self, pod: Pod, container: Container, value: int) -> None:
        """As of `OomScoreAdjWriter`."""


class ShadowHugepagePools(HugepagePools):
    """Pools of huge pages stay as large as they are."""

    async def grow(self, transaction: Transaction, added: Pools) -> Pools:
        """As of `HugepagePools`."""
        return {}

    async def look(self) -> None:
        """As of `HugepagePools`."""


class ShadowPlacementFiles(PlacementFileWriter):
    """No container gets a file."""

    async def prepare(self, machine: Machine, shared: CpuSet, entry: Entry) -> str:
        """As of `PlacementFileWriter`; there is no directory."""
        return ""

    async def update(self) -> None:
        """As of `PlacementFileWriter`."""

    async def sweep(self) -> None:
        """As of `PlacementFileWriter`."""


class ShadowResourceClaims(ResourceClaims):
    """None is held."""

    async def restore(self) -> None:
        """As of `ResourceClaims`."""

    async def sweep(self) -> None:
        """As of `ResourceClaims`."""

    async def before_start(self, container_id: str) -> None:
        """As of `ResourceClaims`."""


class ShadowPromisedNodes(PromisedNodes):
    """A container that would go back counts as gone back: no pages are waited for."""

    async def before_start(self, container_id: str) -> None:
        """As of `PromisedNodes`."""

    def stray(self, live: LivePages) -> tuple[Move, ...]:
        """None: no container has the nodes of the ledger."""
        return ()

    def _is_waited_for(self, back: Return) -> bool:
        return False

    def _narrow(self, one: Expectation, entry: Entry, move: Move) -> str:
        return ""


class ShadowRelief(PageRelief):
    """Moves nothing, and records what would be moved."""

    applies: ClassVar[bool] = False

    def carry_out(self, seen: LivePages, cgroups: Mapping[str, str], step_s: float = STEP_S) -> int:
        """As of `PageRelief`."""
        return 0

    def unmoved(self, seen: LivePages, risk: Risk, moves: Sequence[PageMove]) -> tuple[PageMoveRecord, ...]:
        """As of `PageRelief`."""
        return tuple(
            PageMoveRecord(
                at_us=seen.measured_us,
                container_id=move.container_id,
                name=seen.holder(move.container_id).name,
                source=move.source,
                target=move.target,
                wanted_bytes=move.amount_bytes,
                moved_bytes=0,
                duration_ms=0,
                at_risk=risk.nodes,
                obstacle=shadow_mode.NOTHING_APPLIED,
            )
            for move in moves
        )


class ShadowPodEnd(PodEnd):
    """Ends no pod, and waits for no relief, as there is none."""

    obstacle: ClassVar[str] = shadow_mode.NOTHING_APPLIED
    relief_ns: ClassVar[float] = math.inf

    async def ask_api_server(self, pod: Pod, grace_s: int) -> EvictionAnswer | None:
        """As of `PodEnd`."""
        return None


class ShadowListLimit(CpuListLimit):
    """Lists of CPUs stay as they are."""

    def apply(self, fraction: int) -> None:
        """As of `CpuListLimit`."""

    def restore(self) -> int | None:
        """As of `CpuListLimit`."""
        return None


class ShadowIrqs(IrqAffinity):
    """Interrupts stay where they are."""

    def keep_away(self, cpus: CpuSet, others: CpuSet) -> tuple[Staying, ...]:
        """As of `IrqAffinity`."""
        return ()

    def restore(self) -> Mapping[str, str]:
        """As of `IrqAffinity`."""
        return {}


def _shadow_settings(hierarchy: Hierarchy, directory: Path) -> KernelSettings:
    before = KernelSettings.recorded(hierarchy, directory)
    limit, irqs = ShadowListLimit(directory, hierarchy.root), ShadowIrqs(directory, hierarchy.root)
    return before._replace(cpu_lists=limit, irqs=irqs)


def _as_decided(handler: Handler) -> Handler:
    return handler


class Parts(NamedTuple):
    """Each part as the daemon makes it. ``runs_if_refused``: a container that is refused is created all the
    same."""

    answering: Callable[[Handler], Handler] = _as_decided
    kernel_settings: Callable[[Hierarchy, Path], KernelSettings] = KernelSettings.recorded
    cpusets: type[Cpusets] = Cpusets
    verifier: type[Verifier] = Verifier
    starts: type[Starts] = Starts
    execs: type[Execs] = Execs
    oci_requests: type[OciRequestHandler] = OciRequestHandler
    oom_score_adj: type[OomScoreAdjWriter] = OomScoreAdjWriter
    hugepage_pools: type[HugepagePools] = HugepagePools
    placement_files: type[PlacementFileWriter] = PlacementFileWriter
    resource_claims: type[ResourceClaims] = ResourceClaims
    promised_nodes: type[PromisedNodes] = PromisedNodes
    relief: type[PageRelief] = PageRelief
    pod_end: type[PodEnd] = PodEnd
    runs_if_refused: bool = False

    @classmethod
    def of_process(cls) -> "Parts":
        """The parts that this process is to have: those of shadow mode if that is on."""
        return SHADOW if shadow_mode.is_on() else REAL


REAL: Final = Parts()
SHADOW: Final = Parts(
    ShadowHandler,
    _shadow_settings,
    ShadowCpusets,
    ShadowVerifier,
    ShadowStarts,
    ShadowExecs,
    ShadowRequests,
    ShadowOomScoreAdj,
    ShadowHugepagePools,
    ShadowPlacementFiles,
    ShadowResourceClaims,
    ShadowPromisedNodes,
    ShadowRelief,
    ShadowPodEnd,
    runs_if_refused=True,
)
