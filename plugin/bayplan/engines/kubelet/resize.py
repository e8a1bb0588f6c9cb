"""One decision about a running container whose request changed.

kubelet resizes no Guaranteed container under a static manager. Here the nodes and CPUs that the container has
stay, and what still fits there is granted; everything else is kubelet's refusal.
"""

from typing import Final

from msgspec.structs import replace

from bayplan.engines.kubelet.booking import book, covers, memory_need
from bayplan.engines.kubelet.managers import (
    ManagersState,
    PreparedManagers,
)
from bayplan.engines.kubelet.topology.refusals import REFUSED
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.model.decision import (
    OVERCOMMITTED,
    Decision,
    Outcome,
    Placement,
    Reason,
    Request,
)
from bayplan.quantity import counted
from bayplan.sets import NodeSet, nodes_text

INFEASIBLE: Final = "Infeasible"
"""kubelet's word for a resize that it never tries."""

_NO_RESIZE: Final = "Resize is infeasible for Guaranteed Pods alongside"


class Resize:
    """One decision about a running container; see the module."""

    def __init__(
        self, prepared: PreparedManagers, state: ManagersState, request: Request, current: Placement
    ) -> None:
        self.prepared, self.state, self.request, self.current = prepared, state, request, current
        self.options = prepared.options

    def decide(self) -> Decision:
        """The decision: the container keeps its nodes and CPUs, or the resize is infeasible."""
        request, current = self.request, self.current
        wanted, own = request.exclusive_cpus, len(current.exclusive_cpus)
        if self.options.static_cpus and wanted != own:
            why = f"it has {counted(own, 'CPU')} of its own and would need {wanted}"
            return self._refused('CPU Manager policy "static"', why)
        if self.options.memory is MemoryManagerPolicy.NONE:
            return self._granted(replace(current, booked_bytes={}))
        nodes = current.mems or NodeSet(current.booked_bytes) or self.prepared.machine.memory_nodes
        need = memory_need(request)
        free = {
            node: {name: memory.free_bytes(name) for name in need}
            for node, memory in self.state.memory.state.nodes.items()
        }
        fits = covers(free, nodes, need)
        if not fits and self.options.memory is MemoryManagerPolicy.STATIC:
            return self._refused('Memory Manager policy "Static"', f"it does not fit on {nodes_text(nodes)}")
        booked = book(free, nodes, need)
        if current.mems is None and current.affinity is not None:
            booked = {node: booked.get(node, dict.fromkeys(need, 0)) for node in nodes}
        granted = self._granted(replace(current, booked_bytes=booked))
        if fits:
            return granted
        reason = Reason(OVERCOMMITTED, f"not all of it could be booked on {nodes_text(nodes)}")
        return replace(granted, outcome=Outcome.DEGRADED, reasons=(*granted.reasons, reason))

    def _granted(self, placed: Placement) -> Decision:
        where = "where it is" if placed.mems is None else f"on {nodes_text(placed.mems)}"
        # The pod's sums have changed, and no message says to what.
        request = replace(self.request, pod_totals=None)
        return Decision(request, Outcome.PLACED, placed, (Reason("resized", f"resized {where}"),))

    def _refused(self, whose: str, why: str) -> Decision:
        reason = Reason(REFUSED, f"{_NO_RESIZE} {whose} ({why})")
        return Decision(self.request, Outcome.REFUSED, reasons=(reason,), refused_as=INFEASIBLE)
