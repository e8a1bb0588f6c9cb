"""`bayplan status`: what was decided about each container, and why; and how daemon and runtime are."""

import argparse
from typing import Any, Final

from bayplan.cli.client import ask
from bayplan.cli.render import Block, Column, Table
from bayplan.quantity import format_bytes

VERB: Final = "status"
HELP: Final = "show every container with its decision, the runtime, and what needs attention"

_COLUMNS: Final = (
    Column("CONTAINER"),
    Column("QOS"),
    Column("OUTCOME"),
    Column("MEMS"),
    Column("CPUS"),
    Column("MEMORY"),
    Column("OOM", number=True),
    Column("WHY"),
)

_WITHOUT: Final = {
    "memory_policy": "the annotation bayplan.dev/memory-policy has no effect: that takes NRI 0.12",
    "oom_score_adj": "oom_score_adj is set when a container starts, not in its spec: that takes NRI 0.7",
    "unified_input": "memory.high, memory.low and memory.min of a spec are not seen: that takes NRI 0.10",
}
"""What a user notices of a capability that the runtime lacks; of the others there is nothing to notice."""

_KEPT_WHERE: Final = (
    "  What was decided is set again. A container that is to keep other CPUs and nodes is created with them, "
    'or with the annotation bayplan.dev/opt-out: "true".'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None but those of every verb."""


def answer(arguments: argparse.Namespace) -> dict[str, Any]:
    """The daemon's answer."""
    return ask(arguments.admin_socket, VERB)


def blocks(status: dict[str, Any]) -> list[Block]:
    """The answer to ``status`` for people."""
    shown: list[Block] = [_summary(status)]
    if status["containers"]:
        shown.append(Table(_COLUMNS, tuple(_row(one) for one in status["containers"])))
    else:
        shown.append("No containers.")
    if any(one["qosInferred"] for one in status["containers"]):
        shown.append(
            "(inferred): the pod is outside kubelet's cgroup tree, so that its class was inferred from the "
            "resources it asks for."
        )
    if status["unmanaged"]:
        names = "\n".join(f"  {one['name']}" for one in status["unmanaged"])
        shown.append(f"Created without bayplan ({len(status['unmanaged'])}):\n{names}")
    if status["drift"]:
        lines = "\n".join(f"  {one['name']}: {one['difference']}" for one in status["drift"])
        shown.append(f"Not as decided ({len(status['drift'])}):\n{lines}\n{_KEPT_WHERE}")
    shown += kept_for_pods(status)
    if status["problems"]:
        shown.append("Needs attention:\n" + "\n".join(f"  {one}" for one in status["problems"]))
    return shown


def kept_for_pods(answer: dict[str, Any]) -> list[Block]:
    """What is kept for containers that pods are still to get; nothing where that is nothing."""
    lines = []
    for one in answer["keptForPods"]:
        parts = [f"{format_bytes(amount)} {resource}" for resource, amount in one["bytes"].items()]
        memory = [f"{', '.join(parts)} on node {one['nodes']}"] if parts else []
        cpus = [f"CPUs {one['cpus']}"] if one["cpus"] else []
        lines.append(f"\n  {one['name']}: {' and '.join(memory + cpus)}")
    return (
        [f"Kept for containers that pods are still to get ({len(lines)}):{''.join(lines)}"] if lines else []
    )


def duration(seconds: int) -> str:
    """A duration in its two largest units: 3d 4h, 2h 5m, 1m 7s.

    >>> duration(7), duration(7500), duration(273_600)
    ('7s', '2h 5m', '3d 4h')
    """
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, seconds = divmod(seconds, length)
        if amount:
            parts.append(f"{amount}{unit}")
    return " ".join(parts[:2]) or "0s"


def _summary(status: dict[str, Any]) -> str:
    daemon, runtime = status["daemon"], status["runtime"]
    policy, up = status["policy"]["topologyManagerPolicy"], duration(daemon["uptimeSeconds"])
    shared = status["sharedCpus"] or "none"
    engine = f"engine {daemon['engine']}"
    lines = [f"bayplan {daemon['version']}, up {up}, {engine}, policy {policy}, shared CPUs {shared}"]
    if runtime["connected"]:
        lines.append(f"{runtime['name']} {runtime['version']}, NRI {runtime['nriVersion']}")
        able = runtime["capabilities"]
        lines += [f"  {text}" for name, text in _WITHOUT.items() if not able.get(name, True)]
    else:
        lines.append(
            "no container runtime is connected; what it creates meanwhile is created without bayplan"
        )
    if status["counters"]:
        counted = ", ".join(f"{name} {number}" for name, number in status["counters"].items())
        lines.append(f"counted since start: {counted}")
    return "\n".join(lines)


def _row(container: dict[str, Any]) -> tuple[str, ...]:
    return (
        container["name"],
        container["qosClass"] + (" (inferred)" if container["qosInferred"] else ""),
        container["outcome"],
        _mems(container),
        _cpus(container),
        _memory(container),
        _score(container),
        "; ".join(reason["text"] for reason in container["reasons"]) or "-",
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


def _mems(container: dict[str, Any]) -> str:
    mems = container["mems"]
    if mems is None:
        return "any"
    return f"{mems} (set by others)" if container["memsPinnedByOthers"] else str(mems)


def _cpus(container: dict[str, Any]) -> str:
    if container["cpusPinnedByOthers"]:
        return f"{container['cpus']} (set by others)"
    if container["cpus"] is None:
        return "as in its spec"
    return f"{container['cpus'] or 'none'} {'exclusive' if container['cpusExclusive'] else 'shared'}"


def _memory(container: dict[str, Any]) -> str:
    """The request (an interval where it is not known exactly, as it is for ordinary containers), the limit if
    it is another, huge pages."""
    memory = container["memory"]
    low, high, limit = memory["requestUsualLowBytes"], memory["requestHighBytes"], memory["limitBytes"]
    parts = []
    if high:
        parts.append(format_bytes(low) if low == high else f"{format_bytes(low)}..{format_bytes(high)}")
    if limit is not None and not low == high == limit:
        parts.append(f"limit {format_bytes(limit)}")
    parts += [f"{format_bytes(amount)} {name}" for name, amount in container["hugepagesBytes"].items()]
    return ", ".join(parts) or "-"
