"""Who was evicted and by which numbers, as the history keeps it. Values only."""

from msgspec import Struct

from bayplan.model.decision import QosClass
from bayplan.quantity import format_bytes, format_count


class EvictionRecord(Struct, frozen=True):
    """One container of a pod that was evicted at ``at_us`` (since the epoch), because less than
    ``threshold`` was available of ``signal``. ``used`` is what the pod used of it (of memory the working set)
    and ``request`` what it requests: bytes, inodes or process ids, as the signal. ``message`` is kubelet's.
    ``obstacle`` says why the pod was not ended, empty if it was to be."""

    at_us: int
    container_id: str
    name: str
    signal: str
    qos: QosClass
    threshold: int
    available: int
    used: int
    request: int
    priority: int
    message: str
    obstacle: str = ""
    in_bytes: bool = True

    def __str__(self) -> str:
        text = (
            f"{self.signal}: {self.message.strip()} The pod, {self.qos.value} with priority {self.priority}, "
        )
        used, request = map(format_bytes if self.in_bytes else format_count, (self.used, self.request))
        text += f"was using {used} and requests {request}"
        return f"{text}; it was not ended: {self.obstacle}" if self.obstacle else text
