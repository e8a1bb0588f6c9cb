"""What a departure gives to those who stay: promises that were short, and nodes that had to be left."""

from bayplan.domain.decision import Move
from bayplan.domain.engine import Engine
from bayplan.domain.ledger import Ledger
from bayplan.domain.policy import Policy
from bayplan.domain.topology import Machine


def relieved(
    machine: Machine, policy: Policy, engine: Engine, left: Ledger
) -> tuple[Ledger, tuple[Move, ...], tuple[str, ...]]:
    """What becomes of *left*, the ledger after a departure.

    Promises come before places: what a container was never promised, it may use all the same.

    Returns:
        The ledger, the moves that it came to, and the ids of the containers that are promised more.
    """
    claims = engine.topped_up(machine, policy, left)
    left = left.with_claims(claims)
    moves = engine.returns(machine, policy, left)
    return left.moved(moves), moves, tuple(sorted(claims))
