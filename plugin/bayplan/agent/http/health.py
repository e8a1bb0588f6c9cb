"""`/livez` and `/readyz`, as Kubernetes' components have them: a word, or the reason in a sentence."""

from collections.abc import Callable

from bayplan.agent.http.exchange import PageRequest, Response, text


async def livez(_: PageRequest) -> Response:
    """That the agent's event loop turns, or there would be no answer."""
    return text(200, "ok")


class Readiness:
    """Answers for `/readyz`: 200 while *why_not* returns None, 503 with its sentence while it has one."""

    def __init__(self, why_not: Callable[[], str | None]) -> None:
        self._why_not = why_not

    async def __call__(self, _: PageRequest) -> Response:
        """Whether what the agent tells is the daemon's state of now."""
        reason = self._why_not()
        return text(200, "ok") if reason is None else text(503, reason)
