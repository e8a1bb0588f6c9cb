"""Where the runtime is: names, sockets, and what a runtime hands to a plugin that it starts itself."""

import asyncio
import os
import socket

import pytest

from bayplan.errors import ConfigError, UnavailableError
from bayplan.nri import Identity, InheritedSocket, UnixSocket, launched_by_runtime


class Ends(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport = None
        self.received = asyncio.get_running_loop().create_future()
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received.set_result(data)

    def connection_lost(self, error):
        self.lost.set_result(error)


class TestIdentity:
    @pytest.mark.parametrize("name", ["bayplan", "bay-plan_1.x+y"])
    def test_names(self, name):
        assert str(Identity(name, "07")) == f"07-{name}"

    @pytest.mark.parametrize("name", ["", "bay plan", "bay/plan", "bayplan\n", "é"])
    def test_wrong_names(self, name):
        with pytest.raises(ConfigError, match="name: found"):
            Identity(name, "07")

    @pytest.mark.parametrize("index", ["", "7", "007", "ab", "٣٤", "-1", "07\n"])
    def test_wrong_indices(self, index):
        with pytest.raises(ConfigError, match="index: found"):
            Identity("bayplan", index)

    def test_both_problems_are_reported(self):
        with pytest.raises(ConfigError) as caught:
            Identity("", "")
        assert [problem.path for problem in caught.value.problems] == ["name", "index"]


class TestUnixSocket:
    def test_default(self):
        assert str(UnixSocket()) == "/var/run/nri/nri.sock"
        assert UnixSocket().again

    async def test_connects(self, tmp_path):
        theirs = Ends()
        path = str(tmp_path / "nri.sock")
        server = await asyncio.get_running_loop().create_unix_server(lambda: theirs, path)
        mine = Ends()
        await UnixSocket(path).connect(mine)
        mine.transport.write(b"hello")
        assert await theirs.received == b"hello"
        mine.transport.close()
        await asyncio.gather(mine.lost, theirs.lost)
        server.close()

    async def test_nobody_is_there(self, tmp_path):
        path = str(tmp_path / "nri.sock")
        with pytest.raises(UnavailableError, match=r"nri\.sock: No such file or directory"):
            await UnixSocket(path).connect(Ends())

    async def test_nobody_listens_any_more(self, tmp_path):
        path = str(tmp_path / "nri.sock")
        with socket.socket(socket.AF_UNIX) as old:
            old.bind(path)
        with pytest.raises(UnavailableError, match="Connection refused"):
            await UnixSocket(path).connect(Ends())

    async def test_a_path_that_cannot_be(self, tmp_path):
        with pytest.raises(UnavailableError, match="too long"):
            await UnixSocket(str(tmp_path / ("x" * 200))).connect(Ends())


class TestInheritedSocket:
    async def test_is_good_once(self):
        ours, theirs = socket.socketpair()
        endpoint = InheritedSocket(ours.detach())
        assert not endpoint.again
        mine = Ends()
        await endpoint.connect(mine)
        theirs.sendall(b"hello")
        assert await mine.received == b"hello"
        with pytest.raises(UnavailableError, match="used up"):
            await endpoint.connect(Ends())
        theirs.close()
        await mine.lost

    async def test_is_not_passed_on(self):
        ours, theirs = socket.socketpair()
        os.set_inheritable(ours.fileno(), True)
        mine = Ends()
        await InheritedSocket(ours.detach()).connect(mine)
        assert not os.get_inheritable(mine.transport.get_extra_info("socket").fileno())
        theirs.close()
        await mine.lost

    async def test_is_not_open(self):
        reading, writing = os.pipe()
        os.close(reading)
        os.close(writing)
        with pytest.raises(UnavailableError, match=f"file descriptor {reading}: Bad file descriptor"):
            await InheritedSocket(reading).connect(Ends())

    @pytest.mark.parametrize(
        ("family", "kind"), [(socket.AF_UNIX, socket.SOCK_DGRAM), (socket.AF_INET, socket.SOCK_STREAM)]
    )
    async def test_is_another_kind_of_socket(self, family, kind):
        with socket.socket(family, kind) as other:
            with pytest.raises(UnavailableError, match="is not a unix stream socket"):
                await InheritedSocket(other.fileno()).connect(Ends())
            assert other.type is kind  # and still open

    async def test_is_not_a_socket(self):
        reading, writing = os.pipe()
        with pytest.raises(UnavailableError, match="is not a socket"):
            await InheritedSocket(reading).connect(Ends())
        os.close(reading)
        os.close(writing)


ENVIRONMENT = {"NRI_PLUGIN_NAME": "bayplan", "NRI_PLUGIN_IDX": "42", "NRI_PLUGIN_SOCKET": "3"}


class TestLaunched:
    def test_by_the_runtime(self):
        identity, endpoint = launched_by_runtime(ENVIRONMENT)
        assert identity == Identity("bayplan", "42")
        assert str(endpoint) == "file descriptor 3"

    def test_by_somebody_else(self):
        assert launched_by_runtime({"PATH": "/bin"}) is None

    @pytest.mark.parametrize("value", ["", "three", "-1", "3.0", "³", "2147483648", "9" * 5000])
    def test_with_a_wrong_descriptor(self, value):
        with pytest.raises(ConfigError, match="NRI_PLUGIN_SOCKET"):
            launched_by_runtime({**ENVIRONMENT, "NRI_PLUGIN_SOCKET": value})

    def test_without_a_name(self):
        with pytest.raises(ConfigError, match="plugin identity"):
            launched_by_runtime({"NRI_PLUGIN_SOCKET": "3"})
