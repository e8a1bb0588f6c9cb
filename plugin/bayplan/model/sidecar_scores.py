"""Containers of one pod that kubelet gave the same oom_score_adj: what that proves of each.

kubelet scores a sidecar (a restartable init container) by the smallest request of the pod's other containers
if that is more than its own, and no runtime knows which container is a sidecar. So of several containers
with one score only one is known to request what the score says: the newest, as sidecars come before the
others. Of the rest the score proves nothing, unless something else says what they request.
Source: GetContainerOOMScoreAdjust, pkg/kubelet/qos/policy.go, since Kubernetes 1.32.
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from bayplan.model.decision import Claim, Request
from bayplan.model.machine import MEMORY

BY_SCORE: Final = "oom_score_adj"
"""The source of a memory request that is known from the score."""


def may_be_sidecar(request: Request, others: Iterable[tuple[Request, bool]]) -> bool:
    """Whether kubelet's rule for sidecars can be why *request* has its score. *others* have the same one in
    the same pod, each with whether it is newer."""
    if request.memory.source != BY_SCORE:
        return False
    least_bytes = request.memory.likely_low_bytes
    return any(
        other.memory.high_bytes >= least_bytes and (newer or other.memory.exact) for other, newer in others
    )


def corrected_claim(claim: Claim, *, explained: bool) -> Claim:
    """*claim* without the memory that is *explained* by another container. Once it is not any more, the
    memory is a promise to be made up for, because others may have got the room."""
    if explained:
        memory_bytes = claim.amounts_bytes.get(MEMORY, 0) + claim.short_bytes.get(MEMORY, 0)
        if not memory_bytes:
            return claim
        amounts, short = ({**row, MEMORY: 0} for row in (claim.amounts_bytes, claim.short_bytes))
        return replace(
            claim, amounts_bytes=_nonzero(amounts), short_bytes=_nonzero(short), explained_bytes=memory_bytes
        )
    if not claim.explained_bytes:
        return claim
    return replace(claim, short_bytes={**claim.short_bytes, MEMORY: claim.explained_bytes}, explained_bytes=0)


def _nonzero(row: dict[str, int]) -> dict[str, int]:
    return {resource: amount for resource, amount in row.items() if amount}
