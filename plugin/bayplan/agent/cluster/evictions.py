"""Has the API server evict pods (policy/v1) that the daemon decided to evict: a controller makes another one,
and disruption budgets are respected.

Only what the daemon asks for, one after the other, each answered once. An answer comes before the daemon has
done with waiting (`bayplan.daemon.pod_end.ANSWER_S`): what could not be had in time is ended without it.
"""

import asyncio
from typing import Final
from urllib.parse import quote

from bayplan.agent.cluster.api import Api, ApiError
from bayplan.agent.daemon_link import DaemonLink
from bayplan.agent_protocol import EvictionAnswer, EvictionOutcome, EvictPod
from bayplan.errors import UnavailableError

TIMEOUT_S: Final = 4.0
"""For the API server: less than the daemon waits."""

_BUDGET: Final = "DisruptionBudget"
"""Source: DisruptionBudgetCause, k8s.io/api/policy/v1/types.go."""


class PodEvictions:
    """Answers on *link* what *api* says of each eviction."""

    def __init__(self, api: Api, link: DaemonLink) -> None:
        self._api = api
        self._link = link
        self._asked: asyncio.Queue[EvictPod] = asyncio.Queue()
        link.evict = self._asked.put_nowait

    async def run(self) -> None:
        """Carry out what is asked for until cancelled."""
        while True:
            asked = await self._asked.get()
            self._link.answer(await self._evict(asked))

    async def _evict(self, asked: EvictPod) -> EvictionAnswer:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": asked.namespace, "name": asked.name},
            # Another pod may have got the name.
            "deleteOptions": {"gracePeriodSeconds": asked.grace_s, "preconditions": {"uid": asked.uid}},
        }
        path = f"/api/v1/namespaces/{quote(asked.namespace, '')}/pods/{quote(asked.name, '')}/eviction"
        try:
            await self._api.create(path, eviction)
        except ApiError as error:
            # By its status alone it might as well be an API server with too much to do.
            later = _BUDGET in error.causes
            outcome = EvictionOutcome.LATER if later else EvictionOutcome.REFUSED
            return EvictionAnswer(asked.uid, outcome, str(error))
        except UnavailableError as error:
            return EvictionAnswer(asked.uid, EvictionOutcome.REFUSED, str(error))
        return EvictionAnswer(asked.uid, EvictionOutcome.ACCEPTED)
