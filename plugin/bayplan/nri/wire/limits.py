"""Every limit of the codec, with the reason for its value.

What a peer may make us keep is bounded by these numbers alone: one message under way and the unanswered
requests on each of two logical connections, and the bytes that the caller has handed in and not yet
drained.
"""

from typing import Final

FRAME_HEADER_BYTES: Final = 8
"""Multiplexer header: connection id and payload length, 32 bits each."""

MESSAGE_HEADER_BYTES: Final = 10
"""ttRPC header: length 32 bits, stream id 32 bits, type 8 bits, flags 8 bits."""

MAX_MESSAGE_BYTES: Final = 4 << 20
"""The body of a ttRPC message: the limit of the protocol's own documentation, checked by both sides."""

FIRST_FRAME_BYTES: Final = 4096
"""How the Go side reads: through a buffer of this size, which takes a frame larger than itself only when it
is empty and the frame is exactly the rest of the message. Any other large frame ends the connection."""

MAX_FRAME_BYTES: Final = 1 << 24
"""The payload of an incoming frame. NRI up to 0.6.1 refuses to send more; newer ones stop at 4 MiB + 10.
Frames are never buffered whole: this only finds out a peer that speaks something else."""

MAX_UNANSWERED_REQUESTS: Final = 64
"""Requests of the peer that wait for our answer. A runtime has one outstanding at a time; HTTP/2 advises not
to go below 100 streams for peers that run many, gRPC servers commonly allow that many."""

MAX_UNANSWERED_BYTES: Final = 4 * MAX_MESSAGE_BYTES
"""Their bodies together, so that 64 requests of 4 MiB do not make 256 MiB. Synchronize sends its chunks one
after the other, each when the last is answered."""

MAX_OUTSTANDING_CALLS: Final = 64
"""Our own unanswered calls. The Go multiplexer closes the trunk when 256 frames wait for a reader; a call
takes at most two."""

MAX_CONSECUTIVE_REFUSALS: Final = 256
"""Requests refused one after another until we stop answering and give the peer up. A peer that does not read
its answers would make them pile up on our side; its own queue has this length."""

MAX_ENVELOPE_FIELDS: Final = 1024
"""Protobuf fields in one Request or Response. Five and a handful of metadata (trace ids) are normal; 4 MiB
of two-byte metadata entries would become 250 MiB of objects and seconds of work."""

MAX_NESTED_FIELDS: Final = 64
"""Fields in a message inside an envelope: two or three, and the details of a status, which we skip."""

MAX_BACKLOG_BYTES: Final = 4 * MAX_MESSAGE_BYTES
"""Bytes handed to receive_data while as many or more wait to be drained are refused. A caller that drains
after each read never holds more than one read."""

MAX_STREAM_ID: Final = 0xFFFF_FFFF
"""The last odd id of a connection; never reached: at one call per millisecond it takes 24 days, and a plugin
makes a handful in its life."""
