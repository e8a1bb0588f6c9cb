"""The daemon's process: its start, its tasks until one of them ends, its end.

`components` has what the tasks consist of. Stopping leaves every container as it is.
"""

import asyncio
import gc
import logging
import stat
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from bayplan import logs
from bayplan.admin.server import AdminServer
from bayplan.config.settings import Settings
from bayplan.control.recorder import Recorder
from bayplan.control.threads import executor, until_one_ends
from bayplan.daemon.components import Daemon
from bayplan.daemon.configuration import Configuration
from bayplan.daemon.hardware import LOST_CPUS
from bayplan.daemon.process import Notifier, protect, raise_file_limit
from bayplan.errors import HostError
from bayplan.files import check_kind
from bayplan.host import shadow_mode
from bayplan.host.libc import give_large_blocks_back
from bayplan.host.netlink import watch_hotplug
from bayplan.oci.protocol import OciServer
from bayplan.state import Store, check_directory, unusable
from bayplan.state.directory import DirectoryLock

logger = logging.getLogger(__name__)

_SWITCH_INTERVAL_S: Final = 0.0005

_YOUNG_OBJECTS: Final = 20_000
"""Before Python looks for cycles among them, of which we make hardly any: with its own 700 a creation takes
4 % longer."""


def run(settings: Settings, configuration: Configuration) -> int:
    """Serve until SIGTERM or SIGINT, or until the runtime that launched us goes away; the exit status.

    SIGHUP takes over the policy and the log level of the settings that *configuration* reads then.

    Raises:
        BayplanError: the daemon can't start.
    """
    raise_file_limit()
    protect()
    # Threads that read sysfs or write logs must not keep the loop from the interpreter for 5 ms at a time.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    give_large_blocks_back()
    return asyncio.run(_serve(settings, configuration))


async def _serve(settings: Settings, configuration: Configuration) -> int:
    asyncio.get_running_loop().set_default_executor(executor("asyncio"))
    notifier = Notifier.of()
    async with AsyncExitStack() as stack:
        lock = stack.enter_context(_hold(settings.state_directory))
        if settings.shadow:
            stack.enter_context(shadow_mode.shadow_mode())
            logger.warning("shadow mode: everything is decided and recorded, and nothing is applied")
        daemon = Daemon(settings)
        stack.callback(daemon.restore_cpu_lists)
        for thread in daemon.threads:
            stack.callback(thread.abandon)
        if daemon.recording is not None:
            stack.callback(daemon.recording.close)
        open_store = partial(Store.open, settings.record_directory, hold_directory=partial(_hold_again, lock))
        recorder = await Recorder.open(open_store)
        stack.push_async_callback(recorder.close)
        await daemon.start(recorder)
        stack.callback(daemon.pressure.stop)
        questions = daemon.questions(recorder)
        admin = AdminServer(settings.admin_socket, daemon.snapshot, _log_level, questions=questions)
        await admin.start()
        stack.push_async_callback(admin.close)
        if settings.agent_socket is not None:
            agents = daemon.agent_server(settings.agent_socket, questions)
            await agents.start()
            stack.push_async_callback(agents.close)
        if settings.oci_socket is not None:
            stack.push_async_callback(daemon.oci_requests.close)
            oci = OciServer(settings.oci_socket, daemon.oci_requests.serve)
            await oci.start()
            stack.push_async_callback(oci.close)
        # A full collection of all that start-up made takes 20 ms, and comes in the middle of some reply.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS)
        gc.enable()
        daemon.listen_for_signals()
        notifier.ready()
        await until_one_ends(
            daemon.session.run(),
            daemon.end_on_signal(),
            daemon.reload_on_signal(configuration, notifier),
            daemon.follow_kubelet(configuration),
            daemon.verification.follow(),
            daemon.state.follow_record(),
            daemon.unlisted.follow(),
            daemon.placement_files.follow(),
            daemon.resource_claims.follow(),
            *(one.follow() for one in daemon.followers),
            daemon.cpusets.follow_starting(),
            daemon.cpusets.follow_partitions(partial(daemon.hardware.changed, frozenset({LOST_CPUS}))),
            watch_hotplug(daemon.hardware.changed),
            daemon.hardware.follow(),
            daemon.hardware.measure_for_ever(),
            daemon.promised_nodes.follow(daemon.room_due),
            daemon.exact_requests.follow(),
            daemon.hugepage_pools.follow(),
            daemon.pressure.follow(),
            daemon.eviction.follow(),
            _feed_watchdog(notifier),
        )
        notifier.stopping()
        logger.info("stopping; every container stays as it is")
    return 0


def _hold(directory: Path) -> DirectoryLock:
    """The lock of the state directory, which is made if it is missing."""
    check_kind(directory, stat.S_IFDIR, "a directory for the state")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_directory(directory)
        return DirectoryLock(directory)
    except OSError as error:
        raise unusable(directory, f"cannot be made: {error.strerror}", error.errno) from error
    except HostError as error:
        raise unusable(directory, str(error), getattr(error, "errno", None)) from error


def _hold_again(lock: DirectoryLock) -> None:
    check_directory(lock.directory)
    lock.follow()


async def _feed_watchdog(notifier: Notifier) -> None:
    interval_s = notifier.watchdog_interval_s
    if interval_s is None:
        await asyncio.Event().wait()
        return
    while True:
        notifier.watchdog()
        await asyncio.sleep(interval_s)


def _log_level(level: str | None) -> str:
    if level is not None:
        logs.set_level(level)
    return logs.current_level()
