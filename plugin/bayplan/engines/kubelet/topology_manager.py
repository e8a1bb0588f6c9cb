"""kubelet's Topology Manager: asks all providers for hints, merges them under a policy, admits or refuses.

Pure: admission takes a state and returns a new one. The providers (CPUs, memory, devices) are given by
the caller and own their part of the state. Source: Kubernetes v1.36. How hints are merged is in
`bayplan.engines.kubelet.hint_merge`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.kubelet.hint_merge import Merged, merge
from bayplan.engines.kubelet.topology_hints import NO_HINT, Distances, Hint, HintSet, ProviderHints, flatten
from bayplan.errors import BayplanError
from bayplan.kubelet.manager_options import ManagerConfigError, TopologyOptions
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodSpec, has_pod_level
from bayplan.model.machine import Machine
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.sets import NodeSet

AFFINITY_ERROR: Final = "TopologyAffinityError"
UNEXPECTED_ERROR: Final = "UnexpectedAdmissionError"
"""Reasons in the status of a pod that was refused. Managers may have others for what they refuse."""

_REFUSED: Final = "Resources cannot be allocated with Topology locality"
_REFUSED_POD_LEVEL: Final = {
    TopologyScope.POD: (
        "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
    ),
    TopologyScope.CONTAINER: (
        "Pod Scope pod with pod-level resources failed admission with a container-level topology manager"
    ),
}

State = TypeVar("State")


class Provider(Protocol[State]):
    """A manager that gives hints and allocates, as part of a state shared by all managers."""

    def hints(self, state: State, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        """Where the container's resources could be had."""

    def pod_hints(self, state: State, pod: PodSpec) -> ProviderHints:
        """Where the resources of the whole pod could be had."""

    def allocate(self, state: State, pod: PodSpec, container: ContainerSpec, hint: Hint) -> State:
        """The state in which the container has its resources. Raises BayplanError if it can't have them."""

    def allocate_pod(self, state: State, pod: PodSpec, hint: Hint) -> State:
        """The same for a pod with resources of its own, and all of its containers."""


class Admission(Struct, Generic[State], frozen=True):
    """The outcome for a pod.

    ``state`` holds what has been allocated; kubelet takes nothing back from a refused pod before its next
    look at the pods, so that a refused pod's first containers may have something. ``hints`` maps the
    containers that got so far to their merged hint. ``reason`` and ``message`` are those of the pod's status,
    empty if it is admitted; ``error`` is what a manager raised. ``refused`` is the container at which it
    ended, None if the pod as a whole was refused or nothing was. ``asked`` are the providers' hints at the
    last merge, and ``exact`` is False if a merge had to be cut short.
    """

    state: State
    admitted: bool
    hints: Mapping[str, Hint] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    error: BayplanError | None = None
    refused: ContainerSpec | None = None
    asked: tuple[ProviderHints, ...] = ()
    exact: bool = True

    def hint(self, container: str) -> Hint:
        """The merged hint of a container."""
        return self.hints.get(container, NO_HINT)


class PolicyVerdict(Struct, frozen=True):
    """What a policy makes of hints: the hint to allocate by, and whether the pod is admitted."""

    hint: Hint
    admitted: bool
    exact: bool = True


class TopologyManager(Struct, frozen=True):
    """One configuration on one machine. ``distances`` None: of sets of equal size the lower ids win."""

    policy: TopologyPolicy
    everything: NodeSet
    scope: TopologyScope = TopologyScope.CONTAINER
    distances: Distances | None = None
    gates: FeatureGates = field(default=FeatureGates())

    @classmethod
    def of(
        cls,
        machine: Machine,
        policy: TopologyPolicy,
        scope: TopologyScope = TopologyScope.CONTAINER,
        options: TopologyOptions | None = None,
        gates: FeatureGates | None = None,
    ) -> "TopologyManager":
        """The manager for *machine*.

        Raises:
            ManagerConfigError: the closest nodes are to be preferred, and the kernel shows no distances.
        """
        distances = None
        if options is not None and options.prefer_closest and policy is not TopologyPolicy.NONE:
            if any(not node.distances for node in machine.nodes):
                raise ManagerConfigError(
                    "cannot discover NUMA topology: error getting NUMA distances from cadvisor"
                )
            distances = Distances.of(machine)
        return cls(policy, machine.node_ids, scope, distances, gates or FeatureGates())

    def decide(self, providers: Iterable[ProviderHints]) -> PolicyVerdict:
        """Merge the providers' hints under the policy."""
        if self.policy is TopologyPolicy.NONE:
            return PolicyVerdict(NO_HINT, admitted=True)
        sets = flatten(providers)
        if self.policy is TopologyPolicy.SINGLE_NUMA_NODE:
            merged = merge([single_node(hints) for hints in sets], self.everything)
            if merged.hint.nodes == self.everything:
                merged = Merged(Hint(None, merged.hint.preferred), merged.exact)
        else:
            merged = merge(sets, self.everything, self.distances)
        admitted = merged.hint.preferred or self.policy is TopologyPolicy.BEST_EFFORT
        return PolicyVerdict(merged.hint, admitted, merged.exact)

    def admit(self, state: State, pod: PodSpec, providers: Sequence[Provider[State]]) -> Admission[State]:
        """Admit a pod: one merge for each container or for all, then everything is allocated."""
        if self.policy is not TopologyPolicy.NONE and self.scope is TopologyScope.POD:
            return self._admit_pod(state, pod, providers)
        so_far: Admission[State] = Admission(state, admitted=True)
        for container in pod.all_containers:
            hint = NO_HINT
            if self.policy is not TopologyPolicy.NONE:
                asked = tuple(provider.hints(so_far.state, pod, container) for provider in providers)
                verdict = self.decide(asked)
                so_far = replace(so_far, asked=asked, exact=so_far.exact and verdict.exact)
                if not verdict.admitted:
                    return replace(self._refuse(so_far, pod), refused=container)
                hint = verdict.hint
                so_far = replace(so_far, hints={**so_far.hints, container.name: hint})
            so_far = allocate(so_far, pod, container, hint, providers)
            if not so_far.admitted:
                break
        return so_far

    def _admit_pod(
        self, state: State, pod: PodSpec, providers: Sequence[Provider[State]]
    ) -> Admission[State]:
        asked = tuple(provider.pod_hints(state, pod) for provider in providers)
        verdict = self.decide(asked)
        so_far = Admission(state, admitted=True, asked=asked, exact=verdict.exact)
        if not verdict.admitted:
            return self._refuse(so_far, pod)
        if self._as_a_whole(pod):
            hints = {container.name: verdict.hint for container in pod.all_containers}
            return _allocate_pod(replace(so_far, hints=hints), pod, verdict.hint, providers)
        for container in pod.all_containers:
            so_far = replace(so_far, hints={**so_far.hints, container.name: verdict.hint})
            so_far = allocate(so_far, pod, container, verdict.hint, providers)
            if not so_far.admitted:
                break
        return so_far

    def _as_a_whole(self, pod: PodSpec) -> bool:
        return self.gates.manages_pod_level and has_pod_level(pod)

    def _refuse(self, so_far: Admission[State], pod: PodSpec) -> Admission[State]:
        message = _REFUSED_POD_LEVEL[self.scope] if self._as_a_whole(pod) else _REFUSED
        return replace(so_far, admitted=False, reason=AFFINITY_ERROR, message=message)


def single_node(hints: HintSet) -> HintSet:
    """What single-numa-node leaves of a hint set: preferred hints for any node or for exactly one."""
    kept = {hint for hint in hints.hints if hint.preferred and (hint.nodes is None or len(hint.nodes) == 1)}
    for region in hints.regions:
        nodes = (NodeSet([node]) for node in region.ground)
        kept.update(
            Hint(node, preferred=True) for node in nodes if region.preferred.holds(node) and node in region
        )
    return HintSet(tuple(kept))


def allocate(
    so_far: Admission[State],
    pod: PodSpec,
    container: ContainerSpec,
    hint: Hint,
    providers: Iterable[Provider[State]],
) -> Admission[State]:
    """Let every provider give the container what it asks for; what the first ones gave stays given when
    another one fails."""
    for provider in providers:
        try:
            state = provider.allocate(so_far.state, pod, container, hint)
        except BayplanError as error:
            return replace(_failed(so_far, error), refused=container)
        so_far = replace(so_far, state=state)
    return so_far


def _allocate_pod(
    so_far: Admission[State], pod: PodSpec, hint: Hint, providers: Iterable[Provider[State]]
) -> Admission[State]:
    for provider in providers:
        try:
            state = provider.allocate_pod(so_far.state, pod, hint)
        except BayplanError as error:
            return _failed(so_far, error)
        so_far = replace(so_far, state=state)
    return so_far


def _failed(so_far: Admission[State], error: BayplanError) -> Admission[State]:
    """A manager could not give what the merge had promised. A manager's own reason goes with its own text."""
    reason = getattr(error, "reason", UNEXPECTED_ERROR)
    message = str(error)
    if reason == UNEXPECTED_ERROR:
        message = f"Allocate failed due to {message}, which is unexpected"
    return replace(so_far, admitted=False, reason=reason, message=message, error=error)
