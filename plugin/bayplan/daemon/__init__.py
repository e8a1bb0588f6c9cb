"""The daemon: configuration, logs, the event loop and the wiring of everything below.

kubelet and the runtime wait for its start, so libraries are loaded without the parts that they can do without
and that nothing here needs: asyncio without TLS, as the daemon speaks over sockets of this machine only, and
msgspec without typing_extensions, of which the standard library has everything by now.
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
