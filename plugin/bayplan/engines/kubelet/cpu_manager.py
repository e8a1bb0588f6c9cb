"""kubelet's CPU Manager, static policy: which containers get CPUs for themselves, and which ones.

Pure: every method takes a state and returns a new one; after an error the old one still holds. Source:
Kubernetes v1.36. Nothing here merges hints, reads files or talks to a runtime. Only whole CPUs of
Guaranteed pods count; everything else shares.

Its hints say on which sets of NUMA nodes so many CPUs could be had, and which of them are preferred.
kubelet counts the CPUs of each of the 2^n sets. Here the answer is one region: the nodes' numbers of
CPUs, how many are needed, and the nodes that must be in because the pod already holds CPUs there.
"""

from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.kubelet.cpu_assignment import take_distributed, take_packed
from bayplan.engines.kubelet.cpu_state import CpuState, CpuStateError, EmptySharedPoolError, SmtAlignmentError
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.topology_hints import (
    HintSet,
    NodeAmounts,
    OfSize,
    Preference,
    ProviderHints,
    Region,
    Touching,
)
from bayplan.kubelet.manager_options import NONE, STATIC, CpuOptions, ManagerConfigError
from bayplan.kubelet.pod import CPU, ContainerSpec, FeatureGates, PodSpec, guaranteed_alone, has_pod_level
from bayplan.kubelet.qos import qos_class
from bayplan.model.decision import QosClass
from bayplan.model.policy import TopologyPolicy
from bayplan.quantity import MILLI_PER_CPU
from bayplan.sets import CpuSet, NodeSet


def exclusive_cpus(pod: PodSpec, container: ContainerSpec, gates: FeatureGates) -> int:
    """How many CPUs the container gets for itself: those of a Guaranteed pod's container that asks for
    nothing but whole CPUs. 0 means that it shares.

    A pod with pod-level resources is left alone, unless the managers place such pods; then its containers
    must be guaranteed each by itself.
    """
    requested = container.requests.get(CPU, 0)
    if qos_class(pod, gates) is not QosClass.GUARANTEED or requested % MILLI_PER_CPU:
        return 0
    if has_pod_level(pod) and not (gates.manages_pod_level and guaranteed_alone(container)):
        return 0
    return requested // MILLI_PER_CPU


def pod_exclusive_cpus(pod: PodSpec, gates: FeatureGates) -> int:
    """How many CPUs the pod needs at the worst moment of its life: all its containers and sidecars, or one
    init container and the sidecars before it; or what it requests for itself as a whole."""
    if pod.resources is not None and has_pod_level(pod):
        requested = pod.resources.requests.get(CPU, 0)
        usable = (
            gates.manages_pod_level
            and not requested % MILLI_PER_CPU
            and qos_class(pod, gates) is QosClass.GUARANTEED
        )
        return requested // MILLI_PER_CPU if usable else 0
    starting = sidecars = 0
    for init in pod.init_containers:
        cpus = exclusive_cpus(pod, init, gates)
        if init.restartable:
            sidecars += cpus
        else:
            starting = max(starting, sidecars + cpus)
    apps = sum(exclusive_cpus(pod, container, gates) for container in pod.containers)
    return max(starting, sidecars + apps)


def cpu_hints(
    topology: CpuTopology,
    available: CpuSet,
    reusable: CpuSet,
    needed: int,
    *,
    align_by_socket: bool = False,
) -> HintSet:
    """Hints for *needed* CPUs out of *available* and *reusable*, all of the latter included.

    Preferred are the sets of the smallest size that could ever hold so many CPUs, in use or not; with
    *align_by_socket* also those which touch no more sockets than that size needs.
    """
    demand = NodeAmounts(
        amounts={
            node: (available.mask & mask).bit_count() + (reusable.mask & mask).bit_count()
            for node, mask in topology.node_cpus.items()
        },
        needed=needed,
    )
    size = smallest_size(topology, needed)
    must = topology.nodes_of(reusable)
    preferences: list[Preference] = [OfSize(size)]
    if align_by_socket:
        preferences += _socket_preference(topology, size)
    return HintSet(
        regions=tuple(
            Region(ground=topology.nodes, demands=(demand,), preferred=preferred, must=must)
            for preferred in preferences
        )
    )


def smallest_size(topology: CpuTopology, needed: int) -> int:
    """The size of the smallest sets of NUMA nodes with so many CPUs; all nodes, if no set has."""
    held = 0
    sizes = sorted((mask.bit_count() for mask in topology.node_cpus.values()), reverse=True)
    for size, cpus in enumerate(sizes, start=1):
        held += cpus
        if held >= needed:
            return size
    return len(topology.nodes)


def _socket_preference(topology: CpuTopology, size: int) -> list[Touching]:
    """Kubelet's rule of align-by-socket; none where a socket has no NUMA node of its own."""
    nodes_per_socket = topology.num_nodes // topology.num_sockets if topology.num_sockets else 0
    if not nodes_per_socket:
        return []
    sockets = tuple(NodeSet(nodes) for nodes in topology.nodes_of_socket.values())
    return [Touching(sockets, -(-size // nodes_per_socket))]


def cpu_policy(
    name: str,
    topology: CpuTopology,
    options: CpuOptions,
    *,
    reserved_milli_cpus: int | None,
    reserved_cpus: CpuSet = CpuSet(),
    topology_policy: TopologyPolicy = TopologyPolicy.NONE,
    gates: FeatureGates | None = None,
) -> "StaticCpuPolicy | None":
    """The policy that is configured; None for the policy ``none``, which gives no CPUs away.

    Args:
        name: cpuManagerPolicy.
        topology: the machine.
        options: cpuManagerPolicyOptions.
        reserved_milli_cpus: CPU of kubeReserved and systemReserved together, None if neither has any.
        reserved_cpus: reservedSystemCPUs.
        topology_policy: topologyManagerPolicy.
        gates: the feature gates, with the rules of the kubelet's version.

    Raises:
        ManagerConfigError: the name is unknown, or the policy cannot work with this machine and reservation.
    """
    if name == NONE:
        return None
    if name != STATIC:
        raise ManagerConfigError(f'unknown policy: "{name}"')
    if not topology.num_cpus:
        raise ManagerConfigError("could not detect number of cpus")
    if reserved_milli_cpus is None:
        raise ManagerConfigError("[cpumanager] unable to determine reserved CPU resources for static policy")
    if reserved_milli_cpus == 0:
        raise ManagerConfigError(
            "[cpumanager] the static policy requires "
            "systemreserved.cpu + kubereserved.cpu to be greater than zero"
        )
    options.check(topology.num_sockets, topology.num_nodes, topology_policy)
    count = -(-reserved_milli_cpus // 1000)
    return StaticCpuPolicy.reserving(topology, options, count, reserved_cpus, gates=gates)


class StaticCpuPolicy(Struct, frozen=True, dict=True):
    """The static policy on one machine. ``reserved`` is never given away; under strict-cpu-reservation the
    containers that share do not get it either."""

    topology: CpuTopology
    options: CpuOptions
    reserved: CpuSet
    gates: FeatureGates = FeatureGates()

    @cached_property
    def reserved_cores(self) -> CpuSet:
        return self.topology.siblings(self.reserved)

    @classmethod
    def reserving(
        cls,
        topology: CpuTopology,
        options: CpuOptions,
        count: int,
        listed: CpuSet = CpuSet(),
        *,
        gates: FeatureGates | None = None,
    ) -> "StaticCpuPolicy":
        """The policy that reserves *count* CPUs: those *listed*, or if none are, those which it would give
        to a container first.

        Raises:
            ManagerConfigError: not that many are listed.
            CpuShortageError: the machine has fewer.
        """
        policy = cls(topology, options, listed, gates or FeatureGates())
        if not listed:
            policy = replace(policy, reserved=policy._take(topology.all_cpus, count))
        if len(policy.reserved) != count:
            raise ManagerConfigError(
                "[cpumanager] unable to reserve the required amount of CPUs "
                f"(size of {policy.reserved} did not equal {count})"
            )
        return policy

    @property
    def allocatable(self) -> CpuSet:
        """All CPUs that containers could ever get for themselves."""
        return self.topology.all_cpus - self.reserved

    @property
    def managed(self) -> CpuSet:
        """All CPUs that the state must account for."""
        return self.allocatable if self.options.strict_cpu_reservation else self.topology.all_cpus

    def available(self, state: CpuState) -> CpuSet:
        """The CPUs that a container could get for itself now."""
        return state.shared - self.reserved

    def exclusive_cpus(self, pod: PodSpec, container: ContainerSpec) -> int:
        """How many CPUs the container gets for itself; 0 means that it shares."""
        return exclusive_cpus(pod, container, self.gates)

    def start(self, state: CpuState) -> CpuState:
        """The state to work with after a restart: *state* itself, or a new one if it is empty.

        Raises:
            CpuStateError: the policy and the machine cannot have led to *state*.
        """
        if not state.shared:
            if state.assignments:
                raise CpuStateError("default cpuset cannot be empty")
            return replace(state, shared=self.managed)
        reserved = self.reserved & state.shared
        if self.options.strict_cpu_reservation and reserved:
            raise CpuStateError(
                f'some of strictly reserved cpus: "{reserved}" are present in defaultCpuSet: "{state.shared}"'
            )
        if not self.options.strict_cpu_reservation and reserved != self.reserved:
            raise CpuStateError(
                f'not all reserved cpus: "{self.reserved}" are present in defaultCpuSet: "{state.shared}"'
            )
        known = state.shared
        for pod_uid, container, cpus in state.items():
            if not cpus.isdisjoint(state.shared):
                raise CpuStateError(
                    f'pod: {pod_uid}, container: {container} cpuset: "{cpus}" '
                    f'overlaps with default cpuset "{state.shared}"'
                )
            known |= cpus
        for cpus in state.budgets.values():
            known |= cpus
        if known != self.managed:
            raise CpuStateError(
                f'current set of available CPUs "{self.managed}" doesn\'t match with CPUs in state "{known}"'
            )
        return state

    def hints(self, state: CpuState, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        """Where the container's CPUs could be had; where they are, if it has them already."""
        needed = self.exclusive_cpus(pod, container)
        if not needed:
            return None
        own = state.of(pod.uid, container.name)
        if own is None:
            return self._hints(self.available(state), state.reusable.get(pod.uid, CpuSet()), needed)
        if len(own) != needed:
            return {CPU: HintSet()}
        return self._hints(own, CpuSet(), needed)

    def pod_hints(self, state: CpuState, pod: PodSpec) -> ProviderHints:
        """Where the CPUs of the whole pod could be had, with those that it has already. A pod with resources
        of its own which leaves nothing for the containers that share the rest fits nowhere."""
        needed = pod_exclusive_cpus(pod, self.gates)
        if not needed:
            return None
        if has_pod_level(pod):
            try:
                self.check_shared_pool(pod)
            except EmptySharedPoolError:
                return {CPU: HintSet()}
        assigned = CpuSet()
        for container in pod.all_containers:
            own = state.of(pod.uid, container.name)
            if own is not None:
                if len(own) != self.exclusive_cpus(pod, container):
                    return {CPU: HintSet()}
                assigned |= own
        if len(assigned) == needed:
            return self._hints(assigned, CpuSet(), needed)
        reusable = state.reusable.get(pod.uid, CpuSet()) | assigned
        return self._hints(self.available(state), reusable, needed)

    def allocate(
        self, state: CpuState, pod: PodSpec, container: ContainerSpec, nodes: NodeSet | None
    ) -> CpuState:
        """Give the container its CPUs, from *nodes* as far as they go (None: from anywhere).

        Returns:
            The same state if the container shares, or has its CPUs already and nothing changes by it.

        Raises:
            CpuShortageError: too few CPUs are left.
            SmtAlignmentError: full-pcpus-only, and not whole cores or too few of them.
        """
        needed = self.exclusive_cpus(pod, container)
        if not needed:
            return state
        own = state.of(pod.uid, container.name)
        if own is None or not self.gates.rules.keeps_split_cores:
            self._check_whole_cores(state, needed)
        if own is None:
            own, state = self._allocate(state, needed, nodes, state.reusable.get(pod.uid, CpuSet()))
            state = state.with_assignment(pod.uid, container.name, own)
        left = state.reusable.get(pod.uid, CpuSet())
        left = left | own if pod.is_regular_init(container.name) else left - own
        return replace(state, reusable={pod.uid: left})

    def allocate_pod(self, state: CpuState, pod: PodSpec, nodes: NodeSet | None) -> CpuState:
        """Give a pod with resources of its own its CPUs, and divide them among its containers.

        A container that asks for whole CPUs gets them for itself; finished init containers leave theirs to
        the next ones. The others share what remains, init containers what is free at their turn.

        Raises:
            EmptySharedPoolError: nothing would remain for those that share.
            CpuShortageError: too few CPUs are left, on the machine or for a container inside the budget.
            SmtAlignmentError: as in `allocate`.
        """
        needed = pod_exclusive_cpus(pod, self.gates)
        if not needed or pod.uid in state.budgets:
            return state
        self.check_shared_pool(pod)
        self._check_whole_cores(state, needed)
        budget, state = self._allocate(state, needed, nodes, CpuSet())
        left = budget
        given: dict[str, CpuSet] = {}
        for container in pod.all_containers:
            count = self.exclusive_cpus(pod, container)
            if count:
                given[container.name] = self._take(left, count)
                if not pod.is_regular_init(container.name):
                    left -= given[container.name]
            elif pod.is_regular_init(container.name):
                given[container.name] = left
        containers = {container.name: given.get(container.name, left) for container in pod.all_containers}
        return replace(
            state,
            assignments={**state.assignments, pod.uid: containers},
            budgets={**state.budgets, pod.uid: budget},
        )

    def check_shared_pool(self, pod: PodSpec) -> None:
        """Check that a pod with resources of its own leaves something to those of its containers that share,
        each in its phase.

        Raises:
            EmptySharedPoolError: it does not.
        """
        budget = pod_exclusive_cpus(pod, self.gates)
        lasting = 0
        sharing = False
        for container in pod.all_containers:
            count = self.exclusive_cpus(pod, container)
            if pod.is_regular_init(container.name):
                if not count and lasting >= budget:
                    raise EmptySharedPoolError(init=True)
                continue
            lasting += count
            sharing = sharing or not count
        if sharing and lasting >= budget:
            raise EmptySharedPoolError(init=False)

    def _hints(self, available: CpuSet, reusable: CpuSet, needed: int) -> ProviderHints:
        align = self.options.align_by_socket
        return {CPU: cpu_hints(self.topology, available, reusable, needed, align_by_socket=align)}

    def _allocate(
        self, state: CpuState, needed: int, nodes: NodeSet | None, reusable: CpuSet
    ) -> tuple[CpuSet, CpuState]:
        """So many CPUs, those on *nodes* first, and the state in which they are no longer shared."""
        usable = self.available(state) | reusable
        taken = CpuSet()
        if nodes is not None:
            near = self.topology.cpus_in_nodes(nodes)
            if self.options.align_by_socket:
                near = self.topology.cpus_in_sockets_of(nodes)
            near &= usable
            taken = self._take(near, min(needed, len(near)))
        taken |= self._take(usable - taken, needed - len(taken))
        return taken, replace(state, shared=state.shared - taken)

    def _take(self, available: CpuSet, count: int) -> CpuSet:
        """So many CPUs of *available*, chosen as the options say."""
        options, topology = self.options, self.topology
        spread = options.distribute_cpus_across_cores
        if options.distribute_cpus_across_numa:
            group = topology.cpus_per_core if options.full_pcpus_only else 1
            aligned = options.align_by_socket and self.gates.rules.aligns_distribution
            return take_distributed(topology, available, count, group, spread=spread, align_by_socket=aligned)
        align_uncore = options.prefer_align_cpus_by_uncorecache
        return take_packed(topology, available, count, spread=spread, align_uncore=align_uncore)

    def _check_whole_cores(self, state: CpuState, needed: int) -> None:
        """Under full-pcpus-only: whole cores are asked for, and there are that many without the siblings of
        reserved CPUs. Up to 1.36 kubelet checks this again for a container that has its CPUs."""
        if not self.options.full_pcpus_only:
            return
        per_core = self.topology.cpus_per_core
        if needed % per_core:
            raise SmtAlignmentError(needed, per_core)
        physical = len(state.shared - self.reserved_cores)
        if needed > physical:
            raise SmtAlignmentError(needed, per_core, physical)
