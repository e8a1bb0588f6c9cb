"""The NUMA memory policy that a container's processes start with: the one of its spec, else from a wish to
what can be set.

set_mempolicy(2) fails, and the container with it, if none of the policy's nodes is allowed, or if the kernel
does not know the mode. So a policy that is wished is cut to the nodes of the placement, and left out, with a
reason, where it cannot be set. One that the spec has already stays, and the placement goes by it.

Where all memory of its nodes is in the zone Movable a container is bound to them by a policy, and then may
use one node more: the kernel has nothing there for its pipes, and a policy of such nodes does not count for
what these need (mm/mempolicy.c, `apply_policy_zone`). Where it cannot be bound its promise is on both.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.interface import AS_WISHED, PINNED, WISH_NOT_GRANTED, Engine, pinned_reason
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    STATIC,
    Booking,
    Decision,
    MemoryPolicyMode,
    MemoryPolicySetting,
    MemoryPolicyWish,
    NodeWish,
    Outcome,
    Placement,
    QosClass,
    Reason,
    Request,
)
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.sentences import policy_text
from bayplan.sets import NodeSet, nodes_text

GIVEN_POLICY: Final = "given-policy"
"""Code of the reason that a container goes by the memory policy of its spec."""

FOR_THE_KERNEL: Final = "for-the-kernel"
"""Code of the reason that a container may use a node more for what the kernel has to hold for it."""

_RELATIVE: Final = "relative_nodes"


class MemoryPolicyAbility(Struct, frozen=True):
    """What can be set: ``runtime`` passes a memory policy on, ``weighted`` is a kernel (6.9 or later) that
    interleaves by weight. ``seen``: somebody asks before the container starts, when it can be seen whether
    the OCI runtime has set it."""

    runtime: bool = True
    weighted: bool = True
    seen: bool = True


def decide_by_given_policy(
    basis: Basis,
    engine: Engine,
    request: Request,
    current: Placement | None = None,
) -> Decision:
    """What *engine* decides, so that the kernel can carry out the memory policy of the spec too.

    Memory of a container that is bound to nodes is promised there, and if the engine finds no place there it
    is left alone and counted, as one with a cpuset.mems of somebody else. With other policies the container
    may always use their nodes.
    """
    given = request.given_policy
    if given is None or request.opted_out or not (nodes := _existing_nodes(basis.machine, given)):
        return engine.decide(basis, request, current)

    def decide(asked: Request) -> Decision:
        return engine.decide(basis, asked, current)

    if request.pinned_mems is not None:
        return _where_pinned(decide, request, request.pinned_mems, given, nodes)
    text, wish = policy_text(given), request.nodes
    common = nodes if wish is None else nodes & wish.nodes
    if wish is not None and wish.required and not common and _RELATIVE not in given.flags:
        contradiction = f"it requires {nodes_text(wish.nodes)}, and its spec has the memory policy {text}"
        return Decision(request, Outcome.REFUSED, reasons=(Reason(GIVEN_POLICY, contradiction),))
    if not common and _RELATIVE in given.flags:
        # The kernel folds its nodes into those that are allowed, whatever they are.
        decision = decide(request)
    elif given.mode is MemoryPolicyMode.BIND:
        decision = _where_bound(decide, request, common or nodes)
    else:
        decision = _where_allowed(decide, request, nodes)
    if decision.outcome is Outcome.REFUSED:
        return decision
    decision = _with_reason(decision, f"its spec has the memory policy {text}")
    mems = decision.placement.mems
    if wish is not None and not nodes <= wish.nodes:
        kept = f", and is kept on {nodes_text(mems)}" if mems is not None else ""
        asks = f"{'requires' if wish.required else 'prefers'} {nodes_text(wish.nodes)}{kept}"
        return _degraded(decision, f"{asks}, although the memory policy of its spec is {text}")
    return decision


def _where_pinned(
    decide: Callable[[Request], Decision],
    request: Request,
    mems: NodeSet,
    given: MemoryPolicySetting,
    nodes: NodeSet,
) -> Decision:
    """Somebody else chose *mems* too. Memory that is bound counts on the nodes that are in both."""
    text, common = policy_text(given), nodes & mems
    if common and given.mode is MemoryPolicyMode.BIND:
        decision = decide(replace(request, pinned_mems=common))
        reasons = (pinned_reason(request) if one.code == PINNED else one for one in decision.reasons)
        decision = replace(decision, request=request, reasons=tuple(reasons))
        return _with_reason(decision, f"its spec has the memory policy {text}")
    decision = decide(request)
    if common:
        return decision
    contradiction = f"its cpuset.mems {mems} and the memory policy {text} of its spec"
    return _degraded(decision, f"{contradiction} have no node in common: the kernel refuses that")


def _where_bound(decide: Callable[[Request], Decision], request: Request, nodes: NodeSet) -> Decision:
    """All of its memory is on *nodes*: placed there, or else counted there and left alone."""
    decision = decide(replace(request, nodes=NodeWish(nodes)))
    mems = decision.placement.mems
    if mems is None or not mems <= nodes:
        return _counted(decide, request, nodes)
    return _as_asked(decision, request)


def _counted(decide: Callable[[Request], Decision], request: Request, nodes: NodeSet) -> Decision:
    """Left alone, and counted on the *nodes* that its memory is bound to."""
    decision = decide(replace(request, pinned_mems=nodes, nodes=None))
    others = tuple(reason for reason in decision.reasons if reason.code != PINNED)
    return replace(decision, request=replace(decision.request, nodes=request.nodes), reasons=others)


def _where_allowed(decide: Callable[[Request], Decision], request: Request, nodes: NodeSet) -> Decision:
    """The memory of the container may be elsewhere than on *nodes*, but must be allowed there, unless the
    container requires other nodes."""
    wish, decision = request.nodes, None
    if request.qos is QosClass.GUARANTEED and wish is None:
        decision = decide(replace(request, nodes=NodeWish(nodes)))
        granted = all(reason.code != WISH_NOT_GRANTED for reason in decision.reasons)
        decision = _as_asked(decision, request) if granted else None
    decision = decision or decide(request)
    mems = decision.placement.mems
    wanted = nodes & wish.nodes if wish is not None and wish.required else nodes
    if mems is None or wanted <= mems:
        return decision
    decision = replace(decision, placement=replace(decision.placement, mems=mems | wanted))
    added = nodes_text(wanted - mems)
    return _degraded(
        decision, f"beside {nodes_text(mems)} it may use {added}, as the policy of its spec has it"
    )


def _as_asked(decision: Decision, request: Request) -> Decision:
    """*decision* about a *request* that was given the nodes of the policy for a wish."""
    reasons = decision.reasons
    if request.nodes is None:
        reasons = tuple(reason for reason in reasons if reason.code != AS_WISHED)
    return replace(decision, request=replace(decision.request, nodes=request.nodes), reasons=reasons)


def _existing_nodes(machine: Machine, given: MemoryPolicySetting) -> NodeSet:
    """The nodes of a policy that the machine has; relative ones are counted among all that have memory."""
    if _RELATIVE not in given.flags:
        return given.nodes & machine.memory_nodes
    allowed = list(machine.memory_nodes)
    return NodeSet(allowed[node % len(allowed)] for node in given.nodes)


def _degraded(decision: Decision, text: str, code: str = GIVEN_POLICY) -> Decision:
    """*decision*, not as well as asked, because of what *text* says."""
    outcome = Outcome.DEGRADED if decision.outcome is Outcome.PLACED else decision.outcome
    return _with_reason(replace(decision, outcome=outcome), text, code)


def _with_reason(decision: Decision, text: str, code: str = GIVEN_POLICY) -> Decision:
    return replace(decision, reasons=(*decision.reasons, Reason(code, text)))


def with_policies(machine: Machine, ability: MemoryPolicyAbility, decision: Decision) -> Decision:
    """*decision* with all that memory policies make of it: that of spec, wish or engine, and the one that
    leaves the kernel a node."""
    return with_kernel_memory(machine, ability, with_memory_policy(machine, ability, decision))


def with_memory_policy(machine: Machine, ability: MemoryPolicyAbility, decision: Decision) -> Decision:
    """*decision* with the memory policy that its container starts with, or the reason why it has none.

    A wish that cannot be granted degrades the decision; what an engine chose by itself is dropped silently.
    """
    wish, setting = decision.request.memory_policy, decision.placement.memory_policy
    if decision.outcome is Outcome.REFUSED or decision.request.opted_out:
        return decision
    given = decision.request.given_policy
    if given is not None:
        decision = replace(decision, placement=replace(decision.placement, memory_policy=None))
        if wish is None:
            return decision
        wished = policy_text(wish)
        return _degraded(
            decision, f"{wished} of its annotation is not set: its spec has {policy_text(given)}"
        )
    if wish is None:
        if setting is None or ability.runtime:
            return decision
        return replace(decision, placement=replace(decision.placement, memory_policy=None))
    setting = _setting(machine, decision, wish)
    obstacle = _obstacle(ability, wish, setting)
    if obstacle is not None:
        without = replace(decision, placement=replace(decision.placement, memory_policy=None))
        return _degraded(without, obstacle.text, obstacle.code)
    where = f" over {nodes_text(setting.nodes)}" if setting.nodes else ""
    reason = Reason("memory-policy", f"starts with the memory policy {setting.mode.value}{where}")
    return replace(
        decision,
        placement=replace(decision.placement, memory_policy=setting),
        reasons=(*decision.reasons, reason),
    )


def with_kernel_memory(machine: Machine, ability: MemoryPolicyAbility, decision: Decision) -> Decision:
    """*decision* with a node for the kernel where none of its nodes has memory for it (engine `exact`):
    without one no OCI runtime gets the container started.

    If the container can be bound to its nodes it starts with that policy, and gets the other node once the
    kernel shows that it is bound (`with_node_for_the_kernel`), because OCI runtimes may pass over the policy.
    Else it is promised the same on both. A container that is bound gets no more nodes for the sake of others:
    its processes could not use them.
    """
    request, placement = decision.request, decision.placement
    added = node_for_the_kernel(machine, decision)
    if added is None:
        return decision
    asks = request.given_policy is not None or request.memory_policy is not None
    own = request.given_policy or (placement.memory_policy if asks else None)
    if own is not None and own.mode is MemoryPolicyMode.BIND:
        # It may be one that the kernel shifts when nodes are added later.
        return with_node_for_the_kernel(decision, added, bound=True)
    if asks or not (ability.runtime and ability.seen):
        return with_node_for_the_kernel(decision, added, bound=False)
    policy = MemoryPolicySetting(MemoryPolicyMode.BIND, placement.promise.nodes, STATIC)
    return replace(decision, placement=replace(placement.staying(), memory_policy=policy))


def node_for_the_kernel(machine: Machine, decision: Decision) -> NodeSet | None:
    """The node that the container of *decision* is to have beside those of its promise, the nearest that has
    memory for the kernel; None if it needs none, if there is none, or if somebody else says where it is."""
    request, placement = decision.request, decision.placement
    mems, promise = placement.mems, placement.promise
    others_say = request.opted_out or request.pinned_mems is not None or decision.outcome is Outcome.REFUSED
    if others_say or mems is None or promise.is_by_node or not mems <= machine.movable_nodes:
        return None
    own = (node for node in machine.nodes if node.memory_bytes and not node.owner)
    nodes = [node.id for node in own if not node.is_movable]
    if not nodes:
        return None
    nearest = min(nodes, key=lambda node: (sum(machine.distance(node, one) for one in mems), node))
    return NodeSet([nearest])


def found_with_node_for_the_kernel(machine: Machine, decision: Decision, mems: NodeSet | None) -> Decision:
    """*decision*, which is as old as its container, of one that was found with the nodes *mems*: if it was
    bound to movable memory it got the node for the kernel since, and its promise is where it was."""
    added, policy = node_for_the_kernel(machine, decision), decision.placement.memory_policy
    is_bound = policy is not None and policy.mode is MemoryPolicyMode.BIND
    if not is_bound or mems is None or added is None or not added <= mems:
        return decision
    return with_node_for_the_kernel(decision, added, bound=True)


def bound_among(decision: Decision, mems: NodeSet) -> NodeSet:
    """Where a container with the nodes *mems* has its memory, by the policy that its processes started with:
    if that binds them, on what both have in common."""
    policy = decision.request.given_policy or decision.placement.memory_policy
    if policy is None or policy.mode is not MemoryPolicyMode.BIND or _RELATIVE in policy.flags:
        return mems
    # Of a policy whose nodes are gone the kernel takes all.
    return policy.nodes & mems or mems


def with_node_for_the_kernel(decision: Decision, added: NodeSet, *, bound: bool) -> Decision:
    """*decision* with the node *added* for what the kernel holds for the container. If its memory is *bound*
    to its own nodes its promise stays there; else the promise is on both, where it fits because it fitted on
    fewer nodes."""
    placement = decision.placement
    mems, claim = placement.mems or NodeSet(), placement.claimed
    own, others = nodes_text(mems), nodes_text(added)
    placement = replace(placement, mems=mems | added, previous_mems=placement.mems)
    if bound:
        text = f"all memory of {own} is movable: its pipes lie on {others}, what it uses itself on {own}"
        return _with_reason(replace(decision, placement=placement), text, FOR_THE_KERNEL)
    placement = replace(placement, claim=replace(claim, nodes=claim.nodes | added))
    if decision.request.memory_policy is None:
        placement = replace(placement, memory_policy=None)
    text = f"all memory of {own} is movable, and it cannot be bound there: it may use {others} as well"
    return _degraded(replace(decision, placement=placement), text, FOR_THE_KERNEL)


def decide_again(basis: Basis, engine: Engine, request: Request, current: Placement) -> Decision:
    """As `decide_by_given_policy` about a changed *request* of a container that is where *current* says. Its
    processes stay bound if they are because of `with_kernel_memory`."""
    policy, promise, mems = current.memory_policy, current.promise, current.mems
    ours = request.memory_policy is None and request.given_policy is None
    if (
        not ours
        or policy is None
        or policy.mode is not MemoryPolicyMode.BIND
        or isinstance(promise, Booking)
        or mems is None
    ):
        return decide_by_given_policy(basis, engine, request, current)
    asked = replace(request, nodes=NodeWish(policy.nodes, required=True))
    decision = _as_asked(decide_by_given_policy(basis, engine, asked, current), request)
    placement = decision.placement
    if placement.mems is None:
        return decision
    mems = placement.mems | (mems - promise.nodes)
    return replace(decision, placement=replace(placement.staying(), mems=mems))


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
        return Reason(
            "memory-policy-elsewhere",
            f"{asked}: the container is not on {nodes_text(wish.nodes or NodeSet())}",
        )
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
