"""A plugin that the runtime starts itself: a socket pair on descriptor 3, three variables, nothing else."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from support.flavors import CONTAINERD_1_7_20, CONTAINERD_2_3
from support.runtime import FakeRuntime
from support.workloads import make_container, make_pod

TESTS = str(Path(__file__).parents[1])


@pytest.mark.parametrize("flavor", [CONTAINERD_1_7_20, CONTAINERD_2_3], ids=str)
async def test_serves_on_descriptor_3_and_ends_with_the_runtime(flavor):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    silent = os.open(os.devnull, os.O_WRONLY)
    process = os.posix_spawn(  # noqa: ASYNC221 - subprocess may need descriptor 3 for itself
        sys.executable,
        [sys.executable, "-m", "support.minimal_plugin"],
        {"NRI_PLUGIN_NAME": "pin", "NRI_PLUGIN_IDX": "07", "NRI_PLUGIN_SOCKET": "3", "PYTHONPATH": TESTS},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3),
            (os.POSIX_SPAWN_DUP2, silent, 1),
        ],
    )
    theirs.close()
    os.close(silent)
    runtime = FakeRuntime(flavor)
    await asyncio.get_running_loop().create_unix_connection(runtime.accept, sock=ours)
    plugin = await runtime.synchronized()
    assert str(plugin) == "07-pin"
    pod = make_pod()
    answer = await runtime.create_container(pod, make_container(pod))
    assert answer.adjust.linux.resources.cpu.mems == "0"
    await runtime.stop()
    _, status = await asyncio.to_thread(os.waitpid, process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
