"""Who may ask, and by which name: a bearer token, this server's names, and the certificate that the port is
served with. Token and certificate can be replaced in their files while the agent runs."""

import hmac
import ipaddress
import ssl
from collections.abc import Collection
from pathlib import Path
from typing import Final

from bayplan.agent.http.exchange import PageRequest, Response, text
from bayplan.errors import ConfigError, Problem
from bayplan.quantity import counted

MAX_TOKEN_BYTES: Final = 4096
_SCHEME: Final = "bearer "


class BearerToken:
    """The token in a file, which is read again when it was replaced."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError: the file cannot be read, or holds no token."""
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._token = b""
        self._read()

    def why_refused(self, request: PageRequest) -> Response | None:
        """The answer to somebody who has not the token; None for others."""
        try:
            self._read()
        except ConfigError:
            return text(503, "the token cannot be read")
        header = request.headers.get("authorization", "")
        given = header[len(_SCHEME) :].strip().encode() if header.lower().startswith(_SCHEME) else b""
        if hmac.compare_digest(given, self._token):
            return None
        return text(401, "a bearer token is needed", ("WWW-Authenticate", "Bearer"))

    def _read(self) -> None:
        try:
            status = self._path.stat()
            if self._seen == (status.st_mtime_ns, status.st_ino):
                return
            with self._path.open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES + 1).strip()
        except OSError as error:
            raise _wrong(self._path, error.strerror or str(error), "a file with a bearer token") from error
        if not 0 < len(token) <= MAX_TOKEN_BYTES:
            raise _wrong(self._path, counted(len(token), "byte"), f"a token of 1 to {MAX_TOKEN_BYTES} bytes")
        self._token, self._seen = token, (status.st_mtime_ns, status.st_ino)


class HostNames:
    """The names by which a server on loopback may be asked: loopback's own, and those in *names*.

    A page from elsewhere cannot read what is served on loopback, except by a name of its own that leads there
    (DNS rebinding); then its browser sends that name.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = {_bare(name) for name in names}

    def why_refused(self, request: PageRequest) -> Response | None:
        """The answer to somebody who asked by another name; None for others."""
        name = _bare(_without_port(request.headers.get("host", "")))
        if name in self._names or is_loopback(name):
            return None
        return text(421, "asked by another name than this server's; --allowed-hosts adds some")


def is_loopback(host: str) -> bool:
    """Whether *host*, a name or an address, is this machine's alone by its form."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_port(host: str) -> str:
    """*host* as in a Host header, without what follows the name or the address in brackets."""
    return host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _bare(name: str) -> str:
    return name.strip().strip("[]").rstrip(".").lower()


class Certificate:
    """A certificate with its key; ``context`` has what the files had when `refresh` looked last."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises ConfigError: the files hold no certificate with its key."""
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._files = certificate, key
        self._seen: tuple[int, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Take over files that were replaced; raises ConfigError as at the start, and keeps what it had."""
        certificate, key = self._files
        try:
            seen = tuple(path.stat().st_mtime_ns for path in self._files)
            if seen != self._seen:
                self.context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            problem = error.strerror or str(error)
            raise _wrong(certificate, problem, f"a certificate in PEM, its key in {key}") from error
        self._seen = seen


def _wrong(path: Path, found: str, expected: str) -> ConfigError:
    return ConfigError("command line", (Problem(str(path), found, expected),))
