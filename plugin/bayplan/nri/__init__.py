"""The session with a container runtime over NRI: registered, synchronized, reconnected for ever.

    session = Session(handler, Identity("bayplan", "90"), UnixSocket())
    await session.run()                       # until: await session.close()

`Handler` has the contract of the code that decides. The session takes care of everything between it and the
runtime: versions, event masks, messages in pieces, both styles of events, deadlines and safe answers.

It does not decide anything, keeps no record of pods and containers, and does not make sure that it is the
only instance on the node: two plugins of one name make every container fail, so whoever starts it must hold
a lock. It never calls the runtime on its own after the registration: an update of
containers outside of a reply can deadlock runtimes with NRI older than 0.12.1.
"""

from bayplan.backoff import Backoff
from bayplan.nri.handler import Handler, PayloadError
from bayplan.nri.request_queue import Clock, Timeouts, Timer
from bayplan.nri.session import PLUGIN_SERVICE, RUNTIME_SERVICE, Session
from bayplan.nri.transport import (
    DEFAULT_SOCKET,
    Endpoint,
    Identity,
    InheritedSocket,
    Link,
    UnixSocket,
    launched_by_runtime,
)
from bayplan.nri.versions import (
    Capabilities,
    Event,
    Runtime,
    Version,
    events_of,
    infer_nri_version,
    known_events,
    mask_of,
)

__all__ = [
    "DEFAULT_SOCKET",
    "PLUGIN_SERVICE",
    "RUNTIME_SERVICE",
    "Backoff",
    "Capabilities",
    "Clock",
    "Endpoint",
    "Event",
    "Handler",
    "Identity",
    "InheritedSocket",
    "Link",
    "PayloadError",
    "Runtime",
    "Session",
    "Timeouts",
    "Timer",
    "UnixSocket",
    "Version",
    "events_of",
    "infer_nri_version",
    "known_events",
    "launched_by_runtime",
    "mask_of",
]
