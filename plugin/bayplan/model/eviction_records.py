"""Who was evicted and by which numbers, as the history keeps it. Values only."""

from msgspec import Struct

from bayplan.model.decision import QosClass
from bayplan.quantity import format_bytes


class EvictionRecord(Struct, frozen=True):
    """One container of a pod that was evicted at ``at_us`` (since the epoch), because less than
    ``threshold_bytes`` was available of ``signal``. ``usage_bytes`` is the pod's working set. ``message`` is
    kubelet's. ``obstacle`` says why the pod was not ended, empty if it was to be."""

    at_us: int
    container_id: str
    name: str
    signal: str
    qos: QosClass
    threshold_bytes: int
    available_bytes: int
    usage_bytes: int
    request_bytes: int
    priority: int
    message: str
    obstacle: str = ""

    def __str__(self) -> str:
        text = (
            f"{self.signal}: {self.message.strip()} The pod, {self.qos.value} with priority {self.priority}, "
        )
        text += f"was using {format_bytes(self.usage_bytes)} and requests {format_bytes(self.request_bytes)}"
        return f"{text}; it was not ended: {self.obstacle}" if self.obstacle else text
