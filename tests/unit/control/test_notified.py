"""Who is updated with which reply when the shared CPUs change, and that nobody is forgotten."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from bayplan.model.decision import QosClass
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, ContainerState, Update
from bayplan.nri import Event
from bayplan.placement.adjustment import MOST_UPDATES
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from support.controllers import Controlled, begun, controlled
from support.machines import container, pod

OWNER, OTHERS = pod("owner", QosClass.GUARANTEED), pod("others", QosClass.BEST_EFFORT)
OWNING = container("owning", OWNER, memory_bytes=MIB, milli_cpus=2000)
SHARING = [container(f"s{number:02}", OTHERS) for number in range(3 * MOST_UPDATES)]
ALL, LEFT = CpuSet(range(8)), CpuSet.parse("0,3-7")


async def begin_sharing(one: Controlled) -> None:
    for each in SHARING:
        await begun(one.controller, OTHERS, each)


def ids(updates: Sequence[Update]) -> list[str]:
    assert {update.cpuset_cpus for update in updates} <= {LEFT}
    return [update.container_id for update in updates]


def listed(one: Container, cpus: CpuSet, mems: NodeSet | None = None) -> Container:
    resources = replace(one.resources, cpuset_cpus=cpus, cpuset_mems=mems)
    return replace(one, resources=resources, state=ContainerState.RUNNING)


async def test_a_start_waits_for_no_update_and_later_replies_have_them_all(tmp_path: Path) -> None:
    async with controlled(tmp_path) as one:
        await begin_sharing(one)
        assert one.changes_of_all == 0
        _, updates = await one.controller.create_container(OWNER, OWNING)
        assert (updates, one.changes_of_all) == ([], 1)
        assert {each.cpus for each in one.expectations()} == {LEFT, CpuSet([1, 2])}

        notified = list[str]()
        for each in reversed(SHARING[-4:]):
            updates = await one.controller.stop_container(OTHERS, each)
            assert len(updates) <= MOST_UPDATES
            notified += ids(updates)
        assert notified == [each.id for each in SHARING[:-3]]
        assert updates == []
        # Their CPUs did not change again.
        assert one.changes_of_all == 1


async def test_who_does_not_run_yet_is_updated_with_each_reply(tmp_path: Path) -> None:
    """Its cgroup is made from what the runtime has."""
    async with controlled(tmp_path) as one:
        await begin_sharing(one)
        late = container("late", OTHERS)
        await one.controller.create_container(OTHERS, late)
        await one.controller.state_changed(Event.POST_CREATE_CONTAINER, OTHERS, late)
        _, updates = await one.controller.create_container(OWNER, OWNING)
        assert ids(updates) == ["late"]


async def test_the_answer_to_an_update_has_what_the_container_lacks(tmp_path: Path) -> None:
    """A runtime sets all that it has for the container with it, also where nothing is decided again; the
    history lists decisions alone."""
    async with controlled(tmp_path) as one:
        await begin_sharing(one)
        await one.controller.create_container(OWNER, OWNING)
        decided, undecided = Resources(cpu_shares=512), Resources(unified={"memory.high": "max"})
        for each, change in ((SHARING[-1], decided), (SHARING[-2], undecided)):
            updates = await one.controller.update_container(OTHERS, each, change)
            await one.controller.state_changed(Event.POST_UPDATE_CONTAINER, OTHERS, each)
            assert len(updates) <= 1 + MOST_UPDATES
            assert each.id in ids(updates)
        recorded = await one.controller.state.recorder.decided(0)
    listed_ids = Counter(decision.request.container_id for _, decision in recorded)
    assert (listed_ids[SHARING[-1].id], listed_ids[SHARING[-2].id]) == (2, 1)


async def test_a_connection_is_answered_with_few_updates_and_the_kernel_gets_all(tmp_path: Path) -> None:
    """The next daemon knows what the runtime has from its list."""
    async with controlled(tmp_path) as one:
        await begin_sharing(one)
        await one.controller.create_container(OWNER, OWNING)

    async with controlled(tmp_path) as one:
        running = [listed(each, ALL) for each in SHARING] + [listed(OWNING, CpuSet([1, 2]), NodeSet([0]))]
        updates = await one.controller.synchronize([OWNER, OTHERS], running)
        assert ids(updates) == [each.id for each in SHARING[:MOST_UPDATES]]
        assert one.changes_of_all == 1
        again = await one.controller.synchronize([OWNER, OTHERS], running[MOST_UPDATES:])
        assert ids(again) == [each.id for each in SHARING[MOST_UPDATES : 2 * MOST_UPDATES]]
