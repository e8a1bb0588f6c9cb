"""Containers of one pod that kubelet gave the same oom_score_adj: what that proves of each.

kubelet scores a sidecar (a restartable init container) by the smallest request of the pod's other containers
if that is more than its own, and no runtime knows which container is a sidecar. So of several containers
with one score only one is known to request what the score says: the newest, as sidecars come before the
others. Of the rest the score proves nothing, unless something else says what they request. What kubelet is
said to know is no evidence about the others, only about the container itself.
Source: GetContainerOOMScoreAdjust, pkg/kubelet/qos/policy.go, since Kubernetes 1.32.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from bayplan.model.decision import Claim, Request
from bayplan.model.machine import MEMORY

BY_SCORE: Final = "oom_score_adj"
"""The source of a memory request that is known from the score."""

_NONE: Final = -1
"""The largest of no requests; 0 is one."""


def explained_by_others(requests: Sequence[Request]) -> list[bool]:
    """For each of *requests*, which have the same score in the same pod, the oldest first, whether kubelet's
    rule for sidecars can be why: another one that is newer, or known exactly, is as large."""
    shown = [request.shown_memory for request in requests]
    explained, largest_bytes = list[bool](), _NONE
    for memory in shown:
        explained.append(largest_bytes >= memory.likely_low_bytes)
        if memory.exact:
            largest_bytes = max(largest_bytes, memory.high_bytes)
    largest_bytes = _NONE
    for number in reversed(range(len(shown))):
        memory = shown[number]
        explained[number] |= largest_bytes >= memory.likely_low_bytes
        explained[number] &= memory.source == BY_SCORE
        largest_bytes = max(largest_bytes, memory.high_bytes)
    return explained


def corrected_claim(claim: Claim, request: Request, *, explained: bool) -> Claim:
    """*claim* of *request* without the memory that is *explained* by another container: of its own there is
    what kubelet says of it. Once it is not explained any more, the memory is a promise to be made up for,
    because others may have got the room."""
    memory_bytes = claim.amounts_bytes.get(MEMORY, 0)
    short_bytes = claim.short_bytes.get(MEMORY, 0) + claim.explained_bytes
    explained_bytes = 0
    if explained:
        own_bytes = 0 if request.spec_memory is None else request.memory.high_bytes
        explained_bytes = max(0, memory_bytes + short_bytes - own_bytes)
        memory_bytes = min(memory_bytes, own_bytes)
        short_bytes = own_bytes - memory_bytes
    if (memory_bytes, explained_bytes) == (claim.amounts_bytes.get(MEMORY, 0), claim.explained_bytes):
        return claim
    return replace(
        claim,
        amounts_bytes=_nonzero({**claim.amounts_bytes, MEMORY: memory_bytes}),
        short_bytes=_nonzero({**claim.short_bytes, MEMORY: short_bytes}),
        explained_bytes=explained_bytes,
    )


def _nonzero(row: dict[str, int]) -> dict[str, int]:
    return {resource: amount for resource, amount in row.items() if amount}
