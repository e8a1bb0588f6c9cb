"""What became of pages that were to be moved, as the history keeps it. Values only."""

from msgspec import Struct

from bayplan.quantity import format_bytes
from bayplan.sets import NodeSet, nodes_text


class PageMoveRecord(Struct, frozen=True):
    """Pages of one container that were to go from one node to another, over ``duration_ms``. ``at_us`` (since
    the epoch) is when it ended; ``obstacle`` says why the rest was not moved, empty if all was. ``at_risk``
    are the nodes for whose sake it was done."""

    at_us: int
    container_id: str
    name: str
    source: int
    target: int
    wanted_bytes: int
    moved_bytes: int
    duration_ms: int
    at_risk: NodeSet
    obstacle: str = ""

    @property
    def is_done(self) -> bool:
        """Whether all was moved: what counters, report and history count as a move; the rest has failed."""
        return not self.obstacle

    def __str__(self) -> str:
        text = f"{format_bytes(self.moved_bytes)} moved from node {self.source} to node {self.target}"
        text += (
            f" in {self.duration_ms} ms, as memory on {nodes_text(self.at_risk)} was outstanding to others"
        )
        if not self.obstacle:
            return text
        left_bytes = self.wanted_bytes - self.moved_bytes
        return f"{text}; {format_bytes(left_bytes)} more could not be moved: {self.obstacle}"
