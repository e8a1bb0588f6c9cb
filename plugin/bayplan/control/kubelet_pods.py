"""What kubelet says of pods, as the agent told it. Only ever evidence: nothing that was promised depends on
it.

Nothing of it is recorded, and how much is kept is bounded: pods without containers here make way for others,
the oldest first. A pod's uid is never used again, so that what is kept of a pod that is gone does no harm.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from bayplan.model.pod_facts import PodFacts

MAX_KEPT: Final = 8192
"""Pods and containers together, some 2 kB each. kubelet runs 110 pods by default, and hardly ever more than
500."""


class KubeletPods:
    """The latest of each pod, by uid. *in_use* gives the uids of the pods that have containers; *counters*
    count what was dropped."""

    def __init__(
        self, in_use: Callable[[], Collection[str]], counters: Counter[str], most_kept: int = MAX_KEPT
    ) -> None:
        self._in_use = in_use
        self._counters = counters
        self._most_kept = most_kept
        self._pods: dict[str, PodFacts] = {}
        self._weight = 0

    def get(self, uid: str) -> PodFacts | None:
        """What is known of that pod."""
        return self._pods.get(uid)

    def known(self, pod: PodFacts) -> bool:
        """Keep what kubelet says of *pod*, if there is room; whether it says something new."""
        if self._pods.get(pod.uid) == pod:
            return False
        self.gone(pod.uid)
        if not self._make_room(_weight(pod)):
            self._counters["agent_pods_dropped"] += 1
            return False
        self._pods[pod.uid] = pod
        self._weight += _weight(pod)
        return True

    def gone(self, uid: str) -> None:
        """Forget that pod."""
        gone = self._pods.pop(uid, None)
        if gone is not None:
            self._weight -= _weight(gone)

    def _make_room(self, weight: int) -> bool:
        if self._weight + weight <= self._most_kept:
            return True
        used = self._in_use()
        for uid in [uid for uid in self._pods if uid not in used]:
            self.gone(uid)
            self._counters["agent_pods_dropped"] += 1
            if self._weight + weight <= self._most_kept:
                return True
        return False


def _weight(pod: PodFacts) -> int:
    return 1 + len(pod.containers)
