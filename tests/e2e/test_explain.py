"""What bayplan says of its decisions, against what the runtime said and did."""

import json

import pytest
from testbed.node import Node
from testbed.pods import best_effort, guaranteed
from testbed.scenario import on
from testbed.topology import TWO_NODES

BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_explain_says_what_crictl_showed_and_a_memory_policy_reaches_the_spec(node: Node) -> None:
    node.bayplan.start("--topology-manager-policy", "restricted")
    node.bayplan.await_synchronized()
    pods = [node.launch(guaranteed(f"full-{number}", 0.5, "600Mi")) for number in range(2)]
    for pod in pods:
        (placed,) = node.bayplan.ask("explain", pod.container_id)["containers"]
        assert (placed["state"], placed["outcome"]) == ("current", "placed")
        assert {int(placed["placement"]["mems"])} == node.view(pod).mems_allowed
        assert placed["asked"]["memory"]["requestExact"]

    what_if = node.bayplan.ask("what-if", "--memory", "600Mi", "--cpus", "500m", "--name", "default/large")
    shown = node.crictl.refused(guaranteed("large", 0.5, "600Mi"))
    (refused,) = node.bayplan.ask("explain", "large")["containers"]
    assert (refused["state"], refused["name"]) == ("refused", "default/large/main")
    assert refused["refusal"].startswith("TopologyAffinityError: default/large/main: ")
    assert refused["refusal"] in shown
    explained = node.bayplan.command("explain", "default/large").stdout
    assert all(reason["text"] in explained for reason in refused["reasons"])
    assert [pod["containers"][0]["refusal"] for pod in what_if["pods"]] == [refused["refusal"]]

    spread = node.launch(
        best_effort("spread", annotations={"bayplan.dev/memory-policy": "interleave=static"})
    )
    spec = json.loads(node.guest.read(f"{BUNDLES}/{spread.container_id}/config.json"))
    assert spec["linux"]["memoryPolicy"] == {
        "mode": "MPOL_INTERLEAVE",
        "nodes": "0-1",
        "flags": ["MPOL_F_STATIC_NODES"],
    }
    (explained,) = node.bayplan.ask("explain", "spread")["containers"]
    assert explained["placement"]["memoryPolicy"] == "interleave=static:0-1"
