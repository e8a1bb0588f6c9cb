"""How much is kept free beside the promises, and whose a promise is that several containers share."""

import pytest
from msgspec.structs import replace

from bayplan.model.decision import Claim, Decision, Outcome, Placement, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.pod_as_a_whole import as_member
from bayplan.model.request import derive_request
from bayplan.model.workload import Resources
from bayplan.placement.page_owners import container_pages, goal_bytes, start_bytes, with_pods_shared_out
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.machines import container, machine, pod


@pytest.mark.parametrize(
    ("memory_bytes", "huge_bytes", "band_bytes"),
    [
        (256 * GIB, 0, GIB),
        # Nobody is promised ordinary memory in pools of huge pages.
        (256 * GIB, 192 * GIB, GIB // 4),
        (4 * GIB, 0, 32 * MIB),
        (4 * GIB, 3 * GIB, 16 * MIB),
    ],
)
def test_the_band_goes_by_ordinary_memory(memory_bytes: int, huge_bytes: int, band_bytes: int) -> None:
    found = machine(2, 4, memory_bytes, hugepages_bytes={2 * MIB: huge_bytes})
    assert start_bytes(found) == dict.fromkeys((0, 1), band_bytes)
    assert goal_bytes(found) == dict.fromkeys((0, 1), 2 * band_bytes)


def test_the_promise_of_a_pod_as_a_whole_is_its_containers_as_they_use_it() -> None:
    owner = replace(pod("whole", QosClass.GUARANTEED), resources=Resources(8 * GIB, 4096, 400_000, 100_000))
    ledger = Ledger()
    for name, claimed in (("a", {"memory": 8 * GIB}), ("b", {}), ("c", {})):
        one = container(name, owner, resources=owner.resources)
        request = as_member(derive_request(owner, one, machine(2)))
        nodes = NodeSet([0])
        placement = Placement(nodes, claim=Claim(nodes, claimed))
        ledger = ledger.with_entry(Entry(Decision(request, Outcome.PLACED, placement)))
    held = {"a": {0: GIB}, "b": {0: 2 * GIB, 1: GIB}, "c": {}}
    pages = {
        key: container_pages(machine(2), entry, held[key], {}, {}) for key, entry in ledger.entries.items()
    }
    shared_out = with_pods_shared_out(ledger, pages)
    assert {key: one.promised_bytes for key, one in shared_out.items()} == {
        "a": 6 * GIB,
        "b": 2 * GIB,
        "c": 0,
    }
    assert sum(one.outstanding_bytes for one in shared_out.values()) == 5 * GIB
