"""Nothing keeps the ids of containers that have ended, whatever became of them while they ran.

All objects are walked that the daemon's parts lead to. Only `Lives` and `ChangeLog` have some of them on
purpose, as many as they say.
"""

import gc
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from shutil import rmtree
from types import CoroutineType, FrameType, FunctionType, ModuleType

import pytest
from msgspec.structs import replace

from bayplan.control.commit_listeners import ChangeLog
from bayplan.control.container_files import Starts
from bayplan.control.cpusets import Cpusets
from bayplan.control.ended_containers import EndedContainers
from bayplan.control.lives import Lives
from bayplan.control.verify import Verifier
from bayplan.daemon.brakes import LET_GO_S, STALLED_S
from bayplan.daemon.page_relief import STUCK_S
from bayplan.host.container_processes import Occupancy
from bayplan.model.decision import QosClass
from bayplan.nri import Event
from bayplan.quantity import GIB, MIB
from support.controllers import here
from support.machines import container, pod
from support.oci_node import OciNode
from support.racing_nodes import Racing, racing

TROUBLED = 5
"""Of each batch so many wait for memory, and do not get their cpuset."""
BATCH = 50
ASIDE = (type, ModuleType, FrameType, CoroutineType, Lives, ChangeLog)


def kept(roots: Collection[object], ids: Collection[str]) -> Counter[str]:
    """Which of *ids* are still in something that *roots* lead to, as the types on the way to them."""
    found, ways = Counter[str](), [(root, type(root).__name__) for root in roots]
    seen = {id(root) for root in roots}
    while ways:
        one, way = ways.pop()
        for next_one in referents(one):
            if isinstance(next_one, str):
                found[way] += next_one in ids
            elif id(next_one) not in seen and not is_aside(next_one):
                seen.add(id(next_one))
                ways.append((next_one, f"{way} > {type(next_one).__name__}"))
    return +found


def referents(one: object) -> Iterator[object]:
    """What *one* leads to; of a function not the module that it is in. The interpreter does not say what the
    keys of a dict are if all are texts."""
    if isinstance(one, dict):
        yield from one
        yield from one.values()
    elif isinstance(one, FunctionType):
        yield from (one.__closure__ or (), one.__defaults__ or (), one.__kwdefaults__ or {})
    else:
        yield from gc.get_referents(one)


def is_aside(one: object) -> bool:
    """Whether it is the interpreter's, the loop's or the test's."""
    return isinstance(one, ASIDE) or type(one).__module__.split(".")[0] in ("support", "asyncio", "_asyncio")


def parts(it: Racing) -> tuple[list[object], Cpusets, Verifier, EndedContainers]:
    """All that has to do with containers, on one kernel."""
    controller, hierarchy = it.one.controller, it.live.node.hierarchy
    cpusets = it.one.on(hierarchy)
    verifier = Verifier(
        hierarchy,
        cpusets,
        it.one.expectations,
        here,
        grounds=lambda: (controller.state.ledger,),
        most_files=50,
    )
    starts = Starts(None)
    occupancy = Occupancy(hierarchy, 50)
    ended = EndedContainers(
        controller, occupancy, here, lambda _: {}, lambda _: (), starts.forget, lambda: it.now_s
    )
    return [controller, it.watch, it.promised, cpusets, verifier, ended], cpusets, verifier, ended


@pytest.mark.parametrize("containers", [100, pytest.param(1000, marks=pytest.mark.matrix)])
async def test_nothing_keeps_the_ids_of_ended_containers(tmp_path: Path, containers: int) -> None:
    async with racing(tmp_path, [8 * GIB, 8 * GIB], GIB) as it:
        roots, cpusets, verifier, ended = parts(it)
        await it.create("web", QosClass.BURSTABLE, 7 * GIB)
        it.live.node.make_process(7, it.touchers["web"].path)
        # Files of a tmpfs, which do not move.
        it.has("web", {0: 7 * GIB}, {0: 7 * GIB})
        ids = set[str]()
        for begin in range(0, containers, BATCH):
            names = [f"{number}-of-many" for number in range(begin, begin + BATCH)]
            ids |= set(names)
            for name in names[:TROUBLED]:
                await troubled(it, name)
            for _ in range(3):
                await it.pass_by(STALLED_S / 2)
                await verifier.verify(at_once=True)
            await ended.release_ended()
            await cpusets.sync()
            assert cpusets.refusals
            for name in names[:TROUBLED]:
                await gone(it, name)
            for name in names[TROUBLED:]:
                await short_lived(it, name)
        counters = it.one.controller.state.counters
        assert counters["slowed_in_vain"] > 0
        assert verifier.failed > 0
        assert kept(roots, {"web"})
        it.now_s += max(LET_GO_S, STUCK_S)
        await it.pass_by(2)
        await verifier.verify(at_once=False)
        await ended.release_ended()
        # The thread of the store has its latest job until the next one.
        await short_lived(it, "last")
        assert kept(roots, ids) == {}


async def troubled(it: Racing, name: str) -> None:
    await it.create(name, QosClass.GUARANTEED, 400 * MIB, node=0)
    it.touchers[name].order = (0,)
    refused(it.live.node, it.touchers[name].path)
    await it.start(name, 300 * MIB, 100 * MIB)


def refused(node: OciNode, path: str) -> None:
    """The kernel takes no CPUs for it."""
    file = node.directory(path) / "cpuset.cpus"
    file.unlink()
    file.mkdir()


async def gone(it: Racing, name: str) -> None:
    """It has ended, and was removed."""
    toucher = it.touchers.pop(name)
    del it.live.held[toucher.path]
    rmtree(it.live.node.directory(toucher.path))
    known = it.one.controller.state.known
    one = known.containers[name]
    owner = known.pods[one.pod_id]
    await it.one.controller.state_changed(Event.STOP_POD_SANDBOX, owner, None)
    await it.one.controller.stop_container(owner, one)
    await it.one.controller.state_changed(Event.REMOVE_CONTAINER, owner, one)
    await it.one.controller.state_changed(Event.REMOVE_POD_SANDBOX, owner, None)


async def short_lived(it: Racing, name: str) -> None:
    """It is created and ends, before anybody looked at it."""
    owner, controller = pod(name, QosClass.GUARANTEED), it.one.controller
    made = container(name, owner, memory_bytes=MIB, milli_cpus=100)
    made = replace(made, cgroups_path=f"{owner.cgroup_parent}/{name}")
    await controller.create_container(owner, made)
    await controller.state_changed(Event.POST_START_CONTAINER, owner, made)
    await controller.stop_container(owner, made)
    await controller.state_changed(Event.REMOVE_CONTAINER, owner, made)
    await controller.state_changed(Event.REMOVE_POD_SANDBOX, owner, None)
