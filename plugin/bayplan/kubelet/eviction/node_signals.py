"""Eviction signals of single NUMA nodes, which kubelet does not have: ``node0.memory.available``.

``node.memory.available`` stands for every node that has no threshold of its own. What is available on a node
is measured otherwise than memory.available of the machine, see `bayplan.daemon.pressure_signals`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

T = TypeVar("T")

EVERY_NODE: Final = "node.memory.available"
_OF_NODE: Final = re.compile(r"node(0|[1-9][0-9]{0,4})\.memory\.available", re.ASCII)


def node_signal(node: int) -> str:
    """The signal for the memory of a node.

    >>> node_signal(3)
    'node3.memory.available'
    """
    return f"node{node}.memory.available"


def node_of(signal: str) -> int | None:
    """The node that *signal* is about; None if it is about no single node.

    >>> node_of("node3.memory.available"), node_of("node.memory.available"), node_of("memory.available")
    (3, None, None)
    """
    match = _OF_NODE.fullmatch(signal)
    return None if match is None else int(match[1])


def is_node_signal(signal: str) -> bool:
    """Whether it is about the memory of one node, or of every node."""
    return signal == EVERY_NODE or _OF_NODE.fullmatch(signal) is not None


def on_each_node(by_signal: Mapping[str, T], nodes: Iterable[int]) -> dict[str, T]:
    """*by_signal* with what is said for every node said for each of *nodes* that has nothing of its own."""
    found = {signal: value for signal, value in by_signal.items() if signal != EVERY_NODE}
    if EVERY_NODE in by_signal:
        for node in nodes:
            found.setdefault(node_signal(node), by_signal[EVERY_NODE])
    return found
