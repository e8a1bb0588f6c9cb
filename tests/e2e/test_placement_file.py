"""What containers read of their place in a real kernel: over NRI, by hook and by wrapper."""

import json
from dataclasses import replace
from typing import Any

import pytest
from testbed.channel import LIMIT_S
from testbed.crictl import Running
from testbed.errors import CommandError
from testbed.kernel import parse_ids
from testbed.node import Node
from testbed.podman import Asked
from testbed.pods import best_effort, guaranteed
from testbed.scenario import on, on_systemd
from testbed.topology import THIS_MACHINE, TWO_NODES

NOBODY = 65534
INSIDE = "/run/bayplan.dev/placement.json"
FORMS = ("hook", "wrapper")
DIRECTORIES = "/run/bayplan-placements"
GONE = f"while ls {DIRECTORIES} | grep .; do sleep 0.1; done"
ASKED = {
    "bayplan.dev/placement-file": "true",
    "bayplan.dev/placement-environment": "openmp;go",
}


def told(node: Node, running: Running) -> dict[str, Any]:
    """The file as the container's first process sees it."""
    text = node.guest.read(f"{inside(node, running)}/placement.json")
    found: dict[str, Any] = json.loads(text)
    return found


def inside(node: Node, running: Running) -> str:
    return f"/proc/{node.crictl.pid(running.container_id)}/root/run/bayplan.dev"


def environment(node: Node, running: Running) -> dict[str, str]:
    text = node.guest.read(f"/proc/{node.crictl.pid(running.container_id)}/environ")
    return dict(one.partition("=")[::2] for one in text.split("\0") if one)


def await_told(node: Node, running: Running, shared: str) -> dict[str, Any]:
    """The file, once it names these shared CPUs."""
    file = f"{inside(node, running)}/placement.json"
    line = f'"shared": "{shared}"'
    command = f"until grep -q '{line}' {file}; do sleep 0.1; done"
    node.guest.run("timeout", str(LIMIT_S), "sh", "-c", command)
    return told(node, running)


def directories(node: Node) -> set[str]:
    return set(node.guest.run("ls", DIRECTORIES).stdout.split())


def follows(node: Node, handler: str = "") -> tuple[Running, Running]:
    """Two containers of which the second changes what the first has; both are told."""
    first = node.launch(guaranteed("first", 0.5, "100Mi", annotations=ASKED), handler=handler)
    before = told(node, first)
    view = node.view(first)
    assert before["metadata"]["uid"] == first.container_id
    assert before["cpus"] == {"exclusive": "", "shared": "0-3"}
    assert {int(before["mems"])} == view.mems_allowed
    second = node.launch(guaranteed("second", 2, "200Mi", annotations=ASKED), handler=handler)
    own = node.view(second).cpus_allowed
    assert len(own) == 2
    written = told(node, second)
    assert {one["attributes"]["cpuID"]["int"] for one in written["requests"][0]["devices"]} == own
    assert written["promises"] == [{"nodes": written["mems"], "bytes": {"memory": 200 << 20}}]
    rest = set(range(4)) - own
    shared = node.bayplan.status()["sharedCpus"]
    after = await_told(node, first, shared)
    assert node.view(first).cpus_allowed == rest
    assert after["metadata"]["generation"] > before["metadata"]["generation"]
    with pytest.raises(CommandError, match="Read-only file system"):
        node.guest.run("touch", f"{inside(node, first)}/mine")
    return first, second


@on(TWO_NODES, "2.4", "1.7")
def test_a_container_of_nri_is_told_and_follows_what_changes(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    first, second = follows(node)
    variables = environment(node, second)
    assert (variables["GOMAXPROCS"], variables["OMP_NUM_THREADS"]) == ("2", "2")
    node.bayplan.kill()
    assert directories(node) == {first.container_id, second.container_id}
    since = node.bayplan.log_position()
    node.bayplan.start_again()
    node.bayplan.await_synchronized(since=since)
    node.crictl.stop(second.container_id)
    assert await_told(node, first, "0-3")["cpus"]["shared"] == "0-3"
    node.crictl.remove_sandbox(first.sandbox_id)
    node.guest.run("timeout", str(LIMIT_S), "sh", "-c", GONE)


@pytest.mark.matrix
@on_systemd(TWO_NODES, "2.4")
def test_containers_of_hook_and_wrapper_are_told_too(node: Node) -> None:
    """containerd keeps the annotations of pods from them, so that all are told."""
    node.forms.install()
    node.containerd.end()
    node.containerd.start(nri=False, handlers=[node.forms.handler(form, name=form) for form in FORMS])
    node.bayplan.start("--oci-deadline", "20s", "--placement-files", "all")
    for form in FORMS:
        for running in follows(node, form):
            node.crictl.remove_sandbox(running.sandbox_id)


@pytest.mark.matrix
@on(THIS_MACHINE, "2.4-nri")
def test_whoever_runs_in_a_container_reads_it_whatever_its_root_is(node: Node) -> None:
    node.bayplan.start("--set-oom-score-adj", "false", "--placement-files", "all")
    node.bayplan.await_synchronized()
    plain = best_effort("plain").containers[0]
    kinds = {
        "read-only": replace(plain, read_only_root=True),
        "nobody": replace(plain, user_id=NOBODY),
        "both": replace(plain, user_id=NOBODY, read_only_root=True),
    }
    for name, container in kinds.items():
        running = node.launch(replace(best_effort(name), containers=(container,)))
        seen = node.crictl.execute(running.container_id, "/bin/cat", INSIDE)
        assert json.loads(seen.stdout)["metadata"]["uid"] == running.container_id
        with pytest.raises(CommandError):
            node.crictl.execute(running.container_id, "/bin/sh", "-c", f"echo mine >{INSIDE}")


@pytest.mark.matrix
@on(THIS_MACHINE, "2.4-nri")
def test_a_precreate_hook_of_podman_mounts_the_file(node: Node) -> None:
    node.forms.install()
    node.podman.import_image()
    node.bayplan.start("--set-oom-score-adj", "false", "--placement-files", "all")
    engine = node.forms.engine("precreate", "runc", "cgroupfs")
    made = node.podman.run(engine, Asked("app", memory="100m", cpus=1))
    process = f"/proc/{node.podman.pid(made)}"
    written = json.loads(node.guest.read(f"{process}/root/run/bayplan.dev/placement.json"))
    own = written["cpus"]["exclusive"]
    assert len(parse_ids(own)) == 1
    assert f"Cpus_allowed_list:\t{own}\n" in node.guest.read(f"{process}/status")
    assert written["promises"] == [{"nodes": "0", "bytes": {"memory": 100 << 20}}]
    with pytest.raises(CommandError, match="Read-only file system"):
        node.guest.run("touch", f"{process}/root/run/bayplan.dev/mine")
    # One that shares its CPUs is told of these; both files end with their containers.
    other = node.podman.run(engine, Asked("other", memory="50m", cpus=0.5))
    shared = json.loads(
        node.guest.read(f"/proc/{node.podman.pid(other)}/root/run/bayplan.dev/placement.json")
    )
    assert parse_ids(shared["cpus"]["shared"]).isdisjoint(parse_ids(own))
    assert shared["metadata"]["uid"] == other
    node.podman.remove(made, other)
    node.bayplan.await_known([])
    node.guest.run("timeout", str(LIMIT_S), "sh", "-c", GONE)
