"""What the daemon knows of running containers and their pods beside the ledger: by the runtime, and by
kubelet.

What kubelet says is evidence only: no promise depends on it. Nothing of it is recorded, and how much is kept
is bounded: where there is no room, pods without containers here are dropped, the oldest first. A pod's uid is
never used again, so that what is kept of a pod that is gone does no harm.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.model.decision import Reason, Request
from bayplan.model.kubelet_requests import Contradiction, PodFacts, with_kubelet_request
from bayplan.model.ledger import Entry
from bayplan.model.origin import Nri
from bayplan.model.wishes import DEFAULT_CPUS_ANNOTATION
from bayplan.model.workload import Adjustment, Container, Pod
from bayplan.sets import CpuSet


class KnownContainers(Struct):
    """The containers and their pods by id; rebuilt at each Synchronize.

    ``oom_score_adj`` maps ids to the value in force, ours or the spec's, ``defaulted`` ids to the CPUs that a
    runtime was sent by default, when there was no time for a decision. ``ids_by_pod``: a pod is known as long
    as one of its containers is.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    oom_score_adj: dict[str, int] = field(default_factory=dict)
    defaulted: dict[str, CpuSet] = field(default_factory=dict)
    ids_by_pod: dict[str, set[str]] = field(default_factory=dict)

    def add(self, pod: Pod, container: Container) -> None:
        """Remember *container*; a later description may lack what an earlier one had, never the reverse."""
        self.pods[pod.id] = pod
        self.containers[container.id] = container
        self.ids_by_pod.setdefault(container.pod_id, set()).add(container.id)
        if container.oom_score_adj:  # see `carried_oom_score_adj`
            self.oom_score_adj[container.id] = container.oom_score_adj

    def without_default_cpus(self, container: Container) -> Container:
        """*container* without CPUs that were only a default: of this process, or of an earlier one, which
        left an annotation."""
        cpus = container.resources.cpuset_cpus
        noted = _default_annotation(container, cpus).items() <= container.annotations.items()
        ours = cpus is not None and (noted or cpus == self.defaulted.get(container.id))
        return without_cpus(container) if ours else container

    def default_adjustment(self, container: Container, cpus: CpuSet) -> Adjustment:
        """The adjustment that gives *container* those *cpus* without a decision."""
        self.defaulted[container.id] = cpus
        return Adjustment(cpuset_cpus=cpus, annotations=_default_annotation(container, cpus))

    def forget(self, container_id: str) -> None:
        """Forget a container, and its pod with its last container."""
        gone = self.containers.pop(container_id, None)
        self.oom_score_adj.pop(container_id, None)
        self.defaulted.pop(container_id, None)
        if gone is None:
            return
        ids = self.ids_by_pod[gone.pod_id]
        ids.discard(container_id)
        if not ids:
            del self.ids_by_pod[gone.pod_id]
            self.pods.pop(gone.pod_id, None)

    def add_recorded(self, entries: Mapping[str, Entry], seen: Collection[str] = ()) -> None:
        """Remember those *entries* that no session lists: all that is known of them is in the ledger."""
        for container_id, entry in entries.items():
            origin = entry.origin
            if isinstance(origin, Nri) or container_id in seen:
                continue
            self.add(origin.pod, origin.container)
            applied = origin.applied.oom_score_adj
            if applied is not None:
                self.oom_score_adj[container_id] = applied


def _default_annotation(container: Container, cpus: CpuSet | None) -> dict[str, str]:
    """The annotation of a container that got *cpus* by default; it has the container's id, as that of a
    decision has."""
    return {DEFAULT_CPUS_ANNOTATION: f"{container.id} {cpus}"}


def without_cpus(container: Container) -> Container:
    """*container* without the CPUs that were chosen for it."""
    return replace(container, resources=replace(container.resources, cpuset_cpus=None))


logger = logging.getLogger(__name__)

MAX_KEPT: Final = 8192
"""Pods and containers together, some 2 kB each. kubelet runs 110 pods by default, hardly ever more than
500."""

NOT_USED: Final = "kubelet-request-not-used"
"""Code of the reason that what kubelet says of a request is not used."""


class KubeletPods:
    """The latest of each pod, by uid. *in_use* gives the uids of the pods that have containers; *counters*
    count what was dropped and what was not used.

    ``due`` are the uids of the pods whose containers are to be compared with it, each with whether what is
    known of the pod is new; ``became_due`` is called when there is one more. ``wanted`` is called with a pod
    of which more should be known, ``not_used`` with uid, container and problem.
    """

    def __init__(
        self, in_use: Callable[[], Collection[str]], counters: Counter[str], most_kept: int = MAX_KEPT
    ) -> None:
        self.due: dict[str, bool] = {}
        self.became_due: Callable[[], None] = lambda: None
        self.wanted: Callable[[Pod], None] = lambda _: None
        self.not_used: Callable[[str, str, str], None] = lambda *_: None
        self._in_use = in_use
        self._counters = counters
        self._most_kept = most_kept
        self._pods: dict[str, PodFacts] = {}
        self._weight = 0

    def get(self, uid: str) -> PodFacts | None:
        """What is known of that pod."""
        return self._pods.get(uid)

    def update(self, pod: PodFacts) -> None:
        """Keep what kubelet says of *pod*, if there is room."""
        if self._pods.get(pod.uid) == pod:
            return
        self.forget(pod.uid)
        if not self._make_room(_weight(pod)):
            self._counters["agent_pods_dropped"] += 1
            return
        self._pods[pod.uid] = pod
        self._weight += _weight(pod)
        self.due[pod.uid] = True
        self.became_due()

    def forget(self, uid: str) -> None:
        """Forget that pod."""
        gone = self._pods.pop(uid, None)
        if gone is not None:
            self._weight -= _weight(gone)

    def expect(self, pod: Pod) -> None:
        """Containers of *pod* are about to be created, were found, or changed: what is known may be too
        old."""
        if not pod.uid:
            return
        self.wanted(pod)
        if pod.uid in self._pods:
            self.due.setdefault(pod.uid, False)
            self.became_due()

    def take_due(self, most: int) -> dict[str, bool]:
        """A few of the pods that are due, which are not any more."""
        taken = dict(islice(self.due.items(), most))
        for uid in taken:
            del self.due[uid]
        return taken

    def put_back(self, due: Mapping[str, bool]) -> None:
        """Have pods that were taken due again."""
        for uid, new in due.items():
            self.due[uid] = new or self.due.get(uid, False)

    def for_creation(
        self, pod: Pod, name: str, capacity_bytes: int, request: Request
    ) -> tuple[Request, tuple[Reason, ...]]:
        """*request* of the container *name*, which is about to be created, with what kubelet says of it, and
        the reason why that is not used, if it contradicts the spec. Any thread."""
        exact = self._exact(pod, name, capacity_bytes, request, running=False)
        if not isinstance(exact, Contradiction):
            return exact, ()
        text = f"what kubelet is said to know of its request does not count: {exact.problem}"
        return request, (Reason(NOT_USED, text),)

    def decided(self, pod: Pod, name: str, reasons: Iterable[Reason]) -> None:
        """The creation of the container *name* was decided about, with these *reasons*."""
        for reason in reasons:
            if reason.code == NOT_USED:
                self._note(pod, name, reason.text)

    def for_change(
        self, pod: Pod, name: str, capacity_bytes: int, request: Request
    ) -> tuple[Request, tuple[Reason, ...]]:
        """*request* of a running container, which is being changed, with what kubelet says of it, unless that
        is older than the change."""
        exact = self._exact(pod, name, capacity_bytes, request, running=True)
        return (request if isinstance(exact, Contradiction) else exact), ()

    def corrected(self, pod: Pod, name: str, capacity_bytes: int, request: Request, *, new: bool) -> Request:
        """*request* of a running container with what kubelet says of it. What contradicts the spec is noted
        if it is *new*."""
        exact = self._exact(pod, name, capacity_bytes, request, running=True)
        if not isinstance(exact, Contradiction):
            return exact
        if new:
            self._note(pod, name, exact.problem)
        return request

    def _exact(
        self, pod: Pod, name: str, capacity_bytes: int, request: Request, *, running: bool
    ) -> Request | Contradiction:
        known = self._pods.get(pod.uid)
        if known is None:
            return request
        return with_kubelet_request(request, known, name, capacity_bytes, running=running)

    def _note(self, pod: Pod, name: str, problem: str) -> None:
        self._counters["agent_requests_not_used"] += 1
        fields = {"pod": f"{pod.namespace}/{pod.name}", "container": name, "problem": problem}
        logger.warning("what the agent says of a request is not used", extra=fields)
        self.not_used(pod.uid, name, problem)

    def _make_room(self, weight: int) -> bool:
        if self._weight + weight <= self._most_kept:
            return True
        used = self._in_use()
        for uid in [uid for uid in self._pods if uid not in used]:
            self.forget(uid)
            self._counters["agent_pods_dropped"] += 1
            if self._weight + weight <= self._most_kept:
                return True
        return False


def _weight(pod: PodFacts) -> int:
    return 1 + len(pod.containers)
