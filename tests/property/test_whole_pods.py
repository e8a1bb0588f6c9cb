"""Pods of all kinds from manifests through the daemon, compared with sums that are counted here: nothing is
promised twice, and a pod with resources as a whole has what it asks for, whoever of it comes and goes."""

import asyncio
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.control.controller import Controller
from bayplan.engines.exact.engine import ExactEngine
from bayplan.errors import PlacementError
from bayplan.model.decision import QosClass
from bayplan.model.machine import MEMORY
from bayplan.model.policy import PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.model.workload import Container, ContainerState
from bayplan.nri import Event
from bayplan.quantity import GIB
from bayplan.simulate.manifest import PlannedPod, plan_manifest
from support.controllers import begun, controlled
from support.exact_pods import check_pods
from support.machines import machine

STEPS = 30
HARDWARE = machine(2, cpus_per_node=12, memory_bytes=32 * GIB, threads_per_core=2)


def draw_manifest(draw: random.Random, number: int) -> dict[str, Any]:
    """A Guaranteed pod: some with resources as a whole, init containers, sidecars, and parts."""
    whole = draw.random() < 0.6
    cpus, gib = draw.choice([2, 3, 4, 2.5]), draw.randint(4, 10)

    def container(name: str, *, own: bool, share: float = 0.25) -> dict[str, Any]:
        if not own:
            return {"name": name}
        milli = draw.choice([1000, 1000, 500])
        return {
            "name": name,
            "resources": {"limits": {"cpu": f"{milli}m", "memory": f"{int(gib * 1024 * share)}Mi"}},
        }

    init = [container("init", own=not whole or draw.random() < 0.3)] if draw.random() < 0.4 else []
    if draw.random() < 0.3:
        init.append({**container("side", own=not whole), "restartPolicy": "Always"})
    mains = [container(f"m{n}", own=not whole or draw.random() < 0.3) for n in range(draw.randint(1, 3))]
    if whole:
        # Parts together stay below the pod, as the API server demands.
        while sum("resources" in one for one in [*init, *mains]) > 1:
            next(one for one in [*init, *mains] if "resources" in one).pop("resources")
    spec: dict[str, Any] = {"initContainers": init, "containers": mains}
    if whole:
        amounts = {"cpu": str(cpus), "memory": f"{gib}Gi"}
        spec["resources"] = {"requests": amounts, "limits": amounts}
    return {"kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec}


class Node:
    """What runs, as the runtime sees it."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.pods, self.waiting = draw, list[PlannedPod](), list[tuple[PlannedPod, int]]()
        self.running: dict[str, tuple[PlannedPod, Container, bool]] = {}
        self.number = 0

    async def step(self, controller: Controller) -> None:
        kind = self.draw.choices(["arrive", "continue", "stop", "remove"], [3, 8, 3, 1])[0]
        if kind == "arrive" or not self.pods:
            self.number += 1
            (pod,) = plan_manifest(draw_manifest(self.draw, self.number), HARDWARE)
            self.pods.append(pod)
            self.waiting.append((pod, 0))
        elif kind == "continue" and self.waiting:
            await self.create_next(controller)
        elif kind == "stop" and self.running:
            await self.stop(controller, self.draw.choice(sorted(self.running)))
        elif kind == "remove":
            await self.remove(controller, self.draw.choice(self.pods))

    async def create_next(self, controller: Controller) -> None:
        pod, position = self.waiting.pop(0)
        for key, (owner, _, ends) in list(self.running.items()):
            if owner is pod and ends:
                await self.stop(controller, key)
        planned = pod.containers[position]
        self.number += 1
        one = replace(planned.container, id=f"c{self.number:05}")
        try:
            adjustment, _ = await begun(controller, pod.pod, one)
        except PlacementError:
            return
        if position + 1 < len(pod.containers):
            self.waiting.append((pod, position + 1))
        spec = replace(one.resources, cpuset_cpus=adjustment.cpuset_cpus, cpuset_mems=adjustment.cpuset_mems)
        listed = replace(
            one, resources=spec, annotations=adjustment.annotations, state=ContainerState.RUNNING
        )
        self.running[one.id] = pod, listed, planned.ends

    async def stop(self, controller: Controller, container_id: str) -> None:
        pod, one, _ = self.running.pop(container_id)
        await controller.stop_container(pod.pod, one)

    async def remove(self, controller: Controller, pod: PlannedPod) -> None:
        for key in [key for key, (owner, _, _) in self.running.items() if owner is pod]:
            await self.stop(controller, key)
        self.pods.remove(pod)
        self.waiting = [one for one in self.waiting if one[0] is not pod]
        await controller.state_changed(Event.STOP_POD_SANDBOX, pod.pod, None)
        await controller.state_changed(Event.REMOVE_POD_SANDBOX, pod.pod, None)

    def check(self, controller: Controller) -> None:
        """What is claimed for a pod is never more than it asks for, and what of it is there has its CPUs."""
        ledger = controller.state.ledger
        check_pods(ledger)
        claimed: Counter[str] = Counter()
        for one in (*ledger.entries.values(), *ledger.retained.values()):
            claim = one.decision.placement.claim
            if one.decision.request.qos is QosClass.GUARANTEED and claim is not None:
                claimed[one.decision.request.pod_id] += claim.amounts_bytes.get(MEMORY, 0)
        sums = {pod.pod.id: pod.pod.resources.memory_limit_bytes or 0 for pod in self.pods}
        assert not {key: amount for key, amount in claimed.items() if amount > sums.get(key, 0)}
        assert set(ledger.entries) == set(self.running)
        total = sum(row.get(MEMORY, 0) for row in ledger.claimed_bytes.values())
        assert total == sum(claimed.values()) <= 64 * GIB


async def play(draw: random.Random, directory: Path, lost: Path) -> None:
    policy = PlacementPolicy(topology=draw.choice(list(TopologyPolicy)))
    engine, node = ExactEngine(draw.choice(list(TopologyScope))), Node(draw)
    async with controlled(directory, policy, on=HARDWARE, engine=engine) as one:
        for _ in range(STEPS):
            await node.step(one.controller)
            node.check(one.controller)
        before = one.controller.state.ledger
    async with controlled(directory, policy, on=HARDWARE, engine=engine) as one:
        assert one.controller.state.ledger.claimed_bytes == before.claimed_bytes
        assert one.controller.state.ledger.exclusive_cpus == before.exclusive_cpus
        for _ in range(STEPS // 3):
            await node.step(one.controller)
            node.check(one.controller)
        # What the runtime has by now, if it carried out all that it was sent.
        entries = one.controller.state.ledger.entries
        shared, listed = one.controller.state.basis.shared_cpus, []
        for key, (_, container, _) in node.running.items():
            placement = entries[key].decision.placement
            spec = replace(container.resources, cpuset_cpus=placement.exclusive_cpus or shared)
            listed.append(replace(container, resources=spec))
        before = one.controller.state.ledger
    async with controlled(lost, policy, on=HARDWARE, engine=engine) as one:
        await one.controller.synchronize([pod.pod for pod in node.pods], listed)
        node.check(one.controller)
        after = one.controller.state.ledger
        for key, entry in before.entries.items():
            now = after.entries[key].decision
            # One with a part that came before its pod was known, and is alone by now, does not say so.
            if now.request.pod_level == entry.decision.request.pod_level:
                assert now.placement.exclusive_cpus == entry.decision.placement.exclusive_cpus, key


@given(st.integers(0, 2**32))
def test_nothing_is_promised_twice_whatever_pods_come_and_go(seed: int) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        asyncio.run(play(random.Random(seed), Path(first), Path(second)))
