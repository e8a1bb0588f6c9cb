"""The Memory Manager: hints and allocation under the policies None, Static and BestEffort.

An immutable value; whatever changes the state returns a new manager. Same answers as kubelet's, with
these differences, where kubelet damages its own state:

* memory of finished init containers that the pod's next containers may use is read off the state, where
  kubelet keeps it beside its state and loses it on a restart;
* a pod with pod-level resources that is admitted again keeps what it has, where kubelet books it twice.

*Who takes part.* Only requests count, and only of memory and huge pages. Amounts are whole bytes, so that
kubelet's error about quantities which are not ("failed to represent quantity as int64") cannot arise
here.

*Hints* say on which sets of nodes a request fits, described instead of listed. A set of one node fits
unless the node is bound to a group. A larger set fits if each of its nodes is unused, or if it is exactly
the group that its used nodes are bound to. So beside one region, all sets of unused nodes with enough
free, there is at most one set per used node and one per group, each looked at by itself.

*Pods with resources as a whole.* Containers that are Guaranteed by themselves get what they request. All
others share: regular init containers, which run alone, what the sidecars started so far leave of the
pod's memory; the rest what all sidecars and containers leave.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.kubelet.hint_merge import best_hint, narrowest_size
from bayplan.engines.kubelet.memory_state import (
    Block,
    Blocks,
    EmptyPodSharedPoolError,
    MemoryAllocationError,
    MemoryManagerError,
    MemoryState,
    Nodes,
    NumaNodeState,
    Refusal,
    book,
)
from bayplan.engines.kubelet.topology_hints import (
    NO_HINT,
    Hint,
    HintSet,
    NodeAmounts,
    OfSize,
    ProviderHints,
    Region,
)
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import (
    Amounts,
    ContainerSpec,
    FeatureGates,
    PodSpec,
    guaranteed_alone,
    has_pod_level,
    is_memory,
)
from bayplan.kubelet.qos import qos_class
from bayplan.model.claims import sum_of
from bayplan.model.decision import QosClass
from bayplan.sets import NodeSet

Wanted = Mapping[str, int]
"""Bytes wanted, by resource."""


def takes_part(pod: PodSpec, gates: FeatureGates) -> bool:
    """Whether the pod's memory is managed: Guaranteed, and without pod-level resources unless the managers
    can place such pods."""
    if has_pod_level(pod) and not gates.manages_pod_level:
        return False
    return qos_class(pod, gates) is QosClass.GUARANTEED


def placed_as_a_whole(pod: PodSpec, gates: FeatureGates) -> bool:
    """Whether the pod's memory is that of its pod-level resources."""
    return gates.pod_level_resource_managers and has_pod_level(pod)


def container_wants(pod: PodSpec, container: ContainerSpec, gates: FeatureGates) -> Wanted:
    """What a container gets for itself. In a pod with pod-level resources that is nothing, unless the
    container by itself is Guaranteed; it then shares the rest of the pod's memory."""
    if placed_as_a_whole(pod, gates) and not guaranteed_alone(container):
        return {}
    return _memory(container.requests)


def pod_wants(pod: PodSpec, gates: FeatureGates) -> Wanted:
    """What the pod needs at the worst moment of its life, or its pod-level requests.

    As in kubelet, a resource that only init containers request is left out.
    """
    if placed_as_a_whole(pod, gates) and pod.resources is not None:
        return {name: size for name, size in _memory(pod.resources.requests).items() if size > 0}
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for init in pod.init_containers:
        for name, size in container_wants(pod, init, gates).items():
            if init.restartable:
                sidecars[name] = sidecars.get(name, 0) + size
            else:
                peak[name] = max(peak.get(name, 0), sidecars.get(name, 0) + size)
    running = sum_of(container_wants(pod, container, gates) for container in pod.containers)
    return {name: max(size + sidecars.get(name, 0), peak.get(name, 0)) for name, size in running.items()}


def _memory(amounts: Amounts) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if is_memory(name)}


Reusable = Mapping[NodeSet, Mapping[str, int]]
"""Bytes by set of nodes and resource which a pod's finished init containers leave to its next containers."""


def fitting(nodes: Nodes, wanted: Wanted, reusable: Reusable) -> HintSet:
    """All sets of nodes on which *wanted* fits; empty if there are none.

    Preferred are the sets of the size of the smallest one that could hold the request if nothing else were
    allocated. As in kubelet that size does not depend on what is free.
    """
    smallest = _smallest(nodes, wanted)
    if smallest is None:
        return HintSet()
    preferred = OfSize(smallest)
    single = tuple(
        Hint(each, preferred.holds(each))
        for each in _apart(nodes)
        if _holds(nodes, each, wanted, reusable.get(each, {}))
    )
    return HintSet(single, tuple(_regions(nodes, wanted, preferred)))


def regenerated(blocks: Blocks, wanted: Wanted) -> ProviderHints:
    """The hints of a container that has its memory already: exactly the nodes that it has.

    None, no preference, if the blocks are not what is wanted.
    """
    sizes = {block.resource: block.size_bytes for block in blocks}
    if len(blocks) != len(wanted) or any(wanted.get(name) != size for name, size in sizes.items()):
        return None
    return {
        name: HintSet(tuple(Hint(block.nodes, preferred=True) for block in blocks if block.resource == name))
        for name in wanted
    }


def free_bytes(nodes: Nodes, where: NodeSet, resource: str) -> int:
    """What is free of a resource on a set of nodes."""
    return sum(nodes[node].free_bytes(resource) for node in where)


def violates_groups(nodes: Nodes, where: NodeSet) -> bool:
    """Whether the nodes are in use by allocations that are bound to another set. As in kubelet, one node
    alone never is, even inside a group; see `bayplan.engines.kubelet.memory_state` for what that takes."""
    return len(where) > 1 and any(
        nodes[node].assignments > 0 and (len(nodes[node].group) == 1 or nodes[node].group != where)
        for node in where
    )


def _smallest(nodes: Nodes, wanted: Wanted) -> int | None:
    """The size of the smallest set of nodes that could hold the request if nothing were allocated."""
    for memory in nodes.values():
        if all(memory.allocatable_bytes(name) >= size for name, size in wanted.items()):
            return 1
    capacity = tuple(
        NodeAmounts({node: memory.allocatable_bytes(name) for node, memory in nodes.items()}, size)
        for name, size in wanted.items()
    )
    return narrowest_size(Region(NodeSet(nodes), capacity, OfSize(0)))


def _apart(nodes: Nodes) -> Iterator[NodeSet]:
    """The sets that no region describes: used nodes by themselves, and groups."""
    groups: dict[NodeSet, None] = {}
    for node, memory in sorted(nodes.items()):
        if memory.assignments > 0 and len(memory.group) <= 1:
            yield NodeSet((node,))
        elif memory.assignments > 0:
            groups[memory.group] = None
    everything = NodeSet(nodes)
    for group in groups:
        if group <= everything and not violates_groups(nodes, group):
            yield group


def _regions(nodes: Nodes, wanted: Wanted, preferred: OfSize) -> Iterator[Region]:
    """The sets of unused nodes.

    Only a state that was edited by hand binds unused nodes to a group. They may then be part of a larger
    set, but not stand alone.
    """
    unused = {node: memory for node, memory in nodes.items() if memory.assignments <= 0}
    demands = tuple(_demands(unused, wanted))
    bound = NodeSet(node for node, memory in unused.items() if len(memory.group) > 1)
    free = NodeSet(unused) - bound
    if free:
        yield Region(free, demands, preferred)
    for node in bound:
        at_least_two = NodeAmounts(dict.fromkeys(unused, 1), 2)
        yield Region(NodeSet(unused), (*demands, at_least_two), preferred, must=NodeSet((node,)))


def _demands(unused: Nodes, wanted: Wanted) -> Iterator[NodeAmounts]:
    """What the nodes must hold together: enough free, and enough allocatable where that can be less."""
    for name, size in wanted.items():
        yield NodeAmounts({node: memory.free_bytes(name) for node, memory in unused.items()}, size)
        if any(memory.allocatable_bytes(name) < memory.free_bytes(name) for memory in unused.values()):
            yield NodeAmounts({node: memory.allocatable_bytes(name) for node, memory in unused.items()}, size)


def _holds(nodes: Nodes, where: NodeSet, wanted: Wanted, reusable: Mapping[str, int]) -> bool:
    members: list[NumaNodeState] = [nodes[node] for node in where]
    return all(
        sum(memory.allocatable_bytes(name) for memory in members) >= size
        and sum(memory.free_bytes(name) for memory in members) + reusable.get(name, 0) >= size
        for name, size in wanted.items()
    )


def check_shared_pool(pod: PodSpec, wanted: Wanted, gates: FeatureGates) -> None:
    """Make sure that *wanted*, the pod's memory, leaves something for the containers that share.

    Raises:
        EmptyPodSharedPoolError: it does not.
    """
    who = pod.name or pod.uid
    running: dict[str, int] = {}
    sharing = False
    for init in pod.init_containers:
        own = container_wants(pod, init, gates)
        if init.restartable:
            sharing = sharing or not own
            _take(running, own)
            continue
        for name, total in wanted.items():
            if not own and running.get(name, 0) >= total:
                problem = f"pod has shared init containers but no {name} available for them"
                raise EmptyPodSharedPoolError(who, problem)
    for container in pod.containers:
        own = container_wants(pod, container, gates)
        sharing = sharing or not own
        _take(running, own)
    for name, total in wanted.items():
        if sharing and running.get(name, 0) >= total:
            problem = (
                f"sum of exclusive container {name} requests equals pod budget, "
                "leaving no memory for shared containers"
            )
            raise EmptyPodSharedPoolError(who, problem)


def shared_out(pod: PodSpec, wanted: Wanted, gates: FeatureGates) -> Mapping[str, Wanted]:
    """What each container of the pod may use, by container name; amounts of zero are left out."""
    sizes: dict[str, Wanted] = {}
    running: dict[str, int] = {}
    sharing: list[str] = []
    for init in pod.init_containers:
        own = container_wants(pod, init, gates)
        if init.restartable and not own:
            sharing.append(init.name)
        else:
            sizes[init.name] = _positive(own or _left(wanted, running))
        if init.restartable:
            _take(running, own)
    for container in pod.containers:
        own = container_wants(pod, container, gates)
        if own:
            sizes[container.name] = _positive(own)
            _take(running, own)
        else:
            sharing.append(container.name)
    rest = _positive(_left(wanted, running))
    sizes.update(dict.fromkeys(sharing, rest))
    return {each.name: sizes[each.name] for each in pod.all_containers}


def _take(running: dict[str, int], sizes: Wanted) -> None:
    for name, size in sizes.items():
        running[name] = running.get(name, 0) + size


def _left(wanted: Wanted, taken: Wanted) -> Wanted:
    return {name: size - taken.get(name, 0) for name, size in wanted.items()}


def _positive(sizes: Wanted) -> Wanted:
    return {name: size for name, size in sizes.items() if size > 0}


class MemoryManager(Struct, frozen=True):
    """The manager of one machine's memory. Hints given to it must lie within the machine's nodes."""

    policy: MemoryManagerPolicy
    state: MemoryState
    gates: FeatureGates = field(default_factory=FeatureGates)

    def hints(self, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        """Where a container's memory could be. No hints at all mean no preference; kubelet answers so too
        when there is no room anywhere, and only `allocate` refuses."""
        if not self._manages(pod):
            return None
        wanted = container_wants(pod, container, self.gates)
        if not wanted:
            return None
        blocks = self.state.blocks(pod.uid, container.name)
        if blocks is not None:
            return regenerated(blocks, wanted)
        return _per_resource(fitting(self.state.nodes, wanted, self._reusable(pod)), wanted)

    def pod_hints(self, pod: PodSpec) -> ProviderHints:
        """Where a pod's memory as a whole could be. A pod with pod-level resources which leaves nothing for
        the containers that share the rest fits nowhere."""
        if not self._manages(pod):
            return None
        wanted = pod_wants(pod, self.gates)
        if not wanted:
            return None
        if placed_as_a_whole(pod, self.gates):
            try:
                check_shared_pool(pod, wanted, self.gates)
            except EmptyPodSharedPoolError:
                return dict.fromkeys(wanted, HintSet())
        for container in pod.all_containers:
            blocks = self.state.blocks(pod.uid, container.name)
            if blocks is not None:
                return regenerated(blocks, wanted)
        return _per_resource(fitting(self.state.nodes, wanted, self._reusable(pod)), wanted)

    def allocate(self, pod: PodSpec, container: ContainerSpec, hint: Hint = NO_HINT) -> "MemoryManager":
        """The manager after it gave a container its memory, on the nodes of *hint* or on more if those do not
        hold enough. Nothing changes for pods that take no part and containers that have their memory.

        Raises:
            MemoryAllocationError: there is no room. Never under BEST_EFFORT.
        """
        if not self._manages(pod) or self.state.blocks(pod.uid, container.name) is not None:
            return self
        wanted = container_wants(pod, container, self.gates)
        if not wanted and self.gates.rules.skips_without_memory:
            return self
        reusable = self._reusable(pod)
        try:
            where = self._choose(pod, container.name, wanted, hint, reusable)
        except MemoryAllocationError:
            if self.policy is MemoryManagerPolicy.BEST_EFFORT:
                return self
            raise
        nodes = self.state.nodes
        for name, size in wanted.items():
            nodes = book(nodes, where, name, max(0, size - reusable.get(where, {}).get(name, 0)))
        if not wanted:
            return self
        blocks = _blocks(where, wanted)
        state = replace(self.state, nodes=nodes).with_blocks(pod.uid, container.name, blocks)
        return replace(self, state=_reused(state, pod, container, blocks))

    def allocate_pod(self, pod: PodSpec, hint: Hint = NO_HINT) -> "MemoryManager":
        """The manager after it gave a pod with pod-level resources its memory as a whole, shared out among
        its containers. *hint* is that of the pod's first container.

        Raises:
            EmptyPodSharedPoolError: nothing is left for the containers that share the rest.
            MemoryAllocationError: there is no room. Neither under BEST_EFFORT.
        """
        if not self._manages(pod) or pod.uid in self.state.pod_blocks:
            return self
        wanted = pod_wants(pod, self.gates)
        try:
            check_shared_pool(pod, wanted, self.gates)
            where = self._choose(pod, "", wanted, hint, {})
        except MemoryManagerError:
            if self.policy is MemoryManagerPolicy.BEST_EFFORT:
                return self
            raise
        state = replace(
            self.state,
            pod_blocks={**self.state.pod_blocks, pod.uid: _blocks(where, wanted)},
        )
        for name, size in wanted.items():
            state = replace(state, nodes=book(state.nodes, where, name, size))
        for name, sizes in shared_out(pod, wanted, self.gates).items():
            state = state.with_blocks(pod.uid, name, _blocks(where, sizes))
        return replace(self, state=state)

    def mems(self, pod_uid: str, container: str) -> NodeSet | None:
        """The nodes to which a container is bound, for its cpuset.mems; None if to none in particular."""
        blocks = self.state.blocks(pod_uid, container)
        if not blocks or self.policy is not MemoryManagerPolicy.STATIC:
            return None
        return NodeSet(node for block in blocks for node in block.nodes)

    def allocatable(self) -> Blocks:
        """What containers may have at most, one block per node and resource, whatever is in use."""
        return tuple(
            Block(NodeSet((node,)), name, table.allocatable)
            for node, memory in sorted(self.state.nodes.items())
            for name, table in sorted(memory.tables.items())
            if table.allocatable
        )

    def _manages(self, pod: PodSpec) -> bool:
        return self.policy is not MemoryManagerPolicy.NONE and takes_part(pod, self.gates)

    def _reusable(self, pod: PodSpec) -> Reusable:
        """What regular init containers of the pod still hold: the next containers may have it, as these
        start only when the init containers are done."""
        left: dict[NodeSet, dict[str, int]] = {}
        if placed_as_a_whole(pod, self.gates) and pod.uid in self.state.pod_blocks:
            return left
        for init in pod.init_containers:
            for block in self.state.blocks(pod.uid, init.name) or ():
                if not init.restartable:
                    sizes = left.setdefault(block.nodes, {})
                    sizes[block.resource] = sizes.get(block.resource, 0) + block.size_bytes
        return left

    def _choose(
        self, pod: PodSpec, container: str, wanted: Wanted, hint: Hint, reusable: Reusable
    ) -> NodeSet:
        """The nodes for a request, from the Topology Manager's hint."""
        nodes = self.state.nodes

        def refused(refusal: Refusal, where: NodeSet | None) -> MemoryAllocationError:
            return MemoryAllocationError(pod.name or pod.uid, container, refusal, wanted, where)

        chosen = hint
        if hint.nodes is None:
            best = _best(nodes, wanted, reusable)
            if best is None or best.nodes is None:
                raise refused(Refusal.NO_NODES, None)
            if hint.preferred and not best.preferred:
                raise refused(Refusal.NOT_PREFERRED, best.nodes)
            chosen = best
        where = chosen.nodes or NodeSet()
        if any(free_bytes(nodes, where, name) < size for name, size in wanted.items()):
            wider = _best(nodes, wanted, reusable, containing=where)
            if wider is None or wider.nodes is None:
                raise refused(Refusal.NOT_EXTENDABLE, where)
            if chosen.preferred and not wider.preferred:
                raise refused(Refusal.NOT_PREFERRED_EXTENDED, wider.nodes)
            where = wider.nodes
        if violates_groups(nodes, where):
            raise refused(Refusal.GROUP, where)
        return where


def _best(nodes: Nodes, wanted: Wanted, reusable: Reusable, containing: NodeSet = NodeSet()) -> Hint | None:
    return best_hint(fitting(nodes, wanted, reusable), containing) if wanted else None


def _per_resource(hints: HintSet, wanted: Wanted) -> ProviderHints:
    """The same hints for every resource; no preference if there are none."""
    return dict.fromkeys(wanted, hints) if hints else None


def _blocks(where: NodeSet, sizes: Wanted) -> Blocks:
    return tuple(Block(where, name, size) for name, size in sizes.items())


def _reused(state: MemoryState, pod: PodSpec, container: ContainerSpec, blocks: Blocks) -> MemoryState:
    """The state after the init containers before *container* handed over to it what they hold on the same
    nodes, so that the pod's blocks add up to what is booked for it."""
    owed = {block.resource: block for block in blocks}
    for init in pod.init_containers:
        if init.name == container.name:
            break
        held = state.blocks(pod.uid, init.name)
        if init.restartable or not held:
            continue
        kept = []
        for block in held:
            wants = owed.get(block.resource)
            if wants is None or wants.nodes != block.nodes:
                kept.append(block)
                continue
            given = min(wants.size_bytes, block.size_bytes)
            owed[block.resource] = replace(wants, size_bytes=wants.size_bytes - given)
            kept.append(replace(block, size_bytes=block.size_bytes - given))
        state = state.with_blocks(pod.uid, init.name, tuple(kept))
    return state
