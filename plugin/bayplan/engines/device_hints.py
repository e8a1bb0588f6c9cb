"""The nodes that a container's devices are close to: found by the host, corrected by annotations, explained.

Pure: `bayplan.host` looks at devices, engines use the hints. A hint never invents a node: what points to a
node that is not online is no hint. What points to the memory of a device is one of the CPUs that are nearest.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.decision import Decision, DeviceHint, Reason
from bayplan.model.machine import Machine
from bayplan.model.memory_kinds import nodes_to_run_on
from bayplan.model.sentences import verb_after
from bayplan.model.wishes import ALL, Wishes
from bayplan.model.workload import Container
from bayplan.sets import NodeSet, nodes_text

HINTS: Final = "device-hints"
IGNORED: Final = "device-hints-ignored"
NOT_FOUND: Final = "no-device-hint"
ELSEWHERE: Final = "devices-elsewhere"
"""Codes of the reasons."""


MOST_NAMED: Final = 8
"""Devices of a kind that a sentence names; it ends up in the status of a pod."""


class Findings(Struct, frozen=True):
    """The hints of a container's devices, and what could not be found out, each a sentence."""

    hints: tuple[DeviceHint, ...] = ()
    problems: tuple[str, ...] = ()


NOTHING_FOUND: Final = Findings()


def has_devices(container: Container) -> bool:
    """Whether the spec says anything about devices."""
    return bool(container.devices or container.cdi_devices or container.device_mounts)


def looks_at_devices(wishes: Wishes) -> bool:
    """Whether it matters where the devices are."""
    return not wishes.opted_out and wishes.replaced_hints is None and ALL not in wishes.ignored_hints


def effective_hints(
    findings: Findings, wishes: Wishes, machine: Machine
) -> tuple[tuple[DeviceHint, ...], tuple[Reason, ...]]:
    """The hints that count on *machine*, and what is to be said about the others. What an annotation says
    about a device that was found counts instead."""
    hints, notes = _counting(findings, wishes, machine.node_ids)
    return tuple(replace(one, nodes=nodes_to_run_on(machine, one.nodes)) for one in hints), notes


def _counting(
    findings: Findings, wishes: Wishes, node_ids: NodeSet
) -> tuple[tuple[DeviceHint, ...], tuple[Reason, ...]]:
    if wishes.replaced_hints is not None:
        return wishes.replaced_hints, (Reason(IGNORED, "an annotation replaces all device hints"),)
    notes = [Reason(NOT_FOUND, problem) for problem in findings.problems]
    if ALL in wishes.ignored_hints:
        notes.append(Reason(IGNORED, "an annotation ignores all device hints"))
        return wishes.added_hints, tuple(notes)
    added = {hint.device for hint in wishes.added_hints}
    kept, ignored = [], []
    for hint in findings.hints:
        if hint.device in added:
            continue
        nodes = hint.nodes & node_ids
        if hint.device in wishes.ignored_hints:
            ignored.append(hint)
        elif nodes:
            kept.append(replace(hint, nodes=nodes))
        else:
            offline = f"which {verb_after(hint.nodes, 'is')} not online"
            where = f"{hint.device} is on {nodes_text(hint.nodes)}, {offline}"
            notes.append(Reason(NOT_FOUND, where))
    if ignored:
        notes.append(Reason(IGNORED, f"ignored by annotation: {hints_text(ignored)}"))
    return (*kept, *wishes.added_hints), tuple(notes)


def device_shares(hints: Iterable[DeviceHint], nodes: NodeSet) -> dict[int, int]:
    """How many devices are close to each of *nodes*, of those that are close to one of them only."""
    near = [hint.nodes & nodes for hint in hints]
    return dict(sorted(Counter(next(iter(one)) for one in near if len(one) == 1).items()))


def device_reasons(decision: Decision) -> tuple[Reason, ...]:
    """Where the devices are, and which of them the container's memory is not close to."""
    hints, mems = decision.request.hints, decision.placement.mems
    if not hints:
        return ()
    reasons = [Reason(HINTS, f"its devices: {hints_text(hints)}")]
    if mems is not None:
        far = [hint for hint in hints if hint.nodes.isdisjoint(mems)]
        if far:
            reasons.append(Reason(ELSEWHERE, f"not on {nodes_text(mems)}: {hints_text(far)}"))
    return tuple(reasons)


def hints_text(hints: Iterable[DeviceHint]) -> str:
    """Devices with their nodes, those on the same nodes together: ``/dev/vdb, net/eth0 on node 1``."""
    by_nodes: dict[NodeSet, list[str]] = {}
    for hint in hints:
        by_nodes.setdefault(hint.nodes, []).append(hint.device)
    return "; ".join(f"{names_text(names)} on {nodes_text(nodes)}" for nodes, names in by_nodes.items())


def names_text(names: Sequence[str]) -> str:
    """Names in a row, of many the first ones."""
    shown = ", ".join(names[:MOST_NAMED])
    return shown if len(names) <= MOST_NAMED else f"{shown} and {len(names) - MOST_NAMED} more"
