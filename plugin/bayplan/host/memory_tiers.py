"""What kind of memory a node has: its tier, the initiators nearest to it, the device that owns it.

All of it is optional: a kernel before 6.1 has no tiers, before 5.2 no initiators, firmware without an HMAT
rates nothing, and only drivers know which memory is a device's. What is there and garbled is a HostError.
"""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bayplan.errors import HostError
from bayplan.host.kernelfs import (
    RefusedError,
    garbage,
    numbered_entries,
    parse_file,
    parse_number,
    read_optional,
)
from bayplan.host.topology_files import TopologyTree
from bayplan.model.machine import Performance
from bayplan.sets import NodeSet

TIERS: Final = "sys/devices/virtual/memory_tiering"
NVIDIA: Final = "proc/driver/nvidia/gpus"

GENERIC_INITIATOR: Final = "generic-initiator"
"""The owner where the firmware says that a device initiates from a node, but no driver says which one."""

_TIER: Final = re.compile(r"memory_tier([0-9]{1,5})")
_INITIATOR: Final = re.compile(r"node([0-9]{1,5})")
_NO_NODE: Final = "-1"

logger = logging.getLogger(__name__)


class Reach(NamedTuple):
    """From where a node's memory is reached best, and how well."""

    initiators: NodeSet
    performance: Performance


def read_tiers(root: str, owned: NodeSet = NodeSet()) -> Mapping[int, int]:
    """The rank of the tier of each node that is in one, 0 for the fastest.

    The kernel names a tier by its abstract distance, lower for faster memory; only the order means anything.
    A tier of *owned* nodes alone has no rank: it comes and goes with a driver, and the others keep theirs.

    Raises:
        HostError: a list is garbled, or a node is in two tiers.
    """
    ranks: dict[int, int] = {}
    seen = NodeSet()
    rank = 0
    for number in numbered_entries(f"{root}/{TIERS}", _TIER):
        path = f"{root}/{TIERS}/memory_tier{number}/nodelist"
        text = read_optional(path)
        members = NodeSet() if text is None else parse_file(path, NodeSet.parse, text)
        if not members.isdisjoint(seen):
            raise HostError(path, f"node {members & seen} is already in a faster tier")
        seen |= members
        if members - owned:
            ranks.update(dict.fromkeys(members, rank))
            rank += 1
    return ranks


def read_reach(tree: TopologyTree, node_directory: str, cpu_nodes: NodeSet) -> Reach:
    """The best initiators of a node's memory: of all (``access0``), or, where those are devices only, of the
    nodes with CPUs (``access1``). A rating that is garbled is left out of *tree*."""
    best = _reach(tree, f"{node_directory}/access0/initiators")
    if not best.initiators.isdisjoint(cpu_nodes):
        return best
    among_cpus = _reach(tree, f"{node_directory}/access1/initiators")
    return among_cpus if among_cpus.initiators else best


def read_owners(root: str, cpu_nodes: NodeSet) -> Mapping[int, str]:
    """The device that owns the memory of a node, for each node without CPUs that has such an owner.

    NVIDIA's driver names the node of each GPU whose memory is coherent with the CPUs' (POWER9, Grace); the
    owner is the GPU's PCI address. Any other node without CPUs from which a device initiates, says the
    firmware (SRAT generic initiators), has the owner GENERIC_INITIATOR.

    Raises:
        HostError: a file is garbled.
    """
    path = f"{root}/sys/devices/system/node/has_generic_initiator"
    text = read_optional(path)
    initiating = NodeSet() if text is None else parse_file(path, NodeSet.parse, text) - cpu_nodes
    return dict.fromkeys(initiating, GENERIC_INITIATOR) | _nvidia_nodes(f"{root}/{NVIDIA}")


def _reach(tree: TopologyTree, directory: str) -> Reach:
    initiators = NodeSet(numbered_entries(directory, _INITIATOR))
    if not initiators:
        return Reach(initiators, Performance())
    return Reach(
        initiators,
        Performance(
            tree.optional(f"{directory}/read_latency", parse_number, 0),
            tree.optional(f"{directory}/write_latency", parse_number, 0),
            tree.optional(f"{directory}/read_bandwidth", parse_number, 0),
            tree.optional(f"{directory}/write_bandwidth", parse_number, 0),
        ),
    )


def _nvidia_nodes(directory: str) -> dict[int, str]:
    """GPU by node. Where the driver has no memory online it says node -1, or cannot be read."""
    try:
        gpus = sorted(path.name for path in Path(directory).iterdir())
    except OSError:
        return {}
    owners = {}
    for gpu in gpus:
        path = f"{directory}/{gpu}/numa_status"
        try:
            text = read_optional(path)
        except RefusedError as error:
            logger.warning("a GPU does not say which node is its memory", extra={"problem": str(error)})
            continue
        if text is None:
            continue
        found = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Node:")]
        if len(found) != 1:
            raise garbage(path, text, "one line 'Node: <number>'")
        if found[0] != _NO_NODE:
            owners[parse_file(path, parse_number, found[0])] = gpu
    return owners
