"""What people read of containers, in `status` and on the page alike: where a container is, which CPUs it
has, and what an operator should look at first.

Made of the answers to ``status`` and ``refused``, by pure functions that load nothing else of the daemon.
Here is what each kind of trouble is called, and what the daemon's own words do not say: what follows from it.
"""

from collections.abc import Iterator
from typing import Any, Final

from bayplan.quantity import amounts, counted, duration

MOST_OF_A_KIND: Final = 10
"""So many containers of one kind are listed; the rest is counted."""

_EVERYTHING: Final = {
    "refused": "bayplan refused",
    "degraded": "bayplan status --outcome degraded",
}
"""The command that lists all of a kind."""

DIFFERS: Final = (
    "differs: the kernel has other CPUs or nodes than were decided; they are set again. A container that is "
    'to keep others is created with them, or with the annotation bayplan.dev/opt-out: "true".'
)
_UNMANAGED: Final = "was created while bayplan was not asked; it is kept off the CPUs that others have alone"

Row = tuple[str, str, str]


def attention(status: dict[str, Any]) -> list[Row]:
    """What needs attention: its kind, the container, and what it is. What concerns the whole node is
    first."""
    rows: list[Row] = []
    for kind, found in (
        ("problem", [("problem", "-", one) for one in status["problems"]]),
        ("refused", list(_refused(status.get("refusals", ())))),
        ("not promised", list(_short(status["containers"]))),
        ("differs", list(_differing(status))),
        ("unmanaged", [("unmanaged", one["name"], _UNMANAGED) for one in status["unmanaged"]]),
        ("degraded", list(_degraded(status["containers"]))),
    ):
        most = len(found) if kind == "problem" else MOST_OF_A_KIND
        rows += found[:most]
        if len(found) > most:
            all_of_them = _EVERYTHING.get(kind, "bayplan status -o json")
            rows.append((kind, f"and {len(found) - most} more", f"{all_of_them} lists all"))
    return rows


def nodes_text(container: dict[str, Any]) -> str:
    """The nodes of a container, and that somebody else set them if so."""
    nodes = container["mems"]
    if nodes is None:
        return "any"
    return f"{nodes} (set by others)" if container["memsPinnedByOthers"] else str(nodes)


def cpus_text(container: dict[str, Any], *, listed: bool = False) -> str:
    """The CPUs of a container and whose they are. The shared ones are the same for all, so that they are only
    *listed* where there is room for it."""
    if container["cpusPinnedByOthers"]:
        return f"{container['cpus']} (set by others)"
    if container["cpus"] is None:
        return "as in its spec"
    if container["cpuPool"]:
        return f"{container['cpus']} of pool {container['cpuPool']}"
    if container["exclusiveCpus"]:
        others = len(container["cpusAlsoOf"])
        alone = "isolated" if container["cpuPartition"] else "alone"
        whose = f"with {counted(others, 'other')}" if others else alone
        rest = "" if container["exclusiveCpus"] == container["cpus"] else ", rest shared"
        return f"{container['exclusiveCpus']} {whose}{rest}"
    return f"{container['cpus'] or 'none'} shared" if listed else "shared"


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
    for one in () if status.get("shadow") else status["containers"]:
        score, wanted = one["oomScoreAdj"], one["oomScoreAdjWanted"]
        if None not in (score, wanted) and score != wanted:
            yield "differs", one["name"], f"the kernel has the oom_score_adj {score}, {wanted} was set"
