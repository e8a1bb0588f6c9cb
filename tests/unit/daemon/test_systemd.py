"""The notification protocol against a real datagram socket, in the file system and abstract."""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayplan.daemon.process import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The service manager's end: the value of NOTIFY_SOCKET, and the socket."""
    name = f"@bayplan-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if name[0] == "@" else name)
        listener.setblocking(False)
        yield name, listener


def test_every_message(manager: tuple[str, socket.socket]) -> None:
    address, listener = manager
    notifier = Notifier.of({"NOTIFY_SOCKET": address})
    notifier.ready()
    notifier.watchdog()
    notifier.status("2 containers\nREADY=1")
    notifier.reloading()
    notifier.stopping()
    received = [listener.recv(4096).decode() for _ in range(5)]
    assert received[:3] == ["READY=1", "WATCHDOG=1", "STATUS=2 containers READY=1"]
    reloading, _, moment = received[3].partition("\nMONOTONIC_USEC=")
    assert reloading == "RELOADING=1"
    assert int(moment) > 0
    assert received[4] == "STOPPING=1"
    with pytest.raises(BlockingIOError):
        listener.recv(4096)


def test_nothing_happens_without_a_manager() -> None:
    notifier = Notifier.of({})
    notifier.ready()
    notifier.stopping()
    assert notifier.watchdog_interval_s is None


def test_a_manager_that_is_gone_is_no_error(tmp_path: Path) -> None:
    Notifier.of({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()


def test_a_manager_that_does_not_read_is_not_waited_for(manager: tuple[str, socket.socket]) -> None:
    address, listener = manager
    notifier = Notifier.of({"NOTIFY_SOCKET": address})
    for _ in range(10_000):
        notifier.watchdog()
    assert listener.recv(4096) == b"WATCHDOG=1"


def test_an_unknown_kind_of_address_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    Notifier.of({"NOTIFY_SOCKET": "vsock:2:9999"}).ready()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    ("variables", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_asked(
    variables: dict[str, str], interval_s: float | None
) -> None:
    notifier = Notifier.of({"NOTIFY_SOCKET": "/run/systemd/notify", **variables})
    assert notifier.watchdog_interval_s == interval_s
