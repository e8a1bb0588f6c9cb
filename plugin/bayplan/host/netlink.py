"""Netlink: hotplug events of the kernel, after which sysfs is read again, and the interfaces of a pod.

What a hotplug event says is never used: it only causes sysfs to be read. The kernel sends no event when huge
page pools are resized. The only importer of pyroute2, in the function that needs it for the interfaces of a
pod: it costs 160 ms and 21 MiB.
"""

import asyncio
import errno
import logging
import socket as sockets
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Final

from msgspec import Struct

from bayplan.errors import HostError
from bayplan.host.namespaces import socket_in

SUBSYSTEMS: Final = frozenset({"cpu", "memory", "memory_tiering", "node"})
UNKNOWN: Final = "unknown"
"""The reason where events may have been lost: listening has just begun, or the queue overflowed."""

SETTLE_S: Final = 0.25
"""One DIMM causes an event for each of its 128 MiB blocks; they are reported as one."""
RETRY_S: Final = 30.0

_NETLINK_KOBJECT_UEVENT: Final = 15
_KERNEL_GROUP: Final = 1
"""The kernel's own events, not the copies that udev sends to group 2."""
_NONBLOCKING: Final = sockets.SOCK_RAW | sockets.SOCK_NONBLOCK | sockets.SOCK_CLOEXEC
_MAX_EVENT_BYTES: Final = 8192
"""The kernel's UEVENT_BUFFER_SIZE is 2048, and a path is at most 4096."""

_log = logging.getLogger(__name__)


async def kernel_events() -> AsyncIterator[str]:
    """The subsystem of each uevent of the kernel, or UNKNOWN; UNKNOWN comes first, when listening begins.

    Raises:
        HostError: the netlink socket cannot be had, or broke.
    """
    receive = asyncio.get_running_loop().sock_recv
    try:
        with sockets.socket(sockets.AF_NETLINK, _NONBLOCKING, _NETLINK_KOBJECT_UEVENT) as socket:
            socket.bind((0, _KERNEL_GROUP))
            yield UNKNOWN
            while True:
                try:
                    yield _subsystem(await receive(socket, _MAX_EVENT_BYTES))
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
                    yield UNKNOWN
    except OSError as error:
        raise HostError("netlink NETLINK_KOBJECT_UEVENT", f"no hotplug events: {error}") from error


def _subsystem(event: bytes) -> str:
    """What a uevent is about: of ``ACTION@PATH`` and its ``KEY=VALUE``, each ended by a zero byte, SUBSYSTEM.
    Source: Linux, lib/kobject_uevent.c."""
    fields = (field.partition(b"=") for field in event.split(b"\0"))
    return next((value.decode(errors="replace") for key, _, value in fields if key == b"SUBSYSTEM"), UNKNOWN)


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
                async with aclosing(events()) as stream:  # type: ignore[type-var]  # the library's types are too narrow
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

    async def report() -> None:
        while True:
            await wake.wait()
            await asyncio.sleep(settle_s)
            wake.clear()
            subsystems = frozenset(pending)
            pending.clear()
            changed(subsystems)

    async with asyncio.TaskGroup() as group:
        group.create_task(listen())
        group.create_task(report())


class Interface(Struct, frozen=True):
    """A network interface that a device carries: its name in its namespace, and the device as /sys/bus has
    it."""

    name: str
    bus: str
    device: str


async def interfaces_in(namespace: str) -> tuple[Interface, ...]:
    """The interfaces with a parent device in the network namespace with that path, by name; none if it is the
    host's own. Purely virtual ones (veth, bridges, tunnels) have no parent.

    pyroute2's own way into a namespace forks, which a process with other threads must not; so the socket is
    opened in there by a thread, and served by this loop.

    Raises:
        HostError: the namespace cannot be entered, or the kernel does not answer as it should.
    """
    await asyncio.to_thread(_route_classes)  # the import, away from the loop
    socket = await socket_in(namespace, rtnetlink_socket)
    return () if socket is None else await interfaces_of(socket, namespace)


async def interfaces_of(socket: sockets.socket, namespace: str) -> tuple[Interface, ...]:
    """See `interfaces_in`; over an rtnetlink *socket* of that *namespace*, which is closed afterwards."""
    route_class, netlink_error = _route_classes()
    route = route_class(fileno=socket.detach())
    try:
        links = [link async for link in await route.get_links()]
    except (netlink_error, OSError, KeyError, ValueError, struct.error) as error:
        raise HostError(namespace, f"its interfaces cannot be listed: {error}") from error
    finally:
        route.close()
    found = (
        Interface(link.get("ifname"), link.get("parent_dev_bus_name"), link.get("parent_dev_name"))
        for link in links
    )
    return tuple(sorted((one for one in found if one.device and one.bus), key=lambda one: one.name))


def rtnetlink_socket() -> sockets.socket:
    """Of the type that pyroute2 takes over; to the kernel it is the same as SOCK_RAW."""
    return sockets.socket(sockets.AF_NETLINK, sockets.SOCK_DGRAM, sockets.NETLINK_ROUTE)


def _route_classes() -> tuple[Callable[..., Any], type[Exception]]:
    from pyroute2 import AsyncIPRoute, NetlinkError  # noqa: PLC0415 - see the module's docstring

    return AsyncIPRoute, NetlinkError
