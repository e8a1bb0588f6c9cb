"""Whether what bayplan says about a container is what the kernel has: one comparison for all scenarios."""

from collections.abc import Iterable
from typing import Any

from testbed.kernel import ContainerView, parse_ids
from testbed.node import Node


def differences(entry: dict[str, Any], view: ContainerView, every_node: frozenset[int]) -> list[str]:
    """What the entry of a status and the kernel's view do not agree about; empty: they agree."""
    decided = {
        "cpus": parse_ids(entry["cpus"]),
        "mems": every_node if entry["mems"] is None else parse_ids(entry["mems"]),
        "oomScoreAdj": entry["oomScoreAdj"],
    }
    real = {"cpus": view.cpus_allowed, "mems": view.mems_allowed, "oomScoreAdj": view.oom_score_adj}
    return [
        f"{name}: decided {decided[name]}, the kernel has {real[name]}"
        for name in decided
        if decided[name] != real[name]
    ]


def assert_agreement(node: Node, container_ids: Iterable[str]) -> None:
    """The ledger holds exactly these containers, and the kernel has each as decided."""
    wanted, status = set(container_ids), node.bayplan.status()
    entries = {entry["id"]: entry for entry in status["containers"]}
    assert set(entries) == wanted
    every_node = node.kernel.nodes_online()
    found = {one: differences(entries[one], node.view(one), every_node) for one in wanted}
    assert not {one: said for one, said in found.items() if said}
