"""Why a pod was refused, for humans, and whether it had to be.

kubelet's rules refuse pods for which there is room: memory that is bound to other groups of nodes, preferred
sizes that do not depend on what is free. This engine refuses them too. Beside kubelet's words the reasons
name what each resource would have preferred, and the nodes on which everything would have fitted.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from math import comb
from typing import Final

from bayplan.engines.kubelet.cpu.manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu.pods import pod_exclusive_cpus
from bayplan.engines.kubelet.managers import KubeletManagers, ManagersState
from bayplan.engines.kubelet.memory.requests import container_wants, pod_wants, takes_part
from bayplan.engines.kubelet.topology.hints import Demand, HintSet, OfSize, Region
from bayplan.engines.kubelet.topology.manager import AFFINITY_ERROR, UNEXPECTED_ERROR, Admission
from bayplan.engines.kubelet.topology.merge import best_hint, narrowest_size
from bayplan.kubelet.pod import ContainerSpec, PodSpec
from bayplan.model.decision import Reason
from bayplan.model.policy import TopologyPolicy
from bayplan.model.sentences import verb_after
from bayplan.sets import CpuSet, NodeSet, nodes_text

REFUSED: Final = "kubelet-refuses"
HINT: Final = "kubelet-hint"
ROOM: Final = "room-elsewhere"
CUT_SHORT: Final = "merge-cut-short"
"""Codes of the reasons."""

_SETS_NAMED: Final = 3
_SETS_LOOKED_AT: Final = 100
"""All pairs of 14 nodes."""

_Need = tuple[Demand, Demand]
"""What is asked of one resource, out of what is free now and out of all there could ever be."""


def reasons(
    kubelet: KubeletManagers, pod: PodSpec, admission: Admission[ManagersState]
) -> tuple[Reason, ...]:
    """The reasons for a refusal, in the order of the argument; none for an admitted pod."""
    return () if admission.admitted else tuple(_reasons(kubelet, pod, admission))


def room(
    kubelet: KubeletManagers, state: ManagersState, pod: PodSpec, container: ContainerSpec | None
) -> NodeSet | None:
    """The fewest nodes that have everything free that is asked for, whatever kubelet's groups and preferred
    sizes say; None if there are none, or more than the policy allows. For a container, or for the pod.

    single-numa-node allows one node, restricted as many as the request needs on an empty machine, wherever
    its devices are.
    """
    needs = [need for need in _needs(kubelet, state, pod, container) if need[0].needed > 0]
    if not needs:
        return None
    everything = kubelet.topology.everything
    devices = () if kubelet.attached is None else tuple(kubelet.attached.needs(container))
    free = Region(everything, (*(now for now, _ in needs), *devices), OfSize(0))
    most = len(everything)
    if kubelet.topology.policy is TopologyPolicy.SINGLE_NUMA_NODE:
        most = 1
    elif kubelet.topology.policy is TopologyPolicy.RESTRICTED:
        most = narrowest_size(Region(everything, tuple(ever for _, ever in needs), OfSize(0))) or 0
    found = best_hint(HintSet(regions=(free,)))
    if found is None or found.nodes is None or len(found.nodes) > most:
        return None
    return found.nodes


def _reasons(kubelet: KubeletManagers, pod: PodSpec, admission: Admission[ManagersState]) -> Iterator[Reason]:
    explain = getattr(admission.error, "explanation", None)
    detail = f" ({explain()})" if callable(explain) else ""
    yield Reason(REFUSED, f"{admission.reason}: {admission.message}{detail}")
    if admission.error is None:
        for answer in admission.asked:
            for name, hints in (answer or {}).items():
                yield Reason(HINT, f"{name}: {_described(hints)}")
    if not admission.exact:
        yield Reason(CUT_SHORT, "the search for common nodes was cut short, there may be better ones")
    if admission.reason not in {AFFINITY_ERROR, UNEXPECTED_ERROR}:
        return
    where = room(kubelet, admission.state, pod, admission.refused)
    if where is not None:
        yield Reason(
            ROOM,
            f"{nodes_text(where)} {verb_after(where, 'has')} all of it free; only kubelet's rules refuse it, "
            "the exact engine would not",
        )


def _described(hints: HintSet | None) -> str:
    if hints is None:
        return "no preference"
    best = best_hint(hints)
    if best is None or best.nodes is None:
        return "on no set of nodes"
    alike = _alike(hints, best.nodes, preferred=best.preferred)
    where = nodes_text(best.nodes)
    if len(alike) > 1 and len(best.nodes) == 1:
        where = f"any of {nodes_text(NodeSet(node for nodes in alike for node in nodes))}"
    elif len(alike) > 1:
        more = f" or {len(alike) - _SETS_NAMED} more" if len(alike) > _SETS_NAMED else ""
        where = f"nodes {' or '.join(map(str, alike[:_SETS_NAMED]))}{more}"
    return f"preferred on {where}" if best.preferred else f"possible on {where}, but not preferred"


def _alike(hints: HintSet, best: NodeSet, *, preferred: bool) -> list[NodeSet]:
    """The sets that are as good as *best*: of its size, and preferred as it is. *best* alone where these are
    too many to look at."""
    found = {one.nodes for one in hints.hints if one.nodes is not None and one.preferred is preferred}
    for region in hints.regions:
        if comb(len(region.ground), len(best)) > _SETS_LOOKED_AT:
            return [best]
        sets = map(NodeSet, combinations(region.ground, len(best)))
        found |= {one for one in sets if one in region and region.preferred.holds(one) is preferred}
    return sorted((one for one in found if len(one) == len(best)), key=lambda one: one.mask)


def _needs(
    kubelet: KubeletManagers, state: ManagersState, pod: PodSpec, container: ContainerSpec | None
) -> Iterator[_Need]:
    if kubelet.cpus is not None:
        yield _cpu_need(kubelet.cpus, state, pod, container)
    memory = state.memory
    nodes = memory.state.nodes
    if nodes and takes_part(pod, memory.gates):
        if container is None:
            wanted = pod_wants(pod, memory.gates)
        else:
            wanted = container_wants(pod, container, memory.gates)
        for name, needed in wanted.items():
            free = {node: each.free_bytes(name) for node, each in nodes.items()}
            allocatable = {node: each.allocatable_bytes(name) for node, each in nodes.items()}
            yield Demand(free, needed), Demand(allocatable, needed)


def _cpu_need(
    policy: StaticCpuPolicy, state: ManagersState, pod: PodSpec, container: ContainerSpec | None
) -> _Need:
    """CPUs by node. With full-pcpus-only those of cores of which every CPU is free."""
    if container is None:
        needed = pod_exclusive_cpus(pod, policy.gates)
    else:
        needed = policy.exclusive_cpus(pod, container)
    topology = policy.topology
    free = policy.available(state.cpus) | state.cpus.reusable.get(pod.uid, CpuSet())
    if policy.options.full_pcpus_only:
        free -= topology.siblings(topology.all_cpus - free)
    return _by_node(free, topology.node_cpus, needed), _by_node(topology.all_cpus, topology.node_cpus, needed)


def _by_node(cpus: CpuSet, node_cpus: Mapping[int, int], needed: int) -> Demand:
    return Demand({node: (cpus.mask & mask).bit_count() for node, mask in node_cpus.items()}, needed)
