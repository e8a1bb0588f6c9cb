"""The API server: where it is, as whom it is asked, and how it is asked over HTTP.

A kubeconfig file says where and as whom, or the service account of the pod. The current context of a
kubeconfig counts, with tokens and client certificates. Programs that fetch credentials (`exec`) and proxies
are not used, and a server whose certificate is not checked is not asked. Objects are JSON, and refusals
errors that carry their status.

Every agent of a cluster loses an API server that is killed at the same moment. So whether it answers is known
once for all parts of an agent (`Reachability`), and each agent comes back at a moment of its own.
"""

import asyncio
import base64
import binascii
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Struct

from bayplan.agent.http_client import HttpAnswer, SentRequest, Server, ask
from bayplan.backoff import Backoff, drawn
from bayplan.errors import BayplanError, ConfigError, Problem, UnavailableError, excerpt

IN_CLUSTER: Final = Path("in-cluster")
"""In place of a kubeconfig: the service account of the pod that the agent runs in."""

MAX_BYTES: Final = 1 << 20
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def api_server(
    kubeconfig: Path,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = _SERVICE_ACCOUNT,
) -> Server:
    """The server that *kubeconfig* names.

    Raises:
        ConfigError: it cannot be read, or does not say enough; with all problems that there are.
    """
    if kubeconfig == IN_CLUSTER:
        return _in_cluster(environment, service_account)
    try:
        with kubeconfig.open("rb") as file:
            content = yaml.safe_load(file.read(MAX_BYTES))
    except OSError as error:
        raise _config_error(kubeconfig, Problem("file", error.strerror or "", "a kubeconfig")) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _config_error(kubeconfig, Problem("file", str(error), "a kubeconfig in YAML")) from error
    reading = _Reading(kubeconfig.parent, content if isinstance(content, dict) else {})
    server = reading.server()
    if reading.problems:
        raise _config_error(kubeconfig, *reading.problems)
    return server


def _in_cluster(environment: Mapping[str, str], service_account: Path) -> Server:
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (service_account / "token").exists():
        problem = Problem(
            "service account", str(service_account / "token"), "a pod with one, or --kubeconfig FILE"
        )
        raise _config_error(IN_CLUSTER, problem)
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Server(url, service_account / "ca.crt", token=service_account / "token")


class _Reading:
    """One kubeconfig, with what is wrong in it. Paths in it are relative to *directory*."""

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self.problems: list[Problem] = []
        self._directory = directory
        self._content = content

    def server(self) -> Server:
        """The server of the current context."""
        context = self._named("contexts", "context", str(self._content.get("current-context", "")))
        cluster = self._named("clusters", "cluster", str(context.get("cluster", "")))
        user = self._named("users", "user", str(context.get("user", "")))
        url = str(cluster.get("server", ""))
        if urlsplit(url).scheme != "https" or not urlsplit(url).hostname:
            self.problems.append(Problem("cluster.server", url, "https://HOST:PORT"))
        self._unusable(cluster, "cluster", "insecure-skip-tls-verify", "certificate-authority")
        self._unusable(user, "user", "exec", "a token or a client certificate")
        self._unusable(user, "user", "auth-provider", "a token or a client certificate")
        token = user.get("tokenFile")
        return Server(
            url.rstrip("/"),
            self._content_of(cluster, "cluster", "certificate-authority"),
            str(cluster.get("tls-server-name", "")),
            self._directory / str(token) if token else (str(user.get("token", "")).encode() or None),
            self._content_of(user, "user", "client-certificate"),
            self._content_of(user, "user", "client-key"),
        )

    def _named(self, kind: str, key: str, name: str) -> dict[str, Any]:
        listed = self._content.get(kind)
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and one.get("name") == name and isinstance(one.get(key), dict):
                return dict(one[key])
        self.problems.append(Problem(key, name, f"the name of one of {kind}"))
        return {}

    def _unusable(self, given: dict[str, Any], where: str, key: str, instead: str) -> None:
        if given.get(key):
            self.problems.append(Problem(f"{where}.{key}", "a value", instead))

    def _content_of(self, given: dict[str, Any], where: str, key: str) -> Path | bytes | None:
        """The file that *key* names, or what ``KEY-data`` has, which goes first."""
        encoded, named = given.get(f"{key}-data"), given.get(key)
        if not encoded:
            return self._directory / str(named) if named else None
        try:
            return base64.b64decode(str(encoded), validate=True)
        except (binascii.Error, ValueError) as error:
            self.problems.append(Problem(f"{where}.{key}-data", str(error), "PEM in base64"))
            return None


def _config_error(kubeconfig: Path, *problems: Problem) -> ConfigError:
    return ConfigError(f"--kubeconfig {kubeconfig}", problems)


TIMEOUT_S: Final = 10.0
AGAIN_S: Final = 30.0
"""10,000 agents are 333 a second that come back; their kubelets renew 1,000 leases in a second."""
READY_TIMEOUT_S: Final = 5.0
PROMPT_S: Final = 0.5
FIELD_MANAGER: Final = "bayplan-agent"

_SUCCESS: Final = range(200, 300)

Object = dict[str, Any]


class _Cause(Struct, frozen=True):
    reason: str = ""


class _Details(Struct, frozen=True):
    causes: tuple[_Cause, ...] = ()


class _Status(Struct, frozen=True):
    message: str = ""
    details: _Details = _Details()


Kind = TypeVar("Kind")


class ApiError(BayplanError):
    """The API server refuses a request for *path*: *status* is HTTP's, *message* is for people, *causes* are
    for programs. It asks to be left alone for *retry_after_s*."""

    def __init__(
        self,
        path: str,
        status: int,
        message: str,
        causes: frozenset[str] = frozenset(),
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(path, status, message)
        self.causes = causes
        self.retry_after_s = retry_after_s
        self.path = path
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.path}: the API server answers {self.status}: {self.message}"


def pause_s(backoff: Backoff, error: Exception | None) -> float:
    """How long to wait after *error*: no less than the API server asks for."""
    asked_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
    return backoff.next_s() + asked_s


class Reachability:
    """Whether *server* answers. Once it does not, it is asked once in *again_s* whether it is ready, first
    at a moment drawn from all of that; until it is, nothing else is asked of it. *ready* asks, by default for
    `/readyz`: whether it says that it is, or UnavailableError without an answer in time."""

    def __init__(
        self, server: Server, again_s: float = AGAIN_S, ready: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        self._server = server
        self._again_s = again_s
        self._ready = partial(_says_ready, server) if ready is None else ready
        self._problem = ""
        self._asking: asyncio.Task[None] | None = None

    async def wait(self, limit_s: float) -> None:
        """Wait until it answers; raises UnavailableError, with what was wrong before, after *limit_s*."""
        if self._asking is not None:
            await asyncio.wait((self._asking,), timeout=limit_s)
        if self._asking is not None:
            raise UnavailableError(self._server.url, self._problem)

    def failed(self, problem: str) -> None:
        """Note that it did not answer: *problem* says why."""
        if self._asking is None:
            self._problem = problem
            self._asking = asyncio.create_task(self._ask_until_ready())

    async def _ask_until_ready(self) -> None:
        loop, wait_s = asyncio.get_running_loop(), drawn(random.random, 0, self._again_s)
        while True:
            await asyncio.sleep(wait_s)
            began_s = loop.time()
            try:
                if await self._ready():
                    break
            except UnavailableError:
                pass  # It has not come back yet.
            wait_s = self._again_s
        if loop.time() - began_s > PROMPT_S:
            # All clients that connected while it was starting are answered at one moment.
            await asyncio.sleep(drawn(random.random, 0, self._again_s))
        self._asking = None


async def _says_ready(server: Server) -> bool:
    """Whether *server* is ready. A server that starts listens before it can answer, and then says that it is
    not ready. One that refuses this question counts as ready: it answers others."""
    answer = await ask(server, SentRequest("/readyz"), READY_TIMEOUT_S)
    return answer.status < HTTPStatus.INTERNAL_SERVER_ERROR


class Api:
    """The API server *server*. Each call raises ApiError where it refuses and UnavailableError where it does
    not answer within *timeout_s*; *reachability* is that of all who ask it."""

    def __init__(
        self, server: Server, timeout_s: float = TIMEOUT_S, reachability: Reachability | None = None
    ) -> None:
        self.reachability = reachability or Reachability(server)
        self.server = server
        self._timeout_s = timeout_s

    async def get(self, path: str, kind: type[Kind]) -> Kind:
        """The object at *path*, as far as *kind* has fields; UnavailableError if it is of another form."""
        answer = await self._answered(SentRequest(path))
        return self._decoded(path, _accepted(path, answer).body, kind)

    async def apply(self, path: str, applied: Object, kind: type[Kind]) -> Kind:
        """Server-side apply: the object at *path* has from now on what *applied* says, and is made where it
        is missing; what it is then, as far as *kind* has fields. Fields that others manage are not taken from
        them (409)."""
        target = f"{path}?fieldManager={FIELD_MANAGER}&fieldValidation=Strict"
        # JSON is YAML.
        request = _with_body("PATCH", target, applied, "application/apply-patch+yaml")
        answer = await self._answered(request)
        return self._decoded(path, _accepted(path, answer).body, kind)

    async def create(self, path: str, created: Object) -> Object:
        """Make the object *created* in the collection at *path*."""
        return await self._ask(path, _with_body("POST", path, created, "application/json"))

    async def merge(self, path: str, changed: Object) -> Object:
        """Change the object at *path* to have what *changed* says."""
        return await self._ask(path, _with_body("PATCH", path, changed, "application/merge-patch+json"))

    async def delete(self, path: str) -> Object:
        """Delete the object at *path*."""
        return await self._ask(path, _with_body("DELETE", path, {}, "application/json"))

    async def watch(self, path: str, query: str, take: Callable[[Object], None], seconds: int) -> None:
        """Hand each event that comes to *take*, until the server ends the watch after *seconds* to twice as
        many: watches that began together do not end together. What *take* raises ends it, too."""
        seconds = round(drawn(random.random, seconds, 2 * seconds))
        target = f"{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&{query}"
        answer = await self._answered(
            SentRequest(target), seconds, lambda line: take(self._decoded(path, line, Object))
        )
        _accepted(path, answer)

    async def _ask(self, path: str, request: SentRequest) -> Object:
        answer = await self._answered(request)
        return self._decoded(path, _accepted(path, answer).body, Object)

    async def _answered(
        self, request: SentRequest, lasts_s: float = 0.0, take_line: Callable[[bytes], None] | None = None
    ) -> HttpAnswer:
        """The answer to *request*, which lasts *lasts_s* beside the time for it."""
        await self.reachability.wait(self._timeout_s)
        try:
            return await ask(self.server, request, lasts_s + self._timeout_s, take_line)
        except UnavailableError as error:
            self.reachability.failed(error.problem)
            raise

    def _decoded(self, path: str, text: bytes, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = f"{path}: not what an API server answers: {error}"
            raise UnavailableError(self.server.url, problem) from error


def _with_body(method: str, target: str, body: Object, content_type: str) -> SentRequest:
    return SentRequest(target, method, json.dumps(body).encode(), content_type)


def _accepted(path: str, answer: HttpAnswer) -> HttpAnswer:
    if answer.status not in _SUCCESS:
        raise _refusal(path, answer)
    return answer


def _refusal(path: str, answer: HttpAnswer) -> ApiError:
    """The error by the Status object of the answer; an answer without one is a proxy's."""
    try:
        status = msgspec.json.decode(answer.body, type=_Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        status = _Status()
    message = excerpt(status.message) if status.message else _phrase(answer)
    causes = frozenset(one.reason for one in status.details.causes)
    return ApiError(path, answer.status, message, causes, answer.retry_after_s)


def _phrase(answer: HttpAnswer) -> str:
    try:
        return answer.reason or HTTPStatus(answer.status).phrase
    except ValueError:
        return "it does not say why"
