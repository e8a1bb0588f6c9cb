"""Ends a pod that is evicted: through the API server where an agent can ask it, else through its cgroups.

The API server deletes the pod, so that its controller makes another one where there is room; of a pod that
only ended kubelet starts the containers again. Nothing depends on the agent: where it does not answer, or the
processes are still there after the time that kubelet has for them, they are ended here.

The runtime cannot be asked: what NRI has for it no runtime carries out, and CRI takes gRPC. The runtime
reports the end as it does every other one.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import ClassVar, Final

from bayplan.agent_protocol import EvictionAnswer, EvictionOutcome, EvictPod
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError
from bayplan.host.container_processes import end_processes, wait_for_end
from bayplan.host.hierarchy import Hierarchy
from bayplan.model.workload import Pod

logger = logging.getLogger(__name__)

RELIEF_NS: Final = 60_000_000_000
"""For so long pages are moved before a pod is ended for memory."""
HARD_GRACE_S: Final = 1
"""kubelet's own for hard thresholds."""
SOFT_GRACE_S: Final = 30
"""Kubernetes' default of terminationGracePeriodSeconds; the pod's own is not known here."""
ANSWER_S: Final = 5.0
"""For the agent's answer. Until then the pod goes on using what is short."""
KUBELET_S: Final = 10.0
"""For kubelet, beside the grace period: to notice the deletion, and to have the runtime stop the pod."""

AskAgent = Callable[[EvictPod, float], Awaitable[EvictionAnswer | None]]
EndProcesses = Callable[[Hierarchy, Sequence[str], float], str]
WaitForEnd = Callable[[Hierarchy, Sequence[str], float], bool]


async def no_agent(_: EvictPod, __: float) -> None:
    """There is nobody to ask."""


class PodEnd:
    """See the module. Blocking calls run where *in_thread* says; ``ask_agent`` is `AgentServer.evict`.
    ``obstacle`` says why no pod is ended, empty where they are; nobody is before pages were moved for him for
    ``relief_ns``."""

    obstacle: ClassVar[str] = ""
    relief_ns: ClassVar[float] = RELIEF_NS

    def __init__(
        self,
        hierarchy: Hierarchy,
        in_thread: InThread,
        end: EndProcesses = end_processes,
        wait: WaitForEnd = wait_for_end,
    ) -> None:
        self.ask_agent: AskAgent = no_agent
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._end = end
        self._wait = wait

    async def ask_api_server(self, pod: Pod, grace_s: int) -> EvictionAnswer | None:
        """What it says of evicting *pod*; None if nobody has asked it."""
        if not pod.uid:
            return None
        asked = EvictPod(pod.uid, pod.namespace, pod.name, grace_s)
        answer = await self.ask_agent(asked, ANSWER_S)
        if answer is not None and answer.outcome is not EvictionOutcome.ACCEPTED:
            extra = {"pod": f"{pod.namespace}/{pod.name}", "problem": answer.problem}
            logger.warning("the API server does not evict a pod", extra=extra)
        return answer

    async def end(self, cgroups: Sequence[str], grace_s: int, *, deleted: bool) -> str:
        """End everybody in *cgroups*, or have kubelet do so if the pod is *deleted*; what is left, as a
        sentence, empty for nobody."""
        try:
            if deleted:
                wait = partial(self._wait, self._hierarchy, cgroups, grace_s + KUBELET_S)
                if await self._in_thread(wait):
                    return ""
                logger.warning("kubelet has not ended a pod that was deleted", extra={"cgroups": cgroups})
            return await self._in_thread(partial(self._end, self._hierarchy, cgroups, grace_s))
        except BayplanError as error:
            return str(error)
