"""CRI-O when something is wrong: the daemon away, slow or without room, forms killed, files out of place."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from testbed.agreement import assert_agreement, await_agreement
from testbed.bayplan import STATE_DIRECTORY
from testbed.crio import DROP_INS, HANDLERS, RUNTIMES, WRAPPER_HANDLER, CrioNode, whole_cpu
from testbed.errors import CommandError
from testbed.forms import HOOKS_DIR, PODMAN_HOOKS_DIR
from testbed.killing import HOOK, WRAPPER_KILLER, Killer

# Emulated, a decision takes ten times as long.
PATIENT = ("--oci-deadline", "20s")
EVERYWHERE = (frozenset({0, 1}), frozenset(range(4)))
KILLINGS = 8
OCI_SOCKET = "/run/bayplan/oci.sock"
# All but the first pages, in which what was committed is: those that are left have no room.
FILL = f"""
fallocate --punch-hole --offset 8192 --length 16M {STATE_DIRECTORY}/state.db-wal
cat /dev/zero >{STATE_DIRECTORY}/filler
true
"""


@pytest.fixture
def node(crio_node: CrioNode) -> CrioNode:
    return crio_node


def test_a_daemon_that_was_away_finds_out_what_became_of_its_containers(node: CrioNode) -> None:
    node.install_forms()
    node.crio.start(nri=False, wrapper=True)
    node.bayplan.start(*PATIENT)
    pods = [node.launch(whole_cpu(f"stays-{handler}", "300Mi"), handler=handler) for handler in HANDLERS]
    placed = {pod.container_id: node.view(pod).placement for pod in pods}
    for end in (node.bayplan.stop, node.bayplan.kill):
        end()
        node.bayplan.start_again()
        assert_agreement(node, placed)
        assert {one: node.view(one).placement for one in placed} == placed

    node.bayplan.kill()
    goes, *stay = pods
    node.crictl.remove_sandbox(goes.sandbox_id)
    node.bayplan.start_again()
    node.bayplan.await_known([pod.container_id for pod in stay])
    for pod in stay:
        assert node.view(pod).placement == placed[pod.container_id]


def test_a_daemon_that_is_gone_or_slow(node: CrioNode) -> None:
    node.install_forms(timeout_s=2, on_failure="refuse")
    node.crio.start(nri=False, wrapper=True)
    for handler in HANDLERS:
        assert_refused(node, handler, "/run/bayplan/oci.sock (No such file or directory)")
    node.install_forms(timeout_s=2, on_failure="allow")
    for handler in ("crun", WRAPPER_HANDLER):
        alone = node.launch(whole_cpu(f"alone-{handler}"), handler=handler)
        assert node.view(alone).placement[:2] == EVERYWHERE
        node.crictl.remove_sandbox(alone.sandbox_id)

    node.bayplan.start(*PATIENT)
    node.bayplan.pause()
    node.install_forms(timeout_s=2, on_failure="refuse")
    for handler in HANDLERS:
        assert_refused(node, handler, "did not answer within 2 s")
    node.install_forms(timeout_s=2, on_failure="allow")
    pods = [node.launch(whole_cpu(f"late-{handler}", "200Mi"), handler=handler) for handler in HANDLERS]
    for pod in pods:
        assert node.view(pod).placement[:2] == EVERYWHERE
    # It hears of them when it wakes up, and of those that were refused: only the living are placed.
    node.bayplan.resume()
    await_agreement(node, [pod.container_id for pod in pods])
    for pod in pods:
        node.crictl.remove_sandbox(pod.sandbox_id)
    node.bayplan.await_known([])

    node.install_forms(on_failure="refuse")
    for handler in ("crun", WRAPPER_HANDLER):
        node.bayplan.pause()
        awake = threading.Timer(5, node.bayplan.resume)
        awake.start()
        pod = node.launch(whole_cpu(f"waits-{handler}"), handler=handler)
        awake.join()
        assert_agreement(node, [pod.container_id])
        assert len(node.view(pod).mems_allowed) == 1
        node.crictl.remove_sandbox(pod.sandbox_id)
        node.bayplan.await_known([])


def test_what_cannot_be_recorded_is_not_promised(node: CrioNode) -> None:
    node.install_forms(on_failure="refuse")
    node.crio.start(nri=False, wrapper=True)
    with state_on_a_disk_of_its_own(node):
        node.bayplan.start(*PATIENT)
        stays = node.launch(whole_cpu("stays", "200Mi"), handler="crun")
        # Started again, it has its database in one file, and in the log only what the start wrote.
        node.bayplan.kill()
        node.bayplan.start_again()
        node.guest.run("sh", "-c", FILL)
        for handler in HANDLERS:
            assert_refused(node, handler, "database or disk is full")
        assert_agreement(node, [stays.container_id])
        node.install_forms()
        lost = [node.launch(whole_cpu(f"lost-{handler}", "200Mi"), handler=handler) for handler in HANDLERS]
        # It may have been found already, and taken off the CPUs of the other one.
        for pod in lost:
            assert node.view(pod).mems_allowed == EVERYWHERE[0]
        # What runs and what ended counts at once; it is recorded when there is room again.
        node.crictl.remove_sandbox(stays.sandbox_id)
        found = [pod.container_id for pod in lost]
        node.bayplan.await_known(found)
        assert len(node.bayplan.status()["unmanaged"]) == len(found)
        node.guest.run("rm", f"{STATE_DIRECTORY}/filler")
        placed = node.launch(whole_cpu("placed"), handler=WRAPPER_HANDLER)
        await_agreement(node, [*found, placed.container_id])
        for pod in lost:
            assert node.view(pod).cpus_allowed.isdisjoint(node.view(placed).cpus_allowed)
        node.bayplan.kill()
        node.bayplan.start_again()
        assert_agreement(node, [*found, placed.container_id])
        node.crictl.remove_everything()
        node.bayplan.kill()


def test_killed_forms_leave_ledger_and_kernel_agreed(node: CrioNode) -> None:
    node.install_forms()
    killer = Killer(node.guest)
    node.crio.start(nri=False, handlers={"killed": WRAPPER_KILLER})
    node.bayplan.start(*PATIENT)
    survivors = []
    for number in range(KILLINGS):
        handler = (*RUNTIMES, "killed")[number % 3]
        # The first one dies before it has asked, whatever the machine does beside.
        killer.strike(2 * killer.whole_s * number / KILLINGS)
        pod = whole_cpu(f"killed-{number}", "120Mi")
        try:
            survivors.append(node.launch(pod, handler=handler).container_id)
        except CommandError:
            continue  # also of a sandbox, which the wrapper sees
    assert len(survivors) < KILLINGS
    await_agreement(node, survivors)


def test_a_definition_for_podman_alone_keeps_crio_down_and_doctor_says_so(node: CrioNode) -> None:
    node.forms.install()
    wrong = f"{HOOKS_DIR}/95-precreate.json"
    node.guest.run("cp", f"{PODMAN_HOOKS_DIR}/90-bayplan.json", wrong)
    with pytest.raises(CommandError, match="unknown stage"):
        node.crio.start(nri=False)
    assert "CRI-O" in node.examined(wrong)
    node.guest.run("rm", wrong)
    # Bundles are then below a link, as where /var/run is in the configuration.
    node.guest.run("sh", "-c", "mkdir -p /run/elsewhere && ln -sfn /run/elsewhere /run/by-a-link")
    node.guest.write(f"{DROP_INS}/20-link.conf", '[crio]\nrunroot = "/run/by-a-link"\n')
    node.crio.start(nri=False)
    node.bayplan.start(*PATIENT)
    assert node.examined(wrong) == ""
    pod = node.launch(whole_cpu("below-a-link"), handler="crun")
    running = pod.container_id
    placed = node.view(running).placement
    assert_agreement(node, [running])

    pid, bundle = node.crictl.pid(running), f"/run/by-a-link/overlay-containers/{running}/userdata"
    node.guest.run("ln", "-sfn", bundle, "/run/linked-bundle")
    for state, problem in (
        ({"id": running, "pid": pid, "bundle": "/run/linked-bundle"}, "a symbolic link"),
        ({"id": running, "pid": pid, "bundle": "/run"}, "/run/config.json: cannot be read"),
        ({"id": running, "pid": 1, "bundle": bundle}, "found the pid 1, expected one above 1"),
        ({"id": running, "pid": node.infra_pid(pod), "bundle": bundle}, "is not the container's"),
    ):
        said = asked_by_hand(node, {"ociVersion": "1.2.0", "status": "creating", **state})
        assert problem in said
    assert_agreement(node, [running])
    assert node.view(running).placement == placed

    nobody = ("setpriv", "--reuid=65534", "--clear-groups")
    assert "(Permission denied); refused" in asked_by_hand(node, {}, *nobody)
    node.guest.run("chmod", "666", OCI_SOCKET)
    assert "user 65534 may not ask; root and user 0 may; refused" in asked_by_hand(node, {}, *nobody)
    assert "others than root" in node.examined(OCI_SOCKET)


def assert_refused(node: CrioNode, handler: str, problem: str) -> None:
    """The container comes to nothing, and one clear line says why, in the journal and to whom asked."""
    before = len(refusals(node, problem))
    said = node.crictl.refused(whole_cpu("refused"), handler=handler)
    assert len(refusals(node, problem)) == before + 1
    assert problem in said


def refusals(node: CrioNode, problem: str) -> list[str]:
    """What the journal has of creations that failed for this problem: not of deletions, nor of a pod's own
    container, which is let through."""
    return [line for line in node.forms.said(problem) if "create" in line and "let through" not in line]


@contextmanager
def state_on_a_disk_of_its_own(node: CrioNode) -> Iterator[None]:
    """A small one, which can be filled."""
    node.guest.run("mkdir", "-p", STATE_DIRECTORY)
    node.guest.run("mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", STATE_DIRECTORY)
    try:
        yield
    finally:
        node.guest.run("umount", "--lazy", STATE_DIRECTORY)


def asked_by_hand(node: CrioNode, state: dict[str, Any], *before: str) -> str:
    """What the hook says, which must refuse the state."""
    argv = (*before, HOOK, "--timeout=30", "--on-failure=refuse", "createRuntime")
    done = node.guest.run(*argv, stdin=json.dumps(state).encode(), check=False)
    assert done.exit_code == 1
    return done.stderr
