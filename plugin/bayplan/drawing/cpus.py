"""The CPUs of a node, core by core: whose they are."""

from collections.abc import Mapping
from typing import Any, Final

from bayplan.drawing.svg import box
from bayplan.sets import CpuSet

_GAP: Final = 3.0


def cores(
    node: Mapping[str, Any], y: float, width: float, size: float, colors: Mapping[str, str]
) -> tuple[float, str]:
    """Each core as a column of its CPUs, in rows across *width*; a CPU is *size* wide and high.

    Returns:
        The height, and the picture.
    """
    owners = {cpu: one["name"] for one in node["containers"] for cpu in CpuSet.parse(one["exclusiveCpus"])}
    kinds = {key: CpuSet.parse(node["cpus"][key]) for key in ("contested", "reserved", "isolated", "shared")}
    pools = {cpu: name for name, text in node["cpus"]["pools"].items() for cpu in CpuSet.parse(text)}
    siblings = [list(CpuSet.parse(text)) for text in node["cpus"]["cores"]]
    if not siblings:
        return 0.0, ""
    threads = max(map(len, siblings))
    step_x, step_y = size + _GAP, threads * size + _GAP
    columns = max(1, int((width + _GAP) / step_x))
    drawn = []
    for number, core in enumerate(siblings):
        left, top = (number % columns) * step_x, y + (number // columns) * step_y
        for place, cpu in enumerate(core):
            class_, whose = _look(cpu, owners, pools, kinds, colors)
            drawn.append(box(left, top + place * size, size, size, class_, f"CPU {cpu}: {whose}", 1.5))
    rows = -(-len(siblings) // columns)
    return rows * step_y - _GAP, "".join(drawn)


def _look(
    cpu: int,
    owners: Mapping[int, str],
    pools: Mapping[int, str],
    kinds: Mapping[str, CpuSet],
    colors: Mapping[str, str],
) -> tuple[str, str]:
    """The class of a CPU's colour, and whose it is."""
    if cpu in pools:
        return "pool", f"the pool {pools[cpu]}"
    if cpu in owners:
        whose = f"{owners[cpu]} and others" if cpu in kinds["contested"] else f"only {owners[cpu]}"
        return colors[owners[cpu]], whose
    if cpu in kinds["reserved"]:
        return "kept", "reserved"
    if cpu in kinds["isolated"]:
        return "kept", "isolated, for who asks for it"
    return ("shared", "shared") if cpu in kinds["shared"] else ("free", "nobody's")
