"""One connection between a plugin and a runtime: the multiplexer and both ttRPC directions, combined.

Bytes go in with ``receive_data``, events come out of ``next_event``, bytes to write come out of ``send``.
No socket, no clock and no lock: the caller owns all three. Data is decoded when an event is asked for and
never before, so that what nobody asks for costs no more than its bytes.
"""

from bayplan.errors import RemoteProtocolError
from bayplan.nri.wire.connection_events import (
    MAX_CONSECUTIVE_REFUSALS,
    NEED_DATA,
    Code,
    ConnectionClosed,
    FinishedError,
    Incoming,
    RefusalFloodError,
    Refused,
    Request,
    Response,
    Role,
    TruncatedError,
)
from bayplan.nri.wire.envelope import (
    UndecodableError,
    request_from,
    request_parts,
    response_from,
    response_parts,
)
from bayplan.nri.wire.framing import (
    CalledStreams,
    Header,
    MessageReader,
    MessageType,
    Ruling,
    ServedStreams,
    Verdict,
    message,
)


class Connection:
    """Either end of an NRI connection. Not thread-safe."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._serving_id = role.value
        self._calling_id = role.peer.value
        self._served = ServedStreams()
        self._called = CalledStreams()
        self._messages = MessageReader(
            {self._serving_id: self._served.judge, self._calling_id: self._called.judge}
        )
        self._refusals = 0
        self._at_eof = False
        self._end: ConnectionClosed | RemoteProtocolError | None = None

    # ---- Receiving -----------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Store bytes that the peer sent, in any fragmentation; ``b""`` says that it closed the connection.

        Raises:
            BacklogError: ``MAX_BACKLOG_BYTES`` or more wait already; the caller must take the events first.
            FinishedError: there are bytes after the end or after an error.

        Any other exception is a bug.
        """
        if not data:
            self._at_eof = True
            return
        if self._at_eof or self._end is not None:
            raise FinishedError("receive_data")
        self._messages.receive(data)

    def next_event(self) -> Incoming:
        """The next thing that the peer did.

        ``Request`` and ``Response`` as they come; ``Refused`` for a message that the connection turned down,
        with the reply to write; ``NEED_DATA`` when more bytes are needed; ``ConnectionClosed``, again and
        again, after the end. What came before the end or before an error is always delivered first.

        A call of ours whose answer is unusable (too large, not decodable, streaming) gets a ``Response``
        made here, with code ``RESOURCE_EXHAUSTED`` or ``INTERNAL``. Messages of unknown type, on unknown
        logical connections and answers to calls that were given up are skipped.

        Raises:
            RemoteProtocolError: the peer broke the protocol; again and again from then on. The caller should
                close the connection.

        Any other exception is a bug.
        """
        if self._end is None:
            try:
                while (received := self._messages.next_message()) is not None:
                    connection_id, header, ruling, body = received
                    take = self._serve if connection_id == self._serving_id else self._conclude
                    if (event := take(header, ruling, body)) is not None:
                        return event
                if not self._at_eof:
                    return NEED_DATA
                self._end = self._closed()
            except RemoteProtocolError as error:
                self._end = error
        if isinstance(self._end, RemoteProtocolError):
            raise self._end.with_traceback(None)
        return self._end

    def _closed(self) -> ConnectionClosed:
        """The end that comes where a message and a frame end.

        Raises:
            TruncatedError: they do not.
        """
        if not self._messages.between_messages:
            raise TruncatedError("a message")
        if not self._messages.between_frames:
            raise TruncatedError("a frame")
        return ConnectionClosed()

    def _serve(self, header: Header, ruling: Ruling, body: bytearray) -> Request | Refused | None:
        """What a message on our serving side means."""
        if ruling.verdict is Verdict.IGNORE:
            return None
        if ruling.verdict is Verdict.REFUSE:
            return self._refuse(header.stream_id, ruling.code, ruling.message)
        try:
            request = request_from(header.stream_id, body)
        except UndecodableError as error:
            self._served.close(header.stream_id)
            return self._refuse(header.stream_id, Code.INVALID_ARGUMENT, f"not a ttRPC request: {error}")
        self._refusals = 0
        return request

    def _refuse(self, stream_id: int, code: Code, reason: str) -> Refused:
        self._refusals += 1
        if self._refusals > MAX_CONSECUTIVE_REFUSALS:
            raise RefusalFloodError(self._refusals, reason)
        parts = response_parts(Response(stream_id, code, reason))
        reply = message(self._serving_id, stream_id, MessageType.RESPONSE, parts)
        return Refused(stream_id, code, reason, reply)

    def _conclude(self, header: Header, ruling: Ruling, body: bytearray) -> Response | None:
        """What a message on our calling side means."""
        if ruling.verdict is Verdict.IGNORE or not self._called.close(header.stream_id):
            return None
        if ruling.verdict is Verdict.FAIL:
            return Response(header.stream_id, ruling.code, ruling.message)
        try:
            return response_from(header.stream_id, body)
        except UndecodableError as error:
            return Response(header.stream_id, Code.INTERNAL, f"the answer is not a ttRPC response: {error}")

    # ---- Sending -------------------------------------------------------------------------------------

    def request(
        self,
        service: str,
        method: str,
        payload: bytes,
        timeout_ns: int = 0,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> Request:
        """A call of ours, with a fresh stream id. Calls must be sent in the order in which they were made.

        Raises:
            StreamError: all stream ids are used up.

        Any other exception is a bug.
        """
        return Request(self._called.allocate(), service, method, payload, timeout_ns, metadata)

    def send(self, event: Request | Response) -> bytes:
        """The bytes of a call of ours or of an answer, to be written to the peer in the order of these calls.

        Answers can be sent as long as the caller likes, also when the peer's side has ended: they go nowhere,
        and break nothing.

        Raises:
            MessageTooLargeError: over 4 MiB. A response can be replaced: the request still waits for one.
            StreamError: a response that no request waits for, or a request out of order.
            FieldError: a text or a number of a request that the wire cannot carry.
            TooManyCallsError: ``MAX_OUTSTANDING_CALLS`` calls wait for an answer.
            FinishedError: a request, when the peer's side has ended.

        After each of these nothing has been sent and nothing has changed. Any other exception is a bug.
        """
        if isinstance(event, Response):
            sent = message(self._serving_id, event.stream_id, MessageType.RESPONSE, response_parts(event))
            self._served.close(event.stream_id)
            return sent
        if self._at_eof or self._end is not None:
            raise FinishedError(f"call of {event.method}")
        self._called.check_open(event.stream_id)
        sent = message(self._calling_id, event.stream_id, MessageType.REQUEST, request_parts(event))
        self._called.open(event.stream_id)
        return sent

    def forget(self, stream_id: int) -> None:
        """Give up a call of ours: a late answer will be skipped. The protocol has no way to tell the peer."""
        self._called.close(stream_id)
