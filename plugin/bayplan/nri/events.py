"""The events of NRI, numbered as on the wire.

A subscription is a mask with one bit per event. Which of them a runtime knows is the business of
``versions``.
"""

import enum
from collections.abc import Iterable


class Event(enum.IntEnum):
    """What happens to pods and containers. The value is NRI's own number.

    SYNCHRONIZE has no number in NRI: it stands for the request of that name where an event is asked for.
    """

    SYNCHRONIZE = 0
    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14

    @property
    def bit(self) -> int:
        """The event's place in a subscription mask; 0 for SYNCHRONIZE, which always comes."""
        return 1 << self.value >> 1


def mask_of(events: Iterable[Event]) -> int:
    """The subscription mask of *events*. Zero would subscribe to everything that the runtime knows."""
    mask = 0
    for event in events:
        mask |= event.bit
    return mask


def events_of(mask: int) -> frozenset[Event]:
    """The events in a subscription *mask*; bits without an event are left out."""
    return frozenset(event for event in Event if mask & event.bit)
