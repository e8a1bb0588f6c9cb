"""The disk of the state directory is full, read-only, emptied, gone or mounted over, the daemon is killed:
nothing is promised twice, nothing is lost, and nobody starts unplaced."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from testbed.bayplan import FILL, FILLER, STATE_DIRECTORY
from testbed.crictl import Running
from testbed.disks import make_ext4
from testbed.forms import FORMS
from testbed.kernel import parse_ids
from testbed.node import Node
from testbed.podman import Asked
from testbed.pods import burstable
from testbed.scenario import on
from testbed.topology import THIS_MACHINE

IMAGE = "/run/testbed/state.img"
TOTAL = "awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo"
OWN_CPU = {"bayplan.dev/cpus": "exclusive"}


def mount(node: Node) -> None:
    node.guest.run("mkdir", "-p", STATE_DIRECTORY)
    node.guest.run("mount", "-o", "loop,errors=remount-ro", IMAGE, STATE_DIRECTORY)


def unmount(node: Node) -> None:
    """Who has files open in it keeps them."""
    node.guest.run("umount", "--lazy", STATE_DIRECTORY)


def fill(node: Node) -> None:
    node.guest.run("sh", "-c", FILL, check=False)


def make_read_only(node: Node) -> None:
    """As ext4 does after an error, under whoever writes."""
    device = node.guest.run("findmnt", "--noheadings", "--output", "SOURCE", STATE_DIRECTORY).stdout.strip()
    node.guest.write(f"/sys/fs/ext4/{device.removeprefix('/dev/')}/trigger_fs_error", "for a test")


def mount_again(node: Node) -> None:
    unmount(node)
    mount(node)


def empty(node: Node) -> None:
    node.guest.run("sh", "-c", f"rm -rf {STATE_DIRECTORY}/*")


def mount_over(node: Node) -> None:
    node.guest.run("mount", "-t", "tmpfs", "-o", "mode=700,ro", "other", STATE_DIRECTORY)


WAYS: Mapping[str, tuple[Callable[[Node], None], Callable[[Node], object]]] = {
    "full": (fill, lambda node: node.guest.run("rm", "-f", FILLER)),
    "read-only": (make_read_only, mount_again),
    "emptied": (empty, lambda _: None),
    "unmounted": (unmount, mount),
    "mounted-over": (mount_over, unmount),
}
"""What becomes of the disk, and of that."""


@pytest.fixture
def small_disk(node: Node, tmp_path: Path) -> Iterator[None]:
    """The state directory is a file system of some 12 MiB."""
    (tmp_path / "files").mkdir()
    make_ext4(tmp_path / "files", tmp_path / "image")
    node.guest.write(IMAGE, (tmp_path / "image").read_bytes())
    mount(node)
    yield
    node.crictl.remove_everything()
    node.bayplan.kill()
    unmount(node)


class Pods:
    """Those that run, with what each was promised."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.memory_bytes = int(node.guest.run("sh", "-c", TOTAL).stdout)
        self.running: dict[str, Running] = {}
        self.promised: dict[str, object] = {}
        self._numbers = itertools.count()

    def launch(self, cpus: float = 0.1, annotations: Mapping[str, str] | None = None) -> str:
        name = f"pod-{next(self._numbers)}"
        node_bytes = self.memory_bytes
        pod = burstable(name, node_memory_bytes=node_bytes, cpus=cpus, annotations=annotations)
        running = self.node.launch(pod)
        found = self.node.bayplan.decided(running.container_id)
        assert found is not None
        self.running[running.container_id] = running
        self.promised[running.container_id] = (found["mems"], found["cpusExclusive"], found["bookedBytes"])
        return running.container_id

    def end(self, container_id: str) -> None:
        del self.promised[container_id]
        self.node.crictl.remove_sandbox(self.running.pop(container_id).sandbox_id)

    def assert_promised(self) -> None:
        """All that run, once each, with what they were promised, and with CPUs of their own alone."""
        self.node.bayplan.await_known(self.running)
        status = self.node.bayplan.status()
        assert status["unmanaged"] == []
        assert Counter(one["outcome"] for one in status["containers"]) == {"placed": len(self.running)}
        found = {
            one["id"]: (one["mems"], one["cpusExclusive"], one["bookedBytes"]) for one in status["containers"]
        }
        assert found == self.promised
        own = [parse_ids(one["cpus"]) for one in status["containers"] if one["cpusExclusive"]]
        assert len(own) == 1
        assert own[0].isdisjoint(parse_ids(status["sharedCpus"]))


@pytest.mark.matrix
@on(THIS_MACHINE, "2.4-nri")
@pytest.mark.usefixtures("small_disk")
def test_what_was_promised_is_kept_whatever_becomes_of_the_disk(node: Node) -> None:
    def come_back() -> None:
        since = node.bayplan.log_position()
        node.bayplan.start_again()
        node.bayplan.await_synchronized(since=since)
        pods.assert_promised()

    node.bayplan.start("--set-oom-score-adj", "false")
    node.bayplan.await_synchronized()
    pods = Pods(node)
    pods.launch(1, OWN_CPU)
    goes = [pods.launch() for _ in range(3)]
    for way, (hinder, back) in WAYS.items():
        for killed in (False, True):
            hinder(node)
            made = [pods.launch() for _ in range(2)]
            pods.end(goes.pop())
            pods.assert_promised()
            if killed:
                node.bayplan.kill()
                come_back()
                made.append(pods.launch())
                node.bayplan.kill()
            back(node)
            if killed:
                come_back()
            made.append(pods.launch())
            pods.end(made.pop(0))
            pods.assert_promised()
            # What is recorded is all there is to go by for a while, and is enough.
            node.bayplan.stop()
            come_back()
            goes += made
            assert (way, "Traceback" in node.bayplan.log()) == (way, False)


@pytest.mark.matrix
@on(THIS_MACHINE, "2.4-nri")
@pytest.mark.usefixtures("small_disk")
def test_what_comes_by_hook_precreate_and_wrapper_waits_for_the_disk(node: Node) -> None:
    node.podman.import_image()
    node.forms.install(on_failure="refuse")
    # Whoever connects has something recorded, for which there would be room aside.
    node.containerd.end()
    node.bayplan.start("--set-oom-score-adj", "false", "--oci-deadline", "20s")
    kept: list[str] = []
    for form in FORMS:
        engine = node.forms.engine(form, "runc", "cgroupfs")
        node.bayplan.fill_disk()
        for killed in (False, True):
            if killed:
                node.bayplan.kill()
                node.bayplan.start_again()
            assert node.podman.refused(engine, Asked(f"{form}-{killed}", memory="50m", cpus=0.1))
            node.bayplan.await_known(kept)
            assert any(STATE_DIRECTORY in one for one in node.bayplan.status()["problems"])
        node.bayplan.kill()
        node.bayplan.empty_disk()
        node.bayplan.start_again()
        kept.append(node.podman.run(engine, Asked(f"{form}-later", memory="50m", cpus=0.1)))
        node.bayplan.await_known(kept)
        assert {one["id"] for one in node.bayplan.status()["unmanaged"]}.isdisjoint(kept)
    node.podman.remove(*kept)
    node.bayplan.await_known([])
    node.containerd.start()
