"""What was refused lately, by container, and the names that a part of one is sought among."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from bayplan.model.decision import Decision, Outcome, Reason
from bayplan.model.ledger import Entry
from bayplan.state import Step, Store

Make = Callable[..., Entry]


def refusal(entry: Entry, text: str = "no room") -> Decision:
    return replace(entry.decision, outcome=Outcome.REFUSED, reasons=(Reason("no-room", text),))


def seen(store: Store, limit: int = 10, since_us: int = 0) -> list[tuple[str, int, int, int, str]]:
    return [
        (one.decision.request.name, one.times, one.first_us, one.last_us, one.decision.explanation())
        for one in store.refusals(limit, since_us)
    ]


def opened(directory: Path) -> Store:
    """A store in whose clock a microsecond passes at each step."""
    clock = count(1)
    return Store.open(directory, lambda: next(clock))


def test_refusals_are_counted_by_container_with_the_last_reason(tmp_path: Path, entry: Make) -> None:
    store = opened(tmp_path)
    store.commit(Step.refusal(refusal(entry("1", "a/b/c"), "first")))
    store.commit(Step.refusal(refusal(entry("2", "a/b/d"))))
    store.commit(Step.of([entry("3", "a/b/e")]))
    store.commit(Step.refusal(refusal(entry("4", "a/b/c"), "second")))
    assert seen(store) == [("a/b/c", 2, 1, 4, "second"), ("a/b/d", 1, 2, 2, "no room")]
    assert seen(store, limit=1) == [("a/b/c", 2, 1, 4, "second")]
    assert seen(store, since_us=3) == [("a/b/c", 1, 4, 4, "second")]
    assert seen(store, since_us=5) == []
    store.close()


def test_a_container_that_left_was_not_refused_whatever_its_name_says(tmp_path: Path, entry: Make) -> None:
    store = opened(tmp_path)
    store.commit(Step.of([entry("1", 'a/"outcome":"refused"/c')]))
    store.commit(Step.of((), gone=["1"]))
    assert seen(store) == []
    store.close()


def test_names_are_those_of_the_last_decisions_each_once(tmp_path: Path, entry: Make) -> None:
    store = opened(tmp_path)
    store.commit(Step.of([entry("1", "a/b/c")]))
    store.commit(Step.refusal(refusal(entry("2", "a/b/d"))))
    store.commit(Step.refusal(refusal(entry("2", "a/b/d"))))
    assert store.names(10) == [("a/b/d", "2"), ("a/b/c", "1")]
    assert store.names(2) == [("a/b/d", "2")]
    store.close()
