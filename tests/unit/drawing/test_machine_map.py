"""The picture: well-formed whatever the names are, complete, and within its width."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.drawing.maps import NARROWEST, WIDTH, Socket, holders_of, machine_map, rows_of
from bayplan.drawing.svg import COLORS, NAMED, colors_of, text_width
from bayplan.host.record import unpack
from bayplan.host.sysfs import read_machine
from bayplan.model.decision import CpuUse, CpuWish
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Node
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import nodes_view
from support.crowded import crowded
from support.layouts import LAYOUTS, Layout
from support.snapshots import make_snapshot

MACHINES = sorted((Path(__file__).parents[2] / "data" / "machines").glob("*.txt"))
SVG = "{http://www.w3.org/2000/svg}"
TAGS = {f"{SVG}{tag}" for tag in ("svg", "style", "title", "g", "rect", "text")}
HOSTILE = ["</svg><script>x</script>", "a&b\"c'd", "\x00\x1b[2J\u202e\ud800", "x" * 100_000]


def drawn(snapshot: Snapshot, width: float = WIDTH) -> ET.Element:
    return ET.fromstring(machine_map(nodes_view(snapshot)["nodes"], width))


def tips(picture: ET.Element) -> list[str]:
    return [one.text or "" for one in picture.iter(f"{SVG}title")]


def words(picture: ET.Element) -> list[str]:
    return [one.text or "" for one in picture.iter(f"{SVG}text")]


@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 12, 13, 64])
def test_every_node_and_every_cpu_is_there_once(nodes: int) -> None:
    snapshot = crowded(nodes, 3 * nodes)
    picture = drawn(snapshot)
    assert [one for one in words(picture) if one.startswith("Node ")] == [f"Node {n}" for n in range(nodes)]
    found = [tip.split(":")[0] for tip in tips(picture) if tip.startswith("CPU ")]
    assert found == [f"CPU {cpu}" for cpu in snapshot.machine.online_cpus]


def test_whose_memory_and_cpus_are_is_said() -> None:
    picture = drawn(make_snapshot())
    assert "default/web-0/nginx: 1Gi" in tips(picture)
    assert [tip for tip in tips(picture) if tip.startswith("CPU ")][:4] == [
        "CPU 0: reserved",
        "CPU 1: shared",
        "CPU 2: only default/web-0/nginx",
        "CPU 3: only default/web-0/nginx",
    ]
    assert "1Gi of 3008Mi promised" in words(picture)
    assert "from node 1 to node 0: 31" in tips(picture)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_gets_out_of_its_place(name: str) -> None:
    text = machine_map(nodes_view(crowded(2, 4, name))["nodes"])
    assert {one.tag for one in ET.fromstring(text).iter()} <= TAGS
    assert len(text) < 200_000


@pytest.mark.parametrize("width", [1, NARROWEST, 500, 740, WIDTH, 3000])
@pytest.mark.parametrize("nodes", [1, 2, 8, 64])
def test_nothing_lies_outside_of_the_picture(nodes: int, width: float) -> None:
    picture = drawn(crowded(nodes, 20), width)
    total = float(picture.attrib["width"]), float(picture.attrib["height"])

    def check(one: ET.Element, left: float, top: float) -> None:
        if "transform" in one.attrib:
            x, y = one.attrib["transform"].removeprefix("translate(").removesuffix(")").split()
            left, top = left + float(x), top + float(y)
        if one.tag == f"{SVG}rect":
            right = left + float(one.attrib["x"]) + float(one.attrib["width"])
            bottom = top + float(one.attrib["y"]) + float(one.attrib["height"])
            assert right <= total[0] + 0.5, ET.tostring(one)
            assert bottom <= total[1] + 0.5, ET.tostring(one)
        for child in one:
            check(child, left, top)

    check(picture, 0, 0)


@pytest.mark.parametrize("nodes", [2, 8, 64])
@pytest.mark.parametrize("name", ["Rome 7742", "Milan 7763, NPS4", "Genoa 9654"])
def test_no_words_of_a_card_lie_upon_each_other(name: str, nodes: int) -> None:
    pictures = [drawn(make_snapshot(machine=LAYOUTS[name].machine(), ledger=Ledger()))]
    pictures.append(drawn(crowded(nodes, 20)))
    for group in (one for picture in pictures for one in picture.iter(f"{SVG}g")):
        lines: dict[str, dict[str, ET.Element]] = {}
        for one in group.findall(f"{SVG}text"):
            lines.setdefault(one.attrib["y"], {})[one.attrib["text-anchor"]] = one
        for line in (line for line in lines.values() if line.keys() == {"start", "end"}):
            room = float(line["end"].attrib["x"]) - float(line["start"].attrib["x"])
            assert sum(map(width_of, line.values())) <= room + 1, [one.text for one in line.values()]


def width_of(words: ET.Element) -> float:
    sizes = {"head": 15, "strong": 12, "small": 11, "tiny": 9}
    classes = words.attrib["class"].split()
    size = next((size for name, size in sizes.items() if name in classes), 12)
    return text_width(words.text or "", size, bold="head" in classes)


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_real_machines_can_be_drawn(path: Path, tmp_path: Path) -> None:
    unpack(path.read_text(), tmp_path)
    snapshot = replace(make_snapshot(), machine=read_machine(tmp_path), ledger=Ledger())
    named = [
        node
        for one in words(drawn(snapshot))
        if (found := re.match(r"Nodes? ([0-9,-]+)", one))
        for node in NodeSet.parse(found[1])
    ]
    assert sorted(named) == [node.id for node in snapshot.machine.nodes]


def columns(*counts: int, width: float = 1156, narrowest: float = 258) -> list[list[int]]:
    """The columns of each socket, row by row, for sockets of so many nodes."""
    sockets = [Socket((number,), ({},) * count) for number, count in enumerate(counts)]
    return [[one.columns for one in row.sockets] for row in rows_of(sockets, width, narrowest)]


def test_sockets_stand_beside_each_other_where_they_fit() -> None:
    assert columns(1, 1) == [[1, 1]]
    assert columns(1, 1, 1, 1, 1) == [[1, 1, 1], [1, 1]]
    assert columns(4, 4) == [[4], [4]]
    assert columns(2, 1) == [[2, 1]]
    assert columns(1, 1, width=300) == [[1], [1]]


def test_the_nodes_of_a_socket_stand_in_even_lines() -> None:
    assert columns(4, width=900) == [[2]]
    assert columns(6) == [[3]]
    assert columns(1, width=10) == [[1]]


def test_containers_of_one_card_have_different_colors() -> None:
    names = [f"default/web-0/{number}" for number in range(3 * COLORS)]
    assert len(set(colors_of([names[:COLORS]]).values())) == COLORS
    cards = [names[first : first + 4] for first in range(len(names) - 4)]  # each beside three others
    colors = colors_of(cards)
    for card in cards:
        assert len({colors[name] for name in card}) == 4, card
    assert colors_of([*cards, *cards]) == colors


@pytest.mark.parametrize(("nodes", "containers"), [(2, 9), (8, 30), (64, 150)])
def test_no_card_names_two_containers_in_one_color(nodes: int, containers: int) -> None:
    shown = nodes_view(crowded(nodes, containers))["nodes"]
    colors = colors_of([one["name"] for one in holders_of(node)] for node in shown)
    for node in shown:
        named = [one["name"] for one in holders_of(node)][:NAMED]
        assert len({colors[name] for name in named}) == len(named), node["id"]


def test_nodes_that_have_nothing_are_named_in_a_line() -> None:
    snapshot = crowded(4, 6)
    machine = snapshot.machine
    empty = tuple(
        Node(number, CpuSet(), 0, {}, {other: 10 if other == number else 40 for other in range(36)})
        for number in range(4, 36)
    )
    known = tuple(
        replace(node, distances={**node.distances, **dict.fromkeys(range(4, 36), 40)})
        for node in machine.nodes
    )
    picture = drawn(replace(snapshot, machine=replace(machine, nodes=(*known, *empty))))
    assert [one for one in words(picture) if one.startswith("Node")] == [
        *(f"Node {number}" for number in range(4)),
        "Nodes 4-35: neither memory nor CPUs",
    ]
    assert "Memory without CPUs" in words(picture)
    assert "from node 0 to node 35: 40" not in tips(picture)


@pytest.mark.parametrize("width", [342.0, 740.0, WIDTH])
@pytest.mark.parametrize("nodes", [2, 12, 13, 36, 64])
def test_every_distance_is_there_as_a_number(nodes: int, width: float) -> None:
    picture = drawn(crowded(nodes, 1), width)
    assert {"10", "32"} <= set(words(picture)) or nodes == 2


def test_the_cpus_of_a_named_pool_are_told() -> None:
    snapshot = make_snapshot()
    shared = snapshot.ledger.entries["bbb"]
    request = replace(shared.decision.request, cpus=CpuWish(CpuUse.POOL, pool="db"))
    placement = replace(shared.decision.placement, pool_cpus=CpuSet([1, 4]))
    decision = replace(shared.decision, request=request, placement=placement)
    ledger = snapshot.ledger.with_entry(replace(shared, decision=decision))
    found = [tip for tip in tips(drawn(replace(snapshot, ledger=ledger))) if tip.startswith("CPU ")]
    assert found[1] == "CPU 1: the pool db"
    assert found[4] == "CPU 4: the pool db"
    assert found[5] == "CPU 5: shared"


def test_the_cores_of_each_cache_and_kind_stand_in_a_frame_that_says_what_they_are() -> None:
    one, three = Layout().machine(), Layout(caches=3, cores=4).machine()
    kinds = [replace(cpu, kind="efficiency" if cpu.core_id > 5 else "performance") for cpu in one.cpus]
    hybrid = replace(one, cpus=tuple(kinds))
    pictures = [drawn(make_snapshot(machine=machine, ledger=Ledger())) for machine in (one, three, hybrid)]
    frames = [sum(box.get("class") == "group" for box in picture.iter(f"{SVG}rect")) for picture in pictures]
    assert frames == [0, 3, 2]
    assert "L3 cache of 4-7,16-19: 4 of 4 cores whole" in tips(pictures[1])
    assert {"0-5,8-13: cores of kind performance", "6-7,14-15: cores of kind efficiency"} <= set(
        words(pictures[2])
    )
