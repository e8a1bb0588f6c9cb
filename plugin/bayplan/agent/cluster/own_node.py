"""The Node object of the node that the agent is on: which it is, and which kubelet it has.

Two agents of different machines under one name would go on replacing each other's room: the Node has the boot
id of its machine, once kubelet has said it.
"""

import asyncio
import random
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.agent.cluster.api import Api, ApiError
from bayplan.agent.mirror import DaemonLink
from bayplan.backoff import drawn
from bayplan.errors import ConfigError, Problem, UnavailableError
from bayplan.logs import Condition

ASK_INTERVAL_S: Final = 300.0
"""At most, at least half of it; a kubelet is changed once in months."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _Metadata(Struct):
    uid: str


class _NodeInfo(Struct, frozen=True):
    bootID: str = ""  # noqa: N815 - Kubernetes' name
    kubeletVersion: str = ""  # noqa: N815 - likewise


class _Status(Struct, frozen=True):
    nodeInfo: _NodeInfo = _NodeInfo()  # noqa: N815 - likewise
    declaredFeatures: tuple[str, ...] = ()  # noqa: N815 - likewise


class _Node(Struct):
    metadata: _Metadata
    status: _Status = _Status()


class OwnNode(Struct, frozen=True):
    """The Node of this machine. ``features`` are those that its kubelet has declared to have."""

    uid: str
    features: tuple[str, ...] = ()


async def own_node(api: Api, node_name: str) -> OwnNode:
    """The Node *node_name*; ConfigError if it is another machine's. Raises ApiError, UnavailableError."""
    found = await _own_node(api, node_name)
    return OwnNode(found.metadata.uid, found.status.declaredFeatures)


class KubeletVersionWatch:
    """Tells the daemon over *link* which kubelet the node *node_name* has; asks every *interval_s*."""

    def __init__(
        self, api: Api, node_name: str, link: DaemonLink, interval_s: float = ASK_INTERVAL_S
    ) -> None:
        self._api = api
        self._node_name = node_name
        self._link = link
        self._interval_s = interval_s
        self._condition = Condition("kubelet's version is not known", "kubelet's version is known again")

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                node = await _own_node(self._api, self._node_name)
            except (ApiError, ConfigError, UnavailableError) as error:
                self._condition.holds(str(error))
            else:
                self._condition.over()
                if node.status.nodeInfo.kubeletVersion:
                    self._link.know_kubelet(node.status.nodeInfo.kubeletVersion)
            await asyncio.sleep(drawn(random.random, self._interval_s / 2, self._interval_s))


async def _own_node(api: Api, node_name: str) -> _Node:
    # From what the API server has in memory, as kubelet asks for it: etcd is not asked for 10 kB each time.
    node = await api.get(f"/api/v1/nodes/{node_name}?resourceVersion=0", _Node)
    own = _BOOT_ID.read_text().strip()
    if (found := node.status.nodeInfo.bootID) not in {"", own}:
        problem = Problem(
            node_name, f"another machine, whose boot id is {found}", f"this one, whose is {own}"
        )
        raise ConfigError("--node-name", (problem,))
    return node
