"""`bayplan release`: containers get back what their parents may use, with a daemon and without."""

from testbed.crictl import Running
from testbed.node import Node
from testbed.pods import MIB, best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import TWO_NODES

ALL = (frozenset(range(4)), frozenset({0, 1}))
"""The CPUs and nodes of `TWO_NODES`."""


@on(TWO_NODES, "2.4")
def test_released_containers_have_their_parents_cpus_and_nodes(node: Node) -> None:
    node.bayplan.start()
    node.bayplan.await_synchronized()
    owner = node.launch(guaranteed("owner", 1, "100Mi"))
    shared = node.launch(best_effort("shared"))
    narrowed = [cpusets(node, pod) for pod in (owner, shared)]
    assert all(cpus < ALL[0] for cpus, _ in narrowed)

    assert not outcomes(node.bayplan.ask("release"))
    assert [cpusets(node, pod) for pod in (owner, shared)] == narrowed
    assert outcomes(node.bayplan.ask("release", "--yes")) == {"given back"}
    assert [cpusets(node, pod) for pod in (owner, shared)] == [ALL, ALL]

    # The daemon goes on: whoever comes later is placed, and those that were given back share its CPUs.
    later = node.launch(guaranteed("later", 1, "100Mi"))
    own = cpusets(node, later)
    assert len(own[0]) == 1
    assert [cpusets(node, pod) for pod in (owner, shared)] == [ALL, ALL]
    # containerd repeats its own record with a changed limit.
    node.crictl.update(owner.container_id, memory=150 * MIB)
    assert cpusets(node, owner) == narrowed[0]

    node.bayplan.stop()
    assert outcomes(node.bayplan.ask_in_guest("release", "--yes")) == {"given back"}
    assert [cpusets(node, pod) for pod in (owner, shared, later)] == [ALL, ALL, ALL]
    node.bayplan.start()
    node.bayplan.await_synchronized()
    assert [cpusets(node, pod) for pod in (owner, shared, later)] == [ALL, ALL, ALL]


def cpusets(node: Node, pod: Running) -> tuple[frozenset[int], frozenset[int]]:
    view = node.view(pod)
    return view.cpus_allowed, view.mems_allowed


def outcomes(answer: dict[str, object]) -> set[object]:
    """What became of the containers; empty where nothing was done."""
    containers = answer["containers"]
    assert isinstance(containers, list)
    assert containers
    return {one["outcome"] for one in containers} - {None}
