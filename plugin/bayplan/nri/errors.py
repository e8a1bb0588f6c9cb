"""What can go wrong between us and a runtime, above the wire.

Everything here is raised to code of ours; what the runtime is answered is decided in ``request_queue``.
"""

from bayplan.errors import LocalProtocolError, RemoteProtocolError


class EmptySetError(LocalProtocolError):
    """An answer gives a container no CPU or no NUMA node at all. NRI cannot say that: there, an empty text
    means unchanged."""

    def __init__(self, container_id: str, field: str) -> None:
        super().__init__(container_id, field)
        self.container_id = container_id
        self.field = field

    def __str__(self) -> str:
        return f"container {self.container_id}: {self.field}: found an empty set, expected None or some ids"


class PayloadError(RemoteProtocolError):
    """The payload of a message is not what its method says. The connection is still good."""

    def __init__(self, method: str, problem: str) -> None:
        super().__init__(method, problem)
        self.method = method
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.method}: {self.problem}"


class EndlessListError(PayloadError):
    """A Synchronize lists more than any node has. Whoever sends that may go on for ever."""
