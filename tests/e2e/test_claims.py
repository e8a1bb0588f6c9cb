"""Two nodes that are DRA drivers, with the rights that the chart gives them: pods with claims go where
Kubernetes' scheduler sends them, and kubelet itself has their claims prepared and released, whoever is
started again in between. Beside it what the nodes refuse, and what stays pending, of pods that ask for the
same by their requests.
"""

import enum
import itertools
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from chart import rendered
from testbed import gobuild, kubernetes
from testbed.agent import LOG as AGENT_LOG
from testbed.agent import SERVICE as AGENT
from testbed.channel import LIMIT_S
from testbed.cluster import PODS, POLL_S, await_published, is_ready, join_with_claims, pod
from testbed.kubelet import SERVICE as KUBELET
from testbed.kubelet import Kubelet, kubelet_disks
from testbed.kubernetes import KUBERNETES_VERSION
from testbed.node import Node
from testbed.topology import CLUSTER_NODE

from bayplan.agent.dra.slices import COLLECTION
from bayplan.quantity import MIB, parse_bytes
from bayplan.sets import CpuSet, NodeSet
from support.control_plane import ADMIN, MERGE, ControlPlane, running_control_plane
from support.kubernetes_page import scheduler_configuration

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]

NAMES = ("node-a", "node-b")
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
ACCOUNT = "/api/v1/namespaces/bayplan/serviceaccounts/bayplan-agent"
RIGHTS = ("namespace", "serviceaccounts", "agent-rbac", "agent-own-node", "deviceclasses")
"""The chart's templates that the nodes need."""
SPECS = "/var/run/cdi"
CONFINED = ("--topology-manager-policy", "single-numa-node")
BLIND = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
ROOM = 4
"""Pods: one for each NUMA node, as a claim is more than half of it."""
LOADS = {"node-a": (60, 60), "node-b": (85, 40)}
"""Percent of an empty NUMA node that pods without claims have first, on each: node-b has less left, but most
of it on one NUMA node."""
SIZES = (55, 35, 35, 15, 35)
"""Percent that pods want which come then, one after the other: by NUMA nodes there is room for the first
four; of whole machines node-a has more for the first one, and node-b enough for the last."""
RESYNC_S = 2
"""``cacheResyncPeriodSeconds`` of the documented configuration."""
AGAIN_S = 5
NOISE_MIB = 4


class Way(enum.Enum):
    """How pods find a NUMA node with room."""

    REQUESTS = "requests, and a scheduler that knows no NUMA nodes"
    TOPOLOGY = "requests, and a scheduler that reads NodeResourceTopology"
    CLAIMS = "resource claims"


def template(name: str, **amounts: str) -> dict[str, Any]:
    """A ResourceClaimTemplate with so much of one NUMA node."""
    capacity = {"requests": {f"bayplan.dev/{key}": amount for key, amount in amounts.items()}}
    exactly = {"deviceClassName": "numa.bayplan.dev", "capacity": capacity}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "near", "exactly": exactly}]}}},
    }


class Driver:
    """A node: its parts, each of which can be ended and started again."""

    def __init__(self, name: str, node: Node, kubelet: Kubelet, start_agent: Callable[[], None]) -> None:
        self.name = name
        self.node = node
        self.kubelet = kubelet
        self.start_agent = start_agent

    def kill(self, service: str) -> None:
        self.node.guest.signal(service, signal.SIGKILL)

    def held(self) -> dict[str, Mapping[str, Any]]:
        """The claims that the daemon holds, by their names; without their containers, which come and go."""
        found = self.node.bayplan.ask("claims")["claims"]
        return {one["name"]: {key: one[key] for key in one if key != "containers"} for one in found}

    def free_bytes(self) -> list[int]:
        """What each NUMA node has left."""
        return [one["resources"]["memory"]["freeBytes"] for one in self.node.bayplan.nodes()["nodes"]]

    def claimable_mib(self) -> list[int]:
        """What claims have or can have of each NUMA node, as it is to be published."""
        found = self.free_bytes()
        for claim in self.held().values():
            for device in claim["devices"]:
                found[device["node"]] += device["bytes"].get("memory", 0)
        return [amount // MIB for amount in found]

    def specs(self) -> set[str]:
        return set(self.node.guest.read_files(f"{SPECS}/*.json", pattern=True))

    def logs(self) -> str:
        read = self.node.guest.read_files(AGENT_LOG, "/var/log/kubelet.log")
        return "\n".join(text[-3000:] for text in read.values()) + self.node.bayplan.log()[-3000:]


class Cluster:
    """The control plane with scheduler and the controller that makes claims, and the nodes by name."""

    def __init__(self, plane: ControlPlane, drivers: Mapping[str, Driver]) -> None:
        self.plane = plane
        self.drivers = drivers
        self._numbers = itertools.count()

    def launch(self, of: str = "near") -> str:
        """Make a pod with a claim of a template; its name. Where a pod has no time to end, it is gone for the
        scheduler before kubelet has its claims released (kubernetes#131513)."""
        claims = [{"name": "near", "resourceClaimTemplateName": of}]
        return self.make({"claims": [{"name": "near"}]}, resourceClaims=claims)

    def make(self, resources: Mapping[str, Any], **spec: object) -> str:
        """Make a pod; its name."""
        name = f"pod-{next(self._numbers)}"
        self.plane.ask("POST", PODS, pod(name, resources, terminationGracePeriodSeconds=1, **spec))
        return name

    def fill(self) -> None:
        """Have a pod on each NUMA node."""
        while len(self.pods()) < ROOM:
            self.launch()
        self.await_that(lambda: sum(map(is_ready, self.pods().values())) == ROOM, "all of them run")

    def pods(self) -> dict[str, Mapping[str, Any]]:
        return {one["metadata"]["name"]: one for one in self.plane.ask("GET", PODS)["items"]}

    def on(self, name: str) -> list[str]:
        """The pods of a node."""
        return [pod for pod, one in self.pods().items() if one["spec"].get("nodeName") == name]

    def delete(self, name: str) -> None:
        self.plane.ask("DELETE", f"{PODS}/{name}")

    def await_that(self, condition: Callable[[], Any], what: str) -> Any:
        """What *condition* gives, once that is something true."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := condition()):
            if time.monotonic() > deadline:
                logs = "\n".join(one.logs() for one in self.drivers.values())
                pytest.fail(f"{what}: not within {LIMIT_S} s; {self.pods()}\n{logs}")
            time.sleep(POLL_S)
        return found

    def claim_of(self, made: Mapping[str, Any]) -> Mapping[str, Any]:
        """The claim of a pod."""
        (one,) = made["status"]["resourceClaimStatuses"]
        return self.plane.ask("GET", f"{CLAIMS}/{one['resourceClaimName']}")

    def runs_on_what_is_booked(self, name: str) -> tuple[str, frozenset[int], frozenset[int]]:
        """Where a pod that is ready is, by scheduler, ledger, kernel and its own environment, which
        all say the same: machine, NUMA nodes, CPUs."""
        self.await_that(lambda: is_ready(self.pods()[name]), f"{name} runs")
        made = self.pods()[name]
        claim, driver = self.claim_of(made), self.drivers[made["spec"]["nodeName"]]
        uid = claim["metadata"]["uid"]
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        held = driver.held()[f"default/{claim['metadata']['name']}"]
        assert (held["uid"], held["podUids"]) == (uid, [made["metadata"]["uid"]])
        assert (result["pool"], result["device"]) == (driver.name, f"numa-{held['nodes']}")
        (status,) = made["status"]["containerStatuses"]
        view = driver.node.view(status["containerID"].removeprefix("containerd://"))
        assert view.mems_allowed == frozenset(NodeSet.parse(held["nodes"]))
        assert view.cpus_allowed == frozenset(CpuSet.parse(held["cpus"]))
        assert view.cpus_allowed <= driver.node.kernel.cpus_of_nodes()[min(view.mems_allowed)]
        environment = driver.node.guest.read(f"/proc/{view.pid}/environ").split("\0")
        assert f"{uid}/near" in [one.partition("=")[2] for one in environment]
        return driver.name, view.mems_allowed, view.cpus_allowed

    def devices_mib(self, name: str) -> list[int]:
        """The memory of each device of a node, as it is published."""
        slices = (one["spec"] for one in self.plane.ask("GET", COLLECTION)["items"])
        capacities = (
            device["capacity"]["bayplan.dev/memory"]["value"]
            for spec in slices
            if spec["nodeName"] == name and spec["driver"] == "bayplan.dev"
            for device in spec["devices"]
        )
        return [parse_bytes(text) // MIB for text in capacities]

    def refusals(self) -> int:
        """What the nodes refused so far."""
        counters = (one.node.bayplan.status()["counters"] for one in self.drivers.values())
        return sum(found.get("decisions_refused", 0) for found in counters)

    def clear(self) -> None:
        """No pods, no claims; the nodes hold nothing."""
        for name in self.pods():
            self.delete(name)
        self.await_that(lambda: not self.pods(), "the pods go")
        for driver in self.drivers.values():
            self.await_that(lambda driver=driver: not driver.held() and not driver.specs(), "claims go")


@pytest.fixture(scope="module")
def joined() -> Iterator[Cluster]:
    """The cluster, whose nodes are joined once for all scenarios."""
    with ExitStack() as running:
        plane = running.enter_context(running_control_plane(kubernetes.api_server(), *NAMES))
        plane.define(kubernetes.topology_crd())
        objects = rendered(
            "--set=agent.clusterTasks={topology,pods,events,claims}",
            "--set=namespace.create=true",
            *(f"--show-only=templates/{one}.yaml" for one in RIGHTS),
        )
        kubeconfig = plane.kubeconfig("admin", token=ADMIN)
        words = (gobuild.kubectl(), f"--kubeconfig={kubeconfig}", "create", "--filename=-")
        subprocess.run(words, input=objects, text=True, check=True, capture_output=True)
        plane.ask("POST", TEMPLATES, template("near", memory="600Mi", cpu="1"))
        drivers = {}
        for name in NAMES:
            node = Node(CLUSTER_NODE, "2.3", more_disks=kubelet_disks(KUBERNETES_VERSION))
            running.callback(node.shut_down)
            drivers[name] = Driver(name, node, *join_with_claims(node, plane, name, ACCOUNT, *CONFINED))
            # Of a kubelet that was not ready yet; a controller takes it away.
            plane.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)
        plane.start_controllers(kubernetes.controller_manager(), "resourceclaim-controller")
        plane.start_scheduler(kubernetes.kube_scheduler(), BLIND)
        cluster = Cluster(plane, drivers)
        cluster.await_that(lambda: len(published(plane)) == len(NAMES), "ResourceSlices")
        yield cluster
        cluster.clear()


@pytest.fixture
def cluster(joined: Cluster) -> Cluster:
    """The cluster with a pod on each NUMA node."""
    joined.fill()
    return joined


def published(plane: ControlPlane) -> dict[str, int]:
    """The generation of what each node has published."""
    slices = [one["spec"] for one in plane.ask("GET", COLLECTION)["items"]]
    return {one["nodeName"]: one["pool"]["generation"] for one in slices if one["driver"] == "bayplan.dev"}


def is_unschedulable(made: Mapping[str, Any]) -> bool:
    return any(one.get("reason") == "Unschedulable" for one in made["status"].get("conditions", ()))


def test_no_node_refuses_a_claim_and_none_waits_that_would_fit(cluster: Cluster) -> None:
    names = list(cluster.pods())
    places = {name: cluster.runs_on_what_is_booked(name) for name in names}
    taken = {(machine, min(nodes)) for machine, nodes, _ in places.values()}
    assert taken == {(name, node) for name in NAMES for node in (0, 1)}
    late, one = cluster.launch(), names[0]
    cluster.await_that(lambda: is_unschedulable(cluster.pods()[late]), "there is no room for one more")
    # What kubelet was told of the devices.
    cluster.await_that(lambda: health_of(cluster.pods()[one]) == {"Healthy"}, "a healthy device")
    cluster.delete(one)
    cluster.await_that(lambda: is_ready(cluster.pods()[late]), "the late one runs")
    machine, nodes, _ = cluster.runs_on_what_is_booked(late)
    assert (machine, nodes) == places[one][:2]
    assert cluster.refusals() == 0


def health_of(made: Mapping[str, Any]) -> set[str]:
    """What a pod's status says of the health of its devices."""
    statuses = made["status"].get("containerStatuses", ())
    rows = (row for one in statuses for row in one.get("allocatedResourcesStatus", ()))
    return {one["health"] for row in rows for one in row.get("resources", ())}


def test_whoever_is_killed_in_between_nothing_is_lost_and_all_is_released(cluster: Cluster) -> None:
    driver = cluster.drivers[NAMES[0]]
    stays, goes = cluster.on(driver.name)
    before, held = cluster.runs_on_what_is_booked(stays), driver.held()

    # Without an agent nobody releases a claim; kubelet asks the next one.
    driver.kill(AGENT)
    cluster.delete(goes)
    time.sleep(5)
    assert goes in cluster.pods()
    assert driver.held() == held
    driver.start_agent()
    cluster.await_that(lambda: goes not in cluster.pods(), "the pod goes")
    cluster.await_that(lambda: len(driver.held()) == 1, "its claim is released")

    # Daemon, agent and kubelet, and all that a reboot loses: CDI specs, sandboxes, containers.
    generation = published(cluster.plane)[driver.name]
    driver.kill(AGENT)
    driver.kill(KUBELET)
    driver.node.bayplan.kill()
    driver.node.guest.run("sh", "-c", f"rm -rf {SPECS}/*")
    driver.node.crictl.remove_everything()
    driver.kubelet.start_again()
    driver.node.bayplan.start_again()
    driver.start_agent()
    cluster.await_that(
        lambda: restarts(cluster.pods()[stays]) and is_ready(cluster.pods()[stays]), "it runs again"
    )
    assert cluster.runs_on_what_is_booked(stays) == before
    assert driver.held().items() < held.items()
    # kubelet deleted them at its start.
    cluster.await_that(lambda: published(cluster.plane).get(driver.name, 0) >= generation, "ResourceSlices")
    late = cluster.launch()
    machine, nodes, _ = cluster.runs_on_what_is_booked(late)
    assert (machine, nodes & before[1]) == (driver.name, frozenset())


def restarts(made: Mapping[str, Any]) -> int:
    return sum(one["restartCount"] for one in made["status"].get("containerStatuses", ()))


class Trial:
    """Pods that come to two nodes with LOADS, and find their NUMA node by one way."""

    def __init__(self, cluster: Cluster, way: Way, whole_bytes: int) -> None:
        self.cluster = cluster
        self.way = way
        self.whole_bytes = whole_bytes
        self.outcomes: Counter[str] = Counter()

    def load(self) -> None:
        loaded = [
            self.cluster.make(self._requests(percent), nodeName=name)
            for name, loads in LOADS.items()
            for percent in loads
        ]
        for name in loaded:
            self.cluster.await_that(lambda name=name: is_ready(self.cluster.pods()[name]), "what was there")

    def play(self) -> Counter[str]:
        """What becomes of pods of SIZES."""
        for percent in SIZES:
            self._settle()
            self._run(percent)
        return self.outcomes

    def _run(self, percent: int) -> None:
        cluster, refused = self.cluster, self.cluster.refusals()
        most_bytes = max(free for one in cluster.drivers.values() for free in one.free_bytes())
        fits = most_bytes >= self._bytes(percent)
        by_claim = self.way is Way.CLAIMS
        name = cluster.launch(f"take-{percent}") if by_claim else cluster.make(self._requests(percent))

        def outcome() -> str:
            made = cluster.pods()[name]
            if is_ready(made):
                return "runs"
            if is_unschedulable(made):
                return "pending, would fit" if fits else "pending"
            return "refused" if cluster.refusals() > refused else ""

        found = cluster.await_that(outcome, f"what becomes of {name}")
        if found == "pending, would fit":
            # The scheduler may have seen an earlier state of its own; it tries again as that changes.
            time.sleep(AGAIN_S)
            found = cluster.await_that(outcome, f"what becomes of {name}")
        self.outcomes[found] += 1
        if found != "runs":
            cluster.delete(name)
            cluster.await_that(lambda: name not in cluster.pods(), f"{name} goes")

    def _settle(self) -> None:
        """Have the room published as it is, and give a scheduler that counts by NodeResourceTopology time to
        compare it."""
        cluster = self.cluster
        for name, driver in cluster.drivers.items():
            await_published(driver.node, cluster.plane, name)
            cluster.await_that(
                lambda name=name, driver=driver: is_near(cluster.devices_mib(name), driver.claimable_mib()),
                f"ResourceSlices of {name}",
            )
        held = self.outcomes["runs"] if self.way is Way.CLAIMS else 0
        cluster.await_that(lambda: len(cluster.plane.ask("GET", CLAIMS)["items"]) == held, "claims go")
        time.sleep(2 * RESYNC_S if self.way is Way.TOPOLOGY else 1)

    def _bytes(self, percent: int) -> int:
        return part_mib(self.whole_bytes, percent) * MIB

    def _requests(self, percent: int) -> dict[str, Any]:
        # Its sandbox starts within the pod's limit, too.
        amounts = {"cpu": "250m", "memory": str(self._bytes(percent))}
        return {"limits": amounts, "requests": amounts}


def part_mib(whole_bytes: int, percent: int) -> int:
    """What pods ask for: a claim is rounded up to MiB."""
    return whole_bytes * percent // 100 // MIB


def is_near(found_mib: Sequence[int], wanted_mib: Sequence[int]) -> bool:
    """Whether each is, but for what is measured anew all the time."""
    pairs = itertools.zip_longest(found_mib, wanted_mib, fillvalue=0)
    return all(abs(found - wanted) <= NOISE_MIB for found, wanted in pairs)


def test_what_nodes_refuse_and_what_stays_pending_by_requests_topology_and_claims(joined: Cluster) -> None:
    joined.clear()
    whole_bytes = min(free for one in joined.drivers.values() for free in one.free_bytes())
    for percent in set(SIZES):
        amount = f"{part_mib(whole_bytes, percent)}Mi"
        joined.plane.ask("POST", TEMPLATES, template(f"take-{percent}", memory=amount))
    found = {}
    for way in Way:
        joined.plane.stop_schedulers()
        trial = Trial(joined, way, whole_bytes)
        trial.load()
        if way is Way.TOPOLOGY:
            joined.plane.start_scheduler(kubernetes.scheduler(), scheduler_configuration())
        else:
            joined.plane.start_scheduler(kubernetes.kube_scheduler(), BLIND)
        found[way] = trial.play()
        joined.clear()
    print({way.name: dict(outcomes) for way, outcomes in found.items()})
    assert found[Way.REQUESTS]["refused"] > 0
    assert found[Way.TOPOLOGY]["refused"] == 0
    assert found[Way.CLAIMS]["refused"] == 0
    assert found[Way.CLAIMS]["pending, would fit"] == 0
    assert found[Way.CLAIMS]["runs"] > found[Way.REQUESTS]["runs"]
