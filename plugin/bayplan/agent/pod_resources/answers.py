"""The answers of PodResources, version 1, from the ledger and the answers of kubelet's own service. Pure.

Memory and CPUs are those that bayplan assigned; where it assigned none, kubelet's managers may have. Devices
and dynamic resources are kubelet's alone. As in kubelet's answers, memory that a container has on several
nodes is one block with all of them (huge pages that lie evenly on them are a block for each), and only what
is bound is listed: exclusive CPUs, and memory of containers that are bound to nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.model.basis import Allocatable
from bayplan.model.claim_parts import Parts
from bayplan.model.container_names import parts_in_pod
from bayplan.model.decision import Decision, Placement
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import CpuSet, NodeSet

PodName = tuple[str, str]
"""Namespace and name."""


def list_answer(ledger: Ledger, kubelet: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
    """Every pod that bayplan or *kubelet* knows, by namespace and name, with what its containers have."""
    pods: dict[PodName, pb.PodResources] = {}
    for (namespace, name), containers in _by_pod(ledger):
        pods[namespace, name] = pb.PodResources(namespace=namespace, name=name, containers=containers)
    for theirs in kubelet.pod_resources:
        ours = pods.setdefault(
            (theirs.namespace, theirs.name), pb.PodResources(namespace=theirs.namespace, name=theirs.name)
        )
        _add_kubelets(ours, theirs)
    return pb.ListPodResourcesResponse(pod_resources=[pods[key] for key in sorted(pods)])


def get_answer(listed: pb.ListPodResourcesResponse, pod: PodName) -> pb.GetPodResourcesResponse | None:
    """The one pod of a list; None if it is not there."""
    for one in listed.pod_resources:
        if (one.namespace, one.name) == pod:
            return pb.GetPodResourcesResponse(pod_resources=one)
    return None


def allocatable_answer(
    machine: Machine, policy: PlacementPolicy, kubelet: pb.AllocatableResourcesResponse
) -> pb.AllocatableResourcesResponse:
    """What containers can be assigned in all: a block for each node and resource that is not 0, all CPUs but
    the reserved and the isolated ones, and kubelet's devices."""
    return pb.AllocatableResourcesResponse(
        devices=kubelet.devices,
        cpu_ids=Allocatable(machine, policy).exclusive_cpus,
        memory=[
            _block(resource, amount_bytes, NodeSet([node]))
            for node, resources in sorted(Allocatable(machine, policy).bytes_by_node.items())
            for resource, amount_bytes in sorted(resources.items())
            if amount_bytes
        ],
    )


def _by_pod(ledger: Ledger) -> Iterator[tuple[PodName, list[pb.ContainerResources]]]:
    named = (
        (parts_in_pod(entry.decision.request.name), entry.container_id, entry.decision)
        for entry in ledger.entries.values()
    )
    in_pods = sorted(
        ((parts, container_id, decision) for parts, container_id, decision in named if parts is not None),
        key=lambda one: one[:2],
    )
    for (namespace, pod), containers in groupby(in_pods, key=lambda one: one[0][:2]):
        yield (namespace, pod), list(_containers((name[2], decision) for name, _, decision in containers))


def _containers(decisions: Iterable[tuple[str, Decision]]) -> Iterator[pb.ContainerResources]:
    """The containers of one pod. What several share, because the pod has it as a whole or through a resource
    claim, is that of the first: who counts it is not to find it twice."""
    listed, claims = CpuSet(), set[str]()
    for name, decision in decisions:
        cpus, share = decision.placement.own_cpus - listed, decision.request.claimed
        listed |= cpus
        is_new = share is not None and claims.isdisjoint(share.uids)
        claims.update(() if share is None else share.uids)
        memory = _assigned_memory(decision.placement, decision.promises if is_new else ())
        yield pb.ContainerResources(name=name, cpu_ids=cpus, memory=memory)


def _assigned_memory(placement: Placement, promises: Parts) -> list[pb.ContainerMemory]:
    """A block for each resource and set of nodes that a claim has a part on; of bookings, on the nodes of the
    container. *promises* are those of a container whose resource claims are listed with it."""
    if placement.mems is None:
        return []
    if promises or placement.claim is not None:
        parts = promises or placement.promises
    else:
        booked = Counter[str]()
        for row in placement.booked_bytes.values():
            booked.update(row)
        parts = ((placement.mems, booked),)
    rows = [(resource, amount, nodes) for nodes, amounts in parts for resource, amount in amounts.items()]
    rows.sort(key=lambda row: (row[0], row[2].mask))
    return [_block(resource, amount, nodes) for resource, amount, nodes in rows if amount]


def _block(resource: str, amount_bytes: int, nodes: NodeSet) -> pb.ContainerMemory:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])
    return pb.ContainerMemory(memory_type=resource, size=amount_bytes, topology=topology)


def _add_kubelets(ours: pb.PodResources, theirs: pb.PodResources) -> None:
    """Add to the pod what kubelet says of it. A container of a name that occurs twice, because the one before
    has not ended yet, is listed once. What kubelet (1.37) assigned to a pod as a whole is the pod's unless
    bayplan assigned something to a container of it."""
    if not any(one.cpu_ids for one in ours.containers):
        ours.cpu_ids.extend(theirs.cpu_ids)
    if not any(one.memory for one in ours.containers):
        ours.memory.extend(theirs.memory)
    containers = {one.name: one for one in ours.containers}
    for container in theirs.containers:
        name = container.name
        one = containers[name] if name in containers else ours.containers.add(name=name)
        one.devices.extend(container.devices)
        one.dynamic_resources.extend(container.dynamic_resources)
        if not one.cpu_ids:
            one.cpu_ids.extend(container.cpu_ids)
        if not one.memory:
            one.memory.extend(container.memory)
