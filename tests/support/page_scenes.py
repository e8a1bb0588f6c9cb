"""Nodes, containers and their pages in small random numbers, and what is there once a plan is carried out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.placement.page_placement import ContainerPages, NodeMemory, Plan, plan
from bayplan.sets import NodeSet

IDS = (0, 1, 2, 5)
NOTHING = dict.fromkeys(IDS, 0)


@dataclass
class Scene:
    """Live numbers; amounts are small, so that sets are often just full."""

    nodes: dict[int, NodeMemory]
    containers: list[ContainerPages]
    start_bytes: dict[int, int]
    goal_bytes: dict[int, int]
    distances: dict[tuple[int, int], int] = field(default_factory=dict)

    def planned(self) -> Plan:
        return plan(self.nodes, self.containers, self.start_bytes, self.goal_bytes, self.distance)

    def distance(self, source: int, target: int) -> int:
        return self.distances.get((source, target), 20)

    def room(self, kept: Mapping[int, int], at_risk: NodeSet = NodeSet()) -> dict[int, int]:
        """What nodes have beside what is kept; less than nothing only those that are at risk."""
        return {
            node: max(
                one.free_bytes + one.reclaimable_bytes - kept[node], -kept[node] if node in at_risk else 0
            )
            for node, one in self.nodes.items()
        }


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    ids = IDS[: draw(st.integers(1, 4))]
    few = st.integers(0, 12)
    sets = st.sets(st.sampled_from(ids), min_size=1).map(NodeSet)
    containers = []
    for number in range(draw(st.integers(0, 6))):
        held = draw(st.dictionaries(st.sampled_from(ids), few, max_size=3))
        movable = {node: draw(st.integers(0, amount)) for node, amount in held.items()}
        containers.append(
            ContainerPages(
                f"c{number}",
                f"n{number}",
                draw(sets),
                draw(st.integers(0, 25)),
                held,
                movable if draw(st.booleans()) else {},
                draw(st.integers(0, 2)),
            )
        )
    start = {node: draw(st.integers(0, 2)) for node in ids}
    goal = {node: start[node] + draw(st.integers(0, 2)) for node in ids}
    nodes = {node: NodeMemory(draw(few), draw(few)) for node in ids}
    return Scene(nodes, containers, start, goal, draw(distances(ids)))


def distances(ids: Sequence[int]) -> st.SearchStrategy[dict[tuple[int, int], int]]:
    pairs = [(one, other) for one in ids for other in ids if one != other]
    return st.fixed_dictionaries(dict.fromkeys(pairs, st.integers(11, 14)))


@st.composite
def promised_on_single_nodes(draw: st.DrawFn) -> Scene:
    """Pages of containers that may lie elsewhere are on nodes that are promised, one by one."""
    few = st.integers(0, 12)
    owners = [ContainerPages(f"o{node}", f"o{node}", NodeSet([node]), draw(few)) for node in IDS[:2]]
    others = []
    for number in range(2):
        held = {node: draw(few) for node in IDS[:2]}
        allowed = NodeSet({*held, *draw(st.sets(st.sampled_from(IDS)))})
        others.append(ContainerPages(f"c{number}", f"c{number}", allowed, 0, held, held, draw(few)))
    nodes = {node: NodeMemory(0 if node in IDS[:2] else draw(few)) for node in IDS}
    return Scene(nodes, [*owners, *others], NOTHING, NOTHING, draw(distances(IDS)))


def moved(scene: Scene, made: Plan) -> Scene:
    """What is there once the pages were moved."""
    free = {node: one.free_bytes for node, one in scene.nodes.items()}
    held = {one.container_id: dict(one.held_bytes) for one in scene.containers}
    movable = {one.container_id: dict(one.movable_bytes) for one in scene.containers}
    for move in made.moves:
        free[move.source] += move.amount_bytes
        free[move.target] -= move.amount_bytes
        for rows in (held, movable):
            row = rows[move.container_id]
            row[move.source] -= move.amount_bytes
            row[move.target] = row.get(move.target, 0) + move.amount_bytes
    nodes = {
        # What is not free there has to be reclaimed first.
        node: NodeMemory(max(0, amount), scene.nodes[node].reclaimable_bytes + min(0, amount))
        for node, amount in free.items()
    }
    containers = [
        replace(one, held_bytes=held[one.container_id], movable_bytes=movable[one.container_id])
        for one in scene.containers
    ]
    return Scene(nodes, containers, scene.start_bytes, scene.goal_bytes, scene.distances)
