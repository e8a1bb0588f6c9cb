"""The runtime behind a hook: found by the hook's parent, and told what was set, once it is ready for that."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bayplan.host.kernelfs import AbsentError
from bayplan.model.workload import Adjustment
from bayplan.oci.documents import parse_spec
from bayplan.oci.runtime_update import (
    RuntimeCommand,
    RuntimeUpdater,
    UpdateContent,
    resources_for,
    runtime_of,
)
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet
from support.oci_node import spec
from support.oci_socket import BEST_EFFORT, CRIO, OTHER, oci_socket

HOOK, RUNTIME = 50, 40


def process(root: Path, pid: int, parent: int, words: Sequence[str], exe: str, *environment: str) -> None:
    directory = root / "proc" / str(pid)
    directory.mkdir(parents=True)
    (directory / "stat").write_text(f"{pid} (a) b)) S {parent} 1 1\n")
    (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
    (directory / "environ").write_bytes(b"".join(word.encode() + b"\0" for word in environment))
    (directory / "exe").symlink_to(exe)


def program(directory: Path, name: str, text: str = "#!/bin/sh\n") -> str:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--root=/run/r", "--systemd-cgroup", "create", "--bundle", "b", "id"], ("--root=/run/r",)),
        (["--root", "/run/r", "--log", "create.log", "run", "id"], ("--root=/run/r",)),
        (["--systemd-cgroup", "create", "--root", "id"], ()),
    ],
)
def test_it_is_found_with_the_place_of_its_state(
    tmp_path: Path, words: list[str], options: tuple[str, ...]
) -> None:
    runc = program(tmp_path / "bin", "runc")
    process(tmp_path, HOOK, RUNTIME, ["oci-hook"], "/usr/bin/python3")
    process(tmp_path, RUNTIME, 1, ["runc", *words], runc, "PATH=/bin", "XDG_RUNTIME_DIR=/run/user/0")
    command = runtime_of(HOOK, tmp_path)
    assert command == RuntimeCommand(runc, options, {"XDG_RUNTIME_DIR": "/run/user/0"})
    assert command.update("id") == [runc, *options, "update", "-r", "-", "id"]


def test_a_copy_without_a_name_is_found_by_what_it_was_called(tmp_path: Path) -> None:
    crun = program(tmp_path / "bin", "crun")
    process(tmp_path, HOOK, RUNTIME, ["oci-hook"], "/usr/bin/python3")
    process(tmp_path, RUNTIME, 1, [crun, "create", "id"], "/memfd:crun_cloned (deleted)")
    assert runtime_of(HOOK, tmp_path) == RuntimeCommand(crun)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["sh", "create"], "sh"),  # a person at a terminal
        (["runc", "--root", "/r", "start", "id"], "runc"),
        ([], "runc"),
        (["/nowhere/runc", "create"], "gone"),
    ],
)
def test_nothing_else_is_taken_for_a_runtime(tmp_path: Path, words: list[str], name: str) -> None:
    exe = program(tmp_path / "bin", name) if name != "gone" else "/nowhere/runc"
    process(tmp_path, HOOK, RUNTIME, ["oci-hook"], "/usr/bin/python3")
    process(tmp_path, RUNTIME, 1, words, exe)
    assert runtime_of(HOOK, tmp_path) is None


def test_a_hook_that_is_gone_has_no_runtime(tmp_path: Path) -> None:
    assert runtime_of(HOOK, tmp_path) is None
    process(tmp_path, HOOK, RUNTIME, ["oci-hook"], "/usr/bin/python3")
    assert runtime_of(HOOK, tmp_path) is None


def test_a_runtime_that_may_not_be_looked_at_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runc = program(tmp_path / "bin", "runc")
    process(tmp_path, HOOK, RUNTIME, ["oci-hook"], "/usr/bin/python3")
    process(tmp_path, RUNTIME, 1, [runc, "create", "id"], runc)
    # What root can be refused by a file system in a directory of a test: reading a directory.
    environment = tmp_path / "proc" / str(RUNTIME) / "environ"
    environment.unlink(missing_ok=True)
    environment.mkdir()
    assert runtime_of(HOOK, tmp_path) is None
    assert "the OCI runtime cannot be updated" in caplog.text


def test_an_update_repeats_what_the_spec_has_and_adds_what_was_set() -> None:
    resources: dict[str, Any] = {
        "cpu": {"shares": 512, "x": 18446744073709551616},
        "memory": {"swap": -1},
        "pids": {"limit": 7},
        "unified": {"memory.high": "5"},
        "devices": [{"allow": False}],
    }
    document = json.dumps(spec("/a", resources=resources)).encode()
    applied = Adjustment(
        CpuSet([1]), NodeSet([0]), GIB, -997, unified={"memory.high": "9", "memory.oom.group": "1"}
    )
    update = json.loads(resources_for(document, parse_spec(document, "spec"), applied))
    assert update == {
        "cpu": {"shares": 512, "x": 18446744073709551616, "cpus": "1", "mems": "0"},
        "memory": {"swap": -1, "limit": GIB},
        "pids": {"limit": 7},
        "unified": {"memory.high": "5", "memory.oom.group": "1"},
    }


NOT_READY_TWICE = """#!/bin/sh
echo "$@" >> {log}
cat > {log}.stdin
[ $(wc -l < {log}) -gt 2 ] || {{ echo 'container does not exist' >&2; exit 1; }}
"""


def wanted(resources: bytes | None = b"{}", *amounts: str) -> UpdateContent:
    """Told to want *resources*; *amounts* is what the memory limit is at each look, the last one for ever."""
    looks = list(amounts or ("max",))
    return UpdateContent(
        lambda: resources, lambda: {"memory.max": looks.pop(0) if len(looks) > 1 else looks[0]}
    )


async def test_an_update_of_somebody_else_that_came_first_is_not_undone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = RuntimeCommand(program(tmp_path, "runc", NOT_READY_TWICE.format(log=log)))

    runtime_updater = RuntimeUpdater((0, 0, 0, 0))
    assert not await runtime_updater.begin(command, "id", wanted(b"{}", "1", "1", "1", "2"))

    def gone() -> dict[str, str]:
        raise AbsentError("/sys/fs/cgroup/x", "gone")

    assert not await runtime_updater.begin(command, "id", UpdateContent(lambda: b"{}", gone))
    assert log.read_text().splitlines() == ["update -r - id"] * 2


async def test_it_is_asked_until_it_is_ready(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = RuntimeCommand(program(tmp_path, "runc", NOT_READY_TWICE.format(log=log)), ("--root=/r",))

    runtime_updater = RuntimeUpdater((0, 0, 0, 0))
    assert await runtime_updater.begin(command, "id", wanted())
    await runtime_updater.close()
    assert log.read_text().splitlines() == ["--root=/r update -r - id"] * 3
    assert (tmp_path / "log.stdin").read_text() == "{}"


async def test_giving_up_is_reported_and_what_is_not_wanted_is_not_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = RuntimeCommand(program(tmp_path, "runc", "#!/bin/sh\necho 'no such thing' >&2\nexit 3\n"))

    runtime_updater = RuntimeUpdater((0, 0))
    assert not await runtime_updater.begin(failing, "id", wanted())
    assert not await runtime_updater.begin(RuntimeCommand("/nowhere"), "id", wanted())
    assert not await runtime_updater.begin(failing, "other", wanted(None))
    problems = [record.__dict__["problem"] for record in caplog.records]
    assert problems[0] == "exit status 3: no such thing"
    assert "/nowhere" in problems[1]
    assert len(problems) == 2


async def test_a_container_that_a_hook_announced_is_made_known_to_its_runtime(tmp_path: Path) -> None:
    log = tmp_path / "log"
    runc = program(tmp_path / "bin", "runc", f'#!/bin/sh\necho "$@" >> {log}\ncat > {log}.stdin\n')

    runtime_updater = RuntimeUpdater((0,))
    async with oci_socket(tmp_path, runtime_updater=runtime_updater) as one:
        root = one.node.root
        process(root, os.getpid(), RUNTIME, ["oci-hook"], "/usr/bin/python3")
        process(root, RUNTIME, 1, ["runc", "--root=/run/runc", "create", OTHER], runc)
        announced = one.node.begin(OTHER, spec(BEST_EFFORT, annotations=CRIO), 4242)
        assert await one.ask("createRuntime", announced) == ("ok", "")
        assert await asyncio.gather(*runtime_updater.tasks) == [True]
    assert log.read_text() == f"--root=/run/runc update -r - {OTHER}\n"
    assert json.loads((tmp_path / "log.stdin").read_text()) == {
        "cpu": {"cpus": "0-7"},
        "unified": {"memory.oom.group": "1"},
    }
