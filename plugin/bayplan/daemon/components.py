"""The parts of the daemon, made and connected in the order in which they need each other.

Wiring, and what concerns several parts at once: signals, a reload, the snapshot that the admin socket shows.
One event loop owns the ledger; each thread is for calls that must not wait for those of another one.
"""

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bayplan import __version__, logs
from bayplan.admin.agent_server import AgentServer, claiming
from bayplan.admin.questions import Question, checking, recorded_questions, rehearsing
from bayplan.admin.release import releasing
from bayplan.admin.snapshot_source import kernel_oom_score_adj, snapshot_of, watching
from bayplan.agent_protocol import QUESTIONS, PodWanted, Unusable
from bayplan.config.keys import changed_at_start
from bayplan.config.kubelet_rules import engine_of
from bayplan.config.reservations import observed_thresholds, remarks_here, static_managers
from bayplan.config.settings import Settings
from bayplan.config.values import InvalidValueError, kubelet_minor
from bayplan.control.controller import Controller
from bayplan.control.cpusets import LOOK_S, IrqsAway
from bayplan.control.device_search import DeviceSearch
from bayplan.control.ended_containers import CRIO, EndedContainers
from bayplan.control.placements import ExactRequests, Placements
from bayplan.control.promised_nodes import Bounds
from bayplan.control.recorder import Recorder
from bayplan.control.state import Current, NodeState
from bayplan.control.threads import Recurring, WorkThread
from bayplan.control.verify import Verifier, grounds_of
from bayplan.daemon.configuration import BY_NODE, Configuration, read_meanwhile
from bayplan.daemon.eviction import ContainerUsage, EvictionManager, PressureSignals
from bayplan.daemon.hardware import Hardware, Host
from bayplan.daemon.memory_pressure import PressureWatch, lookups_of
from bayplan.daemon.process import Notifier, spare_files
from bayplan.daemon.shadow import Parts
from bayplan.engines.interface import Engine
from bayplan.errors import BayplanError
from bayplan.host.container import raise_hugepage_limits
from bayplan.host.container_processes import Occupancy, Place
from bayplan.host.devices import ClaimSpecs, HostDevices
from bayplan.host.eviction_signals import find_file_systems
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.hugepage_files import HugepageFiles
from bayplan.host.kubelet_program import KubeletVersion
from bayplan.host.live_memory import ContainerMemory
from bayplan.host.placement_files import PlacementDirectory
from bayplan.host.sysfs import has_weighted_interleave
from bayplan.host.unix_socket import group_id
from bayplan.model.ledger import Ledger
from bayplan.model.policy import KeepWhole
from bayplan.model.sentences import ignores_silence
from bayplan.model.workload import Container, Pod
from bayplan.nri import Identity, Session, Timeouts, UnixSocket, launched_by_runtime
from bayplan.oci.cri import describe_containers, list_containers
from bayplan.oci.request_handler import OciRequestSettings
from bayplan.oci.unmanaged_containers import UnlistedContainers, UnmanagedContainers, failed_creations
from bayplan.views.snapshot import Observation, Snapshot
from bayplan.views.status import View

if TYPE_CHECKING:
    from bayplan.recording.recording import Recording


def open_recording(path: Path | None) -> "Recording | None":
    """Begin a recording at *path*; None where nothing is to be recorded.

    Raises:
        ConfigError: something else is there, or the file cannot be made.
    """
    if path is None:
        return None
    from bayplan.recording.recording import Recording  # noqa: PLC0415 - only where it is switched on

    return Recording.open(path)


def engine_for(settings: Settings, recording: "Recording | None") -> Engine:
    """The engine of *settings*, whose answers go into *recording*."""
    engine = engine_of(settings)
    if recording is None:
        return engine
    from bayplan.recording.recording import RecordedEngine  # noqa: PLC0415 - only where it is switched on

    return RecordedEngine(engine, recording)


logger = logging.getLogger(__name__)

VERIFY_INTERVAL_S: Final = 10.0
"""kubelet's cpuManagerReconcilePeriod."""


class Verification:
    """Compares the kernel with the ledger every `VERIFY_INTERVAL_S`, and when *due* is set; then it looks for
    containers that ended or began without a report. Drift is counted in *counters*."""

    def __init__(
        self,
        verifier: Verifier,
        due: asyncio.Event,
        ended: EndedContainers,
        unmanaged: UnmanagedContainers,
        counters: Counter[str],
    ) -> None:
        self._verifier = verifier
        self._due = due
        self._ended = ended
        self._unmanaged = unmanaged
        self._counters = counters

    async def follow(self) -> None:
        """Compare whenever that is due, until cancelled."""
        while True:
            asked = await self._next()
            try:
                drift = await self._verifier.verify(at_once=asked)
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("the kernel could not be compared with the ledger")
                continue
            self._counters["drifted"] += len(drift)
            self._counters["repairs_failed"] = self._verifier.failed
            await self._find_unreported()

    async def _next(self) -> bool:
        """Wait until the next comparison is due; whether it was asked for."""
        try:
            async with asyncio.timeout(VERIFY_INTERVAL_S):
                await self._due.wait()
        except TimeoutError:
            return False
        self._due.clear()
        return True

    async def _find_unreported(self) -> None:
        try:
            await self._ended.release_ended()
            await self._unmanaged.enter_found()
        except BayplanError as error:
            logger.debug("running containers are still not recorded", extra={"problem": str(error)})
        except Exception:
            logger.exception("ended and unmanaged containers could not be looked for")


DEVICES_SHARE: Final = 0.25
"""Of the request deadline: so long may a creation wait for what its devices say."""

_NOT_TAKEN_OVER: Final = "settings not taken over; those before stay in force"


class Daemon:
    """Everything that is made from the settings. `start` makes what needs the store; the rest of the methods
    come after it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = self._started_with = settings
        self.started_us = time.time_ns() // 1000
        self.hierarchy = Hierarchy.detect()
        parts = self.parts = Parts.of_process()
        # A thread for each kind of calls that must not wait for those of another kind.
        self.host_thread = WorkThread("host")
        # A creation waits for its devices: a verification of 250 containers takes 20 ms.
        self.device_thread = WorkThread("devices")
        # To move the memory of one process can take many seconds.
        self.page_thread = WorkThread("pages")
        # A container with CPUs of its own starts when the cpusets of all others are written.
        self.cpuset_thread = WorkThread("cpusets")
        # Decisions may take long where there are many nodes.
        self.decision_thread = WorkThread("decisions")
        # The nodes are read every second, also while pages are moved.
        self.pressure_thread = WorkThread("pressure")
        # A container that starts is slowed down before it takes memory.
        self.start_thread = WorkThread("starts")
        # Pods are given time to end.
        self.eviction_thread = WorkThread("eviction")
        # There may be 4000 placement files to replace.
        self.file_thread = WorkThread("files")
        # A creation waits for a pool of huge pages to grow; to compact memory for it may take seconds.
        self.pool_thread = WorkThread("pools")
        self.compaction_thread = WorkThread("compaction")
        self.threads = tuple(one for one in vars(self).values() if isinstance(one, WorkThread))
        self.starts = parts.starts(settings.oci_socket)
        self.starts.clear()
        self.kernel_settings = parts.kernel_settings(self.hierarchy, settings.state_directory)
        self.memory = ContainerMemory(self.hierarchy)
        host = Host.of(self.hierarchy, self.memory, self.kernel_settings.partitions)
        self.hardware = Hardware(settings, host, self.host_thread.do)
        self.recording = open_recording(settings.recording)
        self._verify_now = asyncio.Event()
        self._reload_now = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._kubelet_versions: asyncio.Queue[KubeletVersion] = asyncio.Queue()
        # Settings that were read before others are not taken over after them.
        self._one_at_a_time = asyncio.Lock()
        self.room_due = asyncio.Event()

    def listen_for_signals(self) -> None:
        """Handle signals from now on, also before their tasks run. Until then SIGTERM and SIGINT end the
        process at once, whatever its start waits for."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload_now.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_now.set)

    async def start(self, recorder: Recorder) -> None:
        """Make all that needs the store: the state with what is recorded, what keeps the kernel at it, what a
        creation goes through, the controller, and the session with the runtime."""
        await self._make_state(recorder)
        self._make_followers()
        await self._make_relief()
        await self._make_controller()
        self._make_verification()
        self._make_session()
        await self._limit_cpu_lists()
        for remark in self._remarks():
            logger.warning(remark)
        self._log_start()

    async def _make_state(self, recorder: Recorder) -> None:
        """The owner of all that is known and promised, and the hardware that it is decided by."""
        engine = engine_for(self.settings, self.recording)
        basis = Current(self.hardware.machine, self.hardware.policy, Ledger(), engine=engine)
        state = self.state = NodeState(
            basis, recorder, has_partitions=self.hierarchy.unified, capacity_freed=self.room_due.set
        )
        state.decision_log.pins.configured = tuple(self.settings.kubelet_managers)
        await state.restore()
        self.hardware.attach(state, self._verify_now.set)
        await self.hardware.begin(await recorder.held_memory(), recorder.record_learned)

    def _make_followers(self) -> None:
        """What follows the ledger: cpusets, interrupts, placement files, what the wrapper sets."""
        state, in_thread = self.state, self.file_thread.do
        self.cpusets = self.parts.cpusets(
            self.hierarchy,
            state.expectations,
            self.cpuset_thread.do,
            self.starts,
            partitions=self.kernel_settings.partitions,
            isolated=state.isolated_cpus,
            version=lambda: state.basis,
        )
        self.placement_files = self.parts.placement_files(
            PlacementDirectory(self.settings.placement_directory),
            in_thread,
            lambda: state.basis,
            state.lives.has_certainly_ended,
            lambda: state.was_synchronized,
            state.counters,
        )
        state.changes.listeners.add(self.placement_files.note_change)
        self.irqs_away = IrqsAway(self.kernel_settings.irqs, in_thread, lambda: state.basis)
        execs = self.parts.execs(self.settings.oci_socket, in_thread, lambda: state.basis)
        self.followers = (Recurring(self.irqs_away.update, LOOK_S), Recurring(execs.update, LOOK_S))
        for one in self.followers:
            state.changes.listeners.add(one.make_due)

    async def _make_relief(self) -> None:
        """What keeps memory, disks and process ids from running short: freed memory, relief, and eviction."""
        state, verify_soon = self.state, self._verify_now.set
        self.promised_nodes = self.parts.promised_nodes(
            state, self.hierarchy, self.page_thread.do, verify_soon, _return_bounds(self.settings)
        )
        self.exact_requests = ExactRequests(state)
        self.pressure = PressureWatch(
            state,
            self.hierarchy,
            self.pressure_thread.do,
            self.settings.memory_pressure,
            self.parts.relief(self.hierarchy, self.settings.page_move_rate_bytes),
            self.promised_nodes,
            memory=self.memory,
            in_start_thread=self.start_thread.do,
            deadline_s=self.settings.request_deadline_ms / 1000,
        )
        await self.host_thread.do(self.pressure.take_over)
        disks = await self.host_thread.do(partial(find_file_systems, self.hierarchy.root))
        signals = PressureSignals(
            state,
            self.hierarchy,
            disks,
            self.host_thread.do,
            self.pressure,
            thresholds=lambda: observed_thresholds(self.settings, self.hardware.machine, disks),
            transition_ns=lambda: self.settings.eviction_transition_ns,
        )
        usage = ContainerUsage(state, self.hierarchy, self.pressure, image_fs=disks.separate)
        in_thread = self.eviction_thread.do
        pod_end = self.parts.pod_end(self.hierarchy, in_thread)
        self.eviction = EvictionManager(
            state, self.hierarchy, in_thread, self.pressure, signals, usage, pod_end
        )

    async def _make_controller(self) -> None:
        """What becomes of a container between its bytes and its reply, whichever way it comes."""
        settings, parts = self.settings, self.parts
        deadline_s = DEVICES_SHARE * settings.request_deadline_ms / 1000
        self.devices = DeviceSearch(HostDevices(), self.device_thread.do, deadline_s)
        await self.devices.prepare()
        self.hugepage_pools = parts.hugepage_pools(
            self.state,
            self.hardware,
            HugepageFiles(self.hierarchy.root),
            self.pool_thread.do,
            self.compaction_thread.do,
            settings.request_deadline_ms / 1000,
        )
        placements = Placements(
            self.state,
            cgroup_v2=self.hierarchy.unified,
            weighted_interleave=has_weighted_interleave(),
            devices=self.devices,
            cpusets=self.cpusets,
            decide_in_thread=self.decision_thread.do,
            runs_if_refused=parts.runs_if_refused,
            grow_pools=self.hugepage_pools.grow,
            admission=(self.eviction.admitted, self.pressure.completed),
            prepare_file=self.placement_files.prepare,
            relocations_per_hour=lambda: self.settings.relocations_per_hour,
        )
        self.resource_claims = parts.resource_claims(
            self.state,
            placements,
            ClaimSpecs(settings.cdi_directory),
            self.file_thread.do,
            partial(raise_hugepage_limits, self.hierarchy),
        )
        # Before anybody creates a container: a reboot has emptied the directory of the specs.
        await self.resource_claims.restore()
        await self.resource_claims.sweep()
        self.controller = Controller(
            self.state,
            placements,
            write_oom_score_adj=parts.oom_score_adj(
                self.hierarchy, self.host_thread.do, self._count_unset_oom_score_adj
            ),
            cpusets=self.cpusets,
            verify_soon=self._verify_now.set,
            has_process=self._has_process,
            devices=self.devices,
            before_promises=self.hardware.measure_listed,
            before_start=(
                self.resource_claims.before_start,
                self.promised_nodes.before_start,
                self.pressure.before_start,
            ),
        )
        self.oci_requests = parts.oci_requests(
            self.controller, self.hierarchy, self.cpusets, _oci_request_settings(settings)
        )

    def _make_verification(self) -> None:
        """What compares the record with the kernel and the container engines."""
        kernel = self.hierarchy, self.cpusets, self.state.expectations, self.host_thread.do
        self.verifier = self.parts.verifier(
            *kernel, grounds=lambda: grounds_of(self.state), most_files=spare_files().agreement
        )
        ended = EndedContainers(
            self.controller,
            Occupancy(self.hierarchy, spare_files().occupancy, os.pidfd_open),
            self.host_thread.do,
            self._list_containers,
            partial(failed_creations, self.hierarchy.root),
            self.cpusets.starts.forget,
        )
        unmanaged = UnmanagedContainers(
            self.controller, self.hierarchy, self.host_thread.do, self._verify_now.set
        )
        self.verification = Verification(
            self.verifier, self._verify_now, ended, unmanaged, self.state.counters
        )
        self.unlisted = UnlistedContainers(
            self.controller, self.host_thread.do, self._list_containers, self._describe_containers
        )
        if self.state.known.containers:
            # No runtime will list the containers that came without NRI: look what became of them.
            self._verify_now.set()
            self.room_due.set()

    def _make_session(self) -> None:
        """The session with the NRI runtime: with the one that launched us, else at the configured socket."""
        own = Identity(self.settings.plugin_name, self.settings.plugin_index)
        identity, endpoint = launched_by_runtime(os.environ) or (
            own,
            UnixSocket(str(self.settings.nri_socket)),
        )
        timeouts = Timeouts(answer_s=self.settings.request_deadline_ms / 1000)
        self.session = Session(
            self.parts.answering(self.controller),
            identity,
            endpoint,
            timeouts=timeouts,
            replied=self.state.latency.reply.observe,
        )

    def _log_start(self) -> None:
        machine, policy = self.state.machine, self.state.policy
        logger.info(
            "started",
            extra={
                "version": __version__,
                "pid": os.getpid(),
                "nodes": str(machine.node_ids),
                "cpus": str(machine.online_cpus),
                "cgroups": self.hierarchy.layout.value,
                "engine": self.state.engine.name,
                "policy": policy.topology.value,
                "recorded_containers": len(self.state.ledger.entries),
            },
        )

    async def end_on_signal(self) -> None:
        """Answer the requests that have arrived, then end, when a signal asks for it."""
        await self._stop_now.wait()
        await self.session.close()

    async def reload_on_signal(self, configuration: Configuration, notifier: Notifier) -> None:
        """Take over changed settings on SIGHUP; wrong ones are reported and change nothing.

        Decisions that were made stay. What takes a restart is named.
        """
        while True:
            await self._reload_now.wait()
            self._reload_now.clear()
            notifier.reloading()
            try:
                async with self._one_at_a_time:
                    await self._take_settings(await read_meanwhile(configuration.read))
            except BayplanError as error:
                logger.error("%s", _NOT_TAKEN_OVER, extra={"problem": error.on_one_line()})  # noqa: TRY400 - expected, so that a traceback says nothing
            except Exception:
                # The containers' placement does not end over a file.
                logger.exception("%s", _NOT_TAKEN_OVER)
            notifier.ready()

    async def follow_kubelet(self, configuration: Configuration) -> None:
        """Take over the rules of another kubelet once the agent, or the node's kubelet itself, has said that
        the node has one, if its version is not configured. Decisions that were made stay."""
        loop, put = asyncio.get_running_loop(), self._kubelet_versions.put_nowait
        configuration.when_kubelet_answers(lambda found: loop.call_soon_threadsafe(put, found))
        while True:
            found = await self._kubelet_versions.get()
            before, version = self.settings.kubelet_rules, found.version
            try:
                kubelet_minor(found.known_by, version)
            except InvalidValueError as wrong:
                logger.warning("the Node object says no version of kubelet", extra={"problem": str(wrong)})
                continue
            try:
                async with self._one_at_a_time:
                    await self._take_settings(await read_meanwhile(partial(configuration.of_kubelet, found)))
            except BayplanError as error:
                fields = {"version": version, "stays": f"{before}", "problem": error.on_one_line()}
                logger.error("the rules of the node's kubelet are not taken over", extra=fields)  # noqa: TRY400 - expected, so that a traceback says nothing
            except Exception:
                logger.exception("the rules of the node's kubelet are not taken over")
            else:
                fields = {
                    "version": version,
                    "before": f"{before}",
                    "rules": f"{self.settings.kubelet_rules}",
                }
                logger.info("the node's kubelet is known", extra=fields)

    async def _take_settings(self, settings: Settings) -> None:
        policy, kept_whole = self.hardware.policy_for(settings), self.state.policy.keep_whole
        self.settings = settings
        self.hardware.take_settings(settings)
        self.state.take_engine(engine_for(settings, self.recording))
        self.oci_requests.settings = _oci_request_settings(settings)
        self.promised_nodes.bounds = _return_bounds(settings)
        self.pressure.mode = settings.memory_pressure
        self.pressure.relief.rate_bytes = settings.page_move_rate_bytes
        self.state.decision_log.pins.configured = tuple(settings.kubelet_managers)
        if self.state.policy.keep_whole is KeepWhole.NODE and kept_whole is not KeepWhole.NODE:
            await self.state.remember()
        await self._limit_cpu_lists()
        logs.set_level(settings.log_level)
        fields = {"engine": settings.engine, "policy": policy.topology.value}
        logger.info("settings taken over", extra={**fields, "kubelet": f"{settings.kubelet_rules}"})
        if waiting := changed_at_start(self._started_with, settings):
            logger.warning("changed settings wait for a restart", extra={"keys": waiting})

    async def _limit_cpu_lists(self) -> None:
        try:
            await self.host_thread.do(
                partial(self.kernel_settings.cpu_lists.apply, self.settings.list_fraction)
            )
        except BayplanError as error:
            logger.warning("lists of CPUs cannot be kept short", extra={"problem": str(error)})

    def restore_cpu_lists(self) -> None:
        """Set the limit of the CPUs' lists of free pages to what it was before the start."""
        try:
            self.kernel_settings.cpu_lists.restore()
        except BayplanError as error:
            logger.warning("lists of CPUs stay short", extra={"problem": str(error)})

    def observe(self) -> Observation:
        """What is known beside the promises. Reads nothing of the kernel."""
        return self._snapshot({}).observation

    def snapshot(self) -> Snapshot:
        """What the admin socket shows."""
        return self._snapshot(kernel_oom_score_adj(self.state, self.hierarchy.root))

    def _snapshot(self, scores: Mapping[str, int]) -> Snapshot:
        return snapshot_of(
            self.state,
            self.started_us,
            self.verifier.drift,
            (
                *self.settings.notices,
                *self.settings.unknown_kubelet,
                *self._remarks(),
                *self.hardware.problems(),
                *self.pressure.problems(),
                *self.eviction.problems(),
                *(one.sentence for one in self.verifier.unrepaired.values()),
                *self.placement_files.sentences(),
                *self.irqs_away.sentences(),
                *self.hugepage_pools.problems,
                *([self.resource_claims.problem] if self.resource_claims.problem else []),
            ),
            self.hardware.reservations(),
            scores,
            self.pressure.latest,
            self.verifier.kernel_cpus(),
            partitions=self.cpusets.partitioned(),
            placement_directory=str(self._started_with.placement_directory),
            kubelet_known_by=self.settings.kubelet_known_by,
            shadow=self._started_with.shadow,
        )

    def agent_server(self, path: Path, questions: Mapping[str, Question]) -> AgentServer:
        """What serves the agent at *path*; of *questions* it may ask what changes nothing, and for
        resource claims."""
        group = group_id(self.settings.agent_group)
        if group is None:
            logger.info(
                "only root may use the agent socket: there is no such group",
                extra={"group": self.settings.agent_group},
            )
        state, pods = self.state, self.state.kubelet_pods
        server = AgentServer(path, group, state.changes, lambda: state.basis, self.observe, pods)
        answering = {verb: self._answering(questions[verb]) for verb in QUESTIONS}
        server.questions = {**answering, **claiming(self.resource_claims, self.devices.know_claimed)}
        pods.wanted = lambda pod: server.say(PodWanted(pod.uid, pod.namespace, pod.name))
        pods.not_used = lambda *found: server.say(Unusable(*found))
        server.kubelet_said = lambda version: self._kubelet_versions.put_nowait(
            KubeletVersion(version, BY_NODE)
        )
        self.eviction.pod_end.ask_agent = server.evict
        return server

    def _answering(self, question: Question) -> Callable[[Mapping[str, object]], Awaitable[View]]:
        async def answer(request: Mapping[str, object]) -> View:
            snapshot = self.snapshot()
            return {**await question(snapshot, request), "shadow": snapshot.shadow}

        return answer

    def questions(self, recorder: Recorder) -> dict[str, Question]:
        """What the admin socket answers beside its views."""
        return {
            **recorded_questions(recorder),
            "what-if": rehearsing(
                lambda: engine_of(self.settings),
                self.controller.placements.policy_ability,
                self.controller.placements.moves_obstacle,
            ),
            "top": watching(self.hierarchy, lambda: lookups_of(self.state), self.pressure_thread.do),
            "release": releasing(
                self.state,
                self.kernel_settings,
                self.hierarchy,
                self.host_thread.do,
                self._follow_ledger,
            ),
            "check": checking(self.state.check_ledger),
            "import-state": self._import_state,
            "import-claims": self._import_claims,
            "export-state": self._export_state,
        }

    async def _follow_ledger(self) -> None:
        """Have partitions and interrupts follow the ledger."""
        await self.cpusets.sync(())
        await self.irqs_away.update()

    async def _import_state(self, snapshot: Snapshot, asked: Mapping[str, object]) -> View:
        from bayplan.admin.kubelet_state import importing  # noqa: PLC0415 - kubelet's managers take 40 modules

        return await importing(self.controller, self._verify_now.set)(snapshot, asked)

    async def _import_claims(self, snapshot: Snapshot, asked: Mapping[str, object]) -> View:
        from bayplan.admin.kubelet_state import importing_claims  # noqa: PLC0415 - as above

        return await importing_claims(self.controller, self._verify_now.set)(snapshot, asked)

    async def _export_state(self, snapshot: Snapshot, asked: Mapping[str, object]) -> View:
        from bayplan.admin.kubelet_state import exporting  # noqa: PLC0415 - as above

        managers = partial(static_managers, self.settings, self.hardware.machine)
        return await exporting(self.controller, managers)(snapshot, asked)

    def _remarks(self) -> tuple[str, ...]:
        remarks, runtime = remarks_here(self.settings, self.hardware.machine), self.state.runtime
        if not self.settings.refuse_undecided or runtime is None or runtime.capabilities.failure_policy:
            return remarks
        return (*remarks, ignores_silence(runtime.name, runtime.nri_version))

    def _count_unset_oom_score_adj(self) -> None:
        self.state.counters["oom_score_adj_failed"] += 1

    async def _has_process(self, place: Place) -> bool:
        return await self.cpuset_thread.do(partial(Occupancy(self.hierarchy).has_process, place))

    def _list_containers(self, runtime: str) -> Mapping[str, bool]:
        """What a runtime lists over CRI; blocks."""
        return list_containers(self._cri_socket(runtime))

    def _describe_containers(self, runtime: str, ids: Collection[str]) -> Sequence[tuple[Pod, Container]]:
        """What a runtime says over CRI of the containers *ids*; blocks."""
        return describe_containers(self._cri_socket(runtime), ids)

    def _cri_socket(self, runtime: str) -> Path:
        return self.settings.crio_socket if runtime == CRIO else self.settings.containerd_socket


def _oci_request_settings(settings: Settings) -> OciRequestSettings:
    return OciRequestSettings(settings.oci_deadline_ms / 1000, settings.oci_undecided)


def _return_bounds(settings: Settings) -> Bounds:
    return Bounds(settings.return_deadline_ms / 1000, settings.return_most_bytes)
