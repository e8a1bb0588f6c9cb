"""An agent's mirror that knows a given state, from the messages that a daemon sends."""

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
