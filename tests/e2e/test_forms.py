"""One scenario through every way into bayplan: NRI, hook and wrapper of containerd, podman's three."""

import time
from dataclasses import replace

import pytest
from testbed.agreement import assert_agreement
from testbed.bayplan import STATE_DIRECTORY
from testbed.channel import LIMIT_S
from testbed.containerd import Handler
from testbed.crictl import Running
from testbed.errors import CommandError
from testbed.forms import FORMS
from testbed.kernel import Placement
from testbed.node import Node
from testbed.podman import Asked
from testbed.pods import MIB, Container, Pod, guaranteed
from testbed.scenario import on_systemd
from testbed.topology import TWO_NODES

VERSION = "2.4"
PATIENT = ("--oci-deadline", "20s")
CRI_FORMS = ("hook", "wrapper")
# The same containers in the words of both: a whole CPU of its own, and part of one with much memory.
SCENARIO = (
    (
        Container(memory_limit_bytes=300 * MIB, cpu_quota_us=100_000, cpu_period_us=100_000),
        Asked("whole", memory="300m", cpus=1),
    ),
    (
        Container(memory_limit_bytes=500 * MIB, cpu_quota_us=50_000, cpu_period_us=100_000),
        Asked("part", memory="500m", cpus=0.5),
    ),
)


@pytest.mark.matrix
@on_systemd(TWO_NODES, VERSION)
def test_every_form_gives_the_same_placement(node: Node) -> None:
    node.forms.install()
    with_handlers(node, nri=True)
    node.bayplan.start(*PATIENT)
    node.bayplan.await_synchronized()
    reference = placements_with_crictl(node, "")
    assert [len(one.mems) for one in reference] == [1, 1]
    for handler in CRI_FORMS:
        # They are asked, and leave it to NRI.
        assert placements_with_crictl(node, handler) == reference, f"containerd, NRI and {handler}"
    counters = node.bayplan.status()["counters"]
    assert counters["oci_createRuntime"] >= len(SCENARIO)
    assert counters["oci_create"] >= len(SCENARIO)
    without_nri(node)
    for handler in ("hook", "wrapper-systemd"):
        assert placements_with_crictl(node, handler) == reference, f"containerd, {handler}"
    for form in FORMS:
        assert placements_with_podman(node, form) == reference, f"podman, {form}"


@on_systemd(TWO_NODES, VERSION)
def test_refused_or_let_through_as_decided_and_as_configured(node: Node) -> None:
    node.forms.install(timeout_s=5, on_failure="refuse")
    without_nri(node)
    node.bayplan.start("--topology-manager-policy", "single-numa-node", *PATIENT)
    for form in CRI_FORMS:
        with pytest.raises(CommandError, match="TopologyAffinityError"):
            node.launch(guaranteed(f"{form}-too-wide", 0.5, "1500Mi"), handler=form)
    node.bayplan.await_known([])
    node.bayplan.kill()
    for form in CRI_FORMS:
        with pytest.raises(CommandError, match="no daemon answers"):
            node.launch(guaranteed(f"{form}-alone", 0.5, "100Mi"), handler=form)
    node.forms.install(timeout_s=5, on_failure="allow")
    without_nri(node)
    for form in CRI_FORMS:
        unplaced = node.launch(guaranteed(f"{form}-let-through", 0.5, "100Mi"), handler=form)
        assert node.view(unplaced).mems_allowed == {0, 1}


@pytest.mark.matrix
@on_systemd(TWO_NODES, VERSION)
def test_updates_without_nri_leave_what_was_decided(node: Node) -> None:
    node.forms.install()
    without_nri(node)
    node.bayplan.start(*PATIENT)
    for handler in ("hook", "hook-systemd", "wrapper-systemd"):
        pod = node.launch(in_parent(guaranteed(handler, 1, "300Mi"), handler), handler=handler)
        placed = node.view(pod).placement
        before = node.view(pod).files["cpu.weight"]
        node.crictl.update(pod.container_id, cpu_share=512)
        weight = node.view(pod).files["cpu.weight"]
        assert weight != before
        node.crictl.update(pod.container_id, memory=400 * MIB)
        # runc under systemd has memory.oom.group undone, unless it knows of it from the spec.
        await_placement(node, pod, placed._replace(memory_max_bytes=400 * MIB))
        # Nor does the runtime, once it is told what the hook has set, go back to the spec's shares.
        assert node.view(pod).files["cpu.weight"] == weight
        node.crictl.remove_sandbox(pod.sandbox_id)
        node.bayplan.await_known([])


@pytest.mark.matrix
@on_systemd(TWO_NODES, VERSION)
def test_what_started_on_a_full_disk_is_recorded_when_there_is_room(node: Node) -> None:
    node.guest.run("mkdir", "-p", STATE_DIRECTORY)
    node.guest.run("mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", STATE_DIRECTORY)
    try:
        node.forms.install()
        with_handlers(node, nri=True)
        node.bayplan.start(*PATIENT)
        node.bayplan.await_synchronized()
        node.bayplan.fill_disk()
        found = node.launch(guaranteed("found", 1, "100Mi"))
        # Its decision is in the container, where the daemon finds it again.
        assert len(node.view(found).mems_allowed) == 1
        node.bayplan.await_known([found.container_id])
        assert node.bayplan.status()["unmanaged"] == []
        assert any("is full" in one for one in node.bayplan.status()["problems"])
        node.bayplan.kill()
        node.bayplan.empty_disk()
        node.bayplan.start_again()
        node.bayplan.await_synchronized()
        assert_agreement(node, [found.container_id])
        placed = node.launch(guaranteed("placed", 1, "100Mi"))
        assert node.bayplan.status()["problems"] == []
        node.bayplan.kill()
        node.bayplan.start_again()
        node.bayplan.await_synchronized()
        assert_agreement(node, [found.container_id, placed.container_id])
    finally:
        node.crictl.remove_everything()
        node.bayplan.kill()
        node.guest.run("umount", "--lazy", STATE_DIRECTORY)


def without_nri(node: Node) -> None:
    with_handlers(node, nri=False)


def with_handlers(node: Node, *, nri: bool) -> None:
    """containerd started again with a handler per form and cgroup driver."""
    handlers: list[Handler] = []
    for form in CRI_FORMS:
        handlers += [
            node.forms.handler(form, name=form),
            node.forms.handler(form, name=f"{form}-systemd", systemd_cgroup=True),
        ]
    node.containerd.end()
    node.containerd.start(nri=nri, handlers=handlers)


def placements_with_crictl(node: Node, handler: str) -> list[Placement]:
    """Where the scenario's containers are, all alive at once; they are removed afterwards."""
    pods = []
    for container, asked in SCENARIO:
        pods.append(node.launch(in_parent(Pod(asked.name, (container,)), handler), handler=handler))
    found = [node.view(pod).placement for pod in pods]
    assert_agreement(node, [pod.container_id for pod in pods])
    for pod in pods:
        node.crictl.remove_sandbox(pod.sandbox_id)
    node.bayplan.await_known([])
    return found


def in_parent(pod: Pod, handler: str) -> Pod:
    """The pod with a cgroup parent of the kind that the handler's driver takes."""
    return replace(pod, cgroup_parent="testbed-pods.slice") if handler.endswith("-systemd") else pod


def await_placement(node: Node, pod: Running, placed: Placement) -> None:
    """Wait until the kernel has the container there; bayplan looks every few seconds."""
    deadline = time.monotonic() + LIMIT_S
    while (found := node.view(pod).placement) != placed:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def placements_with_podman(node: Node, form: str) -> list[Placement]:
    """The same with podman."""
    engine = node.forms.engine(form)
    made = [node.podman.run(engine, asked) for _, asked in SCENARIO]
    found = [node.view(one).placement for one in made]
    assert_agreement(node, made)
    node.podman.remove(*made)
    node.bayplan.await_known([])
    return found
