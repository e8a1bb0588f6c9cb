"""kubelet's HTTP endpoint /pods, asked when a pod starts or changes, and now and then.

Over HTTPS with a bearer token and kubelet's CA, or on the read-only port where that is open. The token is
read each time, because it is renewed in its file. What kubelet said last stays known while it does not
answer; it is asked again soon, and then less and less often.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from bayplan.agent.condition import Condition
from bayplan.agent.http_client import OK, SentRequest, Server, ask
from bayplan.agent.kubelet_pods.pod_spec import pods_of_json
from bayplan.agent.kubelet_pods.watch import PodKeeper
from bayplan.backoff import Backoff
from bayplan.errors import ParseError, UnavailableError

logger = logging.getLogger(__name__)

LEAST_INTERVAL_S: Final = 3.0
MOST_INTERVAL_S: Final = 60.0
"""What was changed without the runtime, such as a memory request alone, is known after this
time."""


class PodEndpoint:
    """Asks *kubelet* for *keeper*, unless that is *needless*, as another source knows more.
    ``in_sync``: kubelet has answered, the last time it was asked."""

    def __init__(
        self,
        kubelet: Server,
        keeper: PodKeeper,
        needless: Callable[[], bool] = lambda: False,
        least_interval_s: float = LEAST_INTERVAL_S,
        most_interval_s: float = MOST_INTERVAL_S,
    ) -> None:
        self.in_sync = False
        self._kubelet = kubelet
        self._keeper = keeper
        self._needless = needless
        self._least_interval_s = least_interval_s
        self._most_interval_s = most_interval_s
        # What was asked for because of a pod that starts is due until kubelet has answered.
        self._again = Backoff(random.random, first_s=2 * least_interval_s, limit_s=most_interval_s)
        self._wanted = asyncio.Event()
        self._condition = Condition("kubelet's pods are not known", "kubelet's pods are known again")

    def ask_soon(self) -> None:
        """Ask as soon as kubelet may be asked again."""
        self._wanted.set()

    async def run(self) -> None:
        """Ask whenever that is due, until cancelled."""
        while True:
            self._wanted.clear()
            next_s = self._most_interval_s
            if self._needless() or await self._ask():
                self._again.reset()
            else:
                next_s = self._again.next_s()
            await asyncio.sleep(self._least_interval_s)
            try:
                async with asyncio.timeout(next_s - self._least_interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def _ask(self) -> bool:
        """Ask once; whether kubelet has answered."""
        try:
            pods, problems = pods_of_json(await self._answer())
        except (UnavailableError, ParseError) as error:
            self.in_sync = False
            self._condition.holds(str(error))
            return False
        for problem in problems:
            logger.warning("a pod cannot be read", extra={"problem": str(problem)})
        self._condition.over()
        self.in_sync = True
        self._keeper.keep({pod.uid: pod for pod in pods})
        return True

    async def _answer(self) -> bytes:
        answer = await ask(self._kubelet, SentRequest())
        if answer.status != OK:
            raise UnavailableError(self._kubelet.url, f"kubelet answers {answer.status} {answer.reason}")
        return answer.body
