"""What the daemon and the agent say to each other on the agent socket: the messages, their form and limits.

Each message is a line of JSON with its ``kind``. The agent speaks first (`Subscribe`); docs/agent.md has the
order of all others. Both ends read with the types given here, so that a message of another shape is refused
whole. Fields are added with a default, never renamed; an unknown field is passed over.
"""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from bayplan import __version__
from bayplan.admin_protocol import API_VERSION
from bayplan.errors import ParseError
from bayplan.model.decision import Decision, EvictionRecord
from bayplan.model.kubelet_requests import PodFacts
from bayplan.model.ledger import Entry
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import set_to_text, text_to_set
from bayplan.views.snapshot import Observation

DEFAULT_SOCKET: Final = Path("/run/bayplan/agent.sock")
DEFAULT_GROUP: Final = "bayplan-agent"

MAX_AGENT_MESSAGE_BYTES: Final = 256 << 10
"""Of the agent. A pod of 500 containers takes 150 kB."""

MAX_DAEMON_MESSAGE_BYTES: Final = 64 << 20
"""Of the daemon. The largest is the synchronization of thousands of containers, some 2 kB each."""


class Subscribe(Struct, frozen=True, tag="Subscribe", tag_field="kind"):
    """The agent's first message. *epoch* and *position* are where it was before it lost its connection; with
    an empty epoch everything is sent. ``agent`` is its version, for the log; *evicts*: it can have pods
    evicted by the API server. *kubelet_version* is what the Node object says of kubelet's, "" where it is not
    known; an agent that learns of another one connects anew."""

    api_version: str = API_VERSION
    agent: str = __version__
    epoch: str = ""
    position: int = 0
    evicts: bool = False
    kubelet_version: str = ""


class PodKnown(Struct, frozen=True, tag="PodKnown", tag_field="kind"):
    """The agent: this is what kubelet says of a pod now."""

    pod: PodFacts


class PodGone(Struct, frozen=True, tag="PodGone", tag_field="kind"):
    """The agent: kubelet does not have this pod any more."""

    uid: str


class EvictionOutcome(enum.Enum):
    """What the API server says of an eviction: done, or not now (a PodDisruptionBudget), or not at all."""

    ACCEPTED = "accepted"
    LATER = "later"
    REFUSED = "refused"


class EvictionAnswer(Struct, frozen=True, tag="EvictionAnswer", tag_field="kind"):
    """The agent: what became of an `EvictPod`, and why it was not accepted."""

    uid: str
    outcome: EvictionOutcome
    problem: str = ""


QUESTIONS: Final = ("explain", "report", "what-if")
"""What the admin socket is asked and changes nothing, of which an agent may ask, too."""
PREPARE_CLAIM: Final = "prepare-claim"
UNPREPARE_CLAIM: Final = "unprepare-claim"
CLAIMED_DEVICES: Final = "claimed-devices"
"""What an agent alone may ask: to hold a resource claim, and to hold it no longer; to know which devices of
other drivers the containers of a pod have through claims."""


class Asked(Struct, frozen=True, tag="Asked", tag_field="kind"):
    """The agent, to a daemon whose `Welcome` says that it answers: one of `QUESTIONS`, with the fields of a
    request at the admin socket, or about a resource claim. *number* is the agent's, and that of the
    answer."""

    number: int
    verb: str
    request: dict[str, Any] = {}


class Answered(Struct, frozen=True, tag="Answered", tag_field="kind"):
    """The daemon: the answer to an `Asked`, as the admin socket gives it; or the *problem*, in a sentence."""

    number: int
    view: dict[str, Any] = {}
    problem: str = ""


class Welcome(Struct, frozen=True, tag="Welcome", tag_field="kind"):
    """The daemon's first message. *resumed*: what follows are the changes since the agent's position; else it
    is everything that holds, and what the agent had before is void. *epoch* is drawn at the daemon's start.
    ``answers`` are the questions that it can be asked.
    """

    epoch: str
    resumed: bool
    version: str = __version__
    answers: tuple[str, ...] = ()


class Change(Struct, frozen=True, tag="Change", tag_field="kind"):
    """The daemon: what changed of that on which decisions depend, and its position, which rises by one with
    each change. Every entry replaces the one of the same container; the containers in *gone* have none any
    more. What is None is as before."""

    position: int
    entries: tuple[Entry, ...] = ()
    gone: tuple[str, ...] = ()
    machine: Machine | None = None
    policy: PlacementPolicy | None = None
    engine: str | None = None


class Refused(Struct, frozen=True, tag="Refused", tag_field="kind"):
    """The daemon: a container was refused, at *at_us* (microseconds since the epoch). Its *position* is one
    in the same row as those of the changes."""

    position: int
    at_us: int
    decision: Decision


class Evicted(Struct, frozen=True, tag="Evicted", tag_field="kind"):
    """The daemon: a pod is evicted, of which *record* is about one container; *annotations* are those of
    kubelet's event. Its *position* is one in the same row."""

    position: int
    record: EvictionRecord
    annotations: Mapping[str, str] = {}


class UpToDate(Struct, frozen=True, tag="UpToDate", tag_field="kind"):
    """The daemon: everything up to *position* was sent. What comes later is new."""

    position: int


class Observed(Struct, frozen=True, tag="Observed", tag_field="kind"):
    """The daemon, every few seconds: what it knows beside the promises."""

    observation: Observation


class PodWanted(Struct, frozen=True, tag="PodWanted", tag_field="kind"):
    """The daemon: containers of this pod are about to be created, and nobody has said what they request."""

    uid: str
    namespace: str
    name: str


class Unusable(Struct, frozen=True, tag="Unusable", tag_field="kind"):
    """The daemon: what was said of a container does not count, and why."""

    uid: str
    container: str
    problem: str


class EvictPod(Struct, frozen=True, tag="EvictPod", tag_field="kind"):
    """The daemon: have this pod evicted by the API server, and answer at once. It was decided, is recorded,
    and is carried out in another way if no answer comes."""

    uid: str
    namespace: str
    name: str
    grace_s: int


class Failed(Struct, frozen=True, tag="Failed", tag_field="kind"):
    """The daemon's last message: why it ends the connection."""

    message: str


FromAgent: TypeAlias = Subscribe | PodKnown | PodGone | EvictionAnswer | Asked
FromDaemon: TypeAlias = (
    Welcome
    | Change
    | Refused
    | Evicted
    | UpToDate
    | Observed
    | PodWanted
    | Unusable
    | EvictPod
    | Failed
    | Answered
)


def encode(message: FromAgent | FromDaemon) -> bytes:
    """*message* as a line."""
    return _ENCODER.encode(message) + b"\n"


def decode_from_agent(line: bytes) -> FromAgent:
    """The message in *line*.

    Raises:
        ParseError: it is none.
    """
    return _decoded(_FROM_AGENT, line)


def decode_from_daemon(line: bytes) -> FromDaemon:
    """The message in *line*.

    Raises:
        ParseError: it is none.
    """
    return _decoded(_FROM_DAEMON, line)


Message = TypeVar("Message")

_ENCODER: Final = msgspec.json.Encoder(enc_hook=set_to_text)
_FROM_AGENT: Final[msgspec.json.Decoder[FromAgent]] = msgspec.json.Decoder(FromAgent, dec_hook=text_to_set)
_FROM_DAEMON: Final[msgspec.json.Decoder[FromDaemon]] = msgspec.json.Decoder(FromDaemon, dec_hook=text_to_set)


def _decoded(decoder: msgspec.json.Decoder[Message], line: bytes) -> Message:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError("message", repr(line[:100]), str(error)) from error
