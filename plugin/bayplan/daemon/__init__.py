"""The daemon: configuration, logs, the event loop and the wiring of everything below.

Somebody waits for its start, so libraries are loaded without what they take if they can have it and nobody
here needs: of asyncio TLS, as all that the daemon speaks are sockets of this machine, and of msgspec
typing_extensions, of which the standard library has everything by now.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Have imports of the modules *names* fail meanwhile, unless they are loaded."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: there is no such module
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with without("typing_extensions"):
    import msgspec  # noqa: F401 - see above
