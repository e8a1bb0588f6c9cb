"""kubelet's HTTP endpoint /pods, asked when a pod starts or changes, and now and then.

Over HTTPS with a bearer token and kubelet's CA, or on the read-only port where that is open. The token is
read each time, because it is renewed in its file. What kubelet said last stays known while it does not
answer.
"""

import asyncio
import http.client
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from bayplan.agent.kubelet_pods.pod_spec import pods_of_json
from bayplan.agent.kubelet_pods.watch import PodKeeper
from bayplan.errors import BayplanError, ParseError, UnavailableError

logger = logging.getLogger(__name__)

LEAST_INTERVAL_S: Final = 3.0
MOST_INTERVAL_S: Final = 60.0
"""What was changed without a word to the runtime, such as a memory request alone, is known after this
time."""

TIMEOUT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 << 20
MAX_TOKEN_BYTES: Final = 64 << 10


class Endpoint(Struct, frozen=True):
    """Where and how kubelet is asked. *ca* is the file with the certificates that kubelet's is checked by,
    *server_name* the name that is expected in it, the URL's own where it is empty. Without *token* none is
    sent.
    """

    url: str
    token: Path | None = None
    ca: Path | None = None
    server_name: str = ""

    def fetch(self, timeout_s: float = TIMEOUT_S) -> bytes:
        """The answer of kubelet. Blocks.

        Raises:
            UnavailableError: there is none, or one that refuses.
        """
        try:
            return self._fetch(timeout_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnavailableError(self.url, f"kubelet does not answer: {error}") from error

    def _fetch(self, timeout_s: float) -> bytes:
        parts = urlsplit(self.url)
        headers = {"Accept": "application/json"}
        if self.token is not None:
            token = self.token.read_bytes()[:MAX_TOKEN_BYTES].decode("ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            if parts.scheme == "https":
                connection.sock = self._secured(parts.hostname or "", parts.port or 443, timeout_s)
            connection.request("GET", parts.path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER_BYTES + 1)
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise UnavailableError(self.url, f"kubelet answers {answer.status} {answer.reason}")
        if len(body) > MAX_ANSWER_BYTES:
            raise UnavailableError(self.url, f"kubelet answers more than {MAX_ANSWER_BYTES} bytes")
        return body

    def _secured(self, host: str, port: int, timeout_s: float) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.ca)
        plain = socket.create_connection((host, port), timeout_s)
        try:
            return context.wrap_socket(plain, server_hostname=self.server_name or host)
        except BaseException:
            plain.close()
            raise


class PodEndpoint:
    """Asks *endpoint* and tells *keeper*, unless that is *needless*, as another source knows more."""

    def __init__(
        self,
        endpoint: Endpoint,
        keeper: PodKeeper,
        needless: Callable[[], bool] = lambda: False,
        least_interval_s: float = LEAST_INTERVAL_S,
        most_interval_s: float = MOST_INTERVAL_S,
    ) -> None:
        self._endpoint = endpoint
        self._keeper = keeper
        self._needless = needless
        self._least_interval_s = least_interval_s
        self._most_interval_s = most_interval_s
        self._wanted = asyncio.Event()
        self._noted = ""

    def ask_soon(self) -> None:
        """Ask as soon as kubelet may be asked again."""
        self._wanted.set()

    async def run(self) -> None:
        """Ask whenever that is due, until cancelled."""
        while True:
            self._wanted.clear()
            if not self._needless():
                await self._ask()
            await asyncio.sleep(self._least_interval_s)
            try:
                async with asyncio.timeout(self._most_interval_s - self._least_interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def _ask(self) -> None:
        try:
            answer = await asyncio.to_thread(self._endpoint.fetch)
            pods, problems = pods_of_json(answer)
        except (UnavailableError, ParseError) as error:
            self._note(error)
            return
        for problem in problems:
            logger.warning("a pod cannot be read", extra={"problem": str(problem)})
        self._note(None)
        self._keeper.keep({pod.uid: pod for pod in pods})

    def _note(self, problem: BayplanError | None) -> None:
        """Log *problem*, unless it is the last one again."""
        text = "" if problem is None else str(problem)
        if text and text != self._noted:
            logger.warning("kubelet's pods are not known", extra={"problem": text})
        elif self._noted and not text:
            logger.info("kubelet's pods are known again")
        self._noted = text
