"""An agent's mirror that knows a given state, from the messages that a daemon sends."""

from typing import Any

from bayplan.agent.mirror import Mirror
from bayplan.agent_protocol import (
    Change,
    FromDaemon,
    Observed,
    UpToDate,
    Welcome,
    decode_from_daemon,
    encode,
)
from bayplan.errors import UnavailableError
from bayplan.views.snapshot import Snapshot


def mirror_of(snapshot: Snapshot) -> Mirror:
    """A mirror that has just got everything of *snapshot*."""
    mirror = Mirror()
    show(mirror, snapshot)
    return mirror


def show(mirror: Mirror, snapshot: Snapshot) -> None:
    """Have *mirror* follow a daemon in the state *snapshot*."""
    everything = Change(
        1,
        tuple(snapshot.ledger.entries.values()),
        machine=snapshot.machine,
        policy=snapshot.policy,
        engine=snapshot.engine,
    )
    messages: tuple[FromDaemon, ...] = (
        Welcome("epoch", resumed=False),
        everything,
        UpToDate(1),
        Observed(snapshot.observation),
    )
    for message in messages:
        mirror.take(decode_from_daemon(encode(message)))


async def nobody(_: str, /, **__: object) -> dict[str, Any]:
    """Stands for a daemon that is not there to be asked."""
    raise UnavailableError("baypland", "does not answer")
