"""What an operator should look at first: one table of everything that is not as it should be, and why.

Made of the answers to ``status`` and ``refused``. Here is what each kind of trouble is called, and what the
daemon's own words do not say: what follows from it.
"""

from collections.abc import Iterator
from typing import Any, Final

from bayplan.cli.table_layout import Block, Column, Table
from bayplan.cli.texts import amounts, duration

MOST_OF_A_KIND: Final = 10
"""So many containers of one kind are listed; the rest is counted."""

_COLUMNS: Final = (Column("NEEDS ATTENTION"), Column("CONTAINER", least=24), Column("WHAT"))
_EVERYTHING: Final = {
    "refused": "bayplan refused",
    "degraded": "bayplan status --outcome degraded",
}
"""The command that lists all of a kind."""

_DRIFT: Final = (
    "differs: the kernel has other CPUs or nodes than were decided; they are set again. A container that is "
    'to keep others is created with them, or with the annotation bayplan.dev/opt-out: "true".'
)
_UNMANAGED: Final = "was created while bayplan was not asked; it is kept off the CPUs that others have alone"

Row = tuple[str, str, str]


def attention(status: dict[str, Any]) -> list[Block]:
    """The table; nothing where all is well."""
    rows: list[Row] = []
    for kind, found in (
        ("refused", list(_refused(status.get("refusals", ())))),
        ("not promised", list(_short(status["containers"]))),
        ("degraded", list(_degraded(status["containers"]))),
        ("differs", list(_differing(status))),
        ("unmanaged", [("unmanaged", one["name"], _UNMANAGED) for one in status["unmanaged"]]),
        ("problem", [("problem", "-", one) for one in status["problems"]]),
    ):
        rows += found[:MOST_OF_A_KIND]
        if len(found) > MOST_OF_A_KIND:
            all_of_them = _EVERYTHING.get(kind, "bayplan status -o json")
            rows.append((kind, f"and {len(found) - MOST_OF_A_KIND} more", f"{all_of_them} lists all"))
    shown: list[Block] = [Table(_COLUMNS, tuple(rows))] if rows else []
    return [*shown, _DRIFT] if status["drift"] else shown


def why(reasons: list[dict[str, str]]) -> str:
    """The reasons of a decision in one line."""
    return "; ".join(reason["text"] for reason in reasons) or "-"


def how_often(refusal: dict[str, Any]) -> str:
    """``12 times, last 2m 5s ago``."""
    times = "" if refusal["times"] == 1 else f"{refusal['times']} times, last "
    return f"{times}{duration(refusal['secondsAgo'])} ago"


def _refused(refusals: Any) -> Iterator[Row]:
    for one in refusals:
        since = "; it was placed since" if one["placedSince"] else ""
        yield "refused", one["name"], f"{how_often(one)}: {why(one['reasons'])}{since}"


def _short(containers: list[dict[str, Any]]) -> Iterator[Row]:
    for one in containers:
        if one.get("shortBytes"):
            yield (
                "not promised",
                one["name"],
                f"{amounts(one['shortBytes'])} of what it asks for: {_why(one)}",
            )


def _degraded(containers: list[dict[str, Any]]) -> Iterator[Row]:
    for one in containers:
        if one["outcome"] == "degraded" and not one.get("shortBytes"):
            yield "degraded", one["name"], _why(one)


def _why(container: dict[str, Any]) -> str:
    return why(container["reasons"])


def _differing(status: dict[str, Any]) -> Iterator[Row]:
    for one in status["drift"]:
        yield "differs", one["name"], one["difference"]
    for one in () if status["shadow"] else status["containers"]:
        score, wanted = one["oomScoreAdj"], one["oomScoreAdjWanted"]
        if None not in (score, wanted) and score != wanted:
            yield "differs", one["name"], f"the kernel has the oom_score_adj {score}, {wanted} was set"
