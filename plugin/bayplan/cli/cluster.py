"""The daemons of a cluster, asked through kubectl: each by `bayplan` in its own pod, all at once.

kubectl knows the API server and who the user is; nothing here does. A node that does not answer is part of
the answer, and takes nothing from the others.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from bayplan.errors import BayplanError, UnavailableError, excerpt

Object = dict[str, Any]

DAEMONS: Final = "app.kubernetes.io/name=bayplan,app.kubernetes.io/component=daemon"
"""The labels of the chart's pods with a daemon."""
_CONTAINER: Final = "daemon"

_AT_ONCE: Final = 32
"""So many answers are waited for at once: a thousand nodes are asked in half a minute where each takes a
second, and the API server has no more streams to carry."""
POOL_LABELS: Final = (
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
"""Labels by which nodes are of one pool, where the user names none; the first that a node has counts."""
_NO_VALUE: Final = "<none>"
_REMOTE: Final = "command terminated with exit code "
"""The last line of kubectl where not kubectl failed, but what it ran."""


class DaemonPod(NamedTuple):
    """The pod on *node*; ``problem`` is why it cannot be asked, "" if it can."""

    node: str
    name: str
    problem: str = ""


class NodeAnswer(NamedTuple):
    """What the daemon of *node* answered; with None, ``problem`` is why not. ``status`` is then the exit
    status of `bayplan` there, None if it was not reached."""

    node: str
    answer: Object | None
    problem: str = ""
    status: int | None = None


class Kubectl(NamedTuple):
    """kubectl with the *options* of every call, where bayplan is installed in *namespace*."""

    namespace: str
    options: tuple[str, ...] = ()
    timeout_s: float = 30.0

    def daemons(self) -> tuple[DaemonPod, ...]:
        """The daemons' pods, one for each node, in the order of these.

        Raises:
            UnavailableError: kubectl is not there, or is refused, or there is no such pod.
        """
        words = ("get", "pods", f"--namespace={self.namespace}", f"--selector={DAEMONS}", "--output=json")
        finished = self._run(words)
        if finished.returncode:
            raise UnavailableError("the pods of bayplan cannot be listed", _said(finished.stderr))
        try:
            items = json.loads(finished.stdout)["items"]
            pods = sorted((_pod_of(item) for item in items), key=lambda one: (one.node, bool(one.problem)))
        except (ValueError, KeyError, TypeError) as error:
            raise UnavailableError("the pods of bayplan cannot be listed", f"kubectl: {error!r}") from error
        if not pods:
            problem = "install the chart (docs/kubernetes.md), or name the namespace with --installed-in"
            raise UnavailableError(f"no pod of bayplan is in the namespace {self.namespace}", problem)
        by_node: dict[str, DaemonPod] = {}
        for pod in pods:
            # While one is replaced there are two; the one that can be asked comes first.
            by_node.setdefault(pod.node, pod)
        return tuple(by_node.values())

    def pools(self, labels: Sequence[str] = POOL_LABELS) -> dict[str, str]:
        """The pool of each node by the first of *labels* that it has, "" where it has none; of no node where
        the user may not list nodes: what is shown does not depend on it."""
        columns = ",".join(f"L{number}:{_path_of(label)}" for number, label in enumerate(labels))
        listed = f"--output=custom-columns=NAME:.metadata.name,{columns}"
        try:
            finished = self._run(("get", "nodes", "--no-headers", listed))
        except BayplanError:
            return {}
        if finished.returncode:
            return {}
        rows = (line.split() for line in finished.stdout.splitlines())
        return {row[0]: next((cell for cell in row[1:] if cell != _NO_VALUE), "") for row in rows if row}

    def ask(
        self,
        pods: Sequence[DaemonPod],
        verb: str,
        words: Sequence[str],
        kept: Callable[[NodeAnswer], NodeAnswer] = lambda answer: answer,
    ) -> Iterator[NodeAnswer]:
        """What `bayplan VERB WORDS` answers in each of *pods*, in their order, and of that what is *kept*."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(lambda pod: kept(self._answer(pod, verb, words)), pods)

    def _answer(self, pod: DaemonPod, verb: str, words: Sequence[str]) -> NodeAnswer:
        if pod.problem:
            return NodeAnswer(pod.node, None, f"the pod {pod.name} {pod.problem}")
        where = ("exec", f"--namespace={self.namespace}", pod.name, f"--container={_CONTAINER}", "--")
        try:
            finished = self._run((*where, "bayplan", verb, "--output=json", *words))
        except BayplanError as error:
            return NodeAnswer(pod.node, None, str(error))
        if finished.returncode:
            said, _, status = finished.stderr.strip().rpartition(_REMOTE)
            reached = status.isdecimal()
            problem = _said(said if reached else finished.stderr).removeprefix("bayplan: ")
            return NodeAnswer(pod.node, None, problem, int(status) if reached else None)
        try:
            answer = json.loads(finished.stdout)
        except (ValueError, RecursionError) as error:
            return NodeAnswer(pod.node, None, f"answered something that is not JSON ({error})")
        if not isinstance(answer, dict):
            return NodeAnswer(pod.node, None, "answered something that is not an object")
        return NodeAnswer(pod.node, answer)

    def _run(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(  # noqa: S603 - no shell, and every word is one argument
                ["kubectl", *self.options, *words],  # noqa: S607 - whichever the user runs
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError("kubectl", f"no answer within {self.timeout_s:g} s (--timeout)") from None
        except OSError as error:
            raise UnavailableError("kubectl", f"cannot be started: {error.strerror}") from error


def _path_of(label: str) -> str:
    """Where a label stands, as kubectl's JSONPath has it."""
    return ".metadata.labels." + label.replace(".", "\\.")


def _pod_of(item: Object) -> DaemonPod:
    status, metadata = item.get("status", {}), item["metadata"]
    node, name = item.get("spec", {}).get("nodeName", "(no node yet)"), metadata["name"]
    if "deletionTimestamp" in metadata:
        return DaemonPod(node, name, "is being deleted")
    states = {one["name"]: one for one in status.get("containerStatuses", ())}
    if "running" in states.get(_CONTAINER, {}).get("state", {}):
        return DaemonPod(node, name)
    reasons = [_why(one) for one in (*status.get("initContainerStatuses", ()), *states.values())]
    reason = next(filter(None, reasons), status.get("reason", "") or status.get("message", ""))
    return DaemonPod(node, name, f"is {status.get('phase', 'not known')}{reason and f': {reason}'}")


def _why(container: Object) -> str:
    """Why a container does not run: what it said last, else what kubelet says; "" if nothing is wrong."""
    for state in (container.get("state", {}), container.get("lastState", {})):
        ended = state.get("terminated", {})
        if ended.get("exitCode") and ended.get("message"):
            return f"{container['name']}: {_said(ended['message'])}"
    waiting = container.get("state", {}).get("waiting", {})
    said = waiting.get("message") or waiting.get("reason", "")
    return f"{container['name']}: {_said(said)}" if said and said != "PodInitializing" else ""


def _said(text: str) -> str:
    """*text* of another program, on one line."""
    return excerpt(" ".join(text.split())) or "it said nothing"
