"""`bayplan status`: what needs attention first, then every container by namespace, where it is and what it
has.
"""

import argparse
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from bayplan import sets
from bayplan.cli.claims import held_claims
from bayplan.cli.client import ask
from bayplan.cli.layout import Block, Column, Row, Table
from bayplan.quantity import MILLI_PER_CPU, amounts, counted, duration, format_bytes, format_column
from bayplan.views.attention import DIFFERS, attention, cpus_text, nodes_text, why

VERB: Final = "status"
HELP: Final = "show what needs attention, then every container by namespace: where it is and what it has"

_ATTENTION: Final = (Column("NEEDS ATTENTION"), Column("CONTAINER", least=24), Column("WHAT"))
_COLUMNS: Final = (
    Column("CONTAINER", least=24),
    Column("OUTCOME", rank=2),
    Column("NODES"),
    Column("CPUS"),
    Column("MEMORY", rank=1),
    Column("QOS", rank=3),
)
_WIDE_COLUMNS: Final = (*_COLUMNS, Column("OOM", number=True, rank=4), Column("ID", rank=5), Column("WHY"))
_POOL_COLUMNS: Final = (
    Column("POOL"),
    Column("CPUS"),
    Column("SIZE"),
    Column("KIND", rank=2),
    Column("REQUESTED", number=True, rank=1),
    Column("CONTAINERS"),
)
_OUTCOMES: Final = ("placed", "degraded", "adopted")

_WITHOUT: Final = {
    "memory_policy": "the annotation bayplan.dev/memory-policy has no effect: that takes NRI 0.12",
    "oom_score_adj": "oom_score_adj is set when a container starts, not in its spec: that takes NRI 0.7",
    "unified_input": "memory.high, memory.low and memory.min of a spec are not seen: that takes NRI 0.10",
}
"""What a user notices of a capability that the runtime lacks; of the others there is nothing to notice."""

_INFERRED: Final = (
    "(inferred): the pod is outside kubelet's cgroup tree, so that its class was inferred from the resources "
    "it asks for."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The containers that are shown."""
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only the pods of this namespace")
    parser.add_argument("--outcome", choices=_OUTCOMES, help="only containers that were so placed")


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answers to ``status`` and ``refused``, narrowed down to what was asked for."""
    status = ask(arguments.admin_socket, VERB)
    status["refusals"] = ask(arguments.admin_socket, "refused")["refusals"]
    namespace, outcome = arguments.namespace, arguments.outcome
    if namespace is not None:
        for key in ("containers", "unmanaged", "drift", "keptForPods", "resourceClaims", "refusals"):
            status[key] = [one for one in status[key] if one["name"].split("/")[0] == namespace]
    if outcome is not None:
        status["containers"] = [one for one in status["containers"] if one["outcome"] == outcome]
    return status


def blocks(status: dict[str, Any]) -> list[Block]:
    """The answer for people."""
    return [*_above(status), *_containers(status, _COLUMNS, _row), *_below(status)]


def wide_blocks(status: dict[str, Any]) -> list[Block]:
    """The same with all that there is to say of each container, and what was counted."""
    counted = ", ".join(f"{name} {number}" for name, number in status["counters"].items())
    shown: list[Block] = [f"counted since the start: {counted}"] if counted else []
    return [*_above(status), *_containers(status, _WIDE_COLUMNS, _wide_row), *_below(status), *shown]


def names(status: dict[str, Any]) -> list[str]:
    """The containers, NAMESPACE/POD/CONTAINER."""
    return [one["name"] for one in status["containers"]]


def kept_for_pods(answer: dict[str, Any]) -> list[Block]:
    """What is kept for containers that pods are still to get; nothing where that is nothing."""
    lines = []
    for one in answer["keptForPods"]:
        parts = [f"{format_bytes(amount)} {resource}" for resource, amount in one["bytes"].items()]
        memory = [f"{', '.join(parts)} on node {one['nodes']}"] if parts else []
        cpus = [sets.cpus_text(sets.CpuSet.parse(one["cpus"]))] if one["cpus"] else []
        lines.append(f"\n  {one['name']}: {' and '.join(memory + cpus)}")
    return (
        [f"Kept for containers that pods are still to get ({len(lines)}):{''.join(lines)}"] if lines else []
    )


def attention_blocks(status: dict[str, Any]) -> list[Block]:
    """What needs attention as a table; nothing where all is well."""
    rows = attention(status)
    shown: list[Block] = [Table(_ATTENTION, tuple(rows))] if rows else []
    return [*shown, DIFFERS] if status["drift"] else shown


def _above(status: dict[str, Any]) -> list[Block]:
    return [_summary(status), *attention_blocks(status)]


def _below(status: dict[str, Any]) -> list[Block]:
    inferred = any(one["qosInferred"] for one in status["containers"])
    unmatched = "\n".join(status["unmatchedCpuRules"])
    return [
        *([_INFERRED] if inferred else []),
        *cpu_pools(status),
        *([unmatched] if unmatched else []),
        *kept_for_pods(status),
        *held_claims(status["resourceClaims"]),
    ]


def cpu_pools(answer: dict[str, Any]) -> list[Block]:
    """The named pools as a table; nothing where there are none."""
    rows = tuple(
        (
            one["name"],
            one["cpus"] or "-",
            "-" if one["maximum"] is None else f"{one['minimum']} to {one['maximum']}",
            one["cpuKind"] or "-",
            f"{one['requestedMilli'] / MILLI_PER_CPU:g}",
            ", ".join(one["containers"]) or "-",
        )
        for one in answer["cpuPools"]
    )
    return [Table(_POOL_COLUMNS, rows)] if rows else []


def _summary(status: dict[str, Any]) -> str:
    daemon, runtime = status["daemon"], status["runtime"]
    up, policy = duration(daemon["uptimeSeconds"]), status["policy"]["topologyManagerPolicy"]
    lines = [f"bayplan {daemon['version']}, up {up}, engine {daemon['engine']}, policy {policy}"]
    if runtime["connected"]:
        lines[0] += f"; {runtime['name']} {runtime['version']}, NRI {runtime['nriVersion']}"
        able = runtime["capabilities"]
        lines += [f"  {text}" for name, text in _WITHOUT.items() if not able.get(name, True)]
    else:
        lines.append(
            "no container runtime is connected; what it creates meanwhile is created without bayplan"
        )
    lines.append(f"shared CPUs: {status['sharedCpus'] or 'none'}")
    return "\n".join(lines)


def _containers(status: dict[str, Any], columns: tuple[Column, ...], row: Any) -> list[Block]:
    """One table, with a line above those of each namespace."""
    if not status["containers"]:
        return ["No containers."]
    rows: list[Row] = []
    memory = _memory_column(status["containers"])
    for namespace, group in groupby(status["containers"], key=lambda one: one["name"].split("/")[0]):
        found = list(group)
        pods = len({one["name"].rpartition("/")[0] for one in found})
        rows.append(f"namespace {namespace}: {counted(pods, 'pod')}, {counted(len(found), 'container')}")
        rows += [row(one, next(memory)) for one in found]
    return [Table(columns, tuple(rows))]


def _row(container: dict[str, Any], memory: str) -> tuple[str, ...]:
    return (
        container["name"].partition("/")[2],
        container["outcome"],
        nodes_text(container),
        cpus_text(container),
        memory,
        container["qosClass"] + (" (inferred)" if container["qosInferred"] else ""),
    )


def _wide_row(container: dict[str, Any], memory: str) -> tuple[str, ...]:
    name, outcome, nodes, _, _, qos = _row(container, memory)
    return (
        *(name, outcome, nodes, cpus_text(container, listed=True), memory, qos),
        *(_score(container), container["id"], why(container["reasons"])),
    )


def _score(container: dict[str, Any]) -> str:
    """What the kernel has, and what it was to have if that is something else.

    >>> _score({"oomScoreAdj": 0, "oomScoreAdjWanted": -997})
    '0 (not -997)'
    """
    score, wanted = container["oomScoreAdj"], container["oomScoreAdjWanted"]
    if score is None:
        return "-"
    return str(score) if wanted in (None, score) else f"{score} (not {wanted})"


def _memory_column(containers: list[dict[str, Any]]) -> Iterator[str]:
    """Of each container the request (an interval where it is not known exactly, as it is for ordinary
    containers), the limit if it is another, all in one unit, and huge pages."""
    amounts_bytes = [_memory(one) for one in containers]
    shown = iter(format_column(amount for row in amounts_bytes for amount in row))
    for container, row in zip(containers, amounts_bytes, strict=True):
        low, high, limit = (next(shown) for _ in row)
        parts = []
        if row[1]:
            parts.append("..".join(dict.fromkeys((low, high))))  # Both may read the same.
        if row[2] is not None and not row[0] == row[1] == row[2]:
            parts.append(f"limit {limit}")
        pages = amounts(container["hugepagesBytes"], "")
        yield ", ".join([*parts, *([pages] if pages else [])]) or "-"


def _memory(container: dict[str, Any]) -> tuple[int, int, int | None]:
    memory = container["memory"]
    return memory["requestUsualLowBytes"], memory["requestHighBytes"], memory["limitBytes"]
