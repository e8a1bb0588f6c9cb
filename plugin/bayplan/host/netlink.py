"""Hotplug: the kernel says that nodes, CPUs or memory came or went, so that sysfs is read again.

The only importer of pyroute2, in the function that needs it: it costs 160 ms and 21 MiB. What an event says
is never used: it is only a reason to look. The kernel says nothing when huge page pools are resized.
"""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

from bayplan.errors import HostError

SUBSYSTEMS: Final = frozenset({"cpu", "memory", "node"})
UNKNOWN: Final = "unknown"
"""The reason where events may have been lost: listening has just begun, or the queue ran over."""

SETTLE_S: Final = 0.25
"""One DIMM brings an event for each of its 128 MiB blocks; they are told as one."""
RETRY_S: Final = 30.0

_KERNEL_GROUP: Final = 1
"""The kernel's own events, not the copies that udev sends to group 2."""

_log = logging.getLogger(__name__)


async def kernel_events() -> AsyncIterator[str]:
    """The subsystem of each uevent of the kernel, or UNKNOWN; UNKNOWN comes first, when listening begins.

    Raises:
        HostError: the netlink socket cannot be had, or broke.
    """
    source = "netlink NETLINK_KOBJECT_UEVENT"
    socket: Any = (await asyncio.to_thread(_uevent_socket))()
    try:
        await socket.bind(groups=_KERNEL_GROUP)
        yield UNKNOWN
        while True:
            # After an overrun of the receive buffer pyroute2 gives one message without any fields.
            async for message in socket.get():
                yield message.get("SUBSYSTEM", UNKNOWN)
    except (OSError, KeyError, ValueError, struct.error) as error:
        raise HostError(source, f"no events of the kernel: {error}") from error
    finally:
        socket.close()


async def watch_hotplug(
    changed: Callable[[frozenset[str]], None],
    events: Callable[[], AsyncIterator[str]] = kernel_events,
    *,
    settle_s: float = SETTLE_S,
    retry_s: float = RETRY_S,
) -> None:
    """Call *changed* whenever sysfs should be read again, until cancelled.

    It is called in the event loop, once per burst of events, with what it was about: some of SUBSYSTEMS,
    or UNKNOWN. The first call comes when listening begins, so that nothing is missed between an earlier
    reading and now. A socket that fails is opened again every *retry_s* seconds, and logged once.
    """
    pending: set[str] = set()
    wake = asyncio.Event()

    async def listen() -> None:
        failed = False
        while True:
            try:
                async with aclosing(events()) as stream:  # type: ignore[type-var]
                    async for subsystem in stream:
                        failed = False
                        if subsystem in SUBSYSTEMS or subsystem == UNKNOWN:
                            pending.add(subsystem)
                            wake.set()
            except HostError as error:
                if not failed:
                    _log.warning("hotplug is not noticed, trying again every %g s: %s", retry_s, error)
                failed = True
            await asyncio.sleep(retry_s)

    async def tell() -> None:
        while True:
            await wake.wait()
            await asyncio.sleep(settle_s)
            wake.clear()
            subsystems = frozenset(pending)
            pending.clear()
            changed(subsystems)

    async with asyncio.TaskGroup() as group:
        group.create_task(listen())
        group.create_task(tell())


def _uevent_socket() -> Callable[[], Any]:
    from pyroute2.netlink.uevent import AsyncUeventSocket  # noqa: PLC0415 - see the module's docstring

    found: Callable[[], Any] = AsyncUeventSocket
    return found
