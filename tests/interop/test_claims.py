"""Random claims by the unmodified allocator of Kubernetes' scheduler: what it allocates from the published
devices is held, and the ledger has what it counts as consumed, after each claim that comes or goes; also of
pods with several claims, beside devices of other drivers, and by an administrator's access."""

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace
from testbed.errors import TestBedError
from testbed.gobuild import allocator as compiled_allocator

from bayplan._proto.dra import api_pb2 as pb
from bayplan.agent.dra.driver import ClaimObject, allocated_here
from bayplan.agent.dra.slices import (
    CPU,
    devices_of,
    node_of_device,
    resource_of_key,
    resource_slices,
)
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.claims import ResourceClaim
from bayplan.model.decision import Outcome
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.ledger_check import check
from bayplan.placement.resource_claims import decide_claim
from bayplan.quantity import GIB, MIB, parse_bytes
from support.chart_manifests import PROJECT
from support.layouts import Layout
from support.requests import guaranteed_request
from support.snapshots import make_snapshot

pytestmark = pytest.mark.interop

NODE = "node-a"
CLAIMS, CAREFUL = 1000, 20
ENGINE, POLICY = ExactEngine(), PlacementPolicy()
POD = [{"resource": "pods", "name": "web", "uid": "pod"}]
Object = dict[str, Any]
OTHERS = {"gpu.example.com": (0, 2), "nic.example.com": (1, 2)}
"""The nodes of other drivers' devices."""
NUMA_NODE = "resource.kubernetes.io/numaNode"


def machine() -> Machine:
    """Two sockets of two nodes, 8 GiB each, of which 1 GiB are huge pages; near nodes are at 12."""
    made = Layout(sockets=2, nodes=2, cores=8, threads=1).machine()
    nodes = tuple(
        replace(
            node,
            memory_bytes=8 * GIB,
            hugepages_bytes={2 * MIB: GIB},
            distances={
                other: 10 if other == node.id else 12 if other // 2 == node.id // 2 else 21
                for other in range(4)
            },
        )
        for node in made.nodes
    )
    return Machine(nodes, made.cpus)


MACHINE = machine()


def classes() -> list[Object]:
    """The class of ordinary memory, as the chart has it."""
    expression = 'device.driver == "bayplan.dev" && device.attributes["bayplan.dev"].memoryTier == "dram"'
    template = (PROJECT / "packaging/helm/bayplan/templates/deviceclasses.yaml").read_text()
    assert expression.replace('"dram"', "{{ $selected | quote }}") in template
    others = {name: f'device.driver == "{name}"' for name in OTHERS}
    return [
        {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": one}}]}}
        for name, one in {"numa.bayplan.dev": expression, **others}.items()
    ]


@contextmanager
def allocator() -> Iterator[Any]:
    try:
        program = compiled_allocator()
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(slices: list[Object], allocated: list[Object], *claims: Object) -> list[Object]:
            """*claims*, which are of one pod, with what is allocated to them; none if they are not."""
            asked = {
                "node": NODE,
                "slices": slices,
                "classes": classes(),
                "allocated": allocated,
                "claims": claims,
            }
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert "error" not in answer, answer
            return [
                {**claim, "status": {"allocation": allocation, "reservedFor": POD}}
                for claim, allocation in zip(claims, answer["allocations"] or (), strict=False)
            ]

        yield ask
        process.stdin.close()


def published(ledger: Ledger, *, jointly: bool = False) -> list[Object]:
    snapshot = make_snapshot(machine=MACHINE, policy=POLICY, ledger=ledger)
    return resource_slices(NODE, "uid", devices_of(snapshot, jointly=jointly), 1)


def object_of(name: str, devices: Object) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": devices},
    }


def draw_claim(draw: random.Random, number: int) -> Object:
    """One node, several of them evenly, of a socket or of near ones, unevenly, all, or what is left of these;
    by selectors, beside a device of another driver, or by an administrator's access."""
    amounts = {
        "memory": draw.choice(["0", "1500Ki", "256Mi", "1Gi", "3Gi"]),
        "cpu": draw.choice(["0", "0", "1", "1500m", "3"]),
    }
    if not draw.randrange(4):
        amounts["hugepages2Mi"] = draw.choice(["1Mi", "64Mi", "300Mi"])
    near = exactly(**amounts)
    return object_of(f"c{number}", draw.choice([one_node, one_node, *SHAPES])(draw, near))


def exactly(count: int = 1, **amounts: str) -> Object:
    """A request for the same of *count* nodes, with the API server's defaults."""
    capacity = {"requests": {f"bayplan.dev/{key}": amount for key, amount in amounts.items()}}
    made: Object = {"deviceClassName": "numa.bayplan.dev", "allocationMode": "ExactCount", "count": count}
    return {**made, "capacity": capacity} if amounts else made


def one_node(_: random.Random, near: Object) -> Object:
    return {"requests": [{"name": "near", "exactly": near}]}


def evenly(draw: random.Random, near: Object) -> Object:
    key = draw.choice(["bayplan.dev/socket", "bayplan.dev/within12"])
    return {
        "requests": [{"name": "near", "exactly": {**near, "count": 2}}],
        "constraints": [{"matchAttribute": key}],
    }


def unevenly(_: random.Random, near: Object) -> Object:
    small = {"name": "small", "exactly": exactly(memory="128Mi")}
    return {
        "requests": [{"name": "large", "exactly": near}, small],
        "constraints": [{"distinctAttribute": NUMA_NODE}],
    }


def first_of_several(_: random.Random, near: Object) -> Object:
    """With a selector of the second that reads what a full node has nothing left of."""
    expression = 'device.capacity["bayplan.dev"].memory.compareTo(quantity("512Mi")) >= 0'
    two = {**exactly(2, memory="512Mi"), "selectors": [{"cel": {"expression": expression}}]}
    four = exactly(4, memory="64Mi", cpu="1")
    alternatives = [{**one, "name": f"by{one['count']}"} for one in (near, two, four)]
    return {"requests": [{"name": "near", "firstAvailable": alternatives}]}


def every_node(_: random.Random, near: Object) -> Object:
    small = {**exactly(memory="64Mi"), "allocationMode": "All"}
    del small["count"]
    return {"requests": [{"name": "every", "exactly": small}]}


def selected(draw: random.Random, near: Object) -> Object:
    """By all that a device says, also where it has nothing left."""
    own, says = 'device.capacity["bayplan.dev"]', 'device.attributes["bayplan.dev"]'
    expression = draw.choice(
        [
            f'{own}.hugepages2Mi.compareTo(quantity("128Mi")) >= 0',
            f'{own}.cpu.compareTo(quantity("2")) >= 0 && {says}.l3Caches > 0',
            f'{says}.coreKind == "uniform" && {own}.memory.isGreaterThan(quantity("0"))',
        ]
    )
    tolerated = {"operator": "Exists"}
    chosen = {**near, "selectors": [{"cel": {"expression": expression}}], "tolerations": [tolerated]}
    return {"requests": [{"name": "near", "exactly": chosen}]}


def beside_another(draw: random.Random, near: Object) -> Object:
    """A GPU is one of two halves, of which the whole is none any more then; its driver taints one."""
    other = {**exactly(), "deviceClassName": draw.choice(sorted(OTHERS))}
    return {
        "requests": [{"name": "near", "exactly": near}, {"name": "other", "exactly": other}],
        "constraints": [{"matchAttribute": NUMA_NODE}],
    }


def for_an_administrator(draw: random.Random, near: Object) -> Object:
    """Of all nodes, or of one beside what is claimed of it."""
    watched: Object = {**exactly(), "adminAccess": True}
    if draw.randrange(2):
        return {"requests": [{"name": "watched", "exactly": {**near, "adminAccess": True}}]}
    return {
        "requests": [{"name": "near", "exactly": near}, {"name": "watched", "exactly": watched}],
        "constraints": [{"matchAttribute": NUMA_NODE}],
    }


def of_less_than_nothing(_: random.Random, near: Object) -> Object:
    """The API server of Kubernetes 1.37 takes it (kubernetes#140468)."""
    near["capacity"]["requests"]["bayplan.dev/memory"] = "-1Gi"
    return {"requests": [{"name": "near", "exactly": {**near, "count": 4}}]}


SHAPES = (
    evenly,
    unevenly,
    first_of_several,
    every_node,
    selected,
    beside_another,
    for_an_administrator,
    of_less_than_nothing,
)


def of_bayplan(claim: Object) -> ResourceClaim | None:
    """What the daemon is told of *claim*; None if nothing of its devices was allocated."""
    metadata, found = claim["metadata"], msgspec.convert(claim, ClaimObject)
    asked = pb.Claim(namespace="default", name=metadata["name"], uid=metadata["uid"])
    return allocated_here(asked, found, NODE) if found.own else None


def consumed(claims: list[Object]) -> Counter[tuple[int, str]]:
    """What Kubernetes counts as consumed, by node and resource."""
    found: Counter[tuple[int, str]] = Counter()
    for claim in claims:
        for one in claim["status"]["allocation"]["devices"]["results"]:
            if one["driver"] != "bayplan.dev" or one.get("adminAccess"):
                continue
            for key, text in one["consumedCapacity"].items():
                found[node_of_device(one["device"]) or 0, resource_of_key(key)] += parse_bytes(text)
    return +found


def held(ledger: Ledger) -> Counter[tuple[int, str]]:
    """What the ledger has of claims."""
    found: Counter[tuple[int, str]] = Counter()
    for claim in ledger.resource_claims.values():
        for node, row in claim.by_node().items():
            for resource, amount in row.items():
                found[node, resource] += amount
        for node in MACHINE.nodes:
            found[node.id, CPU] += len(claim.cpus_of() & node.cpus)
    return +found


def containers_come_and_go(draw: random.Random, ledger: Ledger, number: int) -> Ledger:
    """Containers without claims, confined to one node or several."""
    if draw.randrange(3) == 0 and ledger.entries:
        return ledger.without(draw.choice(sorted(ledger.entries)))
    if draw.randrange(3):
        return ledger
    size = draw.choice([256 * MIB, GIB, 9 * GIB])
    request = guaranteed_request(f"k{number}", size, draw.choice([0, 1, 2]))
    decision = ENGINE.decide(Basis(MACHINE, POLICY, ledger), request)
    refused = decision.outcome is Outcome.REFUSED
    return ledger if refused else ledger.moved(decision.moves).with_entry(Entry(decision))


def test_what_the_scheduler_allocates_is_held_and_consumed_alike() -> None:
    draw, ledger, allocated = random.Random(37), Ledger(), list[Object]()
    outcomes: Counter[str] = Counter()
    careful = 0
    with allocator() as ask:
        for number in range(CLAIMS):
            ledger = containers_come_and_go(draw, ledger, number)
            if allocated and draw.random() < 0.55:
                gone = allocated.pop(draw.randrange(len(allocated)))
                ledger = ledger.without_retained(f"claim:{gone['metadata']['uid']}")
            claims = [draw_claim(draw, number)]
            if not draw.randrange(5):
                claims.append(draw_claim(draw, CLAIMS + number))
            # As for ten minutes after a refusal.
            jointly, careful = careful > 0, careful - 1
            slices = [*published(ledger, jointly=jointly), *of_others()]
            made = ask(slices, allocated, *claims)
            if not made:
                outcomes["no room"] += 1
            for claim in made:
                wanted = of_bayplan(claim)
                assert wanted is not None
                entry = decide_claim(Basis(MACHINE, POLICY, ledger), ENGINE, wanted)
                if entry.decision.outcome is Outcome.REFUSED:
                    # Only several nodes at once can be less than each of them alone.
                    nodes = {device.node for each in made for device in of_bayplan(each).devices}
                    assert len(nodes) > 1, entry.decision.explanation()
                    assert not jointly, entry.decision.explanation()
                    outcomes["refused"] += 1
                    careful = CAREFUL
                else:
                    ledger = ledger.with_entry(entry)
                    allocated.append(claim)
                    outcomes["held"] += 1
                    outcomes["holding nothing"] += not entry.resource_claim.claim.amounts_bytes
            assert held(ledger) == consumed(allocated)
            assert check(Basis(MACHINE, POLICY, ledger)) == ()
    print(dict(outcomes))
    assert outcomes["held"] > CLAIMS // 3
    assert outcomes["no room"] > CLAIMS // 20


def test_an_administrators_access_takes_nothing_and_is_had_of_a_full_node() -> None:
    whole = exactly(4, memory="6Gi", cpu="1")
    watched = {"name": "watched", "exactly": {**exactly(), "adminAccess": True, "allocationMode": "All"}}
    del watched["exactly"]["count"]
    with allocator() as ask:
        before = published(Ledger())
        (claim,) = ask(before, [], object_of("admin", {"requests": [watched]}))
        wanted = of_bayplan(claim)
        assert wanted is not None
        assert [(device.node, device.amounts_bytes, device.cpus) for device in wanted.devices] == [
            (node, {}, 0) for node in range(4)
        ]
        entry = decide_claim(Basis(MACHINE, POLICY, Ledger()), ENGINE, wanted)
        ledger = Ledger().with_entry(entry)
        assert held(ledger) == Counter()
        assert published(ledger) == before
        # The scheduler, too, allocates all the rest beside it, and such access to what has no rest.
        all_of_it = object_of("all", {"requests": [{"name": "near", "exactly": whole}]})
        (full,) = ask(before, [claim], all_of_it)
        assert ask(before, [claim, full], object_of("more", all_of_it["spec"]["devices"])) == []
        assert len(ask(before, [full], object_of("later", {"requests": [watched]}))) == 1


@pytest.mark.parametrize("containers", [0, 4])
def test_a_claim_of_less_than_nothing_makes_no_room(containers: int) -> None:
    """On empty nodes, and on nodes that containers have filled."""
    ledger = Ledger()
    for number in range(containers):
        request = guaranteed_request(f"k{number}", 7 * GIB, 0)
        ledger = ledger.with_entry(Entry(ENGINE.decide(Basis(MACHINE, POLICY, ledger), request)))
    slices = published(ledger)
    less = exactly(4, memory="-1Gi", cpu="-1", hugepages2Mi="-1Gi")
    more = exactly(memory="8Gi" if not containers else "1Mi")
    with allocator() as ask:
        claims = ask(slices, [], object_of("less", {"requests": [{"name": "near", "exactly": less}]}))
        assert len(claims) == 1
        assert consumed(claims) == Counter()
        assert ask(slices, claims, object_of("more", {"requests": [{"name": "near", "exactly": more}]})) == []


def of_others() -> list[Object]:
    """The slices of OTHERS: a GPU is had whole or in halves, by shared counters, and one NIC is tainted."""
    found = []
    for driver, nodes in OTHERS.items():
        parts = {"whole": "2", "first": "1", "second": "1"} if driver.startswith("gpu") else {"one": "1"}
        devices = [
            {
                "name": f"{part}-{node}",
                "attributes": {NUMA_NODE: {"int": node}},
                "consumesCounters": [{"counterSet": f"set-{node}", "counters": {"parts": {"value": taken}}}],
            }
            for node in nodes
            for part, taken in parts.items()
        ]
        if driver.startswith("nic"):
            devices[0]["taints"] = [{"key": "nic.example.com/down", "effect": "NoSchedule"}]
        counters = [{"name": f"set-{node}", "counters": {"parts": {"value": "2"}}} for node in nodes]
        for number, content in enumerate(({"devices": devices}, {"sharedCounters": counters})):
            pool = {"name": driver, "generation": 1, "resourceSliceCount": 2}
            spec = {"driver": driver, "nodeName": NODE, "pool": pool, **content}
            found.append({"metadata": {"name": f"{driver}-{number}"}, "spec": spec})
    return found


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("one-node", 1),
        ("two-nodes-of-a-socket", 2),
        ("one-node-or-two", 2),
        ("huge-pages-on-two-nodes", 2),
        ("beside-a-gpu", 1),
        ("beside-a-gpu-and-a-nic", 1),
    ],
)
def test_the_templates_are_allocated(name: str, count: int) -> None:
    text = (PROJECT / "packaging/kubernetes/claim-templates.yaml").read_text()
    small = text.replace("16Gi", "4Gi").replace("32Gi", "8Gi").replace("2Gi", "1Gi")
    templates = {one["metadata"]["name"]: one for one in yaml.safe_load_all(small)}
    devices = templates[name]["spec"]["spec"]["devices"]
    for request in devices["requests"]:
        for one in request.get("firstAvailable", [request.get("exactly")]):
            # The API server's defaults.
            one.setdefault("allocationMode", "ExactCount")
            one.setdefault("count", 1)
    with allocator() as ask:
        (claim,) = ask([*published(Ledger()), *of_others()], [], object_of(name, devices))
        results = claim["status"]["allocation"]["devices"]["results"]
        near = {int(one["device"].partition("-")[2]) for one in results if one["driver"] in OTHERS}
        wanted = of_bayplan(claim)
        assert wanted is not None
        entry = decide_claim(Basis(MACHINE, POLICY, Ledger()), ENGINE, wanted)
        assert entry.decision.outcome is Outcome.PLACED
        nodes = {device.node for device in wanted.devices}
        assert len(nodes) == count
        # Only node 2 has both a GPU and a NIC.
        assert near in (set(), nodes)
        assert name != "beside-a-gpu-and-a-nic" or nodes == {2}
