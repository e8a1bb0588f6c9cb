"""A real kubelet and bayplan under the same threshold: the same order of pods, and only one of them acts.

Without an API server kubelet has static pods alone, and evicts none of them: for it they are critical. But it
ranks all, and logs the order before it looks who may go.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from testbed.kubelet import Kubelet, kubelet_disks, pod_spec
from testbed.kubernetes import KUBELET_VERSIONS
from testbed.node import Node
from testbed.pods import MIB, cgroup_parent, size
from testbed.topology import FOUR_NODES

from bayplan.kubelet.eviction_manager import PodUsage, eviction_order

LIMIT_S = 600.0
POLL_S = 2.0
SIGNAL = "memory.available"
SHARE = "99%"
"""Met as soon as anything runs. Soft, so that it is not reserved: nothing else would be admitted."""
GRACE = "1s"
RANKED = re.compile(r"pods ranked for eviction.* pods=\[([^]]*)\]")
NAME = re.compile(r"default/([a-z]+)-node")


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod with one container that requests so much memory, none for BestEffort, and uses so much."""

    name: str
    uses: str
    requests: str = ""
    priority: int = 0

    @property
    def qos(self) -> str:
        return "Burstable" if self.requests else "BestEffort"

    def spec(self) -> dict[str, object]:
        resources = {"requests": {"memory": self.requests}} if self.requests else {}
        spec = pod_spec({"main": {}})
        (container,) = spec["containers"]  # type: ignore[misc]  # what pod_spec has just made
        command = ["/bin/workload", "touch", str(size(self.uses))]
        return {
            **spec,
            "priority": self.priority,
            "containers": [{**container, "command": command, "resources": resources}],
        }


PODS = (
    Asked("within", "100Mi", "300Mi"),
    Asked("small", "60Mi"),
    Asked("over", "300Mi", "50Mi"),
    Asked("large", "150Mi"),
    Asked("low", "90Mi", "50Mi", priority=-5),
)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    booted = Node(FOUR_NODES, "2.3", more_disks=kubelet_disks(KUBELET_VERSIONS[0]))
    booted.prepare()
    yield booted
    booted.shut_down()


@pytest.mark.matrix
def test_kubelets_order_is_ours_and_its_pressure_is_left_to_it(node: Node) -> None:
    node.bayplan.start(
        *("--memory-pressure", "evict", "--eviction-soft", f"{SIGNAL}<{SHARE}"),
        *("--eviction-soft-grace-period", f"{SIGNAL}={GRACE}"),
    )
    node.bayplan.await_synchronized()
    kubelet = Kubelet(node.guest)
    kubelet.start({"evictionSoft": {SIGNAL: SHARE}, "evictionSoftGracePeriod": {SIGNAL: GRACE}})
    try:
        verdicts = {one.name: kubelet.admit(one.name, one.spec()) for one in PODS}
        assert not [one for one in verdicts.values() if one.reason]
        ids = kubelet.containers([(one.name, "main") for one in PODS])
        cgroups = {one.name: cgroup_parent(one.qos, verdicts[one.name].uid) for one in PODS}
        used = await_touched(node, cgroups)
        expected = [
            one.name
            for one in eviction_order(
                PodUsage(one.name, used[one.name], size(one.requests or "0"), one.priority) for one in PODS
            )
        ]
        assert expected == ["low", "over", "large", "small", "within"]
        # Its numbers are some seconds old: in the end they are those of what runs now.
        deadline, ranked = time.monotonic() + LIMIT_S, [""]
        while NAME.findall(ranked[-1]) != expected:
            assert time.monotonic() < deadline, ranked[-1]
            time.sleep(POLL_S)
            ranked = ["", *RANKED.findall(kubelet.log())]
        problems = node.bayplan.status()["problems"]
        assert any(problem.startswith("nobody is evicted: ") for problem in problems)
        assert any(problem.startswith(f"eviction threshold met: {SIGNAL} is ") for problem in problems)
        assert kubelet.containers(ids) == ids
        assert "0 containers were evicted" in node.bayplan.command("report", "--since", "1h").stdout
    finally:
        kubelet.stop()


def await_touched(node: Node, cgroups: dict[str, str]) -> dict[str, int]:
    """The working set of each pod, once it uses what it is to use."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        used = {name: working_set_bytes(node, path) for name, path in cgroups.items()}
        if all(used[one.name] >= size(one.uses) for one in PODS):
            return used
        assert time.monotonic() < deadline, {name: amount // MIB for name, amount in used.items()}
        time.sleep(POLL_S)


def working_set_bytes(node: Node, cgroup: str) -> int:
    current, stat = (node.guest.read(f"/sys/fs/cgroup{cgroup}/memory.{name}") for name in ("current", "stat"))
    rows = dict(line.split(" ", 1) for line in stat.splitlines())
    return int(current) - int(rows["inactive_file"])
