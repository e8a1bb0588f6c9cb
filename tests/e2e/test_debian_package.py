"""What is handed out of this commit: the same bytes each time; the Debian package and `make install`, from
installation to removal, in bare systems of Debian 12 and 13.
"""

import hashlib
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from testbed.bayplan import POLL_S
from testbed.channel import LIMIT_S
from testbed.debian import package_root
from testbed.handed_out import packages
from testbed.node import Node
from testbed.payload import uv_program
from testbed.pods import best_effort, guaranteed
from testbed.scenario import on_systemd
from testbed.shell import build_command
from testbed.topology import TWO_NODES

from support.console_blocks import commands

if TYPE_CHECKING:
    from conftest import Nodes

PROJECT = Path(__file__).parents[2]
SUITES = ("bookworm", "trixie")
# What apt and dpkg keep of their own, the accounts that systemd-sysusers made, and what NETWORK puts there.
NOT_OURS = (
    *("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/.pwd.lock", "etc/resolv.conf"),
    *("etc/apt/", "var/lib/apt/", "var/cache/", "var/lib/dpkg/", "var/log/", "bayplan_"),
)
# As of every package with a service: whether it was enabled is remembered until it is purged.
KEPT_UNTIL_PURGED = (
    *("etc/bayplan/", "var/lib/bayplan/", "var/lib/systemd/deb-systemd-helper-"),
    "etc/systemd/system/multi-user.target.wants/bayplan.service",
)
# How this machine reaches the registry of Python packages.
NETWORK = {path: Path(path) for path in ("/etc/resolv.conf", "/etc/ssl/certs")}
NETWORK_VARIABLES = {
    name: value
    for name, value in os.environ.items()
    if name.startswith("UV_") or name.lower().endswith("_proxy")
}
INSTALL, REMOVE, PURGE = commands("run by tests/e2e/test_debian_package.py")

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="session")
def handed_out() -> Path:
    return packages()


@pytest.fixture(scope="session")
def package(handed_out: Path) -> Path:
    (found,) = handed_out.glob("*.deb")
    return found


class Root:
    """A bare Debian below *directory*, whose changes go with the test."""

    def __init__(self, suite: str, directory: Path) -> None:
        self.changes = directory / "changes"
        self._mounts = directory
        for name in ("changes", "work", "root"):
            (directory / name).mkdir()
        self._lower = package_root(suite)

    def run(self, script: str, *, shared: Mapping[str, Path] = MappingProxyType({})) -> str:
        """What *script* prints in there, run by sh; it has to end well. *shared* are files and directories of
        this machine, by where they appear.
        """
        mounts, root = self._mounts, self._mounts / "root"
        options = f"lowerdir={self._lower},upperdir={mounts}/changes,workdir={mounts}/work"
        inside = (
            f"mount -t overlay overlay -o {options} {root} && mount -t proc proc {root}/proc && "
            f"mount --rbind /sys {root}/sys && mount --bind /dev {root}/dev && "
            f"mount -t tmpfs tmpfs {root}/run && "
            + "".join(
                f"{'mkdir -p' if path.is_dir() else 'touch'} {root}{at} && mount --bind {path} {root}{at} && "
                for at, path in shared.items()
            )
            + f'exec chroot {root} sh -euc "$0"'
        )
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside, script]
        environment = {**NETWORK_VARIABLES, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        ended = subprocess.run(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert ended.returncode == 0, f"{script}\n{ended.stdout}"
        return ended.stdout

    def brought(self) -> set[str]:
        """The files that were added or changed, without what is not the package's."""
        paths = (path for path in self.changes.rglob("*") if not path.is_dir())
        names = {str(path.relative_to(self.changes)) for path in paths}
        return {name for name in names if not name.startswith(NOT_OURS)}


@pytest.fixture(params=SUITES)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    return Root(request.param, tmp_path)


@pytest.fixture
def root(bare: Root, package: Path) -> Root:
    """With the package's file in it."""
    bare.changes.joinpath(package.name).write_bytes(package.read_bytes())
    bare.run("echo 'APT::Get::Assume-Yes \"true\";' >/etc/apt/apt.conf.d/90-unattended")
    return bare


def test_the_same_commit_gives_the_same_bytes(handed_out: Path, tmp_path: Path) -> None:
    """Whoever builds it, and wherever."""
    script = f"umask 077; exec {PROJECT}/packaging/build.sh deb {tmp_path}"
    build_command("The same once more", ["sh", "-c", script], env={"TZ": "Asia/Tokyo", "LANG": "C"})
    first, second = (
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}
        for directory in (handed_out, tmp_path)
    )
    assert {name.rpartition(".")[2] for name in first} == {"whl", "gz", "json", "deb"}
    assert first == second


def test_lintian_finds_nothing(package: Path) -> None:
    ended = subprocess.run(["lintian", package], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_it_is_installed_works_and_leaves_nothing(root: Root) -> None:
    said = root.run(
        f"""
        {{ {INSTALL}; dpkg --install bayplan_*.deb; }} >/dev/null 2>&1
        bayplan --version; baypland --version; bayplan-agent --version
        baypland --check-config
        systemctl is-enabled bayplan bayplan-agent || true
        systemd-analyze verify bayplan.service bayplan-agent.service
        id --user --name bayplan-agent
        /usr/share/bayplan/packaging/install-hooks hook podman-precreate 2>/dev/null
        """
    )
    lines = said.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["bayplan", "baypland", "bayplan-agent"]
    assert "\nEngine exact, " in said
    said_in_one_word = {"enabled", "disabled", "bayplan-agent"}
    assert [line for line in lines if line in said_in_one_word] == ["enabled", "disabled", "bayplan-agent"]
    assert "usr/share/containers/oci/hooks.d/90-bayplan.json" in root.brought()
    # A daemon that runs is asked for its containers, wherever it came from.
    removed = root.run(
        f"""
        mkdir --parents /etc/bayplan && echo 'logLevel = "error"' >/etc/bayplan/bayplan.toml
        baypland & daemon=$!
        until bayplan status >/dev/null 2>&1; do kill -0 $daemon; done
        {REMOVE} 2>&1
        kill $daemon; wait $daemon
        """
    )
    assert "No container " in removed
    left = root.brought()
    assert left >= {"etc/bayplan/bayplan.toml", "var/lib/bayplan/state.db"}
    assert {name for name in left if not name.startswith(KEPT_UNTIL_PURGED)} == set()
    root.run(PURGE)
    assert root.brought() == set()


def test_a_removal_that_cannot_release_changes_nothing(root: Root) -> None:
    """What is in the way of the records is named, and the package stays whole."""
    said = root.run(
        f"""
        {INSTALL} >/dev/null 2>&1
        touch /var/lib/bayplan
        ! {REMOVE} 2>&1
        bayplan --version
        dpkg --status bayplan | grep ^Status
        """
    )
    assert "/var/lib/bayplan: the file: found a regular file" in said
    assert "not removed, as not every container could be given" in said
    assert said.splitlines()[-1] == "Status: install ok installed"


def test_make_uninstall_takes_away_what_make_install_brought(bare: Root) -> None:
    """With this machine's uv and network, and nothing in the cache of uv, as on a new node."""
    uv = Path(uv_program()).resolve()
    said = bare.run(
        """
        export BAYPLAN_CACHE=/tmp/cache UV_CACHE_DIR=/tmp/uv PATH=/tmp/bin:$PATH HOME=/root
        /tmp/tree/packaging/dev/setup.sh install >&2
        /usr/local/bin/baypland --check-config
        /opt/bayplan/share/bayplan/packaging/install-hooks hook >&2
        systemd-analyze verify bayplan.service bayplan-agent.service
        /tmp/tree/packaging/dev/setup.sh uninstall
        """,
        shared={**NETWORK, "/tmp/tree": PROJECT, "/tmp/bin": uv.parent},
    )
    assert "Engine exact, " in said
    assert "No container " in said
    assert {name for name in bare.brought() if not name.startswith("tmp/")} == set()


# As for all scenarios in an emulated machine: nothing depends on how fast it is, or on what it measures.
IN_A_GUEST = 'requestDeadline = "15s"\nmeasuredReservation = false\nmemoryPressure = "off"\n'
PART_BYTES = 4 << 20
UNPACK_LIMIT_S = 1500


@on_systemd(TWO_NODES, "2.3")
def test_containers_keep_their_place_through_an_upgrade_and_give_it_back_on_removal(
    node: Node, nodes: "Nodes", package: Path
) -> None:
    content = package.read_bytes()
    parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    for number, part in enumerate(parts):
        node.guest.write(f"/root/part-{number:02}", part)
    node.guest.write("/etc/bayplan/bayplan.toml", IN_A_GUEST)
    install = "cat /root/part-* >/root/bayplan.deb && dpkg --install /root/bayplan.deb"
    try:
        node.guest.run("sh", "-c", install, limit_s=UNPACK_LIMIT_S)
        await_connection(node)
        running = [node.launch(guaranteed("owner", 1, "100Mi")), node.launch(best_effort("shared"))]
        placed = [node.view(one).placement for one in running]
        assert len(placed[0].cpus) == 1
        node.guest.run("systemctl", "enable", "--now", "bayplan-agent")
        before = processes(node)
        node.guest.run("sh", "-c", install, limit_s=UNPACK_LIMIT_S)
        await_connection(node)
        assert processes(node).isdisjoint(before)
        assert [node.view(one).placement for one in running] == placed
        node.bayplan.await_known([one.container_id for one in running])
        node.guest.run("dpkg", "--remove", "bayplan", limit_s=UNPACK_LIMIT_S)
        for one in running:
            view = node.view(one)
            assert (view.cpus_allowed, view.mems_allowed) == (frozenset(range(4)), frozenset({0, 1}))
    finally:
        nodes.forget()


def await_connection(node: Node) -> None:
    """Wait until the daemon, which the package has started, is asked by the runtime."""
    deadline = time.monotonic() + LIMIT_S
    while not node.bayplan.status()["runtime"]["connected"]:
        assert time.monotonic() < deadline, "the runtime does not ask the daemon"
        time.sleep(POLL_S)


def processes(node: Node) -> set[str]:
    """Of the daemon and the agent, which run."""
    units = ("bayplan", "bayplan-agent")
    shown = node.guest.run("systemctl", "show", "--value", "--property=MainPID", *units).stdout.split()
    assert len(shown) == 2
    assert "0" not in shown
    return set(shown)
