"""The API server's way of asking over HTTP: objects as JSON, refusals as errors that carry their status."""

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from bayplan.agent.http_client import Answer, SentRequest, Server, ask
from bayplan.errors import BayplanError, UnavailableError, excerpt

TIMEOUT_S: Final = 10.0
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
    """The API server refuses: *status* is HTTP's, *message* its words for people, *causes* for programs."""

    def __init__(self, path: str, status: int, message: str, causes: frozenset[str] = frozenset()) -> None:
        super().__init__(path, status, message)
        self.causes = causes
        self.path = path
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.path}: the API server answers {self.status}: {self.message}"


class Api:
    """The API server *server*. Each call raises ApiError where it refuses and UnavailableError where it does
    not answer within *timeout_s*."""

    def __init__(self, server: Server, timeout_s: float = TIMEOUT_S) -> None:
        self._server = server
        self._timeout_s = timeout_s

    async def get(self, path: str, kind: type[Kind]) -> Kind:
        """The object at *path*, as far as *kind* has fields; UnavailableError if it is of another form."""
        answer = await ask(self._server, SentRequest(path), self._timeout_s)
        return self._decoded(path, _accepted(path, answer).body, kind)

    async def apply(self, path: str, applied: Object, kind: type[Kind]) -> Kind:
        """Server-side apply: the object at *path* has from now on what *applied* says, and is made where it
        is missing; what it is then, as far as *kind* has fields. Fields that others manage are not taken from
        them (409)."""
        target = f"{path}?fieldManager={FIELD_MANAGER}&fieldValidation=Strict"
        # JSON is YAML.
        request = _with_body("PATCH", target, applied, "application/apply-patch+yaml")
        answer = await ask(self._server, request, self._timeout_s)
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
        """Hand each event that comes to *take*, until the server ends the watch after *seconds*. What *take*
        raises ends it, too."""
        target = f"{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&{query}"
        limit_s = seconds + self._timeout_s
        answer = await ask(
            self._server, SentRequest(target), limit_s, lambda line: take(self._decoded(path, line, Object))
        )
        _accepted(path, answer)

    async def _ask(self, path: str, request: SentRequest) -> Object:
        answer = await ask(self._server, request, self._timeout_s)
        return self._decoded(path, _accepted(path, answer).body, Object)

    def _decoded(self, path: str, text: bytes, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = f"{path}: not what an API server answers: {error}"
            raise UnavailableError(self._server.url, problem) from error


def _with_body(method: str, target: str, body: Object, content_type: str) -> SentRequest:
    return SentRequest(target, method, json.dumps(body).encode(), content_type)


def _accepted(path: str, answer: Answer) -> Answer:
    if answer.status not in _SUCCESS:
        raise _refusal(path, answer)
    return answer


def _refusal(path: str, answer: Answer) -> ApiError:
    """By the Status object that comes with it; other answers are a proxy's."""
    try:
        status = msgspec.json.decode(answer.body, type=_Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        status = _Status()
    message = excerpt(status.message) if status.message else _phrase(answer)
    return ApiError(path, answer.status, message, frozenset(one.reason for one in status.details.causes))


def _phrase(answer: Answer) -> str:
    try:
        return answer.reason or HTTPStatus(answer.status).phrase
    except ValueError:
        return "it does not say why"
