"""The Go side, built and started; and the smallest plugin that can talk to it.

The plugin is a socket, a thread and a ``wire.Connection``: nothing that could hide what the codec does.
"""

import contextlib
import queue
import select
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bayplan._proto.nri import api_pb2
from bayplan.errors import RemoteProtocolError
from bayplan.nri.wire import (
    NEED_DATA,
    Code,
    Connection,
    ConnectionClosed,
    Incoming,
    RefusedMessage,
    Role,
    TtrpcRequest,
    TtrpcResponse,
)
from support.cluster_agents import TOPOLOGIES
from support.control_plane import ControlPlane, running_control_plane

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from goside import NEWEST, PATIENCE_S, VERSIONS, GoSide, build
from testbed import kubernetes
from testbed.errors import TestBedError

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"


@pytest.fixture(scope="session", params=VERSIONS)
def nri_version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def newest() -> str:
    return NEWEST


@pytest.fixture(scope="session")
def adaptation(nri_version: str) -> Path:
    """The Go program, built once for each version and state of its source."""
    try:
        return build(nri_version)
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)


Answer = Callable[[TtrpcRequest], TtrpcResponse | None]


class Plugin:
    """A socket, a thread and a connection. Requests go to ``answer``, which need not answer at once."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.connection = Connection(Role.PLUGIN)
        self.requests: list[TtrpcRequest] = []
        self.refused: list[RefusedMessage] = []
        self.end: queue.Queue[ConnectionClosed | RemoteProtocolError] = queue.Queue()
        self.paused = threading.Event()
        self._answer = answer
        self._answers: dict[int, queue.Queue[TtrpcResponse]] = {}
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            watched = [self._woken] if self.paused.is_set() else [self._woken, self.socket]
            ready, _, _ = select.select(watched, [], [])
            if self._woken in ready and not self._woken.recv(1):
                return
            if self.socket not in ready:
                continue
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            with self._lock:
                try:
                    self.connection.receive_data(data)
                    while (event := self.connection.next_event()) is not NEED_DATA:
                        if isinstance(event, ConnectionClosed):
                            self.end.put(event)
                            return
                        self._take(event)
                        self.changed.notify_all()
                except RemoteProtocolError as error:
                    self.socket.shutdown(socket.SHUT_RDWR)
                    self.end.put(error)
                    return

    def _take(self, event: Incoming) -> None:
        if isinstance(event, TtrpcRequest):
            self.requests.append(event)
            response = self._answer(event)
            if response is not None:
                self.send(response)
        elif isinstance(event, RefusedMessage):
            self.refused.append(event)
            self._write(event.reply)
        else:
            self._answers[event.stream_id].put(event)

    def send(self, response: TtrpcResponse) -> None:
        with self._lock:
            self._write(self.connection.send(response))

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the end will be told by the reading side
            self.socket.sendall(data)

    def call(self, method: str, payload: bytes = b"", service: str = RUNTIME_SERVICE) -> TtrpcResponse:
        with self._lock:
            request = self.connection.request(service, method, payload)
            self._answers[request.stream_id] = queue.Queue()
            self._write(self.connection.send(request))
        return self._answers[request.stream_id].get(timeout=PATIENCE_S)

    def register(self, name: str = "probe", index: str = "10") -> None:
        request = api_pb2.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        assert self.call("RegisterPlugin", request.SerializeToString()).code is Code.OK

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S)

    def pause(self) -> None:
        """Stop reading."""
        self.paused.set()
        self._wake.send(b"p")

    def resume(self) -> None:
        self.paused.clear()
        self._wake.send(b"r")

    def close(self) -> None:
        self._wake.close()
        self._thread.join(PATIENCE_S)
        self.socket.close()
        self._woken.close()


@pytest.fixture
def go_side(adaptation: Path) -> Iterator[Callable[..., GoSide]]:
    """Start the Go side, as often as wanted, with these flags."""
    with contextlib.ExitStack() as stack:

        def start(*flags: str) -> GoSide:
            # A socket's path is short; pytest's directories are not.
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # It gives a plugin 2 s by itself, which is not what is tested, and short on a busy machine.
            patient = ("-request-timeout", f"{PATIENCE_S}s", *flags)
            return stack.enter_context(contextlib.closing(GoSide(adaptation, directory, *patient)))

        yield start


@pytest.fixture
def connect() -> Iterator[Callable[[GoSide, Answer], Plugin]]:
    """Connect a plugin, as often as wanted."""
    with contextlib.ExitStack() as stack:

        def plugin(go_side: GoSide, answer: Answer) -> Plugin:
            return stack.enter_context(contextlib.closing(Plugin(go_side.socket, answer)))

        yield plugin


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """etcd and the API server. `setup.sh cluster` builds them; else this does, which takes a while."""
    with running_control_plane(kubernetes.api_server()) as plane:
        yield plane


@pytest.fixture
def garbage_collector(control_plane: ControlPlane) -> Iterator[None]:
    """Deletes objects whose owners are gone."""
    control_plane.start_controllers(kubernetes.controller_manager(), "garbage-collector-controller")
    yield
    control_plane.stop_controllers()


@pytest.fixture
def topologies(control_plane: ControlPlane) -> Iterator[None]:
    """The API server has NodeResourceTopology."""
    definition = kubernetes.topology_crd()
    control_plane.define(definition)
    control_plane.wait_for(TOPOLOGIES, bool)
    yield
    control_plane.remove_definition(definition)
