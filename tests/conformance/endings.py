"""What becomes of the state of kubelet's managers when containers start and end. The daemon needs none of it:
it makes the state anew from the ledger for each decision.

Unlike kubelet, a release leaves the state right when allocations of different sets share a node, which
its rules let happen (a set narrowed to one node by another manager may lie inside a group): the node goes
back to the narrowest set still allocated on it, and no release takes what an allocation bound to that one
node holds. Source: Kubernetes v1.36.
"""

from msgspec.structs import replace

from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.managers import ManagersState
from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import Block, Blocks, MemoryState, NumaNodeState, narrowest_set
from bayplan.kubelet.pod import ContainerSpec, PodSpec
from bayplan.sets import CpuSet, NodeSet
from conformance.device_manager import StateWithDevices


def after_start(state: ManagersState, pod: PodSpec, container: ContainerSpec) -> ManagersState:
    """The state after a container was started: the init containers before it have released their memory.
    Their CPUs and devices stay with the pod."""
    return replace(state, memory=memory_after_start(state.memory, pod, container))


def without_container(state: ManagersState, pod_uid: str, container: str) -> ManagersState:
    """The state after a container is gone for good."""
    left = replace(
        state,
        cpus=cpus_without(state.cpus, pod_uid, container),
        memory=memory_without(state.memory, pod_uid, container),
    )
    if isinstance(left, StateWithDevices):
        return replace(left, devices=left.devices.without(pod_uid, container))
    return left


def without_pod(state: ManagersState, pod: PodSpec) -> ManagersState:
    """The state after a pod is gone, or was refused."""
    for container in pod.all_containers:
        state = without_container(state, pod.uid, container.name)
    return state


def cpus_without(state: CpuState, pod_uid: str, container: str) -> CpuState:
    """The state after the CPUs of a container were taken back, except those that another container of its pod
    holds as well; those of a pod with its own budget go back with its last container."""
    own = state.of(pod_uid, container)
    if own is None:
        return state
    assignments = dict(state.assignments)
    siblings = dict(assignments.pop(pod_uid))
    del siblings[container]
    if siblings:
        assignments[pod_uid] = siblings
    state = replace(state, assignments=assignments)
    if pod_uid not in state.budgets:
        kept = CpuSet(cpu for cpus in siblings.values() for cpu in cpus)
        return replace(state, shared=state.shared | (own - kept))
    if siblings:
        return state
    budgets = dict(state.budgets)
    return replace(state, shared=state.shared | budgets.pop(pod_uid), budgets=budgets)


def memory_after_start(manager: MemoryManager, pod: PodSpec, container: ContainerSpec) -> MemoryManager:
    """The manager after a container was started: regular init containers before it have finished, and
    release what no other container took over. The memory of a container that ended otherwise stays its
    own until the pod is gone."""
    for init in pod.init_containers:
        if init.name == container.name:
            break
        if not init.restartable:
            manager = memory_without(manager, pod.uid, init.name)
    return manager


def memory_without(manager: MemoryManager, pod_uid: str, container: str) -> MemoryManager:
    """The manager after a container is gone; the same manager if it holds nothing."""
    state = _without(manager.state, pod_uid, container)
    return manager if state is manager.state else replace(manager, state=state)


def _without(state: MemoryState, pod_uid: str, container: str) -> MemoryState:
    """The state after a container is gone; the same state if it has no assignment. The memory of a pod that
    was placed as a whole comes back with its last container."""
    containers = state.assignments.get(pod_uid, {})
    gone = containers.get(container)
    whole = state.pod_blocks.get(pod_uid)
    if gone is None and (whole is None or containers):
        return state
    left = {name: blocks for name, blocks in containers.items() if name != container}
    assignments = {
        uid: left if uid == pod_uid else each
        for uid, each in state.assignments.items()
        if left or uid != pod_uid
    }
    state = replace(state, assignments=assignments)
    if whole is None:
        return _released(state, gone or ())
    if left:
        return state
    pod_blocks = {uid: blocks for uid, blocks in state.pod_blocks.items() if uid != pod_uid}
    return _released(replace(state, pod_blocks=pod_blocks), whole)


def _released(state: MemoryState, blocks: Blocks) -> MemoryState:
    """The state after *blocks*, which no container has any more, are released, lowest node first."""
    nodes = dict(state.nodes)
    for block in blocks:
        left = block.size_bytes
        shared = any(nodes[node].group != block.nodes for node in block.nodes)
        for node in block.nodes:
            memory = nodes[node]
            table = memory.tables.get(block.resource)
            bound = _bound_bytes(state, node, block) if shared else 0
            given = 0 if table is None else min(left, max(0, table.reserved - bound))
            left -= given
            nodes[node] = replace(
                memory.moved(block.resource, -given),
                assignments=memory.assignments - 1,
                group=_group_after(state, node, memory, block.nodes),
            )
    return replace(state, nodes=nodes)


def _bound_bytes(state: MemoryState, node: int, block: Block) -> int:
    """What is allocated of the block's resource on that node alone, if the block itself is not."""
    alone = NodeSet((node,))
    if block.nodes == alone:
        return 0
    return sum(
        each.size_bytes
        for _, _, blocks in state.booked()
        for each in blocks
        if each.resource == block.resource and each.nodes == alone
    )


def _group_after(state: MemoryState, node: int, memory: NumaNodeState, released: NodeSet) -> NodeSet:
    """The group of a node that loses one assignment to *released*."""
    if memory.assignments == 1:
        return NodeSet((node,))
    if memory.group != released:
        return memory.group
    sets = set()
    for _, _, blocks in state.booked():
        for each in blocks:
            if each.nodes == released:
                return released
            if node in each.nodes:
                sets.add(each.nodes)
    return narrowest_set(sets) if sets else released
