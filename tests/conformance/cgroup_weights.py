"""CPU shares and cgroup v2 weights: the two formulas in use, and the CPU request that kubelet reports.

Which one applies depends on the writer: kubelet writes pods and QoS classes by the old one, a runtime of
2025 or later writes containers by the new one, so that one node may show both scales.
"""

import math
from typing import Final

from bayplan.model.qos import MAX_SHARES
from bayplan.model.resources import MIN_SHARES

MAX_WEIGHT: Final = 10_000


def weight_linear(shares: int) -> int:
    """cpu.weight from shares by the old, linear formula: kubelet for pods and QoS classes up to now, runc up
    to 1.3.1, crun up to 1.22."""
    if shares >= MAX_SHARES:
        return MAX_WEIGHT
    return 1 + (max(shares, MIN_SHARES) - MIN_SHARES) * (MAX_WEIGHT - 1) // (MAX_SHARES - MIN_SHARES)


def weight_quadratic(shares: int) -> int:
    """cpu.weight from shares by the new formula, which maps the default 1024 to the default 100: runc from
    1.3.2, crun from 1.23."""
    if shares == 0:
        return 0
    if shares <= MIN_SHARES:
        return 1
    if shares >= MAX_SHARES:
        return MAX_WEIGHT
    exponent = math.log2(shares)
    return math.ceil(10 ** ((exponent * exponent + 125 * exponent) / 612.0 - 7.0 / 34.0))


def reported_milli(shares: int) -> int:
    """The CPU request that kubelet reports for a container with these shares. Unlike `milli_from_shares` of
    `bayplan.model.qos`, it takes the minimum of 2 at its word."""
    return math.ceil(shares * 1000 / 1024) if shares >= MIN_SHARES else 0
