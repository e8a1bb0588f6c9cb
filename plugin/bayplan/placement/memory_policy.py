"""The NUMA memory policy that a container's processes start with: from a wish to what can be set.

set_mempolicy(2) fails, and the container with it, if none of the policy's nodes is allowed, or if the kernel
does not know the mode. So a policy is cut to the nodes of the placement, and left out, with a reason, where
it cannot be set.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.decision import (
    Decision,
    MemoryPolicyMode,
    MemoryPolicySetting,
    MemoryPolicyWish,
    Outcome,
    Reason,
)
from bayplan.model.machine import MEMORY, Machine
from bayplan.sets import NodeSet, nodes_text

_RELATIVE: Final = "relative_nodes"


class MemoryPolicyAbility(Struct, frozen=True):
    """What can be set: ``runtime`` passes a memory policy on, ``weighted`` is a kernel (6.9 or later) that
    interleaves by weight."""

    runtime: bool = True
    weighted: bool = True


def with_memory_policy(machine: Machine, ability: MemoryPolicyAbility, decision: Decision) -> Decision:
    """*decision* with the memory policy that its container starts with, or the reason why it has none.

    A wish that cannot be granted degrades the decision; what an engine chose by itself is dropped silently.
    """
    wish, setting = decision.request.memory_policy, decision.placement.memory_policy
    if decision.outcome is Outcome.REFUSED or decision.request.opted_out:
        return decision
    if wish is None:
        if setting is None or ability.runtime:
            return decision
        return replace(decision, placement=replace(decision.placement, memory_policy=None))
    setting = _setting(machine, decision, wish)
    obstacle = _obstacle(ability, wish, setting)
    if obstacle is not None:
        return replace(
            decision,
            outcome=Outcome.DEGRADED if decision.outcome is Outcome.PLACED else decision.outcome,
            placement=replace(decision.placement, memory_policy=None),
            reasons=(*decision.reasons, obstacle),
        )
    where = f" over {nodes_text(setting.nodes)}" if setting.nodes else ""
    reason = Reason("memory-policy", f"starts with the memory policy {setting.mode.value}{where}")
    return replace(
        decision,
        placement=replace(decision.placement, memory_policy=setting),
        reasons=(*decision.reasons, reason),
    )


def _obstacle(
    ability: MemoryPolicyAbility, wish: MemoryPolicyWish, setting: MemoryPolicySetting
) -> Reason | None:
    asked = f"the memory policy {wish.mode.value} is not set"
    if not ability.runtime:
        text = f"{asked}: it comes without a way to say so (NRI 0.12 has one, containerd from 2.3)"
        return Reason("memory-policy-unsupported", text)
    if wish.mode is MemoryPolicyMode.WEIGHTED_INTERLEAVE and not ability.weighted:
        return Reason("memory-policy-unsupported", f"{asked}: the kernel has it from 6.9 on")
    if wish.mode is not MemoryPolicyMode.LOCAL and not setting.nodes:
        return Reason("memory-policy-elsewhere", f"{asked}: the container is on none of nodes {wish.nodes}")
    return None


def _setting(machine: Machine, decision: Decision, wish: MemoryPolicyWish) -> MemoryPolicySetting:
    if wish.mode is MemoryPolicyMode.LOCAL:
        return MemoryPolicySetting(wish.mode)
    request, placement = decision.request, decision.placement
    allowed = (placement.mems if request.pinned_mems is None else request.pinned_mems) or (
        machine.ordinary_nodes
    )
    if wish.nodes is None:
        nodes = allowed
    elif _RELATIVE in wish.flags:
        nodes = wish.nodes
    else:
        nodes = wish.nodes & allowed
    if wish.mode is MemoryPolicyMode.PREFERRED and nodes and wish.nodes is None:
        # The kernel takes one node: the one that holds most of what was promised.
        nodes = NodeSet([_main_node(placement.booked_bytes, nodes)])
    return MemoryPolicySetting(wish.mode, nodes, wish.flags)


def _main_node(booked_bytes: Mapping[int, Mapping[str, int]], nodes: NodeSet) -> int:
    return min(nodes, key=lambda node: (-booked_bytes.get(node, {}).get(MEMORY, 0), node))
