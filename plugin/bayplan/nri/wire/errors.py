"""What can go wrong on the wire, by who did it.

After a local error nothing was sent and nothing has changed. After a remote error the connection can't be
read any more, and says the same thing each time it is asked.
"""

from bayplan.errors import LocalProtocolError, RemoteProtocolError


class MessageTooLargeError(LocalProtocolError):
    """A message of ours is over the limit. A request was not sent; a response can be replaced by an error."""

    def __init__(self, stream_id: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(stream_id, size_bytes, limit_bytes)
        self.stream_id = stream_id
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"stream {self.stream_id}: message of {self.size_bytes} bytes, "
            f"expected at most {self.limit_bytes}; nothing was sent"
        )


class FieldError(LocalProtocolError):
    """A field of a message of ours has a value that the wire cannot carry."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(field, found, expected)
        self.field = field
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.field}: found {self.found}, expected {self.expected}; nothing was sent"


class StreamError(LocalProtocolError):
    """A message of ours does not fit the state of its stream."""

    def __init__(self, stream_id: int, problem: str) -> None:
        super().__init__(stream_id, problem)
        self.stream_id = stream_id
        self.problem = problem

    def __str__(self) -> str:
        return f"stream {self.stream_id}: {self.problem}; nothing was sent"


class TooManyCallsError(LocalProtocolError):
    """As many calls of ours wait for an answer as may. Wait, or forget those that nobody waits for."""

    def __init__(self, outstanding: int) -> None:
        super().__init__(outstanding)
        self.outstanding = outstanding

    def __str__(self) -> str:
        return f"{self.outstanding} calls wait for an answer and no more may; nothing was sent"


class FinishedError(LocalProtocolError):
    """The connection has ended, as agreed or by an error: nothing more can be sent or received."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action

    def __str__(self) -> str:
        return f"{self.action}: the peer's side of the connection has ended"


class BacklogError(LocalProtocolError):
    """The caller hands in bytes and does not take the events out. These bytes were not stored."""

    def __init__(self, backlog_bytes: int, limit_bytes: int) -> None:
        super().__init__(backlog_bytes, limit_bytes)
        self.backlog_bytes = backlog_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"receive_data: {self.backlog_bytes} bytes wait to be drained with next_event, "
            f"expected less than {self.limit_bytes}"
        )


class FrameTooLargeError(RemoteProtocolError):
    """A frame announces more than any peer sends: the bytes are not frames, or we have lost our place."""

    def __init__(self, connection_id: int, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(connection_id, size_bytes, limit_bytes)
        self.connection_id = connection_id
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"peer sent a frame of {self.size_bytes} bytes for connection {self.connection_id}, "
            f"expected at most {self.limit_bytes}"
        )


class TruncatedError(RemoteProtocolError):
    """The peer closed the connection inside a message: it died, or it closed on purpose in the middle."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        return f"peer closed the connection inside {self.where}"


class RefusalFloodError(RemoteProtocolError):
    """The peer goes on sending what is refused each time."""

    def __init__(self, refusals: int, last_reason: str) -> None:
        super().__init__(refusals, last_reason)
        self.refusals = refusals
        self.last_reason = last_reason

    def __str__(self) -> str:
        return f"peer sent {self.refusals} refused messages in a row; the last: {self.last_reason}"
