"""Requests as decisions get them."""

from bayplan.model.decision import Interval, QosClass, QosSource, Request
from bayplan.quantity import MIB


def guaranteed_request(container_id: str, memory_bytes: int = 100 * MIB, exclusive_cpus: int = 0) -> Request:
    """A Guaranteed container in a pod of its own."""
    return Request(
        container_id,
        f"pod-{container_id}",
        f"default/{container_id}/main",
        QosClass.GUARANTEED,
        QosSource.CGROUP_PARENT,
        Interval(memory_bytes, memory_bytes, "limit"),
        memory_bytes,
        exclusive_cpus=exclusive_cpus,
    )
