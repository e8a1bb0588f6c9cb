"""What a request does beside many containers is what it does beside few: counted, on no clock.

Counted are the lines of the package that are executed, each round of a loop anew. What is done in C for all
containers at once is the iteration of a map of the ledger, and none is made.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.model.decision import QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.life import Phase
from bayplan.model.workload import Container, Pod
from bayplan.nri import Event
from bayplan.persistent_map import MOST_APART
from bayplan.quantity import GIB, MIB
from support.controllers import Controlled, begun, controlled, has_due_updates
from support.machines import container, machine, pod

PACKAGE = "/bayplan/"
FEW, MANY = 4 * MOST_APART, 32 * MOST_APART
MAY_GROW = 1.1
"""Where a container goes among equal nodes may cost an attempt more or less."""
_ROUNDS = 3
"""Of the loop, in which what is left until after the reply is done."""
ITERATES = "PersistentMap._dict"
MACHINE = machine(4, cpus_per_node=36, memory_bytes=64 * GIB)

Steps = Counter[str]
Life = tuple[Pod, Container]


class Counting:
    """Lines executed, by function, while it is entered."""

    def __init__(self) -> None:
        self.steps: Steps = Counter()

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, _: str, __: object) -> Any:
        if PACKAGE not in frame.f_code.co_filename:
            return None
        self.steps[frame.f_code.co_qualname] += 1
        return self._line

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        self.steps[frame.f_code.co_qualname] += event == "line"
        return self._line


async def beside(one: Controlled, count: int) -> None:
    """So many containers that run, of three classes, each in a pod of its own, and one with CPUs that the
    others had: an update of each of them is due."""
    kinds = (QosClass.GUARANTEED, 10), (QosClass.BURSTABLE, None), (QosClass.BEST_EFFORT, None)
    entries = []
    for qos, milli in kinds:
        owner, name = pod(qos.value, qos), f"first-{qos.value}"
        amounts = None if qos is QosClass.BEST_EFFORT else MIB
        await begun(one.controller, owner, container(name, owner, memory_bytes=amounts, milli_cpus=milli))
        entries.append(one.controller.state.ledger.entries[name])
    copies = [_copied(entries[number % 3], f"beside-{number}") for number in range(count)]
    one.accept(ledger=Ledger.of([*entries, *copies]))
    await one.controller.state.wait_written()
    for entry in copies:
        one.controller.state.lives.begin(entry.container_id, Phase.RUNNING)
    owner = pod("owner", QosClass.GUARANTEED)
    await begun(one.controller, owner, container("owner", owner, memory_bytes=MIB, milli_cpus=2000))
    assert has_due_updates(one.controller)


def _copied(entry: Entry, name: str) -> Entry:
    request = replace(entry.decision.request, container_id=name, pod_id=f"{name}-sandbox")
    return replace(entry, decision=replace(entry.decision, request=request))


def requests(one: Controlled, kind: str, number: int) -> dict[str, Callable[[], Awaitable[object]]]:
    """What a runtime asks in a container's life."""
    qos = QosClass.BURSTABLE if kind == "shared" else QosClass.GUARANTEED
    owner = pod(f"{kind}-{number}", qos)
    asked = container(
        f"c-{kind}-{number}", owner, memory_bytes=MIB, milli_cpus=None if kind == "shared" else 2000
    )
    controller = one.controller

    def changed(event: Event) -> Callable[[], Awaitable[object]]:
        of_pod = event in (Event.STOP_POD_SANDBOX, Event.REMOVE_POD_SANDBOX)
        return lambda: controller.state_changed(event, owner, None if of_pod else asked)

    return {
        "create": lambda: controller.create_container(owner, asked),
        "post-create": changed(Event.POST_CREATE_CONTAINER),
        "start": changed(Event.START_CONTAINER),
        "post-start": changed(Event.POST_START_CONTAINER),
        "stop": lambda: controller.stop_container(owner, asked),
        "remove": changed(Event.REMOVE_CONTAINER),
        "stop-pod": changed(Event.STOP_POD_SANDBOX),
        "remove-pod": changed(Event.REMOVE_POD_SANDBOX),
    }


async def counted(directory: Path, count: int) -> dict[tuple[str, str], Steps]:
    """The steps of each request of a life, beside so many containers; of the second life, when what is worked
    out once is there."""
    found: dict[tuple[str, str], Steps] = {}
    async with controlled(directory, on=MACHINE, became=None) as one:
        await beside(one, count)
        for kind in ("shared", "whole"):
            for number in range(2):
                for name, ask in requests(one, kind, number).items():
                    counting = Counting()
                    with counting:
                        await ask()
                        for _ in range(_ROUNDS):
                            await asyncio.sleep(0)
                    found[kind, name] = counting.steps
    return found


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [tmp_path_factory.mktemp("state") for _ in range(2)]


async def test_a_request_visits_as_much_beside_many_containers_as_beside_few(
    directories: list[Path],
) -> None:
    few, many = [await counted(one, count) for one, count in zip(directories, (FEW, MANY), strict=True)]
    assert few.keys() == many.keys()
    grown = {
        asked: (many[asked] - few[asked]).most_common(5)
        for asked in few
        if many[asked].total() > MAY_GROW * few[asked].total()
    }
    assert grown == {}
    assert [asked for asked, steps in many.items() if steps[ITERATES]] == []
