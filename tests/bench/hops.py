"""The way of a creation: ``python tests/bench/hops.py [BESIDE] [--list]``.

From the first byte of the request to the reply: how many functions of bayplan are entered, one after the
other, and how often the next one is in another module. Counts, not times: the same on every machine. The
store's thread is not followed; comprehensions are part of the function that they are in.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from plugins import MACHINE, SHARED, WHOLE, Kind

from bayplan._proto.nri import api_pb2 as pb
from bayplan.nri import PLUGIN_SERVICE
from bayplan.nri.request_queue import RequestQueue, Timeouts
from bayplan.nri.session import RuntimeConnection
from bayplan.nri.transport import Identity
from bayplan.nri.wire import Connection, Role, TtrpcRequest, TtrpcResponse
from support.controllers import controlled

PACKAGE = "/bayplan/"
GENERATED = "_proto/"
COMPREHENSION = re.compile(r"<(genexpr|listcomp|dictcomp|setcomp)>$")
IN_MEMORY = Path("/dev/shm")
"""On a slow disk the steps of waiting for it would be added."""
UNHURRIED = Timeouts(answer_s=60.0)
NS = 1_000_000_000
KINDS = {"Guaranteed, 2 whole CPUs": WHOLE, "Guaranteed": SHARED[0], "Burstable": SHARED[1]}


class Way:
    """The functions entered: (module, function), in order."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self._frames: set[FrameType] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """For `sys.setprofile`: a coroutine or a generator that goes on is not entered again."""
        if event != "call" or frame in self._frames:
            return
        self._frames.add(frame)
        code = frame.f_code
        _, package, module = code.co_filename.rpartition(PACKAGE)
        if package and not module.startswith(GENERATED) and not COMPREHENSION.search(code.co_qualname):
            self.steps.append((module, code.co_qualname))

    @property
    def changes(self) -> int:
        """How often the module is another one than before."""
        return sum(one[0] != other[0] for one, other in zip(self.steps, self.steps[1:], strict=False))


class RuntimeEnd(asyncio.Transport):
    """The runtime's end of a connection: what is written here is answered or kept. *on_write* is called with
    the first byte of anything."""

    def __init__(self) -> None:
        super().__init__()
        self.wire = Connection(Role.RUNTIME)
        self.received: asyncio.Queue[TtrpcRequest | TtrpcResponse] = asyncio.Queue()
        self.on_write: Callable[[], None] = lambda: None

    def is_closing(self) -> bool:
        """Never."""
        return False

    def get_write_buffer_size(self) -> int:
        """It is read at once."""
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take a message."""
        self.on_write()
        self.wire.receive_data(bytes(data))
        message = self.wire.next_event()
        assert isinstance(message, TtrpcRequest | TtrpcResponse)
        self.received.put_nowait(message)


class Runtime:
    """A runtime that asks one thing after the other."""

    def __init__(self, connection: RuntimeConnection) -> None:
        self.end = RuntimeEnd()
        self.connection = connection
        connection.connection_made(self.end)

    def asked(self, method: str, message: Message) -> bytes:
        """The bytes of a request."""
        wire, payload = self.end.wire, message.SerializeToString()
        return wire.send(wire.request(PLUGIN_SERVICE, method, payload, 60 * NS))

    async def ask(self, method: str, message: Message) -> None:
        """Ask, and take the answer."""
        self.connection.data_received(self.asked(method, message))
        answer = await self.end.received.get()
        assert isinstance(answer, TtrpcResponse), answer
        assert answer.message == "", answer

    async def connect(self) -> None:
        """Take the plugin in; it learns that nothing runs yet."""
        self.connection.register()
        registration = await self.end.received.get()
        self.connection.data_received(self.end.wire.send(TtrpcResponse(registration.stream_id)))
        await self.ask("Configure", pb.ConfigureRequest(runtime_name="containerd", runtime_version="2.3.0"))
        await self.ask("Synchronize", pb.SynchronizeRequest())


@contextmanager
def recorded(way: Way, end: RuntimeEnd) -> Iterator[None]:
    """Record the way until something is written."""

    def stop() -> None:
        sys.setprofile(None)

    end.on_write = stop
    sys.setprofile(way.note)
    try:
        yield
    finally:
        stop()
        end.on_write = lambda: None


def request(kind: Kind, name: str) -> tuple[Message, Message]:
    """The creation and the start of a container in a pod of its own."""
    pod = pb.PodSandbox(id=f"pod-{name}", name=name, namespace="default", uid=f"uid-{name}")
    pod.linux.cgroup_parent = f"{kind.parent}/pod{name}"
    container = pb.Container(id=name, pod_sandbox_id=pod.id, name="main")
    ParseDict(kind.linux, container.linux)
    return (
        pb.CreateContainerRequest(pod=pod, container=container),
        pb.PostStartContainerRequest(pod=pod, container=container),
    )


async def ways(beside: int) -> dict[str, Way]:
    """The way of one creation of each kind, beside so many containers."""
    found = {}
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as scratch:
        async with controlled(Path(scratch), on=MACHINE, became=None) as one:
            queue = RequestQueue(one.controller, asyncio.get_running_loop(), UNHURRIED)
            connection = RuntimeConnection(
                one.controller, Identity("bayplan", "50"), queue, asyncio.get_running_loop(), 60.0, bool
            )
            runtime = Runtime(connection)
            await runtime.connect()
            for number in range(beside):
                create, start = request(SHARED[number % len(SHARED)], f"beside-{number}")
                await runtime.ask("CreateContainer", create)
                await runtime.ask("PostStartContainer", start)
            for name, kind in KINDS.items():
                for number in range(2):  # the second one: what is worked out once for a machine is there
                    create, start = request(kind, f"c{len(found)}-{number}")
                    asked, way = runtime.asked("CreateContainer", create), Way()
                    with recorded(way, runtime.end):
                        connection.data_received(asked)
                        await runtime.end.received.get()
                    await runtime.ask("PostStartContainer", start)
                    found[name] = way
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("beside", type=int, nargs="?", default=10, help="containers that exist (10)")
    parser.add_argument("--list", action="store_true", help="list the functions in their order")
    options = parser.parse_args()
    found = asyncio.run(ways(options.beside))
    print(f"{'':30} {'calls':>8} {'changes of module':>18} {'modules':>8}")
    for name, way in found.items():
        modules = Counter(module for module, _ in way.steps)
        print(f"{name:30} {len(way.steps):8} {way.changes:18} {len(modules):8}")
    if options.list:
        for name, way in found.items():
            print(f"\n{name}")
            for module, function in way.steps:
                print(f"  {module:44} {function}")


if __name__ == "__main__":
    main()
