"""How long something took, counted in the buckets of a histogram.

The bounds are those of kubelet's own histogram of admissions, so that both can be compared, and above them
how long an answer of ours may take, and how long the runtime waits for one.
"""

from typing import Final

from msgspec import Struct

KUBELET_BOUNDS_MS: Final = tuple(0.05 * 2**step for step in range(15))
"""Of kubelet's topology_manager_admission_duration_ms: 0.05 to 819.2."""

BOUNDS_MS: Final = (*KUBELET_BOUNDS_MS, 1000.0, 2000.0)


class Durations(Struct, frozen=True):
    """``counts`` has a number for each of `BOUNDS_MS`, of what took no longer and longer than the bound
    before, and a last one for all else; ``total_ms`` is the sum."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_MS) + 1)
    total_ms: float = 0.0
