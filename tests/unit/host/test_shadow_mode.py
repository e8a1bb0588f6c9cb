"""In shadow mode each function that changes something outside of the process refuses to."""

import os
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.host import page_moves, shadow_mode
from bayplan.host.kernelfs import write_text
from bayplan.host.page_moves import migrate_pages
from bayplan.host.reclaim import reclaim_in_cgroup, reclaim_on_node
from bayplan.host.shadow_mode import ShadowModeError
from bayplan.oci.bundle import replace_config
from bayplan.oci.runtime_update import RuntimeCommand, _run
from bayplan.sets import NodeSet


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("cpuset.cpus", "memory.reclaim", "config.json"):
        (tmp_path / name).write_text("old")
    (tmp_path / "config.json").chmod(0o600)
    program = tmp_path / "runc"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    return tmp_path


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file of the kernel": lambda files: write_text(str(files / "cpuset.cpus"), "0"),
    "page cache of a cgroup": lambda files: reclaim_in_cgroup(str(files), 4096),
    "page cache of a node": lambda files: reclaim_on_node(0, 4096, files),
    "all pages of a process": lambda _: migrate_pages(os.getpid(), NodeSet([0]), NodeSet([0])),
    "some pages of a process": lambda _: page_moves._call(
        os.getpid(), array("Q", [0]), array("i", [0]), array("i", [0]), 0
    ),
    "a bundle": lambda files: replace_config(str(files), b"old", b"new"),
    "a program": lambda files: _run(RuntimeCommand(str(files / "runc"), (), {}), "id", b""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_changed(files: Path, change: str) -> None:
    before = {one.name: one.read_bytes() for one in files.iterdir()}
    with shadow_mode.shadow_mode(), pytest.raises(ShadowModeError, match="shadow mode applies nothing"):
        CHANGES[change](files)
    assert {one.name: one.read_bytes() for one in files.iterdir()} == before
    assert not shadow_mode.is_on()


def test_the_changes_above_change_something_otherwise(files: Path) -> None:
    for change in ("a file of the kernel", "page cache of a cgroup", "a bundle", "a program"):
        CHANGES[change](files)
    changed = {one.name: one.read_text() for one in files.iterdir() if one.name != "runc"}
    assert changed == {
        "cpuset.cpus": "0",
        "memory.reclaim": "4096 swappiness=0",
        "config.json": "new",
        "ran": "",
    }


def test_whatever_changes_something_asks_first() -> None:
    """The functions that can write, kill, move pages or start programs are in these modules; a new one is
    added here, and to the changes above."""
    root = Path(shadow_mode.__file__).parents[1]
    words = ("os.write(", "O_WRONLY", "O_RDWR", ".write_text(", ".write_bytes(", "subprocess.", "os.kill(",
             "pidfd_send_signal", "libc().syscall(", "os.rename(", "os.setxattr(")  # fmt: skip
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] in {"host", "oci", "control", "daemon", "admin", "state", "nri"}
        and any(word in path.read_text() for word in words)
    }
    gated = {name for name in found if "shadow_mode.check_off(" in (root / name).read_text()}
    assert found - gated == {
        "control/container_files.py",  # returns before it, in shadow mode
        "daemon/process.py",  # this process's own oom_score_adj
        "state/directory.py",  # of the state directory
        "oci/cri.py",  # a child that asks a runtime what there is
        "host/kubelet_program.py",  # `kubelet --version`
        "host/record.py",  # `bayplan record-topology`, which is not the daemon
    }
