"""The pictures of docs/concepts.md: two nodes of 64Gi, pods that the engine decided about, drawn as `bayplan
map` draws a real machine.

A picture shows the moment after its last pod. What lies on the nodes, where that matters, is part of the
scene; what would be moved from there is what `bayplan.placement.page_placement` says.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.drawing.maps import machine_map
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY
from bayplan.model.policy import PlacementPolicy, PlacementStrategy, TopologyPolicy
from bayplan.model.sentences import summary
from bayplan.placement.page_owners import container_pages, goal_bytes, start_bytes
from bayplan.placement.page_placement import LivePages, NodeMemory, plan
from bayplan.quantity import GIB
from bayplan.sets import CpuSet
from bayplan.simulate.comparison import Simulation
from bayplan.simulate.machine_file import described_machine
from bayplan.simulate.manifest import plan_manifest, sizes_manifest
from bayplan.simulate.trace_file import Arrival
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import nodes_view

_WIDTH: Final = 620.0
_NODE_BYTES: Final = 64 * GIB
_RESERVED_BYTES: Final = 4 * GIB
_MACHINE: Final = described_machine(
    {"threadsPerCore": 2, "nodes": [{"count": 2, "cpus": 8, "memory": _NODE_BYTES}]}
)
_POLICY: Final = PlacementPolicy(
    reserved_bytes={node: {MEMORY: _RESERVED_BYTES} for node in _MACHINE.node_ids},
    reserved_cpus=CpuSet([0, 1]),
)
_STRICT: Final = replace(_POLICY, topology=TopologyPolicy.SINGLE_NUMA_NODE)
_SPREAD: Final = replace(_POLICY, strategy=PlacementStrategy.SPREAD)

_OUTSIDE_BYTES: Final = 3 * GIB
"""What the kernel and others than containers hold of each node, where it matters."""

_Held = Mapping[str, Mapping[int, int]]
"""What containers use, in bytes by name and node."""

_pod = partial(sizes_manifest, cpus="500m")
_DB: Final = _pod("shop/db", memory="80Gi")
_EQUAL: Final = tuple(_pod(f"shop/web-{number}", memory="15Gi") for number in range(3))
_HALF_FULL: Final = tuple(_pod(f"shop/db-{number}", memory="40Gi") for number in range(2))
_TOO_MUCH: Final = _pod("shop/late", memory="50Gi")
_OWNER: Final = _pod("shop/db", memory="40Gi")
_ANYWHERE: Final = _pod("shop/index", cpus=None, qos="BestEffort")
_IN_THE_WAY: Final = {"shop/db/main": {0: 8 * GIB}, "shop/index/main": {0: 42 * GIB, 1: 6 * GIB}}
_NOWHERE_TO_GO: Final = {"shop/db/main": {0: 34 * GIB}, "shop/index/main": {0: 25 * GIB, 1: 59 * GIB}}


class Scene(Struct, frozen=True):
    """Pods one after the other; ``held`` is what containers use in the end, None where it does not matter;
    ``moved``: what is planned for their pages has been done."""

    pods: tuple[Mapping[str, object], ...] = ()
    policy: PlacementPolicy = _POLICY
    held: _Held | None = None
    moved: bool = False


SCENES: Final = {
    "node": Scene(),
    "claim": Scene((_DB,)),
    "witness": Scene((_DB, _pod("shop/cache", memory="30Gi"))),
    "cpus": Scene((_pod("shop/db", memory="10Gi", cpus="4"), _pod("shop/web", memory="10Gi"))),
    "pack": Scene(_EQUAL),
    "spread": Scene(_EQUAL, _SPREAD),
    "degraded": Scene((*_HALF_FULL, _TOO_MUCH)),
    "refused": Scene((*_HALF_FULL, _TOO_MUCH), _STRICT),
    "pages": Scene((_OWNER, _ANYWHERE), held=_IN_THE_WAY),
    "moved": Scene((_OWNER, _ANYWHERE), held=_IN_THE_WAY, moved=True),
    "eviction": Scene((_OWNER, _ANYWHERE), held=_NOWHERE_TO_GO),
}


class Shown(Struct, frozen=True):
    """A picture, and what bayplan says at that moment: of its last decision, and of memory that can run
    out."""

    svg: str
    said: tuple[str, ...]


def show(scene: Scene) -> Shown:
    """What becomes of a scene."""
    simulation = Simulation(_MACHINE, scene.policy, ExactEngine())
    arrivals = [Arrival(pod) for manifest in scene.pods for pod in plan_manifest(manifest, _MACHINE)]
    said = [summary(one) for step in simulation.play(arrivals) for one in step.decisions][-1:]
    ledger = simulation.rehearsal.ledger
    live = None if scene.held is None else _live(ledger, scene.held)
    if live is not None:
        live = _live(ledger, _after(live)) if scene.moved else live
        said = [str(risk) for risk in live.plan.risks]
    snapshot = Snapshot(
        taken_us=0,
        started_us=0,
        machine=_MACHINE,
        policy=scene.policy,
        ledger=ledger,
        engine=ExactEngine.name,
        live=live,
    )
    return Shown(machine_map(nodes_view(snapshot)["nodes"], _WIDTH), tuple(said))


def pictures() -> dict[str, str]:
    """Every picture, by its path in the source tree."""
    return {f"docs/concepts/{name}.svg": f"{show(scene).svg}\n" for name, scene in SCENES.items()}


def _live(ledger: Ledger, held: _Held) -> LivePages:
    """The nodes' memory while containers hold that much, and what is planned."""
    containers = [
        container_pages(_MACHINE, entry, amounts, amounts, {})
        for entry in ledger.entries.values()
        for amounts in [held[entry.decision.request.name]]
    ]
    used_bytes = {
        node: _OUTSIDE_BYTES + sum(one.held_bytes.get(node, 0) for one in containers)
        for node in _MACHINE.node_ids
    }
    nodes = {
        node: NodeMemory(max(0, _NODE_BYTES - used), used_bytes=used) for node, used in used_bytes.items()
    }
    found = plan(nodes, containers, start_bytes(_MACHINE), goal_bytes(_MACHINE), _MACHINE.distance)
    return LivePages(0, nodes, {one.container_id: one for one in containers}, found)


def _after(live: LivePages) -> _Held:
    """What containers hold where, once everything that is planned was moved."""
    held = {one.container_id: Counter(one.held_bytes) for one in live.containers.values()}
    for move in live.plan.moves:
        held[move.container_id].subtract({move.source: move.amount_bytes, move.target: -move.amount_bytes})
    return {live.containers[container_id].name: amounts for container_id, amounts in held.items()}
