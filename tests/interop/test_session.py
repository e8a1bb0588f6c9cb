"""Our whole session, codec and all, against the runtime side of NRI in several versions."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from bayplan.errors import PlacementError
from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri import Event, Identity, Runtime, Session, Timeouts, UnixSocket
from bayplan.sets import CpuSet, NodeSet
from support.clock import ManualClock

pytestmark = pytest.mark.interop

# A busy machine makes no late answer of ours.
PATIENT = Timeouts(answer_s=60.0)
OTHER = Update("other", cpuset_cpus=CpuSet((0, 1)))
STATE_EVENTS = {
    "RunPodSandbox": Event.RUN_POD_SANDBOX,
    "PostCreateContainer": Event.POST_CREATE_CONTAINER,
    "StartContainer": Event.START_CONTAINER,
    "PostStartContainer": Event.POST_START_CONTAINER,
    "PostUpdateContainer": Event.POST_UPDATE_CONTAINER,
    "RemoveContainer": Event.REMOVE_CONTAINER,
    "StopPodSandbox": Event.STOP_POD_SANDBOX,
    "RemovePodSandbox": Event.REMOVE_POD_SANDBOX,
}


class Recorder:
    """A handler that decides by name and remembers what it was told."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        self.told: list[tuple] = []
        self.containers: list[str] = []
        self.listed = asyncio.Event()
        self.hangs = False
        self.refuses = False
        self.hanging = asyncio.Event()

    def events(self, runtime: Runtime) -> frozenset[Event]:
        return frozenset(Event)

    def connected(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def disconnected(self, why: str) -> None:
        self.told.append(("disconnected", why))

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        self.containers = [container.id for container in containers]
        return [Update(container.id, cpuset_mems=NodeSet((1,))) for container in containers[:2]]

    async def create_container(self, pod: Pod, container: Container) -> tuple[Adjustment, Sequence[Update]]:
        if container.id == "unplaceable":
            raise PlacementError(container.id, "node 0 is full")
        if self.hangs:
            self.hanging.set()
            await asyncio.Event().wait()
        adjustment = Adjustment(
            cpuset_cpus=CpuSet((2, 4, 5)), cpuset_mems=NodeSet((0, 1)), unified={"memory.oom.group": "1"}
        )
        return adjustment, [OTHER]

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        assert resources.memory_limit_bytes == 4096
        return [OTHER]

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        self.listed.set()
        return [OTHER]

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        self.told.append((event, pod.id, "" if container is None else container.id))

    def refuses_undecided(self) -> bool:
        return self.refuses

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        if self.refuses:
            raise PlacementError(container.id, "nothing was decided")
        return Adjustment(cpuset_mems=NodeSet((0,)))

    def missed(self, event: Event, container_id: str, why: str, described: object = None) -> None:
        self.told.append(("missed", event, container_id))


@contextlib.asynccontextmanager
async def served(runtime, timeouts, clock, refuses):
    """A session that the runtime asks, and its handler."""
    handler = Recorder()
    handler.refuses = refuses
    endpoint = UnixSocket(str(runtime.socket))
    session = Session(handler, Identity("bayplan", "90"), endpoint, timeouts=timeouts, clock=clock)
    running = asyncio.create_task(session.run())
    assert (await asyncio.to_thread(runtime.notice))["error"] == ""
    # Synchronized is not yet listed: events pass the plugin by until one arrives.
    while not handler.listed.is_set():
        await asyncio.to_thread(runtime.do, "StopContainer", pod="first", id="first")
    yield session, handler
    await session.close()
    await running


def run(scenario, runtime, timeouts=PATIENT, clock=None, *, refuses=False):
    async def main():
        async with served(runtime, timeouts, clock, refuses) as (session, handler):

            async def do(method, **fields):
                return await asyncio.to_thread(runtime.do, method, **fields)

            await scenario(do, session, handler)

    asyncio.run(main())


def cpu_of(update):
    return update["linux"]["resources"]["cpu"]


def test_a_container_from_creation_to_removal(go_side, nri_version):
    async def scenario(do, session, handler):
        assert handler.runtime.name == "interop"
        assert handler.runtime.capabilities.dedicated_rpcs == nri_version.startswith("0.12")
        assert handler.runtime.capabilities.synchronize_chunks == (nri_version != "0.6.1")
        where = {"pod": "pod", "id": "ctr"}
        created = await do("CreateContainer", **where)
        resources = created["response"]["adjust"]["linux"]["resources"]
        assert resources["cpu"] == {"cpus": "2,4-5", "mems": "0-1"}
        assert resources["unified"] == {"memory.oom.group": "1"}
        assert [cpu_of(update) for update in created["response"]["update"]] == [{"cpus": "0-1"}]
        for method in ("UpdateContainer", "StopContainer"):
            updates = (await do(method, **where))["response"]["update"]
            assert [cpu_of(each) for each in updates if each.get("containerId") == "other"] == [
                {"cpus": "0-1"}
            ]
        for method, event in STATE_EVENTS.items():
            container = "" if "Pod" in method else "ctr"
            assert (await do(method, pod="pod", id=container))["error"] == ""
            assert handler.told[-1] == (event, "pod", container)
        assert len(handler.told) == len(STATE_EVENTS)

    run(scenario, go_side())


def test_a_refusal_is_told_and_the_session_goes_on(go_side):
    async def scenario(do, session, handler):
        refused = await do("CreateContainer", pod="pod", id="unplaceable")
        assert "TopologyAffinityError: unplaceable: node 0 is full" in refused["error"]
        assert (await do("CreateContainer", pod="pod", id="ctr"))["error"] == ""

    run(scenario, go_side())


def test_a_large_request_and_the_next_one(go_side):
    async def scenario(do, session, handler):
        for padding in (4000, 4096, 70_000, 4_000_000, 0):
            created = await do("CreateContainer", pod="pod", id="ctr", padding=padding)
            assert created["response"]["adjust"]["linux"]["resources"]["cpu"]["mems"] == "0-1"

    run(scenario, go_side())


def test_a_thousand_containers_of_10_kilobytes(go_side, nri_version):
    # The oldest cannot cut its list in pieces: what is over 4 MiB never arrives (see test_runtime).
    count = 300 if nri_version == "0.6.1" else 1000

    async def scenario(do, session, handler):
        assert handler.containers == [f"ctr{number}" for number in range(count)]
        assert (await do("CreateContainer", pod="pod", id="ctr"))["error"] == ""

    run(scenario, go_side("-pods", f"{count}", "-containers", f"{count}", "-padding", "10000"))


def test_a_handler_that_hangs_refuses_if_it_is_to(go_side):
    clock = ManualClock()

    async def scenario(do, session, handler):
        handler.hangs = handler.refuses = True
        creation = asyncio.create_task(do("CreateContainer", pod="pod", id="slow"))
        await handler.hanging.wait()
        clock.advance(Timeouts().answer_s)
        assert "nothing was decided" in (await creation)["error"]
        handler.hangs = False
        assert (await do("CreateContainer", pod="pod", id="quick"))["error"] == ""
        assert handler.told == [("missed", Event.CREATE_CONTAINER, "slow")]

    run(scenario, go_side(), Timeouts(), clock)


def test_a_runtime_fails_what_is_not_answered_and_keeps_us_if_it_can(go_side, nri_version):
    clock = ManualClock()

    async def scenario(do, session, handler):
        assert handler.runtime.capabilities.failure_policy == (nri_version == "0.12.5")
        handler.hangs = True
        created = await do("CreateContainer", pod="pod", id="slow")
        assert bool(created["error"]) == handler.runtime.capabilities.failure_policy
        if not handler.runtime.capabilities.failure_policy:
            return
        # Our own clock stood still, so that we have not answered.
        clock.advance(Timeouts().answer_s)
        handler.hangs = False
        assert (await do("CreateContainer", pod="pod", id="quick"))["error"] == ""
        assert handler.told == [("missed", Event.CREATE_CONTAINER, "slow")]

    run(scenario, go_side("-request-timeout", "300ms"), Timeouts(), clock, refuses=True)


def test_a_handler_that_hangs_costs_the_container_its_place_and_nothing_else(go_side):
    clock = ManualClock()

    async def scenario(do, session, handler):
        handler.hangs = True
        creation = asyncio.create_task(do("CreateContainer", pod="pod", id="slow"))
        await handler.hanging.wait()
        clock.advance(Timeouts().answer_s)
        created = await creation
        assert created["response"]["adjust"]["linux"]["resources"]["cpu"] == {"mems": "0"}
        handler.hangs = False
        created = await do("CreateContainer", pod="pod", id="quick")
        assert created["response"]["adjust"]["linux"]["resources"]["cpu"]["mems"] == "0-1"
        assert handler.told == [("missed", Event.CREATE_CONTAINER, "slow")]

    run(scenario, go_side(), Timeouts(), clock)
