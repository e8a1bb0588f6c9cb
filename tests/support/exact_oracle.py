"""The promises of the `exact` engine compared with brute force: every subset of the nodes, and every CPU,
after every operation.

Nothing here knows flows or cuts: what fits is counted anew by `support.subsets`, and CPUs one by one.
Used by the property tests with small runs, and by tests/bench/oracle.py with a million operations.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from msgspec.structs import replace

from bayplan.engines.exact.attempts import SEARCH_ENDED
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.witness import by_node, witness
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.decision import Claim, Decision, Interval, Outcome, Placement, QosClass, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY
from bayplan.model.pod_as_a_whole import with_pod_known
from bayplan.model.policy import PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.placement.ledger_check import contradictions
from bayplan.quantity import MIB
from bayplan.sets import NodeSet
from support.exact_allowed import STRICT, Choice, amounts_of, choices, is_close, is_required
from support.exact_cpus import Cpus
from support.exact_draws import PAGES, USUAL_PAGES, draw_amount_bytes, draw_machine, draw_pod, draw_request
from support.exact_errors import (
    OVERCOMMIT,
    WRONG_CHOICE,
    WRONG_MOVE,
    WRONG_PLACE,
    WRONG_REFUSAL,
    BrokenPromiseError,
)
from support.exact_pods import check_pods, draw_whole_pod, has_whole, holds_whole, members, whole_of
from support.subsets import Claims, fit_together, room, rooms_by_subset, slack_by_subset


@dataclass
class Trial:
    """A random machine under a policy (a random one if none is given), and what happened on it so far. The
    witness is looked at after every *witness_every* operations; one request of *pages_one_in* is for huge
    pages; *every_criterion*: the engine looks at every set of nodes; with *whole_pods* some pods have
    resources as a whole; *whole_caches*: the strategy is `pack`, for which opened caches count."""

    random: random.Random
    most_nodes: int = 10
    witness_every: int = 1
    engine: ExactEngine = field(default_factory=ExactEngine)
    topology: TopologyPolicy | None = None
    pages_one_in: int = USUAL_PAGES
    every_criterion: bool = True
    whole_pods: bool = True
    whole_caches: bool = True
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        draw = self.random
        self.machine = draw_machine(draw, draw.randint(2, self.most_nodes))
        self.policy = PlacementPolicy(topology=self.topology or draw.choice(list(TopologyPolicy)))
        self.number = 0
        self._choose_minimum()
        self.ledger = Ledger()
        self.coming: list[Request] = []
        self.ids = tuple(self.machine.node_ids)
        self.unmet: dict[str, int] = {}
        self.cpus = Cpus(self.machine)
        self.aligned: set[str] = set()
        self._read_capacity()

    def _read_capacity(self) -> None:
        self.capacity: dict[str, dict[int, int]] = {}
        for node, row in Allocatable(self.machine, self.policy).bytes_by_node.items():
            for resource, amount in row.items():
                self.capacity.setdefault(resource, {})[node] = amount

    def step(self) -> None:
        """One operation and all checks.

        Raises:
            BrokenPromiseError: promised twice, refused what fits, or moved what must not move.
        """
        known = sorted(self.ledger.entries)
        kinds = {"arrive": 24, "depart": 12, "resize": 12, "capacity": 1, "policy": 1}
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        if kind == "capacity":
            self.change_capacity()
        elif kind == "policy":
            topology = self.topology or self.random.choice(list(TopologyPolicy))
            self.policy = replace(self.policy, topology=topology)
            self._choose_minimum()
        elif kind == "arrive" or not known:
            self.arrive()
        elif kind == "depart":
            self.depart(self.random.choice(known))
        else:
            self.resize(self.random.choice(known))
        self.check_promises()
        check_pods(self.ledger)
        self.cpus.check_owners(self.ledger, self.aligned)
        self.counts["operations"] += 1

    def _choose_minimum(self) -> None:
        """Another one for the shared pool each time, half of the time what containers request."""
        count = len(self.machine.cpus)
        least = (None, count // 3, None, 0)[(count + self.number) % 4]
        self.policy = replace(self.policy, shared_cpus_minimum=least)

    def arrive(self) -> None:
        """A new container; under the scope pod mostly the next one of a pod."""
        self.number += 1
        if self.engine.scope is TopologyScope.POD and not self.coming and self.random.randrange(4):
            self.coming = draw_pod(self.random, self.machine, self.number)
        if not self.coming and self.whole_pods and not self.random.randrange(3):
            self.coming = draw_whole_pod(self.random, self.machine, self.number)
        if self.coming and self.coming[0].pod_id.startswith("whole"):
            self.arrive_in_whole_pod(self.coming.pop(0))
            return
        if self.coming:
            request = self.coming.pop(0)
        else:
            request = draw_request(self.random, self.machine, f"c{self.number:05}", self.pages_one_in)
        decision = self.engine.decide(Basis(self.machine, self.policy, self.ledger), request)
        before, self.ledger = self.ledger, self.ledger.as_if_newest(request)
        self._answered(request, decision, None)
        if decision.outcome is Outcome.REFUSED:
            self.ledger = before

    def arrive_in_whole_pod(self, request: Request) -> None:
        """A new container of a pod with resources as a whole: the first without a part is placed as the whole
        pod would be, beside the parts that are there, and those that join are never refused."""
        others = members(self.ledger, request.pod_id)
        everybody = [*self.ledger.entries.values(), *self.ledger.retained.values()]
        request = with_pod_known(request, [one.decision.request for one in everybody])
        decision = self.engine.decide(Basis(self.machine, self.policy, self.ledger), request)
        joins = request.pod_id in self.ledger.retained or any(map(holds_whole, others.values()))
        if joins or (request.pod_level and self._takes_all(request)):
            self.counts["joined"] += 1
            if decision.outcome is Outcome.REFUSED:
                raise BrokenPromiseError(WRONG_REFUSAL, f"{request} joins its pod")
            self.cpus.check_told(decision)
            self.ledger = self.ledger.with_entry(Entry(decision))
            return
        asked = request
        if not any(one.decision.request.pod_id == request.pod_id for one in everybody):
            asked = whole_of(request) if has_whole(request) else request
        elif has_whole(request):  # what the parts leave is judged by what holds of all pods
            if decision.outcome is not Outcome.REFUSED:
                self.ledger = self.ledger.moved(decision.moves).with_entry(Entry(decision))
            return
        self._answered(asked, decision, None)

    def _takes_all(self, request: Request) -> bool:
        """Whether a container of the pod has taken for an ordinary one what all of the pod asks for."""
        entries = [one.decision.request for one in self.ledger.entries.values()]
        there = [one for one in entries if one.pod_id == request.pod_id]
        return any(one.memory_limit_bytes == whole_of(request).memory_limit_bytes for one in there)

    def resize_whole_pod(self, container_id: str) -> None:
        """A container without a part gets other limits, as all of its pod do."""
        entry = self.ledger.entries[container_id]
        request, totals = entry.decision.request, entry.decision.request.pod_totals
        assert totals is not None
        parts = [
            one.request for one in members(self.ledger, request.pod_id).values() if not has_whole(one.request)
        ]
        least_bytes = 1 + sum(one.memory.high_bytes for one in parts)
        least_milli = sum(one.cpu_milli for one in parts)
        memory_bytes = least_bytes + draw_amount_bytes(self.random, self.machine)
        milli = -(-least_milli // 1000) * 1000 + 1000 * self.random.randint(1, 3)
        wanted = replace(totals, memory_bytes=memory_bytes, cpu_milli=milli)
        request = replace(request, memory_limit_bytes=memory_bytes, cpu_milli=milli, pod_totals=wanted)
        base = self.ledger.without(container_id)
        decision = self.engine.decide(
            Basis(self.machine, self.policy, base), request, entry.decision.placement
        )
        self.counts["whole resizes"] += 1
        if decision.outcome is Outcome.REFUSED:
            if self.policy.topology not in STRICT:
                raise BrokenPromiseError(WRONG_REFUSAL, f"{request} under {self.policy.topology.value}")
            return
        self.cpus.check_told(decision)
        self.ledger = base.moved(decision.moves).with_entry(Entry(decision))

    def resize(self, container_id: str) -> None:
        """A running container asks for another amount of memory, of CPUs, or of both."""
        entry = self.ledger.entries[container_id]
        request = entry.decision.request
        if request.pod_id.startswith("whole"):
            if has_whole(request):
                self.resize_whole_pod(container_id)
            return
        wanted = draw_amount_bytes(self.random, self.machine)
        if request.qos is QosClass.BEST_EFFORT:
            return
        guaranteed = request.qos is QosClass.GUARANTEED
        parts = self.random.choice([("memory",), ("memory",), ("cpus",), ("memory", "cpus")])
        if "memory" in parts or not guaranteed:
            limit = wanted if guaranteed else None
            memory = Interval(wanted, wanted, "limit")
            request = replace(request, memory=memory, memory_limit_bytes=limit, score=None)
        if "cpus" in parts and guaranteed:
            cpus = self.random.randint(0, 5)
            request = replace(request, exclusive_cpus=cpus, cpu_milli=1000 * cpus)
        base = self.ledger.without(container_id)
        current = entry.decision.placement
        decision = self.engine.decide(Basis(self.machine, self.policy, base), request, current)
        before, self.ledger = self.ledger, base.as_if_newest(request)
        self._answered(request, decision, current)
        self.counts["resizes"] += 1
        if decision.outcome is Outcome.REFUSED:
            self.ledger = before

    def depart(self, container_id: str) -> None:
        """A container goes, and others go back to where they were."""
        stays = not self.random.randrange(2)
        self.ledger = self.ledger.after_end_of(container_id, pod_stays=stays)
        if self.ledger.retained and not self.random.randrange(4):
            self.ledger = self.ledger.without_retained(next(iter(self.ledger.retained)))
        claims = self.engine.completed_claims(Basis(self.machine, self.policy, self.ledger))
        self.ledger = self.ledger.with_claims(claims)
        self.counts["topped up"] += len(claims)
        self._check_short_claims()
        for move in self.engine.moves_back(Basis(self.machine, self.policy, self.ledger)):
            entry = self.ledger.entries[move.container_id]
            if move.after != entry.decision.placement.original_nodes:
                raise BrokenPromiseError(WRONG_MOVE, f"{move} is no return")
            self.ledger = self.ledger.moved([move])
            self.counts["returns"] += 1

    def change_capacity(self) -> None:
        """A node loses memory to the system, or all nodes have theirs again; promises stay."""
        reserved: dict[int, dict[str, int]] = {}
        if not self.policy.reserved_bytes:
            node = self.random.choice(list(self.machine.memory_nodes))
            reserved = {node: {MEMORY: self.random.randint(1, self.machine.node_by_id[node].memory_bytes)}}
        self.policy = replace(self.policy, reserved_bytes=reserved)
        self._read_capacity()
        self.counts["capacity changes"] += 1
        self.unmet = self._unmet()

    def check_promises(self) -> None:
        """No subset of the nodes is promised more than it holds, and the witness shows how it is kept. What
        is unmet because capacity went away never becomes more."""
        for fault in contradictions(self.ledger):
            raise BrokenPromiseError(fault.code, fault.text)
        unmet, self.unmet = self.unmet, self._unmet()
        for resource, amount in self.unmet.items():
            if amount > unmet.get(resource, 0):
                raise BrokenPromiseError(OVERCOMMIT, f"{resource}: {amount} bytes more than there are")
        if self.counts["operations"] % self.witness_every == 0:
            self.check_witness()

    def _unmet(self) -> dict[str, int]:
        """By resource what cannot be met of the claims: as much as the worst subset of the nodes lacks."""
        found = {}
        for resource in (MEMORY, PAGES):
            claims = self._claims(resource)
            if claims:
                slack = slack_by_subset(self._capacity(resource), claims, self.ids)
                found[resource] = -min(slack.values())
        return found

    def check_witness(self) -> None:
        """The witness sums to the claims, on their own nodes, and no node has more than it can."""
        spreads = witness(Basis(self.machine, self.policy, self.ledger))
        for container_id, entry in self.ledger.entries.items():
            claim = entry.decision.placement.claim
            for resource, amount in (claim.amounts_bytes if claim is not None else {}).items():
                parts = {node: row.get(resource, 0) for node, row in spreads[container_id].items()}
                whole = sum(parts.values()) == amount
                if claim is not None and claim.even_hugepages and resource == PAGES:
                    whole = parts == dict.fromkeys(claim.nodes, amount // len(claim.nodes))
                elif claim is not None and set(claim.shares) == set(claim.nodes):
                    by_shares = _by_shares(resource, amount, claim.shares)
                    whole = [(1 << node, part) for node, part in parts.items() if part] == sorted(by_shares)
                whole = whole or bool(self.unmet.get(resource, 0))
                if claim is None or not whole or not NodeSet(parts) <= claim.nodes:
                    raise BrokenPromiseError(
                        OVERCOMMIT, f"the witness of {container_id} is {parts} for {claim}"
                    )
        for node, row in by_node(spreads.values()).items():
            for resource, amount in row.items():
                if amount > self._capacity(resource).get(node, 0):
                    raise BrokenPromiseError(
                        OVERCOMMIT, f"the witness has {amount} {resource} on node {node}"
                    )

    def _answered(self, request: Request, decision: Decision, current: Placement | None) -> None:
        self.counts[decision.outcome.value] += 1
        self.counts["moves"] += len(decision.moves)
        self.counts["overlapping"] += decision.placement.overlapping
        placed = decision.placement.claim
        self.counts["evenly"] += placed is not None and placed.even_hugepages
        asked = amounts_of(request)
        rules = self.policy.topology, self.engine.scope
        tried = list(choices(request, self.machine, self.ledger, rules, self.capacity, self.cpus))
        allowed = [mask for choice in tried for mask in choice.masks]
        # A search that was given up says so, and then what it says of all sets is not held against it.
        given_up = any(reason.code == SEARCH_ENDED for reason in decision.reasons)
        self.counts["given up"] += given_up
        if decision.outcome is Outcome.REFUSED:
            if not given_up:
                self._check_refusal(request, asked, tried, current)
            return
        claim = decision.placement.claim
        if claim is None:
            raise BrokenPromiseError(WRONG_PLACE, "a placement without a claim")
        if decision.outcome is Outcome.PLACED and dict(claim.amounts_bytes) != asked:
            raise BrokenPromiseError(WRONG_PLACE, f"{claim} for {asked}")
        self._check_place(request, decision, claim, current, allowed)
        decided = replace(decision, request=request)
        self.cpus.check_decision(decided, current, left_shared=self._left_shared())
        if claim.short_bytes:
            self._check_shortfall(claim, asked)
        elif current is None and not decision.moves and request.qos is QosClass.GUARANTEED:
            self._check_choice(request, claim, [] if given_up else tried)
            self._check_device_shares(request, decision, claim)
        self._check_moves(decision)
        self.ledger = self.ledger.moved(decision.moves).with_entry(Entry(decision))
        self.aligned.discard(request.container_id)
        if not self.cpus.away(decision.placement) and not request.pod_id.startswith("whole"):
            self.aligned.add(request.container_id)

    def _check_moves(self, decision: Decision) -> None:
        for move in decision.moves:
            moved = self.ledger.entries[move.container_id].decision.placement.claim
            if moved is None or not moved.flexible or not moved.nodes <= move.after:
                raise BrokenPromiseError(WRONG_MOVE, f"{move} of {moved}")

    def _check_place(
        self,
        request: Request,
        decision: Decision,
        claim: Claim,
        current: Placement | None,
        allowed: list[int],
    ) -> None:
        """On a set that is allowed, or where it is already, as long as it fits there."""
        had = None if current is None or current.claim is None else current.claim.nodes
        own = 0 if current is None else len(current.exclusive_cpus)
        if decision.outcome is Outcome.PLACED and claim.nodes != had and claim.nodes.mask not in allowed:
            raise BrokenPromiseError(WRONG_PLACE, f"{request} was placed on {claim.nodes}")
        if had is not None and claim.nodes != had and len(allowed) > 1 and self._fits(request, had.mask, own):
            raise BrokenPromiseError(WRONG_PLACE, f"{request} fits on {had} and went to {claim.nodes}")
        strict = request.qos is QosClass.GUARANTEED and self.policy.topology in STRICT
        if current is None and strict and not is_close(request, self.policy.topology, claim.nodes.mask):
            raise BrokenPromiseError(WRONG_PLACE, f"{request} is on {claim.nodes}, its devices are not")

    def _left_shared(self) -> int:
        return self.cpus.left_shared(self.policy.shared_cpus_minimum, self.ledger)

    def _has_cpus(self, request: Request, count: int, mask: int, own: int = 0) -> bool:
        """Whether *count* CPUs are to be had near the nodes of *mask*, and the shared pool keeps enough
        beside those of *request*, which has *own* already."""
        kept = request.exclusive_cpus <= max(own, self._left_shared())
        return kept and len(self.cpus.near(mask, self.ledger)) >= count

    def _fits(self, request: Request, mask: int, own: int) -> bool:
        """Whether there is room for *request*, which has *own* CPUs, on the nodes of *mask*."""
        asked = amounts_of(request)
        slacks = {resource: self._slack(resource) for resource in asked}
        return self._has_cpus(request, request.exclusive_cpus, mask, own) and _has_room(
            request, asked, mask, slacks
        )

    def _slack(self, resource: str, *, widened: bool = False) -> dict[int, int]:
        return slack_by_subset(self._capacity(resource), self._claims(resource, widened=widened), self.ids)

    def _check_refusal(
        self, request: Request, asked: Mapping[str, int], tried: list[Choice], current: Placement | None
    ) -> None:
        """A refusal is wrong if the policy or the request's wish does not call for it, or if the request fits
        on an allowed set once all that may become wider are."""
        had = None if current is None else current.claim
        if had is not None and all(
            amount <= had.amounts_bytes.get(resource, 0) for resource, amount in asked.items()
        ):
            own_cpus = () if current is None else current.exclusive_cpus
            if request.exclusive_cpus <= len(own_cpus):
                raise BrokenPromiseError(WRONG_REFUSAL, f"{request} asks for no more than it had")
        strict = request.qos is QosClass.GUARANTEED and self.policy.topology in STRICT
        if not strict and not is_required(request):
            raise BrokenPromiseError(WRONG_REFUSAL, f"{request} under {self.policy.topology.value}")
        own = 0 if current is None else len(current.exclusive_cpus)
        # Nobody is moved about where promises cannot be kept as it is.
        widened = not any(self.unmet.values())
        resources = {resource for choice in tried for resource in choice.amounts}
        slacks = {resource: self._slack(resource, widened=widened) for resource in resources}
        where_it_is = [] if had is None else [Choice(asked, request.exclusive_cpus, (had.nodes.mask,))]
        refuses_for_cpus = self.policy.topology is not TopologyPolicy.NONE
        fits = [
            mask
            for choice in (*tried, *where_it_is)
            for mask in choice.masks
            if (not refuses_for_cpus or self._has_cpus(request, choice.cpus, mask, own))
            and is_close(request, self.policy.topology, mask)
            and _has_room(request, choice.amounts, mask, slacks)
        ]
        if fits:
            raise BrokenPromiseError(
                WRONG_REFUSAL, f"{request} fits on {NodeSet.of_mask(fits[0])} and was refused"
            )

    def _check_choice(self, request: Request, claim: Claim, tried: list[Choice]) -> None:
        """No set that fits, of the first choice with one, crosses fewer, is narrower or nearer; or takes more
        devices or huge pages away from others, where all sets are looked at."""
        resources = {resource for choice in tried for resource in choice.amounts}
        slacks = {resource: self._slack(resource) for resource in resources}
        rooms = {resource: rooms_by_subset(slack, self.ids) for resource, slack in slacks.items()}
        claimed = {mask for resource in (MEMORY, PAGES) for mask, _ in self._claims(resource)}
        fitting = [
            [
                mask
                for mask in choice.masks
                if self._has_cpus(request, choice.cpus, mask)
                and is_close(request, self.policy.topology, mask)
                and all(rooms[resource][mask] >= amount for resource, amount in choice.amounts.items())
                and (request.even_hugepages is None or _has_room(request, choice.amounts, mask, slacks))
            ]
            for choice in tried
        ]
        first = next((index for index, masks in enumerate(fitting) if masks), None)
        if first is None:
            return  # promised twice, which is found next, or second best
        count = tried[first].cpus
        best = min(self._rank(request, mask, claimed, count) for mask in fitting[first])
        found = self._rank(request, claim.nodes.mask, claimed, count)
        if found > best:
            raise BrokenPromiseError(WRONG_CHOICE, f"{claim.nodes} with {found}, best is {best}")
        self.counts["choices"] += 1
        self.counts["scarce choices"] += bool(self.every_criterion and found[-1])

    def _rank(self, request: Request, mask: int, claimed: set[int], cpus: int) -> tuple[int, ...]:
        """How many of *claimed* the set crosses, its width, and its total distance; and where all sets are
        looked at, its nodes without CPUs, devices elsewhere, how well as many as *cpus* lie on it, and what
        it takes away from others."""
        crossed = sum(1 for other in claimed if mask & other not in (0, mask, other))
        nodes = NodeSet.of_mask(mask)
        rank = crossed, len(nodes), self.machine.total_distance(nodes)
        if not self.every_criterion:
            return rank
        without_cpus = sum(1 for node in nodes if not self.machine.node_by_id[node].cpus)
        elsewhere = sum(1 for hint in request.hints if not hint.nodes.mask & mask)
        fit = self.cpus.fit(mask, cpus, self.ledger)
        if not self.whole_caches:
            return *rank, without_cpus, elsewhere, *fit[:2]
        return *rank, without_cpus, elsewhere, *fit, self._scarce(request, nodes)

    def _scarce(self, request: Request, nodes: NodeSet) -> int:
        """What *nodes* have more of than the ordinary node with the least, of what is not asked for: in
        eighths of what the ordinary node with the most has, rounded."""
        total = 0
        for resource in (PAGES, "devices"):
            if resource in request.hugepages_bytes or (resource == "devices" and request.hints):
                continue
            has = {
                node.id: node.devices if resource == "devices" else node.hugepages_bytes[2 * MIB]
                for node in self.machine.nodes
                if node.id in self.machine.ordinary_nodes
            }
            most = max(has.values())
            if most:
                eighths = {node: int(8 * amount / most + 0.5) for node, amount in has.items()}
                total += sum(
                    eighths.get(node, 0) - min(eighths.values()) for node in nodes if node in eighths
                )
        return total

    def _check_device_shares(self, request: Request, decision: Decision, claim: Claim) -> None:
        """CPUs are where the devices are, as many as these are there; and so is the memory of a container
        that stays there, if there is room for it."""
        near = Counter(next(iter(one)) for hint in request.hints if len(one := hint.nodes & claim.nodes) == 1)
        confined = any(reason.code == "best-set" for reason in decision.reasons)
        if not confined or len(near) < 2:
            return
        self.cpus.check_shares(decision, near, self.ledger)
        wanted = bool(claim.shares)
        if not claim.flexible and len(near) == len(claim.nodes) and request.even_hugepages is None:
            wanted = all(
                fit_together(self._slack(resource), _by_shares(resource, amount, near))
                for resource, amount in amounts_of(request).items()
            )
        if wanted != (dict(claim.shares) == dict(near)):
            raise BrokenPromiseError(WRONG_CHOICE, f"{claim} for devices {dict(near)}")
        self.counts["by devices"] += wanted

    def _check_shortfall(self, claim: Claim, asked: Mapping[str, int]) -> None:
        """What is promised in part fits in full nowhere, and is as much as fits."""
        for resource, amount in asked.items():
            slack = slack_by_subset(self._capacity(resource), self._claims(resource), self.ids)
            possible = min(amount, room(slack, claim.nodes.mask))
            if claim.amounts_bytes.get(resource, 0) != possible:
                raise BrokenPromiseError(WRONG_REFUSAL, f"{claim}, although {possible} {resource} fit")

    def _check_short_claims(self) -> None:
        """Whoever is still promised less than asked for cannot be promised more."""
        short = [entry.decision.placement.claim for entry in self.ledger.entries.values()]
        for claim in short:
            for resource in claim.short_bytes if claim is not None else ():
                slack = slack_by_subset(self._capacity(resource), self._claims(resource), self.ids)
                if claim is not None and room(slack, claim.nodes.mask):
                    raise BrokenPromiseError(WRONG_REFUSAL, f"{claim} could be promised more {resource}")

    def _capacity(self, resource: str) -> dict[int, int]:
        return self.capacity.get(resource, {})

    def _claims(self, resource: str, *, widened: bool = False) -> Claims:
        found: Claims = []
        for entry in (*self.ledger.entries.values(), *self.ledger.retained.values()):
            claim = entry.decision.placement.claim
            if claim is None or not claim.amounts_bytes.get(resource):
                continue
            if claim.even_hugepages and resource == PAGES:
                found += _even(claim.nodes.mask, claim.amounts_bytes[resource])
                continue
            if set(claim.shares) == set(claim.nodes):
                found += _by_shares(resource, claim.amounts_bytes[resource], claim.shares)
                continue
            wide = self.machine.ordinary_nodes if widened and claim.flexible else NodeSet()
            found.append(((claim.nodes | wide).mask, claim.amounts_bytes[resource]))
        return found


def _even(mask: int, amount: int) -> Claims:
    """*amount* evenly on the nodes of *mask*."""
    nodes = NodeSet.of_mask(mask)
    return [(1 << node, amount // len(nodes)) for node in nodes]


def _by_shares(resource: str, amount: int, shares: Mapping[int, int]) -> Claims:
    """*amount* on the nodes of *shares*, in whole pages of huge pages; what does not divide is at those that
    lack most of their part."""
    unit, whole = 2 * MIB if resource == PAGES else 1, sum(shares.values())
    units = amount // unit
    parts = {node: units * share // whole for node, share in shares.items()}
    lacking = sorted(shares, key=lambda node: (parts[node] - Fraction(units * shares[node], whole), node))
    for node in lacking[: units - sum(parts.values())]:
        parts[node] += 1
    claims = {node: part * unit for node, part in parts.items()}
    claims[min(claims)] += amount % unit
    return [(1 << node, part) for node, part in claims.items() if part]


def _has_room(
    request: Request, amounts: Mapping[str, int], mask: int, slacks: Mapping[str, Mapping[int, int]]
) -> bool:
    """Whether *slacks*, of each resource by subset, leave room for *amounts* on the nodes of *mask*."""
    wish = request.even_hugepages
    if wish is not None and mask.bit_count() != wish.node_count:
        return False
    return all(
        room(slacks[resource], mask) >= amount
        if wish is None or resource == MEMORY
        else fit_together(slacks[resource], _even(mask, amount))
        for resource, amount in amounts.items()
    )
