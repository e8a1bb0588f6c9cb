"""How much is kept free beside the promises."""

import pytest

from bayplan.placement.page_owners import goal_bytes, start_bytes
from bayplan.quantity import GIB, MIB
from support.machines import machine


@pytest.mark.parametrize(
    ("memory_bytes", "huge_bytes", "band_bytes"),
    [
        (256 * GIB, 0, GIB),
        # Nobody is promised ordinary memory in pools of huge pages.
        (256 * GIB, 192 * GIB, GIB // 4),
        (4 * GIB, 0, 32 * MIB),
        (4 * GIB, 3 * GIB, 16 * MIB),
    ],
)
def test_the_band_goes_by_ordinary_memory(memory_bytes: int, huge_bytes: int, band_bytes: int) -> None:
    found = machine(2, 4, memory_bytes, hugepages_bytes={2 * MIB: huge_bytes})
    assert start_bytes(found) == dict.fromkeys((0, 1), band_bytes)
    assert goal_bytes(found) == dict.fromkeys((0, 1), 2 * band_bytes)
