"""An HTTP server of Python's library in a thread, as the fakes of kubelet and of the API server need it.

Whatever a client does or leaves undone happens in the thread of its own connection, the handshake of TLS
included: the thread that accepts never waits for a client, so that the server can always be ended.
"""

import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """What a fake answers, without a log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that are gone."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[Handler], *, port: int = 0, certificates: Path | None) -> Iterator[int]:
    """Serve until the end, at *port*, or at any that is free; with *certificates*, a directory with those of
    kubelet, over TLS. The port."""
    server = _Server(("127.0.0.1", port), handler)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "kubelet.pem", certificates / "kubelet-key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
