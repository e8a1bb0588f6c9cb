"""Containers of the wrapper that are created and started at the same moment: whatever comes between the steps
of one of them, nobody runs on the CPUs of an owner that has started, without any verification."""

import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan._proto.nri import api_pb2 as pb
from bayplan.control.placements import Creation
from bayplan.model.decision import Decision, Reason
from bayplan.placement.page_owners import PAGES_TO_MOVE
from bayplan.quantity import MIB
from bayplan.sets import NodeSet
from support.controllers import MACHINE
from support.cpuset_tree import CpusetTree
from support.oci_node import guaranteed, spec
from support.oci_socket import ServedOciSocket, oci_socket

Step = Callable[[], Awaitable[None]]
STEPS = 3


class WrapperNode:
    """What engine, wrapper and OCI runtime do on the node of an OCI socket. ``running`` are the containers
    whose process has begun, ``asked`` those whose start was told."""

    def __init__(self, one: ServedOciSocket, directory: Path) -> None:
        self.one = one
        self.tree = CpusetTree(directory / "root", MACHINE.online_cpus)
        self.running: set[str] = set()
        self.asked: list[str] = []
        self.said: list[str] = []
        self._made = 0
        self._specs: dict[str, pb.Container] = {}
        """What the OCI runtimes have read."""

    def creation_steps(
        self, cpus: int = 0, annotations: Mapping[str, str] = {}
    ) -> tuple[str, list[tuple[str, Step]]]:
        """The id of a new container with so many CPUs of its own, and its steps up to when it runs."""
        self._made += 1
        key = f"{self._made:064x}"
        path = f"/pods/crio-{key}"
        resources = guaranteed(cpus, 10 * MIB) if cpus else {"cpu": {"shares": 2}}
        document = spec(path, resources=resources, annotations=annotations)
        bundle = self.one.node.write_spec(key, document)

        async def is_rewritten() -> None:
            body = b"\0".join([os.fsencode(bundle), key.encode(), b"/usr/bin/runc", b""])
            assert await self.one.ask("create", body) == ("ok", "")
            rewritten = json.loads((bundle / "config.json").read_text())
            given = rewritten["linux"]["resources"]["cpu"]
            cpuset = {"cpus": given["cpus"], "mems": given.get("mems", "")}
            linux = pb.LinuxContainer(cgroups_path=path, resources=pb.LinuxResources(cpu=cpuset))
            self._specs[key] = pb.Container(id=key, linux=linux)

        async def has_cgroup() -> None:
            self.tree.write(self._specs[key])

        async def starts() -> None:
            if self.one.tells_its_start(key):
                self.asked.append(key)
                assert await self.one.ask("start", key.encode()) == ("ok", "")
                assert not self.one.tells_its_start(key)
            self.running.add(key)

        steps = [("is rewritten", is_rewritten), ("has a cgroup", has_cgroup), ("starts", starts)]
        return key, [(f"{key[-3:]} {said}", step) for said, step in steps]

    async def take(self, said: str, step: Step) -> None:
        self.said.append(said)
        await step()
        for key in self.running:
            own = self.one.entries[key].decision.placement.exclusive_cpus
            if own:
                assert self.tree.cpus(key) == own, self.said
                for other in self.running - {key}:
                    assert self.tree.cpus(other).isdisjoint(own), (other, key, self.said)

    async def end(self, key: str) -> None:
        self.running.discard(key)
        assert await self.one.ask("delete", key.encode()) == ("ok", "")
        assert not self.one.tells_its_start(key)


async def test_every_order_of_two_creations(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        node = WrapperNode(one, tmp_path)
        late = 0
        for places in combinations(range(2 * STEPS), STEPS):
            (shared, sharing), (owner, owning) = node.creation_steps(), node.creation_steps(cpus=2)
            creations = iter(sharing), iter(owning)
            node.said.clear()
            for number in range(2 * STEPS):
                await node.take(*next(creations[number in places]))
            late += shared in node.asked
            assert owner in node.asked
            for key in (shared, owner):
                await node.end(key)
        # Only those whose CPUs changed between spec and cgroup had to be asked for.
        assert 0 < late < 20


@pytest.mark.parametrize("seed", range(3))
async def test_random_orders_of_many(tmp_path: Path, seed: int) -> None:
    """Some end half-way: nothing of theirs is left."""
    draw = random.Random(seed)
    async with oci_socket(tmp_path) as one:
        node = WrapperNode(one, tmp_path)
        for _ in range(20):
            node.said.clear()
            creations, keys = [], []
            for cpus in (2, 1, 0, 0, 0):
                key, steps = node.creation_steps(cpus)
                keys.append(key)
                if draw.random() < 0.4:
                    del steps[draw.randint(1, STEPS) :]
                    steps.append((f"{key[-3:]} ends", lambda key=key: node.end(key)))
                creations.append(steps)
            while creations:
                await node.take(*draw.choice(creations).pop(0))
                creations = [left for left in creations if left]
            for key in keys:
                await node.end(key)


async def test_what_changes_nothing_costs_no_question(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        node = WrapperNode(one, tmp_path)
        for _ in range(3):
            _, steps = node.creation_steps()
            for said, step in steps:
                await node.take(said, step)
        assert node.asked == []


async def test_a_start_is_told_where_memory_is_to_be_freed_first(tmp_path: Path) -> None:
    def not_free_yet(_: Creation, decision: Decision) -> Decision:
        return replace(decision, reasons=(*decision.reasons, Reason(PAGES_TO_MOVE, "of others")))

    held = list[str]()

    async def before_start(container_id: str) -> None:
        held.append(container_id)

    async with oci_socket(tmp_path) as one:
        one.around.admission.append(not_free_yet)
        one.around.before_start.append(before_start)
        node = WrapperNode(one, tmp_path)
        key, steps = node.creation_steps()
        for said, step in steps:
            await node.take(said, step)
        assert node.asked == held == [key]


async def test_a_start_is_told_where_it_is_to_be_seen_whether_memory_is_bound(tmp_path: Path) -> None:
    nodes = tuple(replace(one, is_movable=one.id == 1) for one in MACHINE.nodes)
    async with oci_socket(tmp_path, on=replace(MACHINE, nodes=nodes)) as one:
        node = WrapperNode(one, tmp_path)
        for place in ("0", "1"):
            _, steps = node.creation_steps(annotations={"bayplan.dev/required-nodes": place})
            for said, step in steps:
                await node.take(said, step)
        (asked,) = node.asked
        assert one.entries[asked].decision.placement.mems == NodeSet([1])


async def test_a_start_of_somebody_else_is_nobodys_business(tmp_path: Path) -> None:
    async with oci_socket(tmp_path) as one:
        assert await one.ask("start", b"unknown") == ("ok", "")
        assert (await one.ask("start", b"../c1"))[0] == "error"
