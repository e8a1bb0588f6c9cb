"""Whole pods in the simulator with the engine kubelet: admitted and refused as kubelet's managers do it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.engines.kubelet.creation import KEPT_WITH_POD, REUSE
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.engines.kubelet.managers import ManagersState, PreparedManagers
from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import MemoryState
from bayplan.kubelet.manager_options import CpuOptions, ManagerOptions, MemoryManagerPolicy, TopologyOptions
from bayplan.kubelet.pod import PodSpec
from bayplan.model.basis import Allocatable
from bayplan.model.decision import Outcome
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.quantity import GIB
from bayplan.sets import CpuSet
from bayplan.simulate.comparison import Simulation
from bayplan.simulate.manifest import PlannedPod, plan_manifest
from bayplan.simulate.trace_file import Arrival, Departure, Event
from conformance.endings import after_start, without_pod
from conformance.sections.sequences import recorded_machine
from support.machines import machine

VECTORS = Path(__file__).parents[2] / "data" / "vectors" / "oracle_sequences.jsonl"
Written = Mapping[str, Any]


def sequences() -> list[Written]:
    return [json.loads(line) for line in VECTORS.read_text().splitlines()]


def manifest(written: Written) -> dict[str, Any]:
    """A recorded pod as the API server would show it."""

    def containers(listed: list[Written], *, init: bool) -> Iterator[dict[str, Any]]:
        for one in listed:
            resources = {
                kind: {
                    "cpu" if name == "cpu_milli" else name: f"{amount}m"
                    if name == "cpu_milli"
                    else str(amount)
                    for name, amount in one[kind].items()
                }
                for kind in ("requests", "limits")
            }
            always = {"restartPolicy": "Always"} if init and one["sidecar"] else {}
            yield {"name": one["name"], "resources": resources, **always}

    return {
        "kind": "Pod",
        "metadata": {"name": written["uid"]},
        "spec": {
            "initContainers": list(containers(written["init"], init=True)),
            "containers": list(containers(written["containers"], init=False)),
        },
        "status": {"qosClass": written["qos"]},
    }


class Beside:
    """Kubelet's managers themselves, on a state of their own that lasts."""

    def __init__(self, hardware: Machine, policy: PlacementPolicy, options: ManagerOptions) -> None:
        prepared = PreparedManagers.of(Allocatable(hardware, policy), options)
        self.managers = prepared.kubelet
        cpus = CpuState() if prepared.kubelet.cpus is None else prepared.kubelet.cpus.start(CpuState())
        self.state = ManagersState(cpus, MemoryManager(options.memory, MemoryState(prepared.empty)))

    def arrive(self, pod: PodSpec) -> bool:
        admission = self.managers.admit(self.state, pod)
        if not admission.admitted:
            return False
        self.state = admission.state
        for container in pod.all_containers:
            self.state = after_start(self.state, pod, container)
        return True

    def depart(self, pod: PodSpec) -> None:
        self.state = without_pod(self.state, pod)


def configured(case: Written) -> tuple[Machine, PlacementPolicy, ManagerOptions]:
    hardware = recorded_machine(case["machine"])
    memory = MemoryManagerPolicy.STATIC if "memory" in case else MemoryManagerPolicy.NONE
    options = ManagerOptions(
        memory,
        "cpu" in case,
        CpuOptions.parse(case.get("cpu", {}).get("options", {}), alpha=True),
        TopologyScope(case["tm"]["scope"]),
        TopologyOptions.parse(case["tm"]["options"]),
    )
    reserved = CpuSet()
    if "cpu" in case:
        listed = CpuSet.parse(case["cpu"]["reserved_list"])
        topology = CpuTopology.of_machine(hardware)
        number = case["cpu"]["num_reserved"]
        reserved = StaticCpuPolicy.reserving(topology, options.cpu_options, number, listed).reserved
    kept = {int(node): sizes for node, sizes in case.get("memory", {}).get("reserved", {}).items()}
    policy = PlacementPolicy(TopologyPolicy(case["tm"]["policy"]), kept, reserved_cpus=reserved)
    return hardware, policy, options


@pytest.mark.parametrize("case", sequences(), ids=lambda case: str(case["id"]))
def test_pods_are_admitted_and_refused_as_by_kubelets_managers(case: Written) -> None:
    hardware, policy, options = configured(case)
    beside = Beside(hardware, policy, options)
    simulation = Simulation(hardware, policy, KubeletEngine(options))
    pods: dict[str, PlannedPod] = {}
    for operation in case["ops"]:
        if operation["op"] == "admit":
            (planned,) = plan_manifest(manifest(operation["pod"]), hardware)
            admitted = beside.arrive(planned.spec)
            event: Event = Arrival(planned)
            if admitted:
                pods[operation["pod"]["uid"]] = planned
        elif operation["op"] == "remove_pod" and operation["uid"] in pods:
            planned = pods.pop(operation["uid"])
            beside.depart(planned.spec)
            event = Departure(planned.name)
        else:
            continue
        (step,) = simulation.play([event])
        if isinstance(event, Arrival):
            assert step.refused != admitted, (
                operation["pod"]["uid"],
                [one.reasons for one in step.decisions],
            )
        ledger = simulation.rehearsal.ledger
        for uid, planned in pods.items():
            for one in planned.containers:
                entry = ledger.entries.get(one.container.id)
                own = CpuSet() if entry is None else entry.decision.placement.exclusive_cpus
                theirs = beside.state.cpus.of(planned.spec.uid, one.container.name) or CpuSet()
                if one.ends:
                    assert own <= theirs
                else:
                    assert own == theirs, (uid, one.container.name)
                    mems = None if entry is None else entry.decision.placement.mems
                    assert mems == beside.state.memory.mems(planned.spec.uid, one.container.name)
        if beside.managers.cpus is not None:
            assert beside.managers.cpus.managed - ledger.exclusive_cpus == beside.state.cpus.shared


def pod_with_init(name: str, init_cpus: int, cpus: int, **annotations: str) -> dict[str, Any]:
    def container(named: str, count: int) -> dict[str, Any]:
        return {"name": named, "resources": {"limits": {"cpu": count, "memory": "1Gi"}}}

    return {
        "metadata": {
            "name": name,
            "annotations": {f"bayplan.dev/{key}": text for key, text in annotations.items()},
        },
        "spec": {
            "initContainers": [container("init", init_cpus)],
            "containers": [container("app", cpus)],
        },
    }


HARDWARE = machine(2, 16, 64 * GIB)


def simulation_of(topology: TopologyPolicy, *, refuse_wrong_annotations: bool = False) -> Simulation:
    policy = PlacementPolicy(
        topology,
        reserved_cpus=CpuSet.parse("0-2"),
        refuse_wrong_annotations=refuse_wrong_annotations,
    )
    return Simulation(HARDWARE, policy, KubeletEngine())


def arrivals(*pods: dict[str, Any]) -> list[Event]:
    return [Arrival(planned) for pod in pods for planned in plan_manifest(pod, HARDWARE)]


def test_an_init_container_whose_cpus_cannot_be_used_again_has_its_pod_refused() -> None:
    simulation = simulation_of(TopologyPolicy.SINGLE_NUMA_NODE)
    wide, narrow = simulation.play(arrivals(pod_with_init("wide", 1, 14), pod_with_init("narrow", 1, 13)))
    (refused,) = wide.decisions
    assert refused.request.name == "default/wide/app"
    assert refused.refused_as == "TopologyAffinityError"
    assert refused.reasons[-1].code == REUSE
    assert [one.placement.exclusive_cpus for one in narrow.decisions] == [CpuSet([3]), CpuSet(range(3, 16))]
    assert simulation.running == 1


def test_cpus_of_an_init_container_that_nobody_uses_again_stay_with_the_pod() -> None:
    simulation = simulation_of(TopologyPolicy.NONE)
    (step,) = simulation.play(arrivals(pod_with_init("one", 4, 2)))
    init, app = (one.placement.exclusive_cpus for one in step.decisions)
    assert app <= init
    ledger = simulation.rehearsal.ledger
    kept = ledger.entries["default/one/init"].decision
    assert kept.placement.exclusive_cpus == init - app
    assert [reason.code for reason in kept.reasons] == [KEPT_WITH_POD]
    assert simulation.running == 1
    (_,) = simulation.play([Departure("default/one")])
    assert not simulation.rehearsal.ledger.entries


def test_a_pod_that_is_left_alone_is_not_kubelets_to_admit() -> None:
    simulation = simulation_of(TopologyPolicy.SINGLE_NUMA_NODE)
    (step,) = simulation.play(arrivals(pod_with_init("alone", 1, 14, **{"opt-out": "true"})))
    assert [one.outcome for one in step.decisions] == [Outcome.PLACED, Outcome.PLACED]
    assert all(one.request.opted_out for one in step.decisions)


def test_a_pod_that_is_refused_for_an_annotation_keeps_nothing() -> None:
    simulation = simulation_of(TopologyPolicy.NONE, refuse_wrong_annotations=True)
    (step,) = simulation.play(arrivals(pod_with_init("wrong", 4, 2, nodes="nonsense")))
    assert [one.outcome for one in step.decisions] == [Outcome.REFUSED]
    assert simulation.running == 0
    assert not simulation.rehearsal.ledger.entries
