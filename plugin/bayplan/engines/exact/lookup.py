"""What one decision asks the books about set after set, and what that costs.

On machines of few nodes there are tables of all sets, made as soon as what was spent without them would have
paid for them. Answers and costs depend on the claims alone, never on the order in which they came.
"""

from typing import Final

from bayplan.engines.exact.books import Amounts, Books
from bayplan.engines.exact.flow import Flow, Trial, crosses
from bayplan.engines.exact.tables import (
    Positions,
    Table,
    TableTrial,
    crossing_table,
    room_table,
)

AnyTrial = Trial | TableTrial
"""What a growing set of nodes has room for."""

# What answers cost in steps, as measured; the price of a table is by its items, for each node.
_LEAST_PRICE: Final = 2000
_NEVER: Final = 1 << 62
_ITEMS_A_STEP: Final = 10
_STEPS_OF_A_FLOW: Final = 20
_SETS_A_STEP_OF_A_FLOW: Final = 2
_SETS_A_STEP: Final = 10


class Lookup:
    """The answers for one decision, from *books* as they are. ``steps`` is what they cost, see `Effort`."""

    __slots__ = (
        "_costs",
        "_crossed",
        "_crossing_cost",
        "_crossing_left",
        "_left",
        "_positions",
        "_price",
        "_rooms",
        "_trials",
        "books",
        "claimed",
        "steps",
    )

    def __init__(self, books: Books, positions: Positions | None) -> None:
        """*positions* are those of all nodes, None if they are too many for tables."""
        self.books, self.claimed, self.steps = books, books.claimed_sets(), 0
        self._positions, self._price = positions, _NEVER
        if positions is not None:
            self._price = max(_LEAST_PRICE, positions.sets * len(positions.nodes) // _ITEMS_A_STEP)
        # By resource what an answer costs without a table, and what may be spent until there is one.
        self._costs: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._rooms: dict[str, Table] = {}
        self._crossing_cost = 1 + len(self.claimed) // _SETS_A_STEP
        self._crossing_left = self._price
        self._crossed: Table | None = None
        self._trials: dict[str, AnyTrial] = {}

    def fits(self, nodes: int, amounts: Amounts) -> bool:
        """Whether all *amounts* can be claimed on *nodes* beside everything that is claimed."""
        for resource, amount_bytes in amounts.items():
            table = self._rooms.get(resource)
            if table is not None and self._positions is not None:
                room_bytes = table[self._positions.of(nodes)]
            else:
                flow = self.books.flow(resource)
                room_bytes = flow.room(nodes, amount_bytes)
                cost = self._costs.get(resource) or self._begin(resource, flow)
                self.steps += cost
                self._left[resource] -= cost
                if self._left[resource] < 0 and self._positions is not None:
                    self._rooms[resource] = room_table(flow, self._positions)
                    self.steps += self._price
            if room_bytes < amount_bytes:
                return False
        return True

    def crossed(self, nodes: int) -> int:
        """How many sets with promises cross *nodes*."""
        if not nodes & (nodes - 1):
            return 0  # a single node lies within every set that it shares a node with
        if self._crossed is not None and self._positions is not None:
            return self._crossed[self._positions.of(nodes)]
        self.steps += self._crossing_cost
        self._crossing_left -= self._crossing_cost
        if self._crossing_left < 0 and self._positions is not None:
            self._crossed = crossing_table(self.claimed, self._positions)
            self.steps += self._price
        return sum([crosses(nodes, other) for other in self.claimed])

    def trial(self, resource: str) -> AnyTrial:
        """What nodes have room for that are added one by one."""
        found = self._trials.get(resource)
        if found is None:
            flow = self.books.flow(resource)
            if self._positions is not None:
                table = self._rooms.get(resource)
                if table is None:
                    table = self._rooms[resource] = room_table(flow, self._positions)
                    self.steps += self._price
                found = TableTrial(table, self._positions)
            else:
                # From loads that are the same whatever the order of the claims was, as they cost steps.
                found = flow.afresh()
                self.steps += _STEPS_OF_A_FLOW * len(flow.claimed)
            self._trials[resource] = found
        return found.copy()

    def _begin(self, resource: str, flow: Flow) -> int:
        """What each answer about *resource* costs. Whether one really takes a flow depends on which node
        carries what, so that all count alike."""
        cost = 1 + len(flow.claimed) // _SETS_A_STEP
        if flow.crossings or flow.unmet:
            cost += _STEPS_OF_A_FLOW + len(flow.claimed) // _SETS_A_STEP_OF_A_FLOW
        self._costs[resource], self._left[resource] = cost, self._price
        return cost
