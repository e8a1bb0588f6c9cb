"""What one command line means: its files and flags, read within a limit of time, and what is known of the
node's kubelet.

A file on a file system that does not answer, such as NFS without its server, blocks its reader where no
signal can interrupt it. The main thread must still handle signals, and the process must end without
that thread.

The node's kubelet is asked for its version beside all else, as its program may lie on a disk that is slow or
does not answer: the start, and a reload, wait a moment for it and no longer. What it says later is taken over
then, like what the Node object says. Only a configuration that is wrong without the answer waits for it.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

from bayplan.config.load import Contents, FindKubelet, MoreProblems, read_contents, settings_of
from bayplan.config.settings import Settings
from bayplan.errors import ConfigError, HostError
from bayplan.host.kubelet_program import LIMIT_S, KubeletVersion, kubelet_flags, kubelet_of_node

Result = TypeVar("Result")

READ_LIMIT_S: Final = 30.0
"""A configuration of the largest size takes a few seconds, a small one took ten where CPU was short."""


def read_within(read: Callable[[], Result], limit_s: float = READ_LIMIT_S) -> Result:
    """What *read* returns or raises; signals are handled meanwhile.

    Raises:
        HostError: it took longer than *limit_s*.
    """
    reading = _started(read)
    try:
        return reading.result(limit_s)
    except TimeoutError as error:
        if reading.done():
            raise
        raise _too_late(limit_s) from error


async def read_meanwhile(read: Callable[[], Result], limit_s: float = READ_LIMIT_S) -> Result:
    """Like `read_within`, while the event loop goes on."""
    import asyncio  # noqa: PLC0415 - --help and --check-config do without it

    reading = _started(read)
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(reading)
    except TimeoutError as error:
        if reading.done():
            raise
        raise _too_late(limit_s) from error


def _started(read: Callable[[], Result]) -> Future[Result]:
    reading: Future[Result] = Future()
    # It cannot be cancelled.
    reading.set_running_or_notify_cancel()

    def run() -> None:
        try:
            reading.set_result(read())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            reading.set_exception(error)

    threading.Thread(target=run, name="reading", daemon=True).start()
    return reading


def _too_late(limit_s: float) -> HostError:
    problem = (
        f"it could not be read within {limit_s:g} s; the file system of one of its files does not answer"
    )
    return HostError("configuration", problem)


CLUSTER_VERSION: Final = "BAYPLAN_CLUSTER_VERSION"
"""In the environment: the version of the API server, which the Helm chart knows."""
BY_NODE: Final = "status.nodeInfo.kubeletVersion of the node, from bayplan-agent"
PATIENCE_S: Final = 1.0
"""Ten times what an answer takes on an idle machine."""

Told = Callable[[KubeletVersion], object]
FindFlags = Callable[[], Mapping[str, Sequence[str]]]


class KubeletQuestion:
    """Asks the node's kubelet program for its version, in a thread of its own, one question at a time;
    nothing has to wait for that thread. `answer` is called by one thread at a time."""

    def __init__(self, ask: FindKubelet = kubelet_of_node) -> None:
        self._ask = ask
        self._changing = threading.Lock()
        # Of the question under way; set when none is.
        self._settled = threading.Event()
        self._settled.set()
        self._known: KubeletVersion | None = None
        self._missed = False
        # An answer for which no caller waited any more, until `tell` is called.
        self._late: KubeletVersion | None = None
        self._tell: Told | None = None

    def answer(self, patience_s: float) -> KubeletVersion | None:
        """What the program says now; where it does not answer within *patience_s*, what it said last, or
        None."""
        with self._changing:
            self._missed = False
            if self._settled.is_set():
                self._settled.clear()
                threading.Thread(target=self._put, name="kubelet-version", daemon=True).start()
        self._settled.wait(patience_s)
        with self._changing:
            self._missed = self.pending()
            return self._known

    def pending(self) -> bool:
        """Whether the program has not answered yet."""
        return not self._settled.is_set()

    def known(self) -> KubeletVersion | None:
        """What the program said last; None if it has not answered yet."""
        return self._known

    def tell(self, told: Told) -> None:
        """Have *told* called with each answer for which no caller of `answer` waited any more, one that has
        come already included; from another thread, too."""
        with self._changing:
            self._tell = told
            late, self._late = self._late, None
        if late is not None:
            told(late)

    def _put(self) -> None:
        said = None
        try:
            said = self._ask()
        finally:
            with self._changing:
                late = said if self._missed and said != self._known else None
                self._known = said
                self._settled.set()
                tell = self._tell
                self._late = late if tell is None else None
        if late is not None and tell is not None:
            tell(late)


class Configuration:
    """Settings are made of the files as they were read last. So a change of a file counts from the reload on
    that was asked for, and not from the moment when another kubelet is found."""

    def __init__(
        self,
        paths: Sequence[Path],
        flags: Mapping[str, Sequence[str]],
        more_problems: MoreProblems | None = None,
        *,
        question: KubeletQuestion | None = None,
        patience_s: float = PATIENCE_S,
        find_flags: FindFlags = kubelet_flags,
    ) -> None:
        self._paths = paths
        self._flags = flags
        self._more_problems = more_problems
        self._question = question or KubeletQuestion()
        self._patience_s = patience_s
        self._find_flags = find_flags
        self._contents = Contents((), (), ())
        self._kubelets_flags: Mapping[str, Sequence[str]] = {}
        self._node_says: KubeletVersion | None = None

    def read(self) -> Settings:
        """The settings of the files as they are now. Raises ConfigError."""
        contents = read_contents(self._paths)
        self._kubelets_flags = self._find_flags()
        try:
            settings = self._settings_of(contents, lambda: self._question.answer(self._patience_s))
        except ConfigError:
            if not self._question.pending():
                raise
            settings = self._settings_of(contents, lambda: self._question.answer(LIMIT_S))
        self._contents = contents
        return settings

    def of_kubelet(self, found: KubeletVersion) -> Settings:
        """The settings of the same files beside the kubelet that was found. Raises ConfigError; then it is
        remembered all the same."""
        if found.known_by == BY_NODE:
            self._node_says = found
        return self._settings_of(self._contents, self._question.known)

    def when_kubelet_answers(self, told: Told) -> None:
        """Have *told* called, from another thread, with what the node's kubelet says too late for `read`."""
        self._question.tell(told)

    def _settings_of(self, contents: Contents, ask: FindKubelet) -> Settings:
        return settings_of(
            contents,
            self._flags,
            self._more_problems,
            lambda: self._find_kubelet(ask),
            kubelets_flags=self._kubelets_flags,
        )

    def _find_kubelet(self, ask: FindKubelet) -> KubeletVersion | None:
        if self._node_says is not None:
            return self._node_says
        found = ask()
        cluster = os.environ.get(CLUSTER_VERSION)
        return KubeletVersion(cluster, CLUSTER_VERSION) if found is None and cluster else found
