"""What is shown of many nodes: counted by pool, the worst first, nobody lost; pictures with all cells."""

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bayplan.cli.cluster_map import cluster_blocks
from bayplan.cli.kubectl_bayplan import (
    MOST_ROWS,
    nodes_digest,
    nodes_summary,
    status_digest,
    status_summary,
)
from bayplan.cli.layout import Block, Table, table_lines
from bayplan.drawing.maps import cluster_map
from bayplan.quantity import GIB
from bayplan.views.status import nodes_view, status_view
from support.snapshots import make_snapshot

SNAPSHOT = make_snapshot()


def node(number: int, *, problems: int = 0, unmanaged: int = 0) -> dict[str, Any]:
    """With so many problems of its own, and one that all of these have."""
    problems_of_its_own = [f"problem {one} of n{number}" for one in range(problems)]
    answer = {
        **status_view(SNAPSHOT),
        "problems": problems_of_its_own + ["the disk is full"] * bool(problems),
    }
    answer["unmanaged"] = [{"id": f"u{one}", "name": f"default/u{one}/main"} for one in range(unmanaged)]
    return {"name": f"n{number}", "pool": ("blue", "green")[number % 2], "answer": status_digest(answer)}


def silent(number: int, problem: str = "no answer within 30 s") -> dict[str, Any]:
    return {"name": f"n{number}", "pool": "green", "problem": problem}


def tables(blocks: list[Block]) -> list[Table]:
    return [one for one in blocks if isinstance(one, Table)]


def texts(blocks: list[Block]) -> list[str]:
    return [one for one in blocks if isinstance(one, str)]


def test_a_thousand_nodes_fit_on_two_screens_and_nobody_is_lost() -> None:
    views = [node(number) for number in range(900)]
    views += [node(number, problems=1, unmanaged=2) for number in range(900, 960)]
    views += [silent(number) for number in range(960, 1000)]
    blocks = status_summary(views)
    pools, attention = tables(blocks)
    by_pool = {
        row[0]: dict(zip([one.heading for one in pools.columns], row, strict=True)) for row in pools.rows
    }
    assert {name: int(row["NODES"]) for name, row in by_pool.items()} == {"blue": 480, "green": 520}
    assert sum(int(row["PROBLEM"]) for row in by_pool.values()) == 60
    assert sum(int(row["UNMANAGED"]) for row in by_pool.values()) == 60
    assert sum(int(row["NO ANSWER"]) for row in by_pool.values()) == 40
    assert len(attention.rows) == MOST_ROWS
    assert {row[1] for row in attention.rows} == {"problem"}
    assert attention.rows[0] == ("n900 and 59 more", "problem", "-", "the disk is full")
    listed = sum(int(number) for number in re.findall(r"And (\d+) more", " ".join(texts(blocks))))
    of_all = {tuple(row) for view in views if "answer" in view for row in view["answer"]["attention"]}
    assert listed + MOST_ROWS == len(of_all)
    assert any("n960, n961, n962, n963, n964 and 35 more: no answer" in one for one in texts(blocks))


def test_the_largest_piece_is_named_with_its_place() -> None:
    answers = [nodes_view(SNAPSHOT) for _ in range(3)]
    largest = answers[1]["nodes"][1]
    largest["resources"]["memory"]["freeBytes"] = 999 * GIB
    views = [
        {"name": f"n{number}", "pool": "", "answer": nodes_digest(one)} for number, one in enumerate(answers)
    ]
    (table,) = tables(nodes_summary([*views, silent(9)]))
    rows = {row[0]: row for row in table.rows}
    assert rows["-"][-2:] == ("999Gi", f"node {largest['id']} of n1")
    assert rows["green"][1:4] == ("1", "1", "0")


@pytest.mark.parametrize(("count", "numa"), [(1, 1), (9, 64), (1000, 8)])
def test_every_numa_node_has_a_cell_within_the_picture(count: int, numa: int) -> None:
    one = nodes_view(SNAPSHOT)["nodes"][0]
    cells = [{**one, "id": number} for number in range(numa)]
    views: list[dict[str, Any]] = [
        {"name": f"n{number}", "pool": "p", "nodes": cells} for number in range(count)
    ]
    picture = ET.fromstring(cluster_map([*views, silent(5000)]))
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    places = set()
    for box in picture.iter("{http://www.w3.org/2000/svg}rect"):
        x, y = float(box.attrib["x"]), float(box.attrib["y"])
        assert x + float(box.attrib["width"]) <= width
        assert y + float(box.attrib["height"]) <= height
        if box.attrib["class"] in ("free", "c5") and box.attrib["height"] == "22":
            places.add((x, y))
    assert len(places) == count * numa + 1


def numa(number: int, booked: int, *, outside: int = 0) -> dict[str, Any]:
    """A NUMA node of 100 GiB, as a map has it."""
    room = {"totalBytes": 100, "allocatableBytes": 100, "bookedBytes": booked, "freeBytes": 100 - booked}
    amounts = {key: value * GIB for key, value in room.items()}
    live = {"heldOutsideBytes": outside * GIB, "movableBytes": 0}
    return {"id": number, "resources": {"memory": amounts}, "live": live}


def test_a_map_of_a_thousand_nodes_is_two_screens_with_the_worst_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    views = [{"name": f"n{one:04}", "nodes": [numa(0, 42), numa(1, 0)]} for one in range(997)]
    views[500]["nodes"] = [numa(0, 97), {"id": 1, "resources": {}, "live": None}]
    views[700]["nodes"] = [numa(0, 40, outside=70), numa(1, 94)]
    views += [{"name": f"s{one}", "problem": "no answer"} for one in range(3)]
    blocks = cluster_blocks([("blue", views[:400]), ("green", views[400:])])
    urgent, *strips = tables(blocks)
    assert [row[:2] for row in urgent.rows] == [("n0700", "0"), ("n0500", "0")]
    cells = {
        f"{strip.title} {row[0]}": row[1].split()
        for strip in strips
        for row in strip.rows
        if not isinstance(row, str)
    }
    assert cells["blue: 400 nodes n0000"] == ["40"] * 20
    everything = [cell for line in cells.values() for cell in line]
    assert (len(everything), everything[500], everything[700]) == (1000, "#-", "!9")
    assert everything[-3:] == ["?"] * 3
    lines = [line for strip in strips for line in table_lines(strip, 80, lambda *_, **__: "")]
    assert len(lines) < 60
    assert max(map(len, lines)) <= 80
