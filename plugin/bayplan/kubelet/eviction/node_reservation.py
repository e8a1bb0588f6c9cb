"""What a node keeps from its containers: kubeReserved, systemReserved and the hard eviction threshold.

The reservations per NUMA node must add up to this, for memory and each size of huge pages. Here is the sum,
and how it came about.
"""

from bayplan.kubelet.eviction.thresholds import MEMORY_AVAILABLE
from bayplan.kubelet.pod import Amounts
from bayplan.kubelet.resources import is_memory
from bayplan.model.machine import MEMORY
from bayplan.quantity import format_page_size


def node_allocatable_reservation(
    kube_reserved: Amounts, system_reserved: Amounts, eviction_bytes: int
) -> tuple[dict[str, int], dict[str, str]]:
    """What the node keeps, by resource (those with more than zero), and the sum in words."""
    total: dict[str, int] = {}
    words: dict[str, list[str]] = {}
    parts = (
        ("kubeReserved", kube_reserved),
        ("systemReserved", system_reserved),
        (f"evictionHard {MEMORY_AVAILABLE}", {MEMORY: eviction_bytes}),
    )
    for label, amounts in parts:
        for name, size in amounts.items():
            if is_memory(name) and size:
                total[name] = total.get(name, 0) + size
                words.setdefault(name, []).append(f"{label} {format_page_size(size)}")
    return total, {name: " + ".join(each) for name, each in words.items()}
