"""The Node object of the node that the agent is on.

Two agents of different machines under one name would go on replacing each other's room: the Node has the boot
id of its machine, once kubelet has said it.
"""

from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.agent.cluster.api import Api
from bayplan.errors import ConfigError, Problem

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _Metadata(Struct):
    uid: str


class _NodeInfo(Struct, frozen=True):
    bootID: str = ""  # noqa: N815 - Kubernetes' name


class _Status(Struct, frozen=True):
    nodeInfo: _NodeInfo = _NodeInfo()  # noqa: N815 - likewise


class _Node(Struct):
    metadata: _Metadata
    status: _Status = _Status()


async def own_node_uid(api: Api, node_name: str) -> str:
    """The uid of the Node *node_name*; ConfigError if it is another machine's. Raises ApiError,
    UnavailableError."""
    node = await api.get(f"/api/v1/nodes/{node_name}", _Node)
    own = _BOOT_ID.read_text().strip()
    if (found := node.status.nodeInfo.bootID) not in {"", own}:
        problem = Problem(
            node_name, f"another machine, whose boot id is {found}", f"this one, whose is {own}"
        )
        raise ConfigError("--node-name", (problem,))
    return node.metadata.uid
