"""What the daemon counts since its start, by the names in `bayplan status`: each with its meaning.

Beside these, decisions that were not placed as asked are counted by the codes of their reasons, as
``degraded_CODE`` and ``refused_CODE``.
"""

from collections.abc import Iterator, Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "agent_pods_dropped": "what an agent said of a pod was forgotten, as there were too many",
    "agent_requests_not_used": "what an agent said of a container did not count, as its spec disproves it",
    "capacity_shortfalls": "less memory or fewer CPUs are there than was promised",
    "connections": "a container runtime connected over NRI",
    "cpu_pinning_errors": "a container that asked for CPUs of its own got none, or was refused",
    "cpu_pinning_requests": "a decision about a container that asks for CPUs of its own",
    "decisions_adopted": "a container was decided about and left as it was found",
    "decisions_degraded": "a container was placed, but not as well as it asked",
    "decisions_placed": "a container was placed as it asked",
    "decisions_refused": "a container was refused",
    "evicted_by_api_server": "a pod that was evicted was deleted by the API server",
    "evictions_failed": "a container of a pod that was evicted has not ended",
    "drifted": "a cgroup had other values than decided, twice in a row",
    "found_containers": "a container was found that had been created without bayplan",
    "hugepage_limits_failed": "a pod's limit of huge pages could not be raised to what its claims hold",
    "hugepage_pools_grown": "pools of huge pages grew for a container",
    "hugepage_pools_short": "pools of huge pages grew by less than a container needed",
    "hugepage_pools_shrunk": "pools of huge pages gave back what nobody needed",
    "ledger_faults": "the ledger or its record contradicted itself, and was put right",
    "looks_below_low_watermark": "a second in which a node had less free than the kernel's low watermark",
    "memory_at_risk": "memory of some nodes began to be less than is outstanding there",
    "memory_pinning_errors": "a container was refused",
    "memory_pinning_requests": "a decision that bound a container to nodes, or refused it",
    "missed": "a request of the runtime was answered by default, late or not at all",
    "moves": "a container got other nodes for the sake of others, or got its own back",
    "nri_gone": "a container of NRI was found to be gone",
    "oci_create": "the runtime wrapper announced a container",
    "oci_createRuntime": "the OCI hook announced a container",
    "oci_delete": "the runtime wrapper reported the end of a container",
    "oci_gone": "a container of hook or wrapper was found to be gone",
    "oci_poststop": "the OCI hook reported the end of a container",
    "oci_precreate": "a precreate hook had a spec rewritten",
    "oci_start": "the runtime wrapper was about to start a container",
    "oci_undecided": "there was no decision for hook or wrapper",
    "oci_update": "the runtime wrapper had an update decided",
    "oom_score_adj_failed": "an oom_score_adj could not be written",
    "pages_moved_bytes": "bytes of containers that went back to fewer nodes",
    "pinned_by_kubelet_cpu_manager": "a container had its CPUs from kubelet's CPU Manager",
    "pinned_by_kubelet_memory_manager": "a container had its nodes from kubelet's Memory Manager",
    "pinned_by_others": "a container had its CPUs or nodes from somebody else",
    "pinned_by_strangers": "a container had its CPUs or nodes from an unknown program",
    "placement_files_failed": "the file that says what a container was given could not be written or removed",
    "recovered_containers": "a container was recorded again from its annotation",
    "released": "a container ended and holds nothing any more",
    "relief_done": "pages were moved because memory was at risk",
    "relief_failed": "pages were to be moved because memory was at risk, and could not be",
    "relieved_bytes": "bytes that were moved because memory was at risk",
    "relocated": "a container went to other nodes so that another one fits",
    "repairs_failed": "a cgroup kept other values than decided although it was to be repaired",
    "reported_after_end": "something was reported of a container after its end, and it was not entered again",
    "requests_corrected": "a container's request became exact after its creation",
    "returns_failed": "pages of a container that was to go back to fewer nodes could not be moved",
    "slowed_down": "a container was slowed down until memory was freed that was promised",
    "slowed_in_vain": "a container was let go as no memory was freed for it",
    "starts_held": "a container started later because its memory had to be freed first",
    "starts_held_ms": "milliseconds for which starts waited for their memory",
}

_EVICTED: Final = "evicted:"
_BY_REASON: Final = ("degraded", "refused", "adopted")


def all_events(counters: Mapping[str, int]) -> dict[str, int]:
    """*counters* with those that are still 0, by name."""
    named = {name: number for name, number in counters.items() if not name.startswith(_EVICTED)}
    return dict(sorted({**dict.fromkeys(EVENTS, 0), **named}.items()))


def eviction_counter(signal: str, qos: str) -> str:
    """The name of the counter of pods of a class that were evicted for a signal."""
    return f"{_EVICTED}{signal}:{qos}"


def evictions(counters: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Signal, QoS class and number of all pods that were evicted."""
    for name, number in sorted(counters.items()):
        if name.startswith(_EVICTED):
            _, signal, qos = name.split(":")
            yield signal, qos, number


def reasons(counters: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Outcome, code of the reason and number of all decisions that were counted by reason."""
    for name, number in sorted(counters.items()):
        outcome, _, code = name.partition("_")
        if outcome in _BY_REASON and name not in EVENTS:
            yield outcome, code.replace("_", "-"), number
