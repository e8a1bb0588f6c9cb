"""The Memory Manager: hints, allocation and release under the policies None, Static and BestEffort.

An immutable value; whatever changes the state returns a new manager. Same answers as kubelet's, with these
differences, where kubelet damages its own state:

* memory of finished init containers that the pod's next containers may use is read off the state, where
  kubelet keeps it beside its state and loses it on a restart;
* a pod with pod-level resources that is admitted again keeps what it has, where kubelet books it twice;
* releases keep the state right, see `bayplan.engines.kubelet.memory.state`.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.kubelet.memory.errors import (
    EmptyPodSharedPoolError,
    MemoryAllocationError,
    MemoryManagerError,
    Refusal,
)
from bayplan.engines.kubelet.memory.hints import (
    Reusable,
    fitting,
    free_bytes,
    regenerated,
    violates_groups,
)
from bayplan.engines.kubelet.memory.pool import check_shared_pool, shared_out
from bayplan.engines.kubelet.memory.requests import (
    Wanted,
    container_wants,
    placed_as_a_whole,
    pod_wants,
    takes_part,
)
from bayplan.engines.kubelet.memory.state import Block, Blocks, MemoryState, Nodes, book
from bayplan.engines.kubelet.topology.hints import Hint, HintSet, ProviderHints
from bayplan.engines.kubelet.topology.merge import best_hint
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodSpec
from bayplan.sets import NodeSet

NO_HINT: Final = Hint(None, preferred=False)
"""What the Topology Manager's store returns for a container it knows nothing of, as under its policy none."""


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

    def started(self, pod: PodSpec, container: ContainerSpec) -> "MemoryManager":
        """The manager after a container was started: regular init containers before it have finished, and
        release what no other container took over. The memory of a container that ended otherwise stays its
        own until the pod is gone."""
        manager = self
        for init in pod.init_containers:
            if init.name == container.name:
                break
            if not init.restartable:
                manager = manager.without(pod.uid, init.name)
        return manager

    def without(self, pod_uid: str, container: str) -> "MemoryManager":
        """The manager after a container is gone; the same manager if it holds nothing."""
        state = self.state.without(pod_uid, container)
        return self if state is self.state else replace(self, state=state)

    def without_stale(self, active: Iterable[PodSpec]) -> "MemoryManager":
        """The manager without the containers that belong to none of the *active* pods. kubelet calls this
        before every decision, which is also what takes back the memory of pods refused halfway."""
        alive = {(pod.uid, container.name) for pod in active for container in pod.all_containers}
        manager = self
        for pod_uid, containers in self.state.assignments.items():
            for name in containers:
                if (pod_uid, name) not in alive:
                    manager = manager.without(pod_uid, name)
        return manager

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
