"""A whole node behind kubelet's sockets: registered, prepared, run, released; with what can go wrong in
between."""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan._proto.dra import api_pb2 as pb
from bayplan.agent.dra.driver import device_problems
from bayplan.agent.dra.slices import devices_of
from bayplan.agent_protocol import Observed
from bayplan.model.decision import QosClass
from bayplan.sets import CpuSet
from bayplan.views.snapshot import Drifted
from support.conditions import until
from support.controllers import MACHINE, Controlled, begun
from support.dra_kubelet import DraKubelet, found_sockets, registered
from support.dra_node import POD, DraNode, resource_claim, result
from support.fake_api_server import NODE, SLICES, FakeApiServer
from support.machines import container, pod
from support.places import IN_MEMORY
from support.resource_claims import UID
from support.slice_rules import pool_devices

AT_ONCE = 8
NO_ANSWER = "no answer within"
CLAIM = pb.Claim(namespace="default", uid=UID, name="memory")
PATH = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/memory"


OTHERS = {"request": "gpu", "driver": "gpu.example.com", "pool": NODE, "device": "gpu-0"}
NEXT = [{"resource": "pods", "name": "next", "uid": "next"}]
WIDE = (result(0, memory="64Mi", cpu="2"), OTHERS, result(1, "far/large", memory="32Mi", cpu="0"))


@pytest.fixture
def node() -> Iterator[DraNode]:
    api = FakeApiServer()
    api.objects[PATH] = resource_claim(*WIDE)
    # A socket's path has 107 bytes.
    with api.serving(), TemporaryDirectory(prefix="dra") as directory:
        yield DraNode(Path(directory), api)


async def prepared(kubelet: DraKubelet, claim: pb.Claim = CLAIM) -> pb.NodePrepareResourceResponse:
    answer = (await kubelet.prepare(claim))[claim.uid]
    assert answer.error == ""
    return answer


async def test_a_claim_from_the_scheduler_to_the_container_and_back(node: DraNode) -> None:
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        assert kubelet.info.name == "bayplan.dev"
        assert kubelet.info.supported_versions[0] == "v1.DRAPlugin"
        await until(lambda: mirror.connected)
        answer = await prepared(kubelet)
        assert [(list(each.request_names), each.pool_name, each.device_name) for each in answer.devices] == [
            (["near"], NODE, "numa-0"),
            (["far"], NODE, "numa-1"),
        ]
        assert [each.share_id for each in answer.devices] == ["share-0", "share-1"]
        held = one.controller.state.ledger.resource_claims[f"claim:{UID}"]
        assert held.claim.pod_uids == ("web",)
        adjustment, _ = await begun(one.controller, POD, node.create("both", answer))
        assert (str(adjustment.cpuset_mems), adjustment.cpuset_cpus) == ("0-1", held.cpus_of())
        far, _ = await begun(one.controller, POD, node.create("far", answer, "far"))
        assert str(far.cpuset_mems) == "1"
        # Again, as after a restart of kubelet.
        assert await prepared(kubelet) == answer
        # What containers run on is not released; kubelet tries again.
        problem = (await kubelet.unprepare(CLAIM))[UID]
        assert "both-name" in problem
        for key in ("both", "far"):
            await one.controller.stop_container(POD, container(key, POD))
        assert await kubelet.unprepare(CLAIM) == {UID: ""}
        assert one.controller.state.ledger.retained == {}
        assert list(node.specs.iterdir()) == []
        never = pb.Claim(namespace="x", uid="never", name="y")
        assert await kubelet.unprepare(CLAIM, never) == {UID: "", "never": ""}


async def test_what_is_published_is_free_or_held_by_claims(node: DraNode) -> None:
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.snapshot is not None and bool(pool_devices(node.api.slices())))
        empty = pool_devices(node.api.slices())
        await prepared(kubelet)
        await until(lambda: bool(mirror.snapshot and mirror.snapshot.ledger.resource_claims))
        # The scheduler subtracts it itself.
        assert mirror.snapshot is not None
        assert {each["name"]: each for each in devices_of(mirror.snapshot)} == empty
        other = pod("other", QosClass.GUARANTEED)
        await begun(one.controller, other, container("c", other, memory_bytes=512 << 20, milli_cpus=1000))
        await until(lambda: pool_devices(node.api.slices()) != empty)


@pytest.mark.parametrize(
    ("objects", "word"),
    [
        ({}, "answers 404"),
        ({PATH: resource_claim(*WIDE, uid="another")}, "its uid is another now"),
        ({PATH: {"metadata": {"uid": UID}}}, "nothing of bayplan.dev"),
        ({PATH: resource_claim(OTHERS)}, "nothing of bayplan.dev"),
        ({PATH: resource_claim({**result(0), "pool": "node-b"})}, "of the pool node-b"),
        ({PATH: resource_claim({**result(0), "device": "gpu-1"})}, "gpu-1"),
        ({PATH: resource_claim(result(0, memory="64Mo"))}, "64Mo"),
        ({PATH: resource_claim(result(0, memory="-1Gi"))}, "-1Gi"),
        ({PATH: resource_claim(result(0, cpu="-1"))}, "consumed capacity bayplan.dev/cpu"),
        ({PATH: resource_claim(result(0, gold="1"))}, "gold"),
        ({PATH: resource_claim(result(9, memory="1Mi"))}, "no node 9"),
        ({PATH: resource_claim(result(0, memory="2Gi"))}, "2Gi"),
        ({PATH: resource_claim(result(0, cpu="4"))}, "4 CPUs"),
        ({PATH: resource_claim(*WIDE, pods=("a", "b"))}, "2 pods"),
        ({PATH: {"metadata": []}}, "not what an API server answers"),
    ],
)
async def test_what_cannot_be_prepared_says_why_and_holds_nothing(
    node: DraNode, objects: dict[str, Any], word: str
) -> None:
    del node.api.objects[PATH]
    node.api.objects |= objects
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        answer = (await kubelet.prepare(CLAIM))[UID]
        assert word in answer.error
        assert "Traceback" not in answer.error
        assert list(answer.devices) == []
        assert one.controller.state.ledger.retained == {}
        # The next one is prepared all the same.
        node.api.objects[PATH] = resource_claim(*WIDE)
        await prepared(kubelet)


async def test_an_administrators_claim_holds_nothing(node: DraNode) -> None:
    monitoring = {**result(0, memory="512Mi", cpu="2"), "adminAccess": True}
    node.api.objects[PATH] = resource_claim(monitoring)
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        answer = await prepared(kubelet)
        (held,) = one.controller.state.ledger.resource_claims.values()
        assert (held.by_node(), held.cpus_of()) == ({}, CpuSet())
        adjustment, _ = await begun(one.controller, POD, node.create("monitor", answer))
        assert adjustment.cpuset_mems is None


async def test_a_container_that_starts_again_has_what_it_had(node: DraNode) -> None:
    """Without another preparation, and beside others who came meanwhile."""
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        answer = await prepared(kubelet)
        first, _ = await begun(one.controller, POD, node.create("first", answer))
        await one.controller.stop_container(POD, container("first", POD))
        other = pod("other", QosClass.GUARANTEED)
        beside, _ = await begun(
            one.controller, other, container("o", other, memory_bytes=1 << 20, milli_cpus=1000)
        )
        again, _ = await begun(one.controller, POD, node.create("again", answer))
        assert (again.cpuset_cpus, again.cpuset_mems) == (first.cpuset_cpus, first.cpuset_mems)
        assert beside.cpuset_cpus is not None
        assert again.cpuset_cpus is not None
        assert beside.cpuset_cpus.isdisjoint(again.cpuset_cpus)


async def test_the_claims_status_says_why_it_is_not_prepared(node: DraNode) -> None:
    node.api.objects[PATH] = resource_claim(result(0, memory="2Gi"), OTHERS)

    def said() -> list[tuple[str, str]]:
        devices = node.api.objects[PATH]["status"].get("devices", [])
        return [(one["device"], one["conditions"][0]["status"]) for one in devices]

    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.snapshot is not None)
        answer = (await kubelet.prepare(CLAIM))[UID]
        assert said() == [("numa-0", "False")]
        (device,) = node.api.objects[PATH]["status"]["devices"]
        assert device["conditions"][0]["message"] == answer.error
        # The next ones get what all devices have together; nothing is written again for the same.
        writes = sum(method == "PATCH" and path.startswith(PATH) for method, path in node.api.requests)
        await kubelet.prepare(CLAIM)
        assert (
            sum(method == "PATCH" and path.startswith(PATH) for method, path in node.api.requests) == writes
        )
        assert any(each.decision.request.name == "default/memory" for each in mirror.refusals)
        status = node.api.objects[PATH]["status"]
        node.api.objects[PATH]["status"] = {**status, **resource_claim(result(0, memory="1Mi"))["status"]}
        node.api.forbidden.add(("PATCH", f"{PATH}/status"))
        await prepared(kubelet)  # Nobody waits for the right to say so.
        assert said() == [("numa-0", "False")]
        node.api.forbidden.clear()
        await prepared(kubelet)
        assert said() == [("numa-0", "True")]
        assert one.controller.state.ledger.resource_claims


async def test_whoever_is_started_again_in_whatever_order_has_the_same_claims(node: DraNode) -> None:
    async with AsyncExitStack() as daemons:
        one = await daemons.enter_async_context(node.daemon())
        async with node.agent() as mirror, registered(node.registry) as kubelet:
            await until(lambda: mirror.connected)
            answer = await prepared(kubelet)
            held = one.controller.state.ledger.resource_claims
            # The daemon is away: kubelet is told so, and asks again.
            await daemons.aclose()
            assert "baypland" in (await kubelet.prepare(CLAIM))[UID].error
            assert "baypland" in (await kubelet.unprepare(CLAIM))[UID]
            for path in node.specs.iterdir():
                path.unlink()  # A reboot.
            async with node.daemon() as again:
                await until(lambda: mirror.connected)
                assert again.controller.state.ledger.resource_claims == held
                assert await prepared(kubelet) == answer
        assert found_sockets(node.registry) == []
        # And another agent.
        async with node.daemon() as third, node.agent() as mirror, registered(node.registry) as kubelet:
            await until(lambda: mirror.connected)
            adjustment, _ = await begun(third.controller, POD, node.create("c", answer))
            assert adjustment.cpuset_cpus == next(iter(held.values())).cpus_of()
            assert await prepared(kubelet) == answer


async def test_many_pods_are_prepared_at_once(node: DraNode) -> None:
    claims = [pb.Claim(namespace="default", uid=f"uid-{number}", name=f"c{number}") for number in range(12)]
    for claim in claims:
        path = PATH.replace("memory", claim.name)
        one = resource_claim(result(0, memory="16Mi"), uid=claim.uid, pods=(claim.name,))
        node.api.objects[path] = one
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        answers = await asyncio.gather(*(kubelet.prepare(claim) for claim in claims))
        assert [each.error for answer in answers for each in answer.values()] == [""] * 12
        assert len(one.controller.state.ledger.resource_claims) == 12


async def test_a_claim_that_nobody_needs_any_more_is_released_unless_containers_run_on_it(
    node: DraNode,
) -> None:
    node.look_s = 0.02
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        answer = await prepared(kubelet)
        await begun(one.controller, POD, node.create("c", answer))
        await until(lambda: "c" in mirror.snapshot.ledger.entries)
        del node.api.objects[PATH]
        asked = node.api.requests.count(("GET", PATH))
        await asyncio.sleep(10 * node.look_s)
        # At most the look that was under way. Nobody is asked of what cannot be released.
        assert node.api.requests.count(("GET", PATH)) <= asked + 1
        assert one.controller.state.ledger.resource_claims
        await one.controller.stop_container(POD, container("c", POD))
        await until(lambda: not one.controller.state.ledger.resource_claims)


async def test_a_claim_that_the_next_pod_has_meanwhile_is_not_released(node: DraNode) -> None:
    """Also if the API server's answer that nobody needs it is on its way."""
    node.look_s = 0.02
    wanted = node.api.objects[PATH]
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        answer = await prepared(kubelet)
        node.api.late[PATH] = told = threading.Event()
        del node.api.objects[PATH]
        await until(lambda: not node.api.late)
        node.api.objects[PATH] = {**wanted, "status": {**wanted["status"], "reservedFor": NEXT}}
        again = asyncio.create_task(prepared(kubelet))
        await asyncio.wait([again], timeout=0.2)
        told.set()
        assert (await again).devices == answer.devices
        looked = len(node.api.requests)
        await until(lambda: len(node.api.requests) > looked + 3)
        (held,) = one.controller.state.ledger.resource_claims.values()
        assert held.claim.pod_uids == ("next",)
        # Of another node now: nobody asks for its release here.
        elsewhere = [{**each, "pool": "node-b"} for each in WIDE]
        node.api.objects[PATH] = resource_claim(*elsewhere)
        await until(lambda: not one.controller.state.ledger.resource_claims)


async def test_a_claim_that_kubelet_has_released_is_not_held_by_what_was_read_before(node: DraNode) -> None:
    """kubelet gives a preparation up, as its pod is gone, while the API server's answer is on its way; who
    waits for that keeps nobody else from a release."""
    other = pb.Claim(namespace="default", uid=f"{UID}-2", name="other")
    node.api.objects[f"{PATH[: -len('memory')]}other"] = resource_claim(result(0), uid=other.uid)
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        await prepared(kubelet, other)
        node.api.late[PATH] = told = threading.Event()
        preparing = asyncio.create_task(kubelet.prepare(CLAIM))
        await until(lambda: not node.api.late)
        releasing = asyncio.create_task(kubelet.unprepare(CLAIM))
        assert await kubelet.unprepare(other) == {other.uid: ""}
        told.set()
        await preparing
        assert await releasing == {UID: ""}
        assert not one.controller.state.ledger.resource_claims


async def test_health_is_said_again_however_often_the_daemon_says_something(node: DraNode) -> None:
    """What kubelet has not heard of for 30 s is unknown to it."""
    async with node.daemon(), node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        watch = kubelet.health()
        first = await anext(watch)

        async def change() -> None:
            while True:
                assert mirror.snapshot is not None
                mirror.take(Observed(mirror.snapshot.observation))
                await asyncio.sleep(0.01)

        changing = asyncio.create_task(change())
        assert [await anext(watch) for _ in range(3)] == [first] * 3
        changing.cancel()


async def test_health_says_which_nodes_are_short_or_gone(node: DraNode) -> None:
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        await prepared(kubelet)
        watch = kubelet.health()
        assert await anext(watch) == {(NODE, f"numa-{each}"): (1, "") for each in range(2)}
        first, second = MACHINE.nodes
        short = replace(MACHINE, nodes=(replace(first, memory_bytes=1 << 20), second))
        one.accept(machine=short)
        while (said := await anext(watch))[NODE, "numa-0"][0] != 2:
            pass
        assert "default/memory" in said[NODE, "numa-0"][1]
        one.accept(machine=replace(MACHINE, nodes=(second,)))
        while "gone" not in (said := await anext(watch))[NODE, "numa-0"][1]:
            pass
        assert said[NODE, "numa-1"] == (1, "")


async def test_a_device_is_unhealthy_while_cpus_of_a_claim_are_offline_or_its_containers_elsewhere(
    node: DraNode,
) -> None:
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.connected)
        answer = await prepared(kubelet)
        await begun(one.controller, POD, node.create("c", answer, "near"))
        await until(lambda: bool(mirror.snapshot and mirror.snapshot.ledger.entries))
        assert mirror.snapshot is not None
        good = mirror.snapshot
        assert device_problems(good) == {"numa-0": "", "numa-1": ""}
        drifted = (Drifted("c", "default/web/c", "default/web/c: cpus 0-7"), Drifted("x", "x", "x: cpus 1"))
        found = device_problems(replace(good, drift=drifted))
        assert found == {"numa-0": "default/web/c: cpus 0-7", "numa-1": ""}
        (held,) = good.ledger.resource_claims.values()
        lost = min(held.cpus_of())
        cpus = tuple(replace(each, online=each.id != lost) for each in MACHINE.cpus)
        found = device_problems(replace(good, machine=replace(MACHINE, cpus=cpus)))
        assert "default/memory" in found["numa-0"]
        assert str(lost) in found["numa-0"]
        assert found["numa-1"] == ""


async def test_a_kubelet_that_does_not_take_the_driver_is_one_line(
    node: DraNode, caplog: pytest.LogCaptureFixture
) -> None:
    async with node.agent():
        async with registered(node.registry, refuses="no such version"):
            pass
        problems = [one.problem for one in caplog.records if one.name == "bayplan.logs"]
        assert "no such version" in problems


async def lives(
    node: DraNode, one: Controlled, kubelet: DraKubelet, draw: random.Random, numbers: range
) -> int:
    """Claims of one pod after the other; how many were held. The ledger has each, and only while kubelet has
    it prepared, with what the scheduler counts as consumed. Without an answer in time, as on a busy disk, it
    may have it or not: kubelet asks again."""
    held = 0
    for number in numbers:
        claim = pb.Claim(namespace="default", uid=f"uid-{number}", name=f"c{number}")
        path = PATH.replace("memory", claim.name)
        memory_mib, cpus = draw.choice([1, 16, 64, 200]), draw.choice((0, 0, 1))
        results = [result(draw.randrange(2), memory=f"{memory_mib}Mi", cpu=str(cpus))]
        node.api.objects[path] = resource_claim(*results, uid=claim.uid, pods=(claim.name,))
        while NO_ANSWER in (answer := (await kubelet.prepare(claim))[claim.uid]).error:
            pass
        found = one.controller.state.ledger.resource_claims.get(f"claim:{claim.uid}")
        assert (found is None) == bool(answer.error)
        if found is not None:
            held += 1
            assert found.claim.amounts_bytes == {"memory": memory_mib << 20}
            assert len(found.cpus_of()) == cpus
            if number % 7 == 0:
                again = (await kubelet.prepare(claim))[claim.uid]
                assert again.devices == answer.devices or NO_ANSWER in again.error
        while NO_ANSWER in (problem := (await kubelet.unprepare(claim))[claim.uid]):
            pass
        assert problem == ""
        assert f"claim:{claim.uid}" not in one.controller.state.ledger.retained
        del node.api.objects[path]
    return held


async def come_and_go(node: DraNode, numbers: range) -> Counter[str]:
    """Claims with *numbers*, several at once, to a daemon and an agent that have just started: nothing is
    left of them, and the API server is written to at most once a second. How often, for what."""
    asked = len(node.api.requests)
    async with node.daemon() as one, node.agent() as mirror, registered(node.registry) as kubelet:
        await until(lambda: mirror.snapshot is not None and bool(node.api.slices()))
        begun_s, draws = time.monotonic(), [random.Random(numbers.start + at) for at in range(AT_ONCE)]
        held = await asyncio.gather(
            *(lives(node, one, kubelet, draw, numbers[at::AT_ONCE]) for at, draw in enumerate(draws))
        )
        passed_s, state = time.monotonic() - begun_s, one.controller.state
        assert sum(held) > len(numbers) // 2
        assert state.ledger.retained == {}
        assert state.ledger.exclusive_cpus == CpuSet()
        assert await state.check_ledger() == ()
        assert list(node.specs.iterdir()) == []
    written = [path for method, path in node.api.requests[asked:] if method not in {"GET", "WATCH"}]
    # Of the slices: claims alone change nothing that is published, but for what is left after a refusal.
    slices = sum(path.startswith(SLICES) for path in written)
    assert slices <= passed_s + 2
    # Of a claim why it is not prepared, once.
    assert len(written) - slices <= len(numbers) - sum(held)
    return Counter(held=sum(held), slices=slices, statuses=len(written) - slices)


def played(count: int, a_part: int) -> Counter[str]:
    """*count* claims come and go, with daemon and agent started anew between parts of them; how many were
    held, and what was written."""
    api, found = FakeApiServer(), Counter[str]()
    with api.serving(), TemporaryDirectory(prefix="dra", dir=IN_MEMORY) as directory:
        node = DraNode(Path(directory), api)
        node.publish_s = 1.0
        for start in range(0, count, a_part):
            found += asyncio.run(come_and_go(node, range(start, start + a_part)))
    return found


def test_claims_come_and_go() -> None:
    played(200, 100)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_ten_thousand_claims_come_and_go() -> None:
    """Some minutes: a claim costs 10 ms of a CPU."""
    found = played(10_000, 1000)
    print(dict(found))
    assert found["slices"] + found["statuses"] < 200
