"""What kubelet does differently from one minor version of Kubernetes to the next: one row for each version.

A kubelet configuration file does not say which kubelet reads it, and the same file means something else to
another one. So whatever depends on the version is a field of `KubeletRules`, is chosen once, by
`rules_of`, and nobody else compares versions. A version older than the table gets its first row, a newer one
its last.

Invariant: a row has what an unmodified kubelet of that version does with the defaults of its feature gates.
Sources: ``pkg/features/kube_features.go``, ``pkg/kubelet/apis/config/v1beta1/defaults.go`` and the places
that a field names, of v1.34.2, v1.35.1, v1.36.3 and v1.37.2.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.kubelet_gates import gates_of


class KubeletRules(Struct, frozen=True):
    """The rules of one minor version, 1.``minor``.

    ``stable_options`` and ``beta_options``: options of CPU Manager and Topology Manager that need no feature
    gate, and those behind the gates for beta-level options (``policy_options.go``); the rest are alpha.
    ``refuses_gates``: it does not start with feature gates that it does not take (`kubelet_gates`).
    OpenShift's only warns of those that it does not know; which ones a version beyond the table has is open.
    ``throttling_factor``: the default of memoryThrottlingFactor; None: no memory.high.
    ``factor_without_memory_qos``: the only memoryThrottlingFactor that may be set where MemoryQoS is off;
    None: any (``pkg/kubelet/apis/config/validation``).
    ``later_keys``: the keys of its file that 1.34 did not know (``config/v1beta1/types.go``).
    ``resets_memory_qos``: every container gets memory.min and memory.low 0 where nothing else is due, or with
    the gate off memory.high max, so that a value of an earlier kubelet does not last
    (``kuberuntime_container_linux.go``); and so does kubepods at each start
    (``qos_container_manager_linux.go``).
    ``throttles_pods``: a pod with resources as a whole and a memory limit gets memory.high itself, and its
    containers without a limit of their own none (``ApplyPodLevelMemoryHigh``).
    ``throttles_without_amounts``: a container with neither request nor limit gets memory.high, too.
    ``limits_by_container``: a pod's own limits are written only if each container has one; before, an init
    container passed by the limit of a sidecar before it (``helpers_linux.go``).
    ``qos_by_container``: a pod's class follows from the classes of its containers, and ``resources: {}`` of
    a pod counts as absent (``pkg/apis/core/v1/helper/qos``); before, from sums over the pod.
    ``shares_of_rest_below_zero``: a container is scored below its request where the containers request more
    than their pod (``pkg/kubelet/qos/helpers.go``).
    ``huge_pages_unavailable``: memory of huge pages does not count as available to evictions
    (HugepageAwareEviction, ``server/stats/summary.go``).
    ``aligns_distribution``: align-by-socket counts beside distribute-cpus-across-numa
    (``cpu_assignment.go``).
    ``rounds_reserved_cpus_up``: the sum of kubeReserved and systemReserved is rounded up to a thousandth of a
    CPU (``Quantity.MilliValue``); later each of them to the nearest one, what is left of a millionth having
    been rounded up (``parseResourceList`` in ``cmd/kubelet/app/server.go``).
    """

    minor: int
    stable_options: frozenset[str]
    beta_options: frozenset[str]
    refuses_gates: bool = True
    throttling_factor: float | None = 0.9
    factor_without_memory_qos: float | None = None
    later_keys: frozenset[str] = frozenset()
    resets_memory_qos: bool = False
    throttles_pods: bool = False
    throttles_without_amounts: bool = False
    limits_by_container: bool = False
    qos_by_container: bool = False
    shares_of_rest_below_zero: bool = True
    huge_pages_unavailable: bool = False
    aligns_distribution: bool = False
    rounds_reserved_cpus_up: bool = True

    def reserved_milli_cpus(self, nano_cpus: Sequence[int]) -> int:
        """The thousandths of a CPU that kubelet reserves for amounts in billionths."""
        if self.rounds_reserved_cpus_up:
            return -(-sum(nano_cpus) // 1_000_000)
        return sum((-(-amount // 1000) + 500) // 1000 for amount in nano_cpus)

    @property
    def memory_qos(self) -> bool:
        """The default of the feature gate MemoryQoS."""
        return gates_of(self.minor)["MemoryQoS"].default

    def __str__(self) -> str:
        return f"1.{self.minor}"


_IN_1_34: Final = KubeletRules(
    34,
    stable_options=frozenset({"full-pcpus-only", "prefer-closest-numa-nodes"}),
    beta_options=frozenset(
        {
            "distribute-cpus-across-numa",
            "prefer-align-cpus-by-uncorecache",
            "strict-cpu-reservation",
            "max-allowable-numa-nodes",
        }
    ),
)
_IN_1_35: Final = replace(
    _IN_1_34,
    minor=35,
    stable_options=_IN_1_34.stable_options | {"strict-cpu-reservation", "max-allowable-numa-nodes"},
    beta_options=frozenset({"distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache"}),
)
_IN_1_36: Final = replace(
    _IN_1_35,
    minor=36,
    stable_options=_IN_1_35.stable_options | {"prefer-align-cpus-by-uncorecache"},
    beta_options=frozenset({"distribute-cpus-across-numa"}),
    later_keys=frozenset({"memoryReservationPolicy", "tlsCurvePreferences"}),
)
_IN_1_37: Final = replace(
    _IN_1_36,
    minor=37,
    later_keys=_IN_1_36.later_keys | {"defaultPodSysctls"},
    throttling_factor=None,
    factor_without_memory_qos=0.9,
    resets_memory_qos=True,
    throttles_pods=True,
    throttles_without_amounts=True,
    limits_by_container=True,
    qos_by_container=True,
    shares_of_rest_below_zero=False,
    huge_pages_unavailable=True,
    aligns_distribution=True,
    rounds_reserved_cpus_up=False,
)

KUBELET_RULES: Final = (_IN_1_34, _IN_1_35, _IN_1_36, _IN_1_37)
"""All rows, the oldest version first."""

NEWEST: Final = KUBELET_RULES[-1]


def rules_of(minor: int) -> KubeletRules:
    """The rules of Kubernetes 1.*minor*."""
    return KUBELET_RULES[min(max(minor - KUBELET_RULES[0].minor, 0), len(KUBELET_RULES) - 1)]
