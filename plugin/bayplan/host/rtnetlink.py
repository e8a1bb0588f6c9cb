"""The interfaces of a network namespace, as the kernel lists them over rtnetlink.

One request (RTM_GETLINK, all of them) and its answers; nothing is changed. Source: Linux, rtnetlink(7), and
include/uapi/linux/if_link.h for the attributes.
"""

import asyncio
import socket as sockets
import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from bayplan.errors import HostError
from bayplan.host.network_namespace import socket_in

_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_LINK_BYTES: Final = 16
"""struct ifinfomsg; all zeros in the request."""

_ERROR, _DONE, _NEW_LINK, _GET_LINK = 2, 3, 16, 18
_REQUEST_ALL: Final = 0x301
"""NLM_F_REQUEST and NLM_F_DUMP."""

_NAME, _PARENT, _PARENT_BUS = 3, 56, 57
_TYPE_BITS: Final = 0x3FFF
_RECEIVE_BYTES: Final = 1 << 16
"""More than the kernel puts into one datagram of a list."""


class Interface(Struct, frozen=True):
    """A network interface that a device carries: its name in its namespace, and the device as /sys/bus has
    it."""

    name: str
    bus: str
    device: str


def rtnetlink_socket() -> sockets.socket:
    """A socket for `interfaces_of`, in the network namespace of the calling thread."""
    kind = sockets.SOCK_RAW | sockets.SOCK_NONBLOCK | sockets.SOCK_CLOEXEC
    return sockets.socket(sockets.AF_NETLINK, kind, sockets.NETLINK_ROUTE)


async def interfaces_in(namespace: str) -> tuple[Interface, ...]:
    """The interfaces with a parent device in the network namespace with that path, by name; none if it is the
    host's own. Purely virtual ones (veth, bridges, tunnels) have no parent.

    Raises:
        HostError: the namespace cannot be entered, or the kernel does not answer as it should.
    """
    socket = await socket_in(namespace, rtnetlink_socket)
    return () if socket is None else await interfaces_of(socket, namespace)


async def interfaces_of(socket: sockets.socket, namespace: str) -> tuple[Interface, ...]:
    """See `interfaces_in`; over an rtnetlink *socket* of that *namespace*, which is closed afterwards."""
    try:
        with socket:
            links = await _links(socket)
    except (OSError, struct.error, ValueError) as error:
        raise HostError(namespace, f"its interfaces cannot be listed: {error}") from error
    found = [Interface(*(one.get(key, "") for key in (_NAME, _PARENT_BUS, _PARENT))) for one in links]
    return tuple(sorted((one for one in found if one.device and one.bus), key=lambda one: one.name))


async def _links(socket: sockets.socket) -> list[dict[int, str]]:
    """Of each interface the texts that are wanted, by attribute."""
    loop, links = asyncio.get_running_loop(), list[dict[int, str]]()
    request = bytes(_LINK_BYTES)
    await loop.sock_sendall(
        socket, _HEADER.pack(_HEADER.size + len(request), _GET_LINK, _REQUEST_ALL, 1, 0) + request
    )
    while datagram := await loop.sock_recv(socket, _RECEIVE_BYTES):
        for kind, body in _messages(datagram):
            if kind == _DONE:
                return links
            if kind == _ERROR:
                (number,) = struct.unpack_from("=i", body)
                raise OSError(-number, "the kernel refuses")
            if kind == _NEW_LINK:
                links.append(dict(_texts(body[_LINK_BYTES:])))
    raise ValueError("the socket has ended")


def _messages(datagram: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages of a datagram: type and body."""
    at = 0
    while at < len(datagram):
        size, kind, _, _, _ = _HEADER.unpack_from(datagram, at)
        if size < _HEADER.size:
            raise ValueError(f"a message of {size} bytes")
        yield kind, datagram[at + _HEADER.size : at + size]
        at += _aligned(size)


def _texts(attributes: bytes) -> Iterator[tuple[int, str]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        size, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if size < _ATTRIBUTE.size:
            raise ValueError(f"an attribute of {size} bytes")
        if kind & _TYPE_BITS in (_NAME, _PARENT, _PARENT_BUS):
            text = attributes[at + _ATTRIBUTE.size : at + size]
            yield kind & _TYPE_BITS, text.rstrip(b"\0").decode(errors="replace")
        at += _aligned(size)


def _aligned(size: int) -> int:
    """Where the next message or attribute begins: at a multiple of four bytes."""
    return (size + 3) & ~3
