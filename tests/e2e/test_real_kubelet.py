"""The same pods, in the same order, under the same policies: kubelet itself, then bayplan as kubelet.

Compared are what kubelet's state files say at each admission, its reasons and messages, what the kernel shows
of the containers at the end, and the state files of both. Then a node goes from one to the other and back,
and from a version of kubelet to the next one and back. The newest version runs every scenario, the other one
those that depend on it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from testbed.errors import CommandError
from testbed.kernel import parse_ids
from testbed.kubelet import CONFIG, Kubelet, Verdict, kubelet_disks, pod_spec
from testbed.kubernetes import KUBELET_VERSIONS
from testbed.node import Node
from testbed.pods import PERIOD_US, Container, Pod, cgroup_parent, new_uid, size
from testbed.topology import FOUR_NODES

from support.console_blocks import commands

Limits = Mapping[str, str]
Ids = frozenset[int]

CONTAINERD = "2.3"
SHOWN = commands("run by tests/e2e/test_real_kubelet.py")
"""What docs/kubelet-state.md has an operator type: to take a node over, and to give it back."""

REJECTED = "Pod was rejected: "
PAGES = "hugepages-2Mi"

MANAGERS: Mapping[str, object] = {
    "cpuManagerPolicy": "static",
    "cpuManagerReconcilePeriod": "1s",
    "reservedSystemCPUs": "0",
    "memoryManagerPolicy": "Static",
    "systemReserved": {"memory": "100Mi"},
    "evictionHard": {"memory.available": "100Mi"},
    "reservedMemory": [{"numaNode": node, "limits": {"memory": "50Mi"}} for node in range(4)],
}


OFF: Mapping[str, object] = {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod of containers with these limits, all of them requested too; or the removal of one."""

    name: str
    containers: Mapping[str, Limits] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a container was put: its memory nodes if it is bound to some, its CPUs if it has own ones."""

    mems: Ids | None
    exclusive_cpus: Ids


@dataclass(slots=True)
class Outcome:
    """``placed``: by pod, the places of its containers, or the word for its refusal. ``messages``: by refused
    pod. ``kernel``: the nodes and CPUs that the kernel allows the containers that are left, by pod and name.
    ``booked`` and ``allocatable``: bytes by node and resource."""

    placed: dict[str, dict[str, Place] | str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    kernel: dict[tuple[str, str], tuple[Ids, Ids]] = field(default_factory=dict)
    booked: dict[int, dict[str, int]] = field(default_factory=dict)
    allocatable: dict[int, dict[str, int]] = field(default_factory=dict)


def asked(name: str, cpu: str, memory: str, **more: str) -> Asked:
    """A pod with one container."""
    return Asked(name, {"main": _limits(cpu, memory, **more)})


def pair(name: str, first: tuple[str, str], second: tuple[str, str]) -> Asked:
    """A pod with two containers."""
    return Asked(name, {"one": _limits(*first), "two": _limits(*second)})


def gone(name: str) -> Asked:
    return Asked(name)


def _limits(cpu: str, memory: str, hugepages: str = "") -> Limits:
    return {"cpu": cpu, "memory": memory, **({PAGES: hugepages} if hugepages else {})}


@pytest.fixture(scope="module")
def machine() -> Iterator[Node]:
    booted = Node(FOUR_NODES, CONTAINERD, more_disks=kubelet_disks(*KUBELET_VERSIONS))
    yield booted
    booted.shut_down()


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    machine.prepare()
    yield machine
    kubelet = Kubelet(machine.guest)
    if kubelet.running():
        kubelet.stop()


VERSIONS = pytest.mark.parametrize("version", KUBELET_VERSIONS)


@VERSIONS
@pytest.mark.parametrize(
    ("policies", "steps"),
    [
        pytest.param(
            {"topologyManagerPolicy": "restricted"},
            [
                asked("core", "2", "300Mi"),
                asked("shared", "500m", "400Mi"),
                pair("mixed", ("1", "200Mi"), ("500m", "300Mi")),
                asked("huge", "500m", "100Mi", hugepages="64Mi"),
                asked("wide", "500m", "1200Mi"),
                asked("three", "3", "100Mi"),
                gone("core"),
                asked("core-again", "2", "500Mi"),
                asked("full", "500m", "840Mi"),
                asked("too-large", "500m", "4Gi"),
            ],
            id="restricted",
        ),
        pytest.param(
            {
                "topologyManagerPolicy": "single-numa-node",
                "topologyManagerScope": "pod",
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
            },
            [
                pair("aligned", ("2", "200Mi"), ("500m", "300Mi")),
                asked("half-a-core", "1", "100Mi"),
                pair("two-cores", ("2", "100Mi"), ("2", "100Mi")),
                pair("memory", ("500m", "300Mi"), ("500m", "500Mi")),
                asked("wide", "500m", "1200Mi"),
                asked("core", "2", "600Mi"),
                gone("aligned"),
                pair("aligned-again", ("2", "500Mi"), ("300m", "200Mi")),
                pair("too-large-together", ("500m", "600Mi"), ("500m", "600Mi")),
                # kubelet takes back what the refused pod's first container got when the next pod comes.
                asked("last", "100m", "50Mi"),
            ],
            id="single-numa-node-pod-scope-full-cores",
        ),
        pytest.param(
            {
                "topologyManagerPolicy": "best-effort",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
                "cpuManagerPolicyOptions": {
                    "distribute-cpus-across-numa": "true",
                    "strict-cpu-reservation": "true",
                },
            },
            [
                asked("spread", "4", "500Mi"),
                asked("one", "1", "200Mi"),
                asked("wide", "500m", "1500Mi"),
                asked("shared", "500m", "300Mi"),
                asked("too-many", "3", "100Mi"),
                gone("spread"),
                asked("next", "2", "700Mi"),
            ],
            id="best-effort-closest-distributed",
        ),
    ],
)
def test_the_same_pods_get_the_same_places(
    node: Node, policies: Mapping[str, object], steps: list[Asked], version: str
) -> None:
    theirs = by_kubelet(Kubelet(node.guest, version), node, {**MANAGERS, **policies}, steps)
    node.prepare()
    ours = by_bayplan(node, steps, version)
    assert ours.placed == theirs.placed
    assert set(theirs.messages) == set(ours.messages)
    for name, message in theirs.messages.items():
        assert message.removeprefix(REJECTED) in ours.messages[name]
    assert ours.kernel == theirs.kernel
    assert ours.allocatable == theirs.allocatable
    assert ours.booked == theirs.booked


def by_kubelet(kubelet: Kubelet, node: Node, config: Mapping[str, object], steps: list[Asked]) -> Outcome:
    """What kubelet does; afterwards it is stopped and its pods are left."""
    outcome = Outcome()
    kubelet.start(config)
    alive: dict[str, tuple[str, Mapping[str, Place]]] = {}
    for step in steps:
        if not step.containers:
            kubelet.remove(step.name)
            del alive[step.name]
            continue
        verdict = kubelet.admit(step.name, pod_spec(step.containers))
        if verdict.reason:
            outcome.placed[step.name] = verdict.reason
            outcome.messages[step.name] = verdict.message
            continue
        places = _places(kubelet, verdict, step)
        outcome.placed[step.name] = places
        alive[step.name] = verdict.uid, places
    ids = kubelet.containers([(pod, name) for pod, (_, places) in alive.items() for name in places])
    cgroups = {key: _cgroup(alive[key[0]][0], container_id) for key, container_id in ids.items()}
    shared = parse_ids(kubelet.state("cpu")["defaultCpuSet"])
    wanted = {cgroup: alive[pod][1][name].exclusive_cpus or shared for (pod, name), cgroup in cgroups.items()}
    kubelet.await_cpus(wanted)
    outcome.kernel = _kernel(node, cgroups)
    for text, state in kubelet.state("memory")["machineState"].items():
        tables = {name: table for name, table in state["memoryMap"].items() if table["total"]}
        outcome.booked[int(text)] = {name: table["reserved"] for name, table in tables.items()}
        outcome.allocatable[int(text)] = {name: table["allocatable"] for name, table in tables.items()}
    kubelet.stop()
    return outcome


def by_bayplan(node: Node, steps: list[Asked], version: str) -> Outcome:
    """What bayplan does under kubelet's own file, when crictl asks for what kubelet would ask for."""
    outcome = Outcome()
    flags = (f"--config={CONFIG}", f"--kubelet-version={version}", "--measured-reservation=false")
    node.bayplan.start("--engine=kubelet", *flags)
    node.bayplan.await_synchronized()
    sandboxes: dict[str, tuple[Pod, str]] = {}
    containers: dict[tuple[str, str], str] = {}
    for step in steps:
        if not step.containers:
            _collect(node, outcome, containers)
            node.crictl.remove_sandbox(sandboxes.pop(step.name)[1])
            containers = {key: value for key, value in containers.items() if key[0] != step.name}
            continue
        pod = _as_kubelet_asks(step)
        sandbox_id = node.crictl.run_sandbox(pod)
        try:
            ids = {one.name: node.crictl.create(sandbox_id, pod, one) for one in pod.containers}
        except CommandError as error:
            node.crictl.remove_sandbox(sandbox_id)
            said = f"{error.stdout}\n{error.stderr}"
            outcome.messages[step.name] = said
            outcome.placed[step.name] = said.partition(f": default/{step.name}/")[0].split()[-1]
            continue
        node.crictl.start(*ids.values())
        sandboxes[step.name] = pod, sandbox_id
        containers.update({(step.name, name): key for name, key in ids.items()})
    _collect(node, outcome, containers)
    outcome.kernel = _kernel(
        node,
        {key: _cgroup(sandboxes[key[0]][0].uid, container_id) for key, container_id in containers.items()},
    )
    for entry in node.bayplan.nodes()["nodes"]:
        resources = {name: row for name, row in entry["resources"].items() if row["totalBytes"]}
        outcome.booked[entry["id"]] = {name: row["bookedBytes"] for name, row in resources.items()}
        outcome.allocatable[entry["id"]] = {name: row["allocatableBytes"] for name, row in resources.items()}
    return outcome


def _places(kubelet: Kubelet, verdict: Verdict, step: Asked) -> dict[str, Place]:
    blocks = (kubelet.state("memory").get("entries") or {}).get(verdict.uid, {})
    cpus = (kubelet.state("cpu").get("entries") or {}).get(verdict.uid, {})
    return {
        name: Place(
            frozenset(blocks[name][0]["numaAffinity"]) if name in blocks else None,
            parse_ids(cpus.get(name, "")),
        )
        for name in step.containers
    }


def _collect(node: Node, outcome: Outcome, containers: Mapping[tuple[str, str], str]) -> None:
    """Take the places of *containers* from bayplan's status."""
    entries = {entry["id"]: entry for entry in node.bayplan.status()["containers"]}
    for (pod, name), container_id in containers.items():
        entry = entries[container_id]
        mems = None if entry["mems"] is None else parse_ids(entry["mems"])
        cpus = parse_ids(entry["cpus"]) if entry["cpusExclusive"] else frozenset[int]()
        places = outcome.placed.setdefault(pod, {})
        assert isinstance(places, dict)
        places[name] = Place(mems, cpus)


def _cgroup(uid: str, container_id: str) -> str:
    return f"{cgroup_parent('Guaranteed', uid)}/{container_id}"


def _kernel(node: Node, cgroups: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], tuple[Ids, Ids]]:
    """The nodes and CPUs that the kernel allows to the containers in these cgroups."""
    files = {key: f"/sys/fs/cgroup{cgroup}/cpuset." for key, cgroup in cgroups.items()}
    paths = [f"{base}{kind}.effective" for base in files.values() for kind in ("mems", "cpus")]
    found = node.guest.read_files(*paths)
    return {
        key: (parse_ids(found[f"{base}mems.effective"]), parse_ids(found[f"{base}cpus.effective"]))
        for key, base in files.items()
    }


def _as_kubelet_asks(step: Asked) -> Pod:
    """The pod as kubelet asks a runtime for it, less the cpusets of its managers."""
    uid = new_uid()
    containers = tuple(_container(name, limits) for name, limits in step.containers.items())
    sums = {
        "cpu_period": PERIOD_US,
        "cpu_quota": sum(one.cpu_quota_us or 0 for one in containers),
        "cpu_shares": sum(one.cpu_shares or 0 for one in containers),
        "memory_limit_in_bytes": sum(one.memory_limit_bytes or 0 for one in containers),
    }
    parent = cgroup_parent("Guaranteed", uid)
    return Pod(step.name, containers, uid=uid, cgroup_parent=parent, sandbox_resources=sums)


def _container(name: str, limits: Limits) -> Container:
    cpu = limits["cpu"]
    milli = int(cpu.removesuffix("m")) if cpu.endswith("m") else 1000 * int(cpu)
    return Container(
        name,
        memory_limit_bytes=size(limits["memory"]),
        cpu_quota_us=milli * PERIOD_US // 1000,
        cpu_period_us=PERIOD_US,
        cpu_shares=milli * 1024 // 1000,
        oom_score_adj=-997,
        hugepage_limits={"2MB": size(limits[PAGES])} if PAGES in limits else {},
    )


def test_what_kubelets_own_managers_pin_is_best_left_alone_and_said_once(node: Node) -> None:
    """bayplan beside a kubelet with static managers: kubelet pins, bayplan looks on."""
    since = node.bayplan.log_position()
    node.bayplan.start()
    node.bayplan.await_synchronized()
    kubelet = Kubelet(node.guest)
    kubelet.start({**MANAGERS, "topologyManagerPolicy": "restricted"})
    pods = [asked("shared", "500m", "100Mi"), asked("core", "2", "300Mi")]
    verdicts = {pod.name: kubelet.admit(pod.name, pod_spec(pod.containers)) for pod in pods}
    ids = kubelet.containers([(pod.name, name) for pod in pods for name in pod.containers])
    cgroups = {key: _cgroup(verdicts[key[0]].uid, container_id) for key, container_id in ids.items()}
    shared, core = cgroups["shared", "main"], cgroups["core", "main"]
    own = parse_ids(kubelet.state("cpu")["entries"][verdicts["core"].uid]["main"])
    # The shared container was created with all CPUs; kubelet takes two of them away when it reconciles.
    kubelet.await_cpus({core: own, shared: frozenset(range(8)) - own})
    assert len(own) == 2
    status = node.bayplan.status()
    assert status["counters"]["pinned_by_kubelet_cpu_manager"] >= 2
    assert status["counters"]["pinned_by_kubelet_memory_manager"] == 2
    problems = [problem for problem in status["problems"] if "pins containers itself" in problem]
    assert [problem.split("'s ")[1].split(" pins")[0] for problem in problems] == [
        "CPU Manager",
        "Memory Manager",
    ]
    for entry in status["containers"]:
        assert entry["cpusPinnedByOthers"]
        assert entry["memsPinnedByOthers"]
    said = node.bayplan.log().encode()[since:].decode()
    assert said.count("pins containers itself") == 2


@VERSIONS
def test_a_node_is_taken_over_and_given_back_and_no_running_container_moves(node: Node, version: str) -> None:
    """kubelet's managers, then bayplan by their state files, then kubelet's managers by bayplan's."""
    static = {**MANAGERS, "topologyManagerPolicy": "restricted"}
    off = {**static, **OFF}
    kubelet = Kubelet(node.guest, version)
    kubelet.start(static)
    pods = [asked("core", "2", "300Mi"), asked("shared", "500m", "400Mi"), asked("wide", "500m", "1200Mi")]
    uids = {pod.name: _placed(kubelet, pod) for pod in pods}
    wanted = [(pod.name, "main") for pod in pods]
    ids = kubelet.containers(wanted)
    cgroups = {key: _cgroup(uids[key[0]], container_id) for key, container_id in ids.items()}
    own = _own_cpus(kubelet, uids["core"])
    kubelet.await_cpus(_cpus(cgroups, own))
    before, theirs = _kernel(node, cgroups), _state(kubelet)
    assert [len(before[key][0]) for key in wanted] == [1, 1, 2]

    node.bayplan.start(f"--config={CONFIG}", f"--kubelet-version={version}")
    node.bayplan.await_synchronized()
    kubelet.stop()
    for command in SHOWN[:-1]:
        taken = node.bayplan.ask_in_guest(*command.split()[1:])
        assert {one["id"] for one in taken["containers"]} == set(ids.values())
    assert _kernel(node, cgroups) == before
    kubelet.forget_state()
    kubelet.configure(off)
    kubelet.start_again()
    _placed(kubelet, asked("later", "2", "100Mi"))
    decided = node.bayplan.decided(kubelet.containers([("later", "main")])["later", "main"])
    assert decided is not None
    new = parse_ids(decided["cpus"])
    assert (len(new), new & own) == (2, frozenset())
    kubelet.await_cpus(_cpus(cgroups, own, new))
    kubelet.remove("later")
    node.bayplan.await_known(ids.values())
    kubelet.await_cpus(_cpus(cgroups, own))
    assert _kernel(node, cgroups) == before

    kubelet.stop()
    node.bayplan.ask_in_guest(*SHOWN[-1].split()[1:])
    assert _state(kubelet) == theirs
    assert node.bayplan.stop() == 0
    kubelet.configure(static)
    kubelet.start_again()
    new = _own_cpus(kubelet, _placed(kubelet, asked("last", "1", "100Mi")))
    assert (len(new), new & own) == (1, frozenset())
    assert _own_cpus(kubelet, uids["core"]) == own
    assert kubelet.containers(wanted) == ids
    kubelet.await_cpus(_cpus(cgroups, own, new))
    after = _kernel(node, cgroups)
    assert {key: mems for key, (mems, _) in after.items()} == {key: mems for key, (mems, _) in before.items()}


@pytest.mark.parametrize("places", ["kubelet", "bayplan"])
def test_kubelet_is_upgraded_and_taken_back_and_nothing_moves(node: Node, places: str) -> None:
    """With running containers, whoever places them. What comes under each version is placed as before."""
    newest, before_it = KUBELET_VERSIONS
    managers = {**MANAGERS, "topologyManagerPolicy": "restricted", **({} if places == "kubelet" else OFF)}
    kubelet = Kubelet(node.guest, before_it)
    kubelet.start(managers)
    node.bayplan.start(f"--config={CONFIG}")
    node.bayplan.await_synchronized()
    pods = [asked("core", "2", "300Mi"), asked("shared", "500m", "400Mi"), asked("wide", "500m", "1200Mi")]
    uids = {pod.name: _placed(kubelet, pod) for pod in pods}
    wanted = [(pod.name, "main") for pod in pods]
    ids = kubelet.containers(wanted)
    cgroups = {key: _cgroup(uids[key[0]], container_id) for key, container_id in ids.items()}
    own = _kernel(node, cgroups)["core", "main"][1]
    kubelet.await_cpus(_cpus(cgroups, own))
    before = _kernel(node, cgroups)
    assert [len(before[key][0]) for key in wanted] == [1, 1, 2]
    for version in (newest, before_it):
        kubelet.stop()
        kubelet = Kubelet(node.guest, version)
        kubelet.start_again()
        name = f"under-{version.replace('.', '-')}"
        uid = _placed(kubelet, asked(name, "1", "100Mi"))
        (later,) = kubelet.containers([(name, "main")]).values()
        ((_, new),) = _kernel(node, {(name, "main"): _cgroup(uid, later)}).values()
        assert (len(new), new & own) == (1, frozenset())
        kubelet.await_cpus(_cpus(cgroups, own, new))
        kubelet.remove(name)
        kubelet.await_cpus(_cpus(cgroups, own))
        assert kubelet.containers(wanted) == ids
        assert _kernel(node, cgroups) == before


def _placed(kubelet: Kubelet, pod: Asked) -> str:
    """Have kubelet place *pod*; its uid."""
    verdict = kubelet.admit(pod.name, pod_spec(pod.containers))
    assert verdict.reason == ""
    return verdict.uid


def _state(kubelet: Kubelet) -> dict[str, dict[str, object]]:
    """What both state files have in the form that every version reads: 1.37 writes it a second time."""
    return {
        manager: {key: value for key, value in kubelet.state(manager).items() if not key.startswith("data")}
        for manager in ("cpu", "memory")
    }


def _own_cpus(kubelet: Kubelet, uid: str) -> Ids:
    """The CPUs that kubelet has given to the container of a pod."""
    return parse_ids(kubelet.state("cpu")["entries"][uid]["main"])


def _cpus(cgroups: Mapping[tuple[str, str], str], own: Ids, more: Ids = frozenset()) -> dict[str, Ids]:
    """By cgroup, the CPUs that containers are to have: *own* is core's, *more* a later one's."""
    shared = frozenset(range(8)) - own - more
    return {cgroup: own if pod == "core" else shared for (pod, _), cgroup in cgroups.items()}
