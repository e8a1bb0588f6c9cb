"""What kubelet lets containers swap: a rule of its own that nothing here depends on."""

import enum

from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodSpec
from bayplan.kubelet.qos import is_critical, qos_class
from bayplan.model.decision import QosClass
from bayplan.model.machine import MEMORY


class SwapBehavior(enum.Enum):
    """kubelet's ``memorySwap.swapBehavior``, and what it comes down to for one container."""

    NO_SWAP = "NoSwap"
    LIMITED_SWAP = "LimitedSwap"


def swap_behavior(
    configured: SwapBehavior,
    pod: PodSpec,
    container: ContainerSpec,
    gates: FeatureGates,
    *,
    cgroup_v2: bool = True,
    swap_controller: bool = True,
) -> SwapBehavior:
    """What the node's swap behaviour means for a container. Only containers of ordinary Burstable pods which
    request some memory, but less than their limit, may swap, and only on cgroup v2."""
    request_bytes = container.requests.get(MEMORY, 0)
    may_swap = (
        configured is SwapBehavior.LIMITED_SWAP
        and cgroup_v2
        and swap_controller
        and not is_critical(pod)
        and qos_class(pod, gates) is QosClass.BURSTABLE
        and request_bytes > 0
        and request_bytes != container.limits.get(MEMORY, 0)
    )
    return SwapBehavior.LIMITED_SWAP if may_swap else SwapBehavior.NO_SWAP
