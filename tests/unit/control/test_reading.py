"""Whoever reads a file that does not come is not held up by it, nor is the end of his process."""

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from bayplan.daemon.configuration import read_meanwhile, read_within
from bayplan.errors import HostError

TOO_LATE = r"configuration: it could not be read within 0\.01 s"

BLOCKED = """
import asyncio, sys, threading
from bayplan.daemon.configuration import read_meanwhile, read_within
def read():
    print("reading", flush=True)
    threading.Event().wait()
"""


def never() -> None:
    threading.Event().wait()


def test_results_and_errors_come_through() -> None:
    def fail() -> None:
        raise TimeoutError("the file's own")

    assert read_within(lambda: 3) == 3
    assert asyncio.run(read_meanwhile(lambda: 3)) == 3
    with pytest.raises(TimeoutError, match="the file's own"):
        read_within(fail)
    with pytest.raises(TimeoutError, match="the file's own"):
        asyncio.run(read_meanwhile(fail))


def test_a_file_that_does_not_come_is_an_error() -> None:
    with pytest.raises(HostError, match=TOO_LATE):
        read_within(never, 0.01)
    with pytest.raises(HostError, match=TOO_LATE):
        asyncio.run(read_meanwhile(never, 0.01))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_heard_while_a_file_does_not_come(number: signal.Signals) -> None:
    program = f"{BLOCKED}\nread_within(read, 600)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        process.send_signal(number)
        _, said = process.communicate()
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in said) is (number is signal.SIGINT)


def test_a_process_ends_although_a_file_does_not_come() -> None:
    program = f"""{BLOCKED}
async def main():
    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    def read_and_tell():
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()
    task = asyncio.ensure_future(read_meanwhile(read_and_tell, 600))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
asyncio.run(main())
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (finished.stdout, finished.stderr) == ("", "")
