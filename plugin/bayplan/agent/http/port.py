"""What the agent's HTTP port serves, made from its settings and from the mirror of the daemon's state, and
who may ask, and by which name: a bearer token, this server's names, and the certificate that the port is
served with. Token and certificate can be replaced in their files while the agent runs.

Whoever asks within the same second gets the same text: thousands of scrapes cost no more than one.

`/livez` and `/readyz` are as Kubernetes' components have them: a word, or the reason in a sentence.
"""

import asyncio
import contextlib
import gzip
import hmac
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from bayplan.agent.command_line import Address, AgentSettings
from bayplan.agent.http.page import Answers, DaemonQuestions, Page
from bayplan.agent.http.server import HttpResponse, HttpServer, PageRequest, plain_text
from bayplan.agent.mirror import Mirror
from bayplan.errors import ConfigError, Problem
from bayplan.printable import printable
from bayplan.quantity import counted
from bayplan.views.metrics import METRICS, Facts, Histogram, Kind, Metric
from bayplan.views.snapshot import Snapshot

FRESH_S: Final = 1.0
_GZIP_LEVEL: Final = 1


class MetricsPage:
    """Answers for `/metrics`, by what *mirror* knows; before it knows anything, with this process's own
    metrics only. So many containers at most are named."""

    def __init__(
        self, mirror: Mirror, most_containers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._mirror = mirror
        self._most_containers = most_containers
        self._clock = clock
        self._lock = asyncio.Lock()
        self._pages: dict[tuple[str, bool], tuple[float, HttpResponse]] = {}

    async def __call__(self, request: PageRequest) -> HttpResponse:
        """The page, not older than a second."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        compressed = "gzip" in request.headers.get("accept-encoding", "")
        async with self._lock:
            made_s, page = self._pages.get((content_type, compressed), (0.0, None))
            if page is None or self._clock() >= made_s + FRESH_S:
                # The mirror is read here, in the loop that changes it; the rest takes milliseconds.
                snapshot, following = self._mirror.snapshot, self._mirror.connected
                body = await asyncio.to_thread(self._body, encode, snapshot, following=following)
                body = gzip.compress(body, _GZIP_LEVEL) if compressed else body
                headers = (("Content-Encoding", "gzip"),) if compressed else ()
                page = HttpResponse(
                    body, content_type, headers=(("Vary", "Accept, Accept-Encoding"), *headers)
                )
                self._pages[content_type, compressed] = self._clock(), page
        return page

    def _body(
        self, encode: Callable[[CollectorRegistry], bytes], snapshot: Snapshot | None, *, following: bool
    ) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        if snapshot is not None:
            facts = Facts.of(snapshot, following=following, most_containers=self._most_containers)
            registry.register(_Daemon(facts))
        return encode(registry)


class _Daemon(Collector):
    """The metrics of the daemon, by *facts*."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Family]:
        """Each of them with its samples."""
        return (_family(metric, self._facts) for metric in METRICS)


def _family(metric: Metric, facts: Facts) -> Family:
    samples = [([printable(one) for one in values], number) for values, number in metric.samples(facts)]
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
        for values, number in samples:
            assert isinstance(number, Histogram)
            histogram.add_metric(values, number.cumulative(), number.total)
        return histogram
    of_kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = of_kind(metric.name, metric.text, labels=metric.labels)
    for values, number in samples:
        assert not isinstance(number, Histogram)
        family.add_metric(values, number)
    return family


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

    def why_refused(self, request: PageRequest) -> HttpResponse | None:
        """The answer to a request without the token; None if it has it."""
        try:
            self._read()
        except ConfigError:
            return plain_text(503, "the token cannot be read")
        header = request.headers.get("authorization", "")
        given = header[len(_SCHEME) :].strip().encode() if header.lower().startswith(_SCHEME) else b""
        if hmac.compare_digest(given, self._token):
            return None
        return plain_text(401, "a bearer token is needed", ("WWW-Authenticate", "Bearer"))

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

    def why_refused(self, request: PageRequest) -> HttpResponse | None:
        """The answer to a request by another name; None if the name is good."""
        name = _bare(_without_port(request.headers.get("host", "")))
        if name in self._names or is_loopback(name):
            return None
        return plain_text(421, "asked by another name than this server's; --allowed-hosts adds some")


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


async def livez(_: PageRequest) -> HttpResponse:
    """That the agent's event loop turns, or there would be no answer."""
    return plain_text(200, "ok")


class Readiness:
    """Answers for `/readyz`: 200 while *why_not* returns None, 503 with its sentence while it has one."""

    def __init__(self, why_not: Callable[[], str | None]) -> None:
        self._why_not = why_not

    async def __call__(self, _: PageRequest) -> HttpResponse:
        """Whether what the agent tells is the daemon's state of now."""
        reason = self._why_not()
        return plain_text(200, "ok") if reason is None else plain_text(503, reason)


logger = logging.getLogger(__name__)

_REFRESH_S: Final = 60.0
"""Certificates are replaced long before they end."""

_HEALTH: Final = frozenset({"/livez", "/readyz"})


class HttpPort:
    """Serves at *address*, as *settings* say, from `start` to `close`."""

    def __init__(
        self, address: Address, settings: AgentSettings, mirror: Mirror, ask: DaemonQuestions
    ) -> None:
        """*ask* asks the daemon. Raises ConfigError: the token or the certificate cannot be used."""
        self._mirror = mirror
        self._token = None if settings.token_file is None else BearerToken(settings.token_file)
        self._certificate = (
            None
            if settings.tls_cert is None or settings.tls_key is None
            else Certificate(settings.tls_cert, settings.tls_key)
        )
        on_loopback = self._certificate is None and is_loopback(address.host)
        self._names = HostNames(settings.allowed_hosts) if on_loopback else None
        self._refreshing: asyncio.Task[None] | None = None
        page, answers = Page(mirror), Answers(ask)
        self.server = HttpServer(
            address.host,
            address.port,
            {
                "/": page,
                "/events": page.events,
                "/explain": answers.explain,
                "/timeline": answers.timeline,
                "/what-if": answers.what_if,
                "/metrics": MetricsPage(mirror, settings.container_metrics),
                "/livez": livez,
                "/readyz": Readiness(self._why_not_ready),
            },
            None if self._certificate is None else self._certificate.context,
            self._check,
        )

    async def start(self) -> None:
        """Listen; raises HostError."""
        await self.server.start()
        if self._certificate is not None:
            self._refreshing = asyncio.create_task(self._refresh(self._certificate))
        host, port = self.server.address
        secure = self._certificate is not None
        logger.info("listening for HTTP", extra={"host": host, "port": port, "tls": secure})

    async def close(self) -> None:
        """Stop listening, and disconnect all clients."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing
        await self.server.close()

    def _why_not_ready(self) -> str | None:
        if not self._mirror.connected:
            return "baypland does not answer"
        return None if self._mirror.snapshot is not None else "baypland has not said everything yet"

    def _check(self, request: PageRequest) -> HttpResponse | None:
        """The refusal of a request, None if it may be answered. Health is answered to all clients: kubelet's
        probes have no token."""
        misnamed = None if self._names is None else self._names.why_refused(request)
        if misnamed is not None:
            return misnamed
        if self._token is None or request.path in _HEALTH:
            return None
        return self._token.why_refused(request)

    async def _refresh(self, certificate: Certificate) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            try:
                certificate.refresh()
            except ConfigError as error:
                logger.warning(
                    "the new certificate is not used; the old one stays in force",
                    extra={"problem": error.on_one_line()},
                )
