"""Everything that the daemon counts has its meaning in one table, and is there from the start."""

import ast
from pathlib import Path

import bayplan
from bayplan.model.decision import Outcome
from bayplan.oci.protocol import Verb
from bayplan.placement.foreign_cpusets import PinningManager
from bayplan.views.metrics import EVENTS, all_events, reasons

PACKAGE = Path(bayplan.__file__).parent
# What is counted by names that are put together; codes of reasons have a metric of their own.
BY_PART = {
    *(f"decisions_{one.value}" for one in Outcome),
    *(f"oci_{one.value}" for one in Verb),
    *(f"pinned_by_kubelet_{one.name.lower()}_manager" for one in PinningManager),
    "pinned_by_strangers",
}


def counted_names() -> set[str]:
    """The literals in ``counters["..."]`` and in conditions there, in all of the package."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("counters"):
                found |= {
                    one.value
                    for one in ast.walk(node.slice)
                    if isinstance(one, ast.Constant)
                    and isinstance(one.value, str)
                    and not isinstance(node.slice, ast.JoinedStr)
                }
    return found


def test_every_event_is_counted_somewhere_and_every_count_has_its_meaning() -> None:
    assert counted_names() | BY_PART == EVENTS.keys()


def test_all_are_there_from_the_start() -> None:
    assert all_events({}) == dict.fromkeys(sorted(EVENTS), 0)
    assert all_events({"missed": 2, "refused_no_room": 1})["missed"] == 2


def test_counts_by_reason_are_told_from_others() -> None:
    counters = {"decisions_refused": 2, "refused_no_room": 2, "degraded_shared_pool": 1, "released": 4}
    assert list(reasons(counters)) == [("degraded", "shared-pool", 1), ("refused", "no-room", 2)]
