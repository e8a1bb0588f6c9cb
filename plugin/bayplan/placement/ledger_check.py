"""The ledger held against itself and the machine: every invariant of it, in one place.

What is derived must follow from the entries, a CPU has one owner, a named pool one set of CPUs, a pod as a
whole has no more than it asks for, an id is its entry's; no set of nodes is promised more than it holds, and
exclusive CPUs are there. The first kind can only be a mistake of ours, and `mended` is the ledger that the
entries say. The second kind may also be hardware that has gone, and promises are never taken back for that.
Pure.

A check of 250 containers takes 1 ms. It runs at the start, after each reconciliation and on demand; in tests
after every transaction.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from bayplan.model.basis import Basis
from bayplan.model.claims import sum_of
from bayplan.model.decision import Booking
from bayplan.model.ledger import (
    Entry,
    Ledger,
    holds_alone,
    is_followed,
    is_short,
    notice_of,
    score_key,
    shares_beside,
)
from bayplan.model.machine import MEMORY
from bayplan.model.pod_as_a_whole import held_cpus, is_member
from bayplan.placement.shortfall import lost_cpus, overclaims
from bayplan.quantity import counted
from bayplan.sets import CpuSet, cpus_text

WRONG_ID: Final = "wrong-id"
WRONG_TOTAL: Final = "wrong-total"
TWO_OWNERS: Final = "two-owners"
DIVIDED_POOL: Final = "divided-pool"
POD_EXCEEDED: Final = "pod-exceeded"
OVERCLAIMED: Final = "overclaimed"
LOST_CPUS: Final = "lost-cpus"
NOT_RECORDED: Final = "not-recorded"

_Key = TypeVar("_Key")


class Fault(Struct, frozen=True):
    """Something that does not hold: its ``code``, and a sentence of what was found and what was expected."""

    code: str
    text: str

    @property
    def is_ours(self) -> bool:
        """Whether no hardware can have caused it."""
        return self.code not in (OVERCLAIMED, LOST_CPUS)

    def __str__(self) -> str:
        return self.text


def check(basis: Basis) -> tuple[Fault, ...]:
    """Everything about the ledger that does not hold; nothing if it is as it must be."""
    return (
        *contradictions(basis.ledger),
        *(Fault(OVERCLAIMED, str(one)) for one in overclaims(basis)),
        *(Fault(LOST_CPUS, str(one)) for one in lost_cpus(basis)),
    )


def contradictions(ledger: Ledger) -> tuple[Fault, ...]:
    """What of *ledger* cannot be true on any machine."""
    return (
        *_wrong_ids(ledger),
        *_wrong_totals(ledger),
        *_two_owners(ledger),
        *_divided_pools(ledger),
        *_exceeded_pods(ledger),
    )


def mended(ledger: Ledger) -> Ledger:
    """The ledger that the entries of *ledger* say: they are what was decided, all else follows from them."""
    retained = (entry for entry in ledger.retained.values() if entry.ended)
    return Ledger.of((*(entry for entry in ledger.entries.values() if not entry.ended), *retained))


def unlike_record(ledger: Ledger, recorded: Ledger, unrecorded: Iterable[str] = ()) -> Iterator[Fault]:
    """The containers of which the disk says something else than *ledger*, but for those that are *unrecorded*
    as far as is known."""
    held, written = _by_id(ledger), _by_id(recorded)
    for container_id in sorted((held.keys() | written.keys()) - set(unrecorded)):
        one, other = held.get(container_id), written.get(container_id)
        if one != other:
            found = "has nothing" if other is None else "has it" if one is None else "has another promise"
            expected = "nothing" if one is None else "what is promised"
            text = f"the record {found} of container {container_id}, and should have {expected}"
            yield Fault(NOT_RECORDED, text)


def _by_id(ledger: Ledger) -> dict[str, Entry]:
    return {**{entry.container_id: entry for entry in ledger.retained.values()}, **ledger.entries}


def _wrong_ids(ledger: Ledger) -> Iterator[Fault]:
    for key, entry in ledger.entries.items():
        if key != entry.container_id or entry.ended:
            state = "one that has ended" if entry.ended else entry.container_id
            yield Fault(WRONG_ID, f"the entry of container {key} is of {state}")
    for pod_id, entry in ledger.retained.items():
        if pod_id != entry.decision.request.pod_id or not entry.ended:
            yield Fault(WRONG_ID, f"what pod {pod_id} keeps is of container {entry.container_id}")


def _wrong_totals(ledger: Ledger) -> Iterator[Fault]:
    booked: dict[int, Counter[str]] = {}
    claimed: dict[object, Counter[str]] = {}
    bound: Counter[object] = Counter()
    noted: dict[object, set[str]] = {}
    milli: Counter[object] = Counter()
    scores: dict[object, set[str]] = {}
    exclusive, short, pinned, beside = CpuSet(), set[str](), set[str](), set[str]()
    followed = {key for key, entry in ledger.entries.items() if is_followed(entry)}
    pools: dict[object, set[str]] = {}
    pods: dict[object, tuple[str, ...]] = {}
    kept = filter(holds_alone, ledger.retained.values())
    for entry in (*ledger.entries.values(), *kept):
        placement = entry.decision.placement
        exclusive |= held_cpus(placement)
        for nodes, amounts_bytes in placement.promise.claimed_parts:
            claimed.setdefault(nodes, Counter()).update(amounts_bytes)
    for key, entry in ledger.entries.items():
        decision, placement, request = entry.decision, entry.decision.placement, entry.decision.request
        for node, row in placement.promise.booked_bytes.items():
            booked.setdefault(node, Counter()).update(row)
        bound.update(() if placement.mems is None else (placement.mems,))
        if (notice := notice_of(entry)) is not None:
            noted.setdefault(notice, set()).add(key)
        milli[request.qos_source] += decision.pool_milli
        if (score := score_key(request)) is not None:
            scores.setdefault(score, set()).add(key)
        short.update((key,) if is_short(placement) else ())
        pinned.update(() if request.pinned_cpus is None else (key,))
        beside.update((key,) if shares_beside(entry) else ())
        pods[request.pod_id] = (*pods.get(request.pod_id, ()), key)
        if request.cpus is not None and request.pool:
            pools.setdefault(request.pool, set()).add(key)
    for name, total, expected in (
        ("booked_bytes", _rows(ledger.booked_bytes), _rows(booked)),
        ("claimed_bytes", _rows(ledger.claimed_bytes), _rows(claimed)),
        ("bound", _counts(ledger.bound), _counts(bound)),
        ("exclusive_cpus", ledger.exclusive_cpus, exclusive),
        ("ids_by_notice", {cpus: set(ids) for cpus, ids in ledger.ids_by_notice.items()}, noted),
        ("ids_by_score", {key: set(ids) for key, ids in ledger.ids_by_score.items()}, scores),
        ("short_ids", set(ledger.short_ids), short),
        ("pinned_ids", set(ledger.pinned_ids), pinned),
        ("beside_ids", set(ledger.beside_ids), beside),
        ("followed_ids", set(ledger.followed_ids), followed),
        ("pool_ids", {pool: set(ids) for pool, ids in ledger.pool_ids.items()}, pools),
        ("ids_by_pod", dict(ledger.ids_by_pod), pods),
        ("shared_milli", _counts(ledger.shared_milli), _counts(milli)),
    ):
        if total != expected:
            yield Fault(WRONG_TOTAL, f"{name} is {total}, and the entries come to {expected}")


def _rows(totals: Mapping[_Key, Mapping[str, int]]) -> dict[_Key, dict[str, int]]:
    """*totals* without zeros, which come and go with what was there."""
    rows = {key: _counts(row) for key, row in totals.items()}
    return {key: row for key, row in rows.items() if row}


def _counts(counts: Mapping[_Key, int]) -> dict[_Key, int]:
    return {key: count for key, count in counts.items() if count}


def _two_owners(ledger: Ledger) -> Iterator[Fault]:
    """A CPU of two pods or named pools, or of two containers of a pod that do not share it."""
    pods: dict[str, CpuSet] = {}
    owners: dict[str, dict[str, CpuSet]] = {}
    for entry in (*ledger.entries.values(), *ledger.retained.values()):
        request, placement = entry.decision.request, entry.decision.placement
        if entry.ended and not holds_alone(entry):
            continue
        pod = request.pod_id or entry.container_id
        if held := held_cpus(placement):
            # What members of named pools have is the pools'.
            held = held - placement.pool_cpus if request.pool else held
            pods[pod] = pods.get(pod, CpuSet()) | held
        if own := placement.exclusive_cpus:
            shares = request.pod_level and not request.exclusive_cpus
            of_pod = owners.setdefault(pod, {})
            who = f"pod {pod}" if shares else f"container {entry.container_id}"
            of_pod[who] = of_pod.get(who, CpuSet()) | own
    pools = {f"the pool {name}": cpus for name, cpus in ledger.cpus_of_pools.items()}
    for each in ({**pools, **{f"pod {pod}": cpus for pod, cpus in pods.items()}}, *owners.values()):
        owned = CpuSet()
        for who, cpus in each.items():
            if both := cpus & owned:
                yield Fault(TWO_OWNERS, f"{cpus_text(both)} of {who} have another owner too")
            owned |= cpus


def _divided_pools(ledger: Ledger) -> Iterator[Fault]:
    """Named pools whose members have not all the same CPUs."""
    for pool in ledger.pool_ids:
        wanted = ledger.pool_cpus(pool)
        for entry in ledger.members(pool):
            cpus = entry.decision.placement.pool_cpus
            if cpus != wanted:
                text = f"container {entry.container_id} has {cpus_text(cpus)} of the pool {pool}"
                yield Fault(DIVIDED_POOL, f"{text}, and another member {cpus_text(wanted)}")


def _exceeded_pods(ledger: Ledger) -> Iterator[Fault]:
    """Pods with resources as a whole whose containers were promised more than the pod asks for."""
    amounts: dict[str, list[Mapping[str, int]]] = {}
    asked: dict[str, dict[str, int]] = {}
    for entry in (*ledger.entries.values(), *ledger.retained.values()):
        request, claim = entry.decision.request, entry.decision.placement.promise
        if request.pod_totals is None or isinstance(claim, Booking) or not is_member(request):
            continue
        amounts.setdefault(request.pod_id, []).append(claim.amounts_bytes)
        most = asked.setdefault(request.pod_id, {})
        totals = {MEMORY: request.pod_totals.memory_bytes, **request.pod_totals.hugepages_bytes}
        for resource, amount in totals.items():
            most[resource] = max(most.get(resource, 0), amount)
    for pod_id, each in amounts.items():
        for resource, amount in sum_of(each).items():
            if amount > asked[pod_id].get(resource, 0):
                most_bytes = asked[pod_id].get(resource, 0)
                promised = f"pod {pod_id} was promised {counted(amount, 'byte')} of {resource}"
                text = f"{promised} and asks for {most_bytes}"
                yield Fault(POD_EXCEEDED, text)
