"""Sent to the guest and run there: a read-only registry of images, from a directory in the form of its own
paths (`v2/NAME/manifests/TAG OR DIGEST`, `v2/NAME/blobs/DIGEST`). Arguments: the directory and the port of
loopback. Standard library only.
"""

import hashlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DIRECTORY, PORT = sys.argv[1], int(sys.argv[2])


class Registry(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        try:
            body = b"{}" if path == "/v2/" else Path(f"{DIRECTORY}{path}").read_bytes()
            self.send_response(200)
        except OSError:
            body = b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'
            self.send_response(404)
        kind = MANIFEST if "/manifests/" in path else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        self.end_headers()
        if with_body:
            self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", PORT), Registry).serve_forever()
