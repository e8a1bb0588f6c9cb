"""CRI-O with crictl, on a node with systemd: with NRI, where the hook has nothing to do; without it, by the
hook and the wrapper, with both cgroup drivers; and what later undoes it."""

import time
from typing import Any

import pytest
from testbed.agreement import assert_agreement, await_agreement, differences
from testbed.at_once import CpuWatch, exclusive_cpus, launch_at_once, run_sandboxes
from testbed.channel import LIMIT_S
from testbed.crictl import Running
from testbed.crio import HANDLERS, RUNTIMES, WRAPPER_HANDLER, CrioNode, in_slice, whole_cpu
from testbed.crowded_nodes import put
from testbed.forms import HOOKS_DIR, WRAPPER
from testbed.kernel import Placement, parse_ids
from testbed.memory_load import install, kills
from testbed.pods import GUARANTEED_OOM_SCORE_ADJ, MIB, Pod, best_effort, guaranteed
from testbed.promise_races import await_that, bound
from testbed.topology import TWO_NODES

# Emulated, a decision takes ten times as long.
PATIENT = ("--oci-deadline", "20s")
ANNOTATED = {"bayplan.dev/memory-limit": "300Mi", "bayplan.dev/required-nodes": "1"}
EVERYWHERE = (frozenset({0, 1}), frozenset(range(4)))


@pytest.fixture
def node(crio_node: CrioNode) -> CrioNode:
    return crio_node


def test_with_nri_the_hook_has_nothing_to_do(node: CrioNode) -> None:
    node.forms.install()
    node.crio.start(nri=True)
    node.bayplan.start(*PATIENT)
    node.bayplan.await_synchronized()
    assert node.examined("CRI-O").startswith("NRI and hook ")
    for runtime in RUNTIMES:
        pod, container_id = created(node, whole_cpu(f"nri-{runtime}"), runtime)
        before = expected_home(node, container_id)
        asked_hook = node.bayplan.status()["counters"]["oci_createRuntime"]
        assert asked_hook == tuple(RUNTIMES).index(runtime) + 1
        assert node.entry_of(container_id)["origin"] == "nri"
        node.crictl.start(container_id)
        node.crictl.await_log(pod, "touched")
        node.crictl.update(container_id, cpu_share=512)
        node.guest.run("systemctl", "daemon-reload")
        await_placement(node, container_id, before)
        assert_agreement(node, [container_id])
        node.crictl.remove_sandbox(pod.sandbox_id)
        node.bayplan.await_known([])


def test_nobody_else_runs_on_the_cpus_of_an_owner_with_nri(node: CrioNode) -> None:
    node.crio.start(nri=True)
    node.bayplan.start(*PATIENT)
    node.bayplan.await_synchronized()
    for number, runtime in enumerate((*RUNTIMES, *RUNTIMES)):
        pods = [in_slice(best_effort(f"shared-{number}{letter}")) for letter in "abc"]
        pods[1:1] = [in_slice(guaranteed(f"owner-{number}{letter}", 1, "50Mi")) for letter in "ab"]
        sandboxes = run_sandboxes(node, pods, handler=runtime)
        with CpuWatch(node.guest) as watch:
            running = launch_at_once(node, pods, sandboxes)
            watch.await_programs(one.container_id for one in running)
        owners = exclusive_cpus(node)
        assert len(owners) == 2
        overlaps = watch.overlaps(owners, node.bayplan.known())
        print(runtime, watch.measured(overlaps))
        running_there = [one for one in overlaps if not one.other.starting]
        assert not running_there, "\n".join(map(str, running_there))
        node.crictl.remove_sandbox(*(one.sandbox_id for one in running))
        node.bayplan.await_known([])


def test_the_hook_places_what_no_nri_decides_about(node: CrioNode) -> None:
    node.forms.install()
    node.crio.start(nri=False)
    node.bayplan.start("--topology-manager-policy", "restricted", *PATIENT)
    placed: dict[str, Running] = {}
    for runtime in RUNTIMES:
        pod, container_id = created(node, whole_cpu(f"hook-{runtime}"), runtime)
        placed[runtime] = pod
        before = expected_home(node, container_id)
        assert node.entry_of(container_id)["origin"] == "hook"
        node.crictl.start(container_id)
        node.crictl.await_log(pod, "touched")
        view = node.view(pod)
        assert view.placement == before
        assert set(view.anon_bytes()) == before.mems
        node.guest.run("systemctl", "daemon-reload")
        await_placement(node, container_id, before)
        # crun writes only what it was told; runc all that it has on record, to which ours was added.
        node.crictl.update(container_id, cpu_share=512)
        await_placement(node, container_id, before)
    assert_agreement(node, [pod.container_id for pod in placed.values()])

    # What a person tells systemd is put right again.
    running = placed["runc"].container_id
    before = node.view(running).placement
    node.guest.run("systemctl", "set-property", "--runtime", f"crio-{running}.scope", "AllowedCPUs=0-3")
    await_placement(node, running, before)

    # Both nodes have less left than this one wants, and together more.
    complaints = node.forms.complaints("TopologyAffinityError")
    for runtime in RUNTIMES:
        said = node.crictl.refused(whole_cpu(f"refused-{runtime}"), handler=runtime)
        assert "TopologyAffinityError" in said
        complaints += 1
        assert node.forms.complaints("TopologyAffinityError") == complaints
    crun, runc = placed["crun"], placed["runc"]
    node.bayplan.await_known([crun.container_id, runc.container_id])

    node.crictl.stop(crun.container_id)
    node.bayplan.await_known([runc.container_id])
    node.crictl.remove_sandbox(runc.sandbox_id)
    node.bayplan.await_known([])


def test_the_wrapper_rewrites_what_the_runtime_is_given(node: CrioNode) -> None:
    node.forms.install(timeout_s=5)
    node.guest.run("rm", "-r", HOOKS_DIR)
    node.crio.start(nri=False, wrapper=True)
    for runtime in RUNTIMES:
        node.forms.wrap(runtime)
        node.bayplan.start(*PATIENT)
        pod, container_id = created(node, whole_cpu(f"wrapped-{runtime}"), WRAPPER_HANDLER)
        before = expected_home(node, container_id)
        assert node.entry_of(container_id)["origin"] == "wrapper"
        assert in_spec(node.crio.bundle_spec(container_id)) == before[:4]
        # The sandbox's own container came by too.
        assert node.bayplan.known() == {container_id}
        assert node.kernel.view(node.infra_pid(pod)).placement[:2] == EVERYWHERE
        node.crictl.start(container_id)
        assert node.bayplan.status()["counters"]["oci_start"] == 1
        node.crictl.await_log(pod, "touched")
        node.crictl.update(container_id, cpu_share=512)
        node.guest.run("systemctl", "daemon-reload")
        view = node.view(container_id)
        assert view.placement == before
        assert set(view.anon_bytes()) == before.mems
        node.crictl.remove_sandbox(pod.sandbox_id)
        node.bayplan.await_known([])

        node.bayplan.kill()
        alone = node.launch(whole_cpu(f"alone-{runtime}"))
        assert node.view(alone).placement[:2] == EVERYWHERE
        node.crictl.remove_sandbox(alone.sandbox_id)


def test_the_wrapper_in_the_place_of_a_runtime_takes_over_its_containers(node: CrioNode) -> None:
    node.install_forms()
    node.forms.wrap("crun")
    node.crio.start(nri=False)
    node.bayplan.start(*PATIENT)
    pod = node.launch(whole_cpu("default"))
    container_id, before = pod.container_id, node.view(pod).placement
    for handlers in ({"crun": WRAPPER}, {}):
        node.crio.start(nri=False, handlers=handlers)
        assert node.crictl.state(container_id) == "CONTAINER_RUNNING"
        assert node.crictl.execute(container_id, "echo", "hello").stdout.split() == ["hello"]
        node.crictl.update(container_id, cpu_share=512)
        await_placement(node, container_id, before)
    node.crictl.remove_sandbox(pod.sandbox_id)
    node.bayplan.await_known([])


def test_the_cgroupfs_driver(node: CrioNode) -> None:
    node.install_forms(on_failure="refuse")
    node.crio.start(nri=False, wrapper=True, driver="cgroupfs")
    node.bayplan.start(*PATIENT)
    for handler in HANDLERS:
        pod, container_id = created(node, guaranteed(handler, 1, "600Mi").touching("100Mi"), handler)
        before = expected_home(node, container_id)
        assert node.entry_of(container_id)["origin"] == form_of(handler)
        assert f"{pod.pod.cgroup_parent}/crio-{container_id}" in node.view(container_id).cgroup
        node.crictl.start(container_id)
        node.crictl.await_log(pod, "touched")
        node.crictl.update(container_id, cpu_share=512)
        await_placement(node, container_id, before)
        assert set(node.view(container_id).anon_bytes()) == before.mems
        node.crictl.remove_sandbox(pod.sandbox_id)
        node.bayplan.await_known([])


def test_what_is_undone_while_nobody_looks_is_restored(node: CrioNode) -> None:
    node.install_forms()
    node.crio.start(nri=False, wrapper=True)
    node.bayplan.start("--log-level", "debug", *PATIENT)
    placed: dict[str, tuple[str, Placement]] = {}
    for handler in HANDLERS:
        position = node.bayplan.log_position()
        # Of this limit, and of the nodes, nobody knows but bayplan.
        pod = in_slice(best_effort(handler, annotations=ANNOTATED))
        container_id = node.launch(pod, handler=handler).container_id
        if handler != WRAPPER_HANDLER:
            node.bayplan.await_runtime_updated(container_id, since=position)
        placed[handler] = container_id, node.view(container_id).placement
        assert placed[handler][1] == (frozenset({1}), frozenset(range(4)), 1000, 300 * MIB, True)
    node.install_forms(timeout_s=1)
    node.bayplan.pause()
    for handler, (container_id, before) in placed.items():
        node.crictl.update(container_id, cpu_share=512)
        node.guest.run("systemctl", "daemon-reload")
        # runc tells systemd nothing of memory.oom.group; all else survives.
        kept = before if handler == "crun" else before._replace(oom_group=False)
        assert node.view(container_id).placement == kept
        if handler != WRAPPER_HANDLER:
            node.crictl.update(container_id, cpuset_cpus="0")
            assert node.view(container_id).cpus_allowed == {0}
    node.bayplan.resume()
    for container_id, before in placed.values():
        await_placement(node, container_id, before)
    # The wrapper is asked, and takes it for the wish of somebody who may have one.
    container_id, before = placed[WRAPPER_HANDLER]
    node.install_forms()
    node.crictl.update(container_id, cpuset_cpus="0", memory=200 * MIB)
    await_placement(node, container_id, before._replace(cpus=frozenset({0}), memory_max_bytes=200 * MIB))
    await_agreement(node, [container_id for container_id, _ in placed.values()])


@pytest.mark.parametrize("nri", [True, False])
def test_who_starts_before_its_memory_is_there_is_slowed_down(node: CrioNode, nri: bool) -> None:
    """With NRI as well as with the wrapper, whose `start` waits."""
    node.forms.install()
    install(node)
    node.crio.start(nri=nri, wrapper=not nri)
    slowly = ("--memory-pressure", "relieve", "--page-move-rate", "8Mi", "--measured-reservation", "true")
    node.bayplan.start(*slowly, *PATIENT)
    if nri:
        node.bayplan.await_synchronized()
    handler = "runc" if nri else WRAPPER_HANDLER
    batch = node.launch(in_slice(best_effort("batch").touching("650Mi")), handler=handler)
    node.crictl.await_log(batch, "touched")
    put(node, [(batch, 0)])
    required = {"bayplan.dev/required-nodes": "0"}
    owner = guaranteed("owner", 0.5, "600Mi", annotations=required).touching("500Mi")
    running = node.launch(in_slice(owner), handler=handler)
    await_that(lambda: bool(bound(node, "kubepods.slice")))
    # systemd sets what its unit has; it waits on all the same.
    node.guest.run("systemctl", "daemon-reload")
    await_that(lambda: bool(bound(node, "kubepods.slice")))
    node.crictl.await_log(running, "touched", limit_s=240)
    assert kills(node) == []
    await_that(lambda: not bound(node, "kubepods.slice"))
    assert set(node.view(running).anon_bytes()) == {0}
    assert node.bayplan.status()["counters"]["slowed_down"] >= 1


def form_of(handler: str) -> str:
    return "wrapper" if handler == WRAPPER_HANDLER else "hook"


def created(node: CrioNode, pod: Pod, handler: str) -> tuple[Running, str]:
    """Its sandbox runs and its container is created, not started."""
    sandbox_id = node.crictl.run_sandbox(pod, handler=handler)
    (container,) = pod.containers
    container_id = node.crictl.create(sandbox_id, pod, container)
    assert node.crictl.state(container_id) == "CONTAINER_CREATED"
    return Running(pod, sandbox_id, {container.name: container_id}), container_id


def expected_home(node: CrioNode, container_id: str) -> Placement:
    """Where the container is, which must be a place such as `whole_cpu` wants, and the decided one."""
    view = node.view(container_id)
    found = view.placement
    (home,) = found.mems
    assert found.cpus < set(TWO_NODES.cpus_of(home))
    assert found[2:] == (GUARANTEED_OOM_SCORE_ADJ, 600 * MIB, True)
    assert not differences(node.entry_of(container_id), view, node.kernel.nodes_online())
    return found


def in_spec(spec: dict[str, Any]) -> tuple[frozenset[int], frozenset[int], int, int]:
    """Nodes, CPUs, oom_score_adj and memory limit of a spec."""
    resources = spec["linux"]["resources"]
    return (
        parse_ids(resources["cpu"]["mems"]),
        parse_ids(resources["cpu"]["cpus"]),
        spec["process"]["oomScoreAdj"],
        resources["memory"]["limit"],
    )


def await_placement(node: CrioNode, container_id: str, placed: Placement) -> None:
    """Wait until the kernel has the container there; bayplan looks every few seconds."""
    deadline = time.monotonic() + LIMIT_S
    while (found := node.view(container_id).placement) != placed:
        assert time.monotonic() < deadline, found
        time.sleep(1)
