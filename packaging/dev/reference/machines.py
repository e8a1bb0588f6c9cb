"""docs/machines.md: usual machines, each from a file in tests/data/gallery, as `bayplan map` draws them, with
what pods get on them.

The first lines of a file are its comment: the title, what is known, and the source. Pods of 1, 8 and all CPUs
are asked about on the empty machine, as `bayplan what-if --topology` does; the picture has the first two of
them.
"""

from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from bayplan.admin.questions import what_if_described
from bayplan.drawing.maps import machine_map
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.machine import Machine
from bayplan.quantity import GIB, counted, format_bytes
from bayplan.sets import nodes_text
from bayplan.simulate.comparison import Simulation, empty_machine
from bayplan.simulate.manifest import plan_manifest, sizes_manifest
from bayplan.simulate.trace_file import Arrival
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import nodes_view

FILES: Final = Path(__file__).parents[3] / "tests/data/gallery"
PAGE: Final = "docs/machines.md"
ORDER: Final = (
    "epyc-nps1",
    "epyc-nps4",
    "xeon-snc",
    "xeon-hbm",
    "cxl",
    "gh200",
    "gb200",
    "grace",
    "gb10",
    "ampere",
    "power10",
    "hybrid",
    "threadripper",
    "pi5",
)
_WIDTH: Final = 900.0
_SIZES: Final = (1, 8)
_HEAD: Final = """\
# Usual machines

What bayplan makes of the machines that people have, with its defaults. Each is a
[machine file](machine-files.md) in `tests/data/gallery`, written from what is public;
`bayplan what-if --topology FILE` gives the same answers. Pods are Guaranteed, with 1Gi for each CPU or less
where the machine has less, and each comes to the empty machine; *all* is as many CPUs as can be a
container's own. Pictures show the pods of 1 and of 8 CPUs, one after the other.
"""


class Described(Struct, frozen=True):
    """A file: its title, what is known of the machine, and where from."""

    name: str
    title: str
    facts: str
    source: str


def machine_pages() -> dict[str, str]:
    """The page and its pictures, by their paths in the source tree."""
    sections, files = [], {}
    for name in ORDER:
        one = described(name)
        path = FILES / f"{name}.yaml"
        machine, _, _ = empty_machine(path)
        files[f"docs/machines/{name}.svg"] = f"{picture(path)}\n"
        rows = "".join(f"| {' | '.join(row)} |\n" for row in answers(path, machine))
        sections.append(
            f"\n## {one.title}\n\n{one.facts} {one.source}\n\n![{one.title}](machines/{name}.svg)\n\n"
            f"{_summary(machine)}\n\n| a pod of | gets memory on | and CPUs |\n|---|---|---|\n{rows}"
        )
    return {PAGE: _HEAD + "".join(sections), **files}


def described(name: str) -> Described:
    """The comment at the top of a file."""
    lines = (FILES / f"{name}.yaml").read_text().splitlines()
    comment = [line[2:] for line in lines if line.startswith("# ")]
    title, *rest = comment
    facts, _, source = " ".join(rest).partition("Source: ")
    return Described(name, title, facts.strip(), f"Source: {source}")


def answers(path: Path, machine: Machine) -> list[tuple[str, str, str]]:
    """For a pod of each size: how large, its nodes, its CPUs."""
    rows = []
    for cpus in (*_SIZES, 0):
        number = cpus or _most(path, machine)
        if number > len(machine.online_cpus) - 1:
            rows.append((f"{number} CPUs", "more CPUs than there are", "-"))
            continue
        decision = _answer(path, machine, number)
        placement = decision["placement"]
        label = counted(number, "CPU") if cpus else f"all, {counted(number, 'CPU')}"
        if decision["outcome"] == "refused":
            rows.append((label, "refused", "-"))
        else:
            rows.append((label, placement["mems"] or "any node", placement["exclusiveCpus"] or "shared ones"))
    return rows


def picture(path: Path) -> str:
    """The machine with the pods of 1 and of 8 CPUs."""
    machine, policy, _ = empty_machine(path)
    simulation = Simulation(machine, policy, ExactEngine())
    pods = [_manifest(machine, cpus) for cpus in _SIZES if cpus < len(machine.online_cpus)]
    arrivals = [Arrival(pod) for manifest in pods for pod in plan_manifest(manifest, machine)]
    for _ in simulation.play(arrivals):
        pass
    snapshot = Snapshot(
        taken_us=0,
        started_us=0,
        machine=machine,
        policy=policy,
        ledger=simulation.rehearsal.ledger,
        engine=ExactEngine.name,
    )
    return machine_map(nodes_view(snapshot)["nodes"], _WIDTH)


def _most(path: Path, machine: Machine) -> int:
    """As many CPUs as a container can have of its own: all but those that stay in the shared pool."""
    most = len(machine.online_cpus) - 1
    while most > 1 and not _answer(path, machine, most)["placement"]["exclusiveCpus"]:
        most -= 1
    return most


def _answer(path: Path, machine: Machine, cpus: int) -> dict[str, Any]:
    view = what_if_described(path, (), [_manifest(machine, cpus)])
    decision: dict[str, Any] = view["pods"][0]["containers"][0]
    return decision


def _manifest(machine: Machine, cpus: int) -> dict[str, Any]:
    ordinary_bytes = sum(machine.node_by_id[node].memory_bytes for node in machine.ordinary_nodes)
    each_bytes = min(GIB, ordinary_bytes // len(machine.online_cpus) // 2)
    return sizes_manifest(f"of-{cpus}", memory=str(cpus * each_bytes), cpus=str(cpus))


def _summary(machine: Machine) -> str:
    ordinary = sum(machine.node_by_id[node].memory_bytes for node in machine.ordinary_nodes)
    others = [node for node in machine.nodes if node.memory_bytes and node.id not in machine.ordinary_nodes]
    text = (
        f"{counted(len(machine.online_cpus), 'CPU')} in {counted(len(machine.core_sizes), 'core')}; "
        f"{format_bytes(ordinary)} of ordinary memory on {nodes_text(machine.ordinary_nodes)}"
    )
    if others:
        words = ", ".join(
            f"{format_bytes(node.memory_bytes)} on node {node.id}"
            f" ({'of a device' if node.owner else 'another tier'})"
            for node in others
        )
        text += f"; only for those who ask for it: {words}"
    return f"{text}."
