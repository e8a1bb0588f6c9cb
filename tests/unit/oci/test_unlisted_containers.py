"""What the runtime has and did not tell of is entered; what it told of, or what has ended, is not."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from bayplan.errors import UnavailableError
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.workload import Container, ContainerState, Pod
from bayplan.nri import Event
from bayplan.oci.unmanaged_containers import UnlistedContainers
from bayplan.quantity import MIB
from support.controllers import Controlled, begun, controlled, here
from support.coroutines import PATIENCE_S
from support.machines import container, pod

GUARANTEED = pod("g", QosClass.GUARANTEED)


def running(name: str) -> Container:
    one = container(name, GUARANTEED, memory_bytes=100 * MIB, milli_cpus=500)
    return replace(one, state=ContainerState.RUNNING)


class Runtime:
    """What a runtime says over CRI."""

    def __init__(self, *containers: Container) -> None:
        self.containers = {one.id: one for one in containers}
        self.described: list[list[str]] = []
        self.answers = True

    def list_containers(self, runtime: str) -> Mapping[str, bool]:
        if not self.answers:
            raise UnavailableError(runtime, "is not there")
        return {key: one.state is not ContainerState.STOPPED for key, one in self.containers.items()}

    def describe(self, _: str, ids: Collection[str]) -> Sequence[tuple[Pod, Container]]:
        self.described.append(sorted(ids))
        return [(GUARANTEED, self.containers[key]) for key in ids if key in self.containers]

    def looking(self, one: Controlled) -> UnlistedContainers:
        return UnlistedContainers(one.controller, here, self.list_containers, self.describe)


async def test_those_in_neither_list_nor_creation_are_entered(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        controller = one.controller
        known, ended, lost = running("known"), running("ended"), running("lost")
        for each in (known, ended):
            await begun(controller, GUARANTEED, each)
        await controller.stop_container(GUARANTEED, ended)
        gone = replace(running("gone"), state=ContainerState.STOPPED)
        # It is listed as running until the runtime has dealt with its end.
        runtime = Runtime(known, ended, lost, gone)
        looking = runtime.looking(one)
        await looking.enter_unlisted()
        assert set(controller.state.ledger.entries) == {"known", "lost"}
        assert controller.state.ledger.entries["lost"].decision.outcome is Outcome.ADOPTED
        assert {one.container_id for one in (await controller.state.recorder.ledger()).entries.values()} == {
            "known",
            "lost",
        }
        await looking.enter_unlisted()
        assert runtime.described == [["lost"]]


async def test_one_that_ends_between_is_not_entered(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        lost = running("lost")
        runtime = Runtime(lost)
        describe = runtime.describe

        def ending(name: str, ids: Collection[str]) -> Sequence[tuple[Pod, Container]]:
            found = describe(name, ids)
            one.controller.missed(Event.STOP_CONTAINER, "lost", "late")
            return found

        runtime.describe = ending  # type: ignore[method-assign]  # what happens meanwhile
        await runtime.looking(one).enter_unlisted()
        assert one.controller.state.ledger.entries == {}


async def test_a_runtime_that_does_not_answer_is_asked_after_the_next_synchronize(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        runtime = Runtime(running("lost"))
        runtime.answers = False
        looking = runtime.looking(one)
        follower = asyncio.create_task(looking.follow())
        await looking.enter_unlisted()
        assert one.controller.state.ledger.entries == {}
        runtime.answers = True
        await one.controller.synchronize([], [])
        async with asyncio.timeout(PATIENCE_S):
            while not one.controller.state.ledger.entries:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
        follower.cancel()
