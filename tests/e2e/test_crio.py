"""CRI-O with crictl, on a node with systemd: with NRI, where the hook has nothing to do; without it, by the
hook and by the wrapper; and while the daemon is away."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from testbed.agreement import assert_agreement, differences
from testbed.crictl import Running
from testbed.crio import WRAPPER_HANDLER, CrioNode, in_slice
from testbed.forms import HOOKS_DIR
from testbed.kernel import Placement, parse_ids
from testbed.pods import GUARANTEED_OOM_SCORE_ADJ, MIB, Pod, guaranteed
from testbed.topology import TWO_NODES

RUNTIMES = ("crun", "runc")
# Emulated, a decision takes ten times as long.
PATIENT = ("--oci-deadline", "20s")
REPAIRED_WITHIN_S = 60
EVERYWHERE = frozenset({0, 1})


@pytest.fixture(scope="module")
def machine() -> Iterator[CrioNode]:
    booted = CrioNode(TWO_NODES)
    yield booted
    booted.shut_down()


@pytest.fixture
def node(machine: CrioNode) -> CrioNode:
    machine.prepare()
    return machine


def test_with_nri_the_hook_has_nothing_to_do(node: CrioNode) -> None:
    node.forms.install()
    node.crio.start(nri=True)
    node.bayplan.start(*PATIENT)
    node.bayplan.await_synchronized()
    for runtime in RUNTIMES:
        pod, container_id = created(node, asked(f"nri-{runtime}"), runtime)
        before = expected_home(node, container_id)
        asked_hook = node.bayplan.status()["counters"]["oci_createRuntime"]
        assert asked_hook == RUNTIMES.index(runtime) + 1
        assert entry_of(node, container_id)["origin"] == "nri"
        node.crictl.start(container_id)
        node.crictl.await_log(pod, "touched")
        node.crictl.update(container_id, cpu_share=512)
        node.guest.run("systemctl", "daemon-reload")
        await_placement(node, container_id, before)
        assert_agreement(node, [container_id])
        node.crictl.remove_sandbox(pod.sandbox_id)
        node.bayplan.await_known([])


def test_the_hook_places_what_no_nri_decides_about(node: CrioNode) -> None:
    node.forms.install()
    node.crio.start(nri=False)
    node.bayplan.start("--topology-manager-policy", "restricted", *PATIENT)
    placed: dict[str, Running] = {}
    for runtime in RUNTIMES:
        pod, container_id = created(node, asked(f"hook-{runtime}"), runtime)
        placed[runtime] = pod
        before = expected_home(node, container_id)
        assert entry_of(node, container_id)["origin"] == "hook"
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
        said = node.crictl.refused(asked(f"refused-{runtime}"), handler=runtime)
        assert runtime == "crun" or "TopologyAffinityError" in said
        complaints += 1
        assert node.forms.complaints("TopologyAffinityError") == complaints
    crun, runc = placed.values()
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
        pod, container_id = created(node, asked(f"wrapped-{runtime}"), WRAPPER_HANDLER)
        before = expected_home(node, container_id)
        assert entry_of(node, container_id)["origin"] == "wrapper"
        assert in_spec(node.crio.bundle_spec(container_id)) == before[:4]
        # The sandbox's own container came by too.
        assert node.bayplan.known() == {container_id}
        assert node.kernel.view(infra_of(node, pod)).placement[:2] == (EVERYWHERE, frozenset(range(4)))
        node.crictl.start(container_id)
        node.crictl.await_log(pod, "touched")
        node.crictl.update(container_id, cpu_share=512)
        node.guest.run("systemctl", "daemon-reload")
        view = node.view(container_id)
        assert view.placement == before
        assert set(view.anon_bytes()) == before.mems
        node.crictl.remove_sandbox(pod.sandbox_id)
        node.bayplan.await_known([])

        node.bayplan.kill()
        alone = node.launch(asked(f"alone-{runtime}"))
        assert node.view(alone).placement[:2] == (EVERYWHERE, frozenset(range(4)))
        node.crictl.remove_sandbox(alone.sandbox_id)


def test_a_daemon_that_was_away_finds_out_what_became_of_its_containers(node: CrioNode) -> None:
    node.forms.install()
    node.crio.start(nri=False)
    node.bayplan.start(*PATIENT)
    pods = {runtime: node.launch(asked(f"stays-{runtime}"), handler=runtime) for runtime in RUNTIMES}
    stays, goes = pods.values()
    placed = {pod.container_id: node.view(pod).placement for pod in (stays, goes)}
    node.bayplan.kill()
    node.bayplan.start_again()
    assert_agreement(node, placed)
    assert {one: node.view(one).placement for one in placed} == placed

    node.bayplan.kill()
    node.crictl.remove_sandbox(goes.sandbox_id)
    node.bayplan.start_again()
    node.bayplan.await_known([stays.container_id])
    assert node.view(stays).placement == placed[stays.container_id]


def asked(name: str) -> Pod:
    """A Guaranteed pod, as kubelet asks for it: two of them fill the nodes, one each."""
    return in_slice(guaranteed(name, cpus=1, memory="600Mi")).touching("100Mi")


def created(node: CrioNode, pod: Pod, handler: str) -> tuple[Running, str]:
    """Its sandbox runs and its container is created, not started."""
    sandbox_id = node.crictl.run_sandbox(pod, handler=handler)
    (container,) = pod.containers
    container_id = node.crictl.create(sandbox_id, pod, container)
    assert node.crictl.state(container_id) == "CONTAINER_CREATED"
    return Running(pod, sandbox_id, {container.name: container_id}), container_id


def expected_home(node: CrioNode, container_id: str) -> Placement:
    """Where the container is, which must be a place such as `asked` wants, and the decided one."""
    view = node.view(container_id)
    found = view.placement
    (home,) = found.mems
    assert found.cpus < set(TWO_NODES.cpus_of(home))
    assert found[2:] == (GUARANTEED_OOM_SCORE_ADJ, 600 * MIB, True)
    assert not differences(entry_of(node, container_id), view, node.kernel.nodes_online())
    return found


def entry_of(node: CrioNode, container_id: str) -> dict[str, Any]:
    entry = node.bayplan.decided(container_id)
    assert entry is not None
    return entry


def infra_of(node: CrioNode, pod: Running) -> int:
    """The process of the sandbox's own container."""
    told = json.loads(node.crictl("inspectp", pod.sandbox_id).stdout)
    return int(told["info"]["pid"])


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
    deadline = time.monotonic() + REPAIRED_WITHIN_S
    while (found := node.view(container_id).placement) != placed:
        assert time.monotonic() < deadline, found
        time.sleep(1)
