"""`bayplan report` says the same of what was decided lately in shadow mode and without it, in other words."""

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.admin.questions import _moved, _reported_page_move, reporting
from bayplan.cli.decisions import ReportVerb
from bayplan.cli.layout import Table
from bayplan.daemon.shadow import Parts
from bayplan.errors import ConfigError, PlacementError
from bayplan.host.shadow_mode import shadow_mode
from bayplan.model.decision import EvictionRecord, PageMoveRecord, QosClass
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.workload import Adjustment
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.controllers import controlled
from support.machines import container, pod
from support.snapshots import make_snapshot

OWNER, OTHERS = pod("g", QosClass.GUARANTEED), pod("b", QosClass.BEST_EFFORT)
STRICT = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
NOW_US = 2_000_000_000_000_000


async def told(directory: Path) -> dict[str, Any]:
    async with controlled(directory, STRICT) as one:
        handler = Parts.of_process().answering(one.controller)
        for owner, made in (
            (OWNER, container("own", OWNER, memory_bytes=100 * MIB, milli_cpus=2000)),
            (OTHERS, container("other", OTHERS)),
            (OWNER, container("large", OWNER, memory_bytes=900 * GIB, milli_cpus=1000)),
        ):
            try:
                adjustment, _ = await handler.create_container(owner, made)
            except PlacementError:
                continue
            assert (adjustment == Adjustment()) == (handler is not one.controller)
        moved = PageMoveRecord(NOW_US, "other", "default/b/other", 0, 1, 8 * MIB, 4 * MIB, 5, NodeSet([0]))
        one.controller.state.recorder.pages_moved([moved])
        for signal in ("node1.memory.available", "memory.available"):
            await one.controller.state.recorder.evicted([evicted("own", signal), evicted("other", signal)])
        question = reporting(one.controller.state.recorder)
        snapshot = make_snapshot(taken_us=NOW_US)
        with pytest.raises(ConfigError, match="sinceSeconds"):
            await question(snapshot, {"sinceSeconds": 0})
        assert (await question(snapshot, {"sinceSeconds": 60}))["containers"] == []
        return await question(make_snapshot(taken_us=0), {"sinceSeconds": 60})


def evicted(container_id: str, signal: str) -> EvictionRecord:
    name = f"default/{container_id}"
    return EvictionRecord(
        NOW_US, container_id, name, signal, QosClass.BURSTABLE, 9, 5, 7, 0, 0, "It was short."
    )


@pytest.mark.parametrize(
    ("mode", "words", "moved"),
    [(nullcontext, "were placed", "4Mi"), (shadow_mode, "would have been placed", "8Mi")],
)
def test_who_got_what(
    tmp_path: Path, mode: Callable[[], AbstractContextManager[object]], words: str, moved: str
) -> None:
    with mode():
        said = asyncio.run(told(tmp_path))
    rows = {one["id"]: one for one in said["containers"]}
    assert [rows[key]["outcome"] for key in ("own", "other", "large")] == ["placed", "placed", "refused"]
    assert (rows["own"]["mems"], rows["own"]["exclusiveCpus"], rows["own"]["sharesCpus"]) == (
        "0",
        "1-2",
        False,
    )
    assert (rows["other"]["mems"], rows["other"]["exclusiveCpus"], rows["other"]["sharesCpus"]) == (
        None,
        "",
        True,
    )
    assert rows["own"]["memoryLimitBytes"] == 100 * MIB
    assert (rows["large"]["mems"], rows["large"]["memoryLimitBytes"]) == (None, None)
    assert said["outcomes"] == {"placed": 2, "degraded": 0, "refused": 1}
    # Of the node that ran short, else of those that the container was bound to.
    assert [(one["id"], one["mems"]) for one in said["evictions"]] == [
        ("own", "1"),
        ("other", "1"),
        ("own", "0"),
        ("other", None),
    ]
    summary, containers, moves, _ = ReportVerb.blocks({**said, "shadow": mode is shadow_mode})
    assert words in str(summary)
    assert isinstance(containers, Table)
    assert [row[2:5] for row in containers.rows if not isinstance(row, str)] == [
        ("placed", "0", "1-2 alone"),
        ("placed", "any", "shared"),
        ("refused", "-", "-"),
    ]
    assert isinstance(moves, Table)
    assert (said["pageMoves"][0]["done"], said["pageMoves"][0]["obstacle"]) == (True, None)
    assert moves.rows[0][1:5] == ("default/b/other", "0", "1", moved)


def test_report_history_and_counters_call_the_same_moves_done() -> None:
    whole = PageMoveRecord(NOW_US, "other", "default/b/other", 0, 1, MIB, MIB, 5, NodeSet([0]))
    nothing = replace(whole, moved_bytes=0, obstacle="node 1 is full")
    some = replace(whole, moved_bytes=4096, obstacle="node 1 is full")
    assert [one.is_done for one in (whole, nothing, some)] == [True, False, False]
    views = [_reported_page_move(one) for one in (whole, nothing, some)]
    assert [one["done"] for one in views] == [True, False, False]
    assert [_moved(one)["event"] for one in (whole, nothing, some)] == [
        "pages moved",
        "pages not moved",
        "pages not moved",
    ]
    view = {
        "since": "now",
        "shadow": False,
        "outcomes": dict.fromkeys(("placed", "degraded", "refused"), 0),
        "containers": [],
        "moves": [],
        "pageMoves": views,
        "evictions": [],
    }
    summary, table = ReportVerb.blocks(view)
    assert isinstance(table, Table)
    assert len(table.rows) == 3
    assert re.search(r"\b1 piece\b.*\b2 could not\b", str(summary))
