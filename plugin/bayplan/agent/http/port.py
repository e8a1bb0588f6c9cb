"""What the agent's HTTP port serves, made from its settings and from the mirror of the daemon's state."""

import asyncio
import contextlib
import logging
from typing import Final

from bayplan.agent.command_line import Address, AgentSettings
from bayplan.agent.http.access import BearerToken, Certificate, HostNames, is_loopback
from bayplan.agent.http.answers import Answers, Asking
from bayplan.agent.http.exchange import PageRequest, Response
from bayplan.agent.http.health import Readiness, livez
from bayplan.agent.http.metrics import MetricsPage
from bayplan.agent.http.page import Page
from bayplan.agent.http.server import HttpServer
from bayplan.agent.mirror import Mirror
from bayplan.errors import ConfigError

logger = logging.getLogger(__name__)

_REFRESH_S: Final = 60.0
"""Certificates are replaced long before they end."""

_HEALTH: Final = frozenset({"/livez", "/readyz"})


class HttpPort:
    """Serves at *address*, as *settings* say, from `start` to `close`."""

    def __init__(self, address: Address, settings: AgentSettings, mirror: Mirror, ask: Asking) -> None:
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
        """Stop listening, and disconnect everybody."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refreshing
        await self.server.close()

    def _why_not_ready(self) -> str | None:
        if not self._mirror.connected:
            return "baypland does not answer"
        return None if self._mirror.snapshot is not None else "baypland has not said everything yet"

    def _check(self, request: PageRequest) -> Response | None:
        """Health is for everybody who reaches the port: kubelet's probes have no token."""
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
