"""bayplan-agent beside kubelet and the daemon: requests are exact, whoever dies or is away."""

import json
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from testbed.agent import GROUP, LOG, SERVICE, start_agent
from testbed.bayplan import POLL_S
from testbed.channel import LIMIT_S
from testbed.kubelet import NODE_NAME, ROOT, Kubelet, kubelet_disks
from testbed.kubernetes import KUBELET_VERSIONS
from testbed.node import Node
from testbed.oci import WORKLOAD_IMAGE
from testbed.pods import MIB
from testbed.topology import TWO_NODES

CA = "/run/kubelet.crt"
PODS_API = f"{ROOT}/pods-api"
OTHERS_MAY_CONNECT = f"chmod o+x {ROOT} {PODS_API} && chmod o+rw {PODS_API}/pods-api.sock"
AWAY_S = 60.0

# Ways to kubelet: the flags of the agent, kubelet's own keys, and what root does before it may ask.
WAYS: Mapping[str, tuple[tuple[str, ...], Mapping[str, object], str]] = {
    "pods-api": ((), {"featureGates": {"PodsAPI": True}}, OTHERS_MAY_CONNECT),
    "https": (
        (
            *("--kubelet-url", "https://127.0.0.1:10250/pods"),
            *("--kubelet-ca", CA, "--kubelet-server-name", NODE_NAME),
        ),
        {},
        f"install -m 644 {ROOT}/pki/kubelet.crt {CA}",
    ),
}


def container(
    name: str, requests: Mapping[str, str], limits: Mapping[str, str], **more: str
) -> dict[str, Any]:
    return {
        "name": name,
        "image": WORKLOAD_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/workload", "pause"],
        "resources": {"requests": requests, "limits": limits},
        **more,
    }


def spec(containers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"hostNetwork": True, "terminationGracePeriodSeconds": 0, "containers": containers, **more}


# A sidecar's oom_score_adj is that of the main container: it says nothing about the sidecar's own request.
MIXED = spec(
    [container("main", {"cpu": "100m", "memory": "133Mi"}, {"memory": "200Mi"})],
    initContainers=[container("helper", {"cpu": "20m", "memory": "11Mi"}, {}, restartPolicy="Always")],
)
WHOLE = spec(
    [container("some", {"cpu": "50m", "memory": "47Mi"}, {}), container("none", {}, {})],
    resources={"requests": {"cpu": "100m", "memory": "203Mi"}, "limits": {"memory": "301Mi"}},
)
LATE = spec([container("main", {"cpu": "150m", "memory": "155Mi"}, {"memory": "260Mi"})])
# Each container of `whole` is promised half of what the pod requests beyond its containers, 156Mi.
EXACT = {
    "mixed/helper": 11 * MIB,
    "mixed/main": 133 * MIB,
    "whole/some": (47 + 78) * MIB,
    "whole/none": 78 * MIB,
}


@pytest.fixture(scope="module")
def machine() -> Iterator[Node]:
    booted = Node(TWO_NODES, "2.3", more_disks=kubelet_disks(KUBELET_VERSIONS[0]))
    yield booted
    booted.shut_down()


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    machine.prepare()
    yield machine
    for service in (SERVICE, "kubelet"):
        if machine.guest.running(service) is not None:
            machine.guest.signal(service, signal.SIGKILL)


def requests(node: Node) -> dict[str, Mapping[str, Any]]:
    """What bayplan shows of memory requests, by pod and container."""
    return {
        one["name"].removeprefix("default/").replace(f"-{NODE_NAME}/", "/"): one["memory"]
        for one in node.bayplan.status()["containers"]
    }


def is_exact(found: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, int]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name]["requestExact"] and found[name]["requestHighBytes"] == amount
        for name, amount in wanted.items()
    )


def await_exact(node: Node, wanted: Mapping[str, int]) -> Mapping[str, Mapping[str, Any]]:
    """Wait until the requests are exactly these; the agent asks once a minute at least."""
    deadline = time.monotonic() + LIMIT_S + AWAY_S
    while not is_exact(found := requests(node), wanted):
        log = node.guest.read_files(LOG).get(LOG, "")
        assert time.monotonic() < deadline, f"{json.dumps(found, indent=1)}\n{log}"
        time.sleep(POLL_S)
    return found


@pytest.mark.matrix
@pytest.mark.parametrize("way", WAYS)
def test_requests_are_exact_whoever_dies(node: Node, way: str) -> None:
    flags, config, permit = WAYS[way]
    kubelet = Kubelet(node.guest)
    node.bayplan.start("--agent-group", GROUP)
    node.bayplan.await_synchronized()
    kubelet.start(config)
    wait = f"until {permit}; do sleep 0.2; done"
    node.guest.run("sh", "-c", wait, limit_s=LIMIT_S)
    start_agent(node.guest, *flags)
    node.guest.run("sh", "-c", f"until grep -qs 'following' {LOG}; do sleep 0.2; done", limit_s=LIMIT_S)

    kubelet.put("mixed", MIXED)
    kubelet.put("whole", WHOLE)
    found = await_exact(node, EXACT)
    assert {one["requestSource"] for one in found.values()} == {"kubelet"}
    claims = {one["name"]: one for one in node.bayplan.status()["containers"]}
    assert claims[f"default/mixed-{NODE_NAME}/main"]["bookedBytes"]

    # A container that was created and not started is not listed to a daemon that comes anew.
    kubelet.containers([(pod, name) for pod, _, name in (key.partition("/") for key in EXACT)])
    # Nobody is missed: kubelet away, then the agent, then the daemon, then both.
    kubelet.stop()
    # It leaves its socket there, and makes another one: that one is to be permitted.
    node.guest.run("rm", "-f", f"{PODS_API}/pods-api.sock")
    away_until = time.monotonic() + AWAY_S
    while time.monotonic() < away_until:
        assert is_exact(requests(node), EXACT)
        time.sleep(5)
    node.guest.signal(SERVICE, signal.SIGKILL)
    assert is_exact(requests(node), EXACT)
    node.bayplan.kill()
    node.bayplan.start_again()
    node.bayplan.await_synchronized()
    assert is_exact(requests(node), EXACT)
    start_agent(node.guest, *flags)
    kubelet.start_again()
    node.guest.run("sh", "-c", wait, limit_s=LIMIT_S)
    kubelet.put("late", LATE)
    await_exact(node, {**EXACT, "late/main": 155 * MIB})
    assert node.bayplan.status()["counters"].get("agent_requests_not_used", 0) == 0
