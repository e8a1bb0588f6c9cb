"""The agent's page in a browser: what is shown, at several sizes, live, and that names stay names.

Screenshots are left in build/page.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.agent.command_line import Address, AgentSettings
from bayplan.agent.http.page import DaemonQuestions
from bayplan.agent.http.port import HttpPort
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.agent_protocol import Refused
from bayplan.drawing.maps import WIDTH, machine_map
from bayplan.errors import PlacementError
from bayplan.host.record import unpack
from bayplan.host.sysfs import read_machine
from bayplan.model.decision import EvictionRecord, Outcome, Placement, QosClass, Reason
from bayplan.model.ledger import Ledger
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import nodes_view
from support.agents import serving as agents_served
from support.browser import Browser, Page
from support.controllers import controlled
from support.crowded import crowded
from support.machines import container, pod
from support.mirrors import mirror_of, nobody, show
from support.snapshots import make_snapshot

pytestmark = pytest.mark.interop

SCREENSHOTS = Path(__file__).parents[2] / "build" / "page"
HOSTILE = "<img src=x onerror=document.title='hit'><script>document.title='hit'</script>&amp;\"'"
PHONE = (390, 844)
DESK = (1280, 900)
IS_LIVE = "document.getElementById('live').textContent === 'live'"
PRESSED = """document.querySelector("{}").dispatchEvent(new MouseEvent("click", {{bubbles: true}}))"""
TYPED = """(() => {{
    const field = document.getElementById("{}");
    field.value = "{}";
    field.dispatchEvent(new Event("input"));
}})()"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@contextlib.asynccontextmanager
async def browser(directory: Path) -> AsyncIterator[Browser]:
    program = Browser.program()
    if program is None:
        pytest.fail("there is no Chromium: packaging/dev/setup.sh interop", pytrace=False)
    async with Browser(program, directory) as one:
        yield one


@contextlib.asynccontextmanager
async def serving(mirror: Mirror, ask: DaemonQuestions = nobody) -> AsyncIterator[str]:
    port = HttpPort(Address("127.0.0.1", 0), AgentSettings(), mirror, ask)
    await port.start()
    try:
        host, number = port.server.address
        yield f"http://{host}:{number}/"
    finally:
        await port.close()


def refusal(snapshot: Snapshot, reason: str, minutes_ago: int = 1) -> Refused:
    entry = next(iter(snapshot.ledger.entries.values()))
    decision = replace(
        entry.decision,
        outcome=Outcome.REFUSED,
        placement=Placement(),
        reasons=(Reason("no-room", reason),),
    )
    return Refused(9, (int(time.time()) - 60 * minutes_ago) * 1_000_000, decision)


def evicted_on_node_0(name: str) -> EvictionRecord:
    signal, at_us = "node0.memory.available", int(time.time()) * 1_000_000
    return EvictionRecord(at_us, "gone", name, signal, QosClass.BURSTABLE, 9, 5, 7, 0, 0, "It was short.")


async def texts(page: Page, selector: str) -> list[str]:
    return await page.value(f"[...document.querySelectorAll({selector!r})].map(one => one.textContent)")


@pytest.mark.parametrize(("nodes", "containers"), [(2, 9), (8, 30), (64, 150)])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
async def test_the_whole_machine_is_shown(
    tmp_path: Path, nodes: int, containers: int, size: tuple[int, int]
) -> None:
    mirror = mirror_of(crowded(nodes, containers))
    async with serving(mirror) as url, browser(tmp_path) as chromium:
        page = await chromium.open(url, *size)
        await page.wait_for(IS_LIVE)
        await page.screenshot(SCREENSHOTS / f"{nodes}-nodes-{size[0]}.png")
        assert await texts(page, "#map [data-node] .head") == [f"Node {number}" for number in range(nodes)]
        assert await page.value("document.querySelectorAll('#map .shared').length") > 4 * nodes
        rows = await texts(page, "#containers td.name")
        assert len(rows) == containers
        assert await page.value(OVERFLOW) == 0
        # Nothing is drawn outside of the picture, and letters are as large as they were meant.
        shown = "document.querySelector('#map svg').getBoundingClientRect().width"
        drawn = "document.querySelector('#map svg').viewBox.baseVal.width"
        assert 0.95 < await page.value(f"{shown} / {drawn}") < 1.25
        assert page.complaints == []


async def test_it_is_dark_where_that_is_preferred(tmp_path: Path) -> None:
    brightness = """(() => {
        const color = name => getComputedStyle(document.querySelector(name));
        const sum = text => text.match(/\\d+/g).slice(0, 3).reduce((all, one) => all + Number(one), 0);
        return [sum(color('body').backgroundColor), sum(color('.card').fill), sum(color('.head').fill)];
    })()"""
    async with serving(mirror_of(crowded(8, 30))) as url, browser(tmp_path) as chromium:
        light, dark = await chromium.open(url, *DESK), await chromium.open(url, *DESK, dark=True)
        for page in (light, dark):
            await page.wait_for(IS_LIVE)
        await dark.screenshot(SCREENSHOTS / "8-nodes-dark.png")
        assert [value > 380 for value in await light.value(brightness)] == [True, True, False]
        assert [value > 380 for value in await dark.value(brightness)] == [False, False, True]


async def test_names_of_others_stay_names(tmp_path: Path) -> None:
    snapshot = crowded(2, 4, HOSTILE)
    mirror = mirror_of(replace(snapshot, problems=(HOSTILE,)))
    mirror.refusals.append(refusal(snapshot, HOSTILE))
    async with serving(mirror) as url, browser(tmp_path) as chromium:
        page = await chromium.open(url, *DESK)
        await page.wait_for(IS_LIVE)
        assert f"default/{HOSTILE}/{HOSTILE}" in await texts(page, "#containers td.name span")
        assert HOSTILE in (await texts(page, "#refused td.why span"))[0]
        assert HOSTILE in await texts(page, "#attention li span")
        assert await page.value("document.title") == "bayplan"
        assert await page.value("document.images.length") == 0
        assert await page.value("document.scripts.length") == 1
        assert page.complaints == []


async def test_it_follows_what_happens(tmp_path: Path) -> None:
    before = crowded(2, 4)
    mirror = mirror_of(before)
    mirror.refusals.append(refusal(before, "refused two hours ago", minutes_ago=120))
    async with serving(mirror) as url, browser(tmp_path) as chromium:
        page = await chromium.open(url, *DESK)
        await page.wait_for(IS_LIVE)
        assert await texts(page, "#refused .none") == ["Nobody."]
        show(mirror, crowded(2, 7))
        mirror.refusals.append(refusal(before, "no node has room for 64Gi"))
        await page.wait_for("document.querySelectorAll('#containers td.name').length === 7")
        assert "no node has room for 64Gi" in (await texts(page, "#refused td.why"))[0]
        mirror.disconnected()
        await page.wait_for("document.querySelector('.facts .bad') !== null")
        assert "this is what it said last" in (await texts(page, "#node"))[0]


async def test_an_agent_that_is_gone_is_noticed_and_found_again(tmp_path: Path) -> None:
    port = HttpPort(Address("127.0.0.1", 0), AgentSettings(), mirror_of(crowded(2, 4)), nobody)
    await port.start()
    async with browser(tmp_path) as chromium:
        host, number = port.server.address
        page = await chromium.open(f"http://{host}:{number}/", *DESK)
        await page.wait_for(IS_LIVE)
        await port.close()
        await page.wait_for("document.getElementById('live').className === 'off'")
        again = HttpPort(Address("127.0.0.1", number), AgentSettings(), mirror_of(crowded(2, 5)), nobody)
        await again.start()
        await page.wait_for("document.querySelectorAll('#containers td.name').length === 5")
        await page.wait_for(IS_LIVE)
        await again.close()


async def test_it_can_be_read_without_its_script(tmp_path: Path) -> None:
    async with serving(mirror_of(crowded(2, 4))) as url, browser(tmp_path) as chromium:
        page = await chromium.open("about:blank", *DESK)
        await page.call("Emulation.setScriptExecutionDisabled", value=True)
        await page.go(url)
        await page.wait_for("document.querySelectorAll('#containers td.name').length === 4")
        assert await texts(page, "#map .head") == ["Node 0", "Node 1"]


async def test_the_picture_of_the_command_line_is_a_document_of_its_own(tmp_path: Path) -> None:
    picture = tmp_path / "map.svg"
    await asyncio.to_thread(picture.write_text, machine_map(nodes_view(crowded(8, 30, HOSTILE))["nodes"]))
    async with browser(tmp_path) as chromium:
        page = await chromium.open(picture.as_uri(), *DESK)
        await page.wait_for(
            "document.documentElement.tagName === 'svg' && document.readyState === 'complete'"
        )
        assert await texts(page, "[data-node] .head") == [f"Node {number}" for number in range(8)]
        assert (
            await page.value("getComputedStyle(document.querySelector('.card')).fill") == "rgb(255, 255, 255)"
        )
        assert page.complaints == []


OVERLAPS = """(() => {
    const all = [...document.querySelectorAll('svg text')];
    const boxes = all.map(one => [one.textContent, one.getBoundingClientRect()]);
    boxes.sort((one, other) => one[1].top - other[1].top);
    const found = [];
    for (let first = 0; first < boxes.length; first++)
        for (let other = first + 1; other < boxes.length; other++) {
            const [a, b] = [boxes[first][1], boxes[other][1]];
            if (b.top >= a.bottom) break;
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (wide > 1 && high > 3) found.push(boxes[first][0] + ' | ' + boxes[other][0]);
        }
    return found;
})()"""
OUTSIDE = """[...document.querySelectorAll('svg text')].filter(one => {
    const word = one.getBoundingClientRect();
    // The frame of its card or socket: the first box of the groups around it.
    const frame = one.closest('g')?.parentElement.closest('[data-node]')?.querySelector('.card')
        ?? one.parentElement.querySelector(':scope > .socket') ?? document.querySelector('svg .ground');
    const box = frame.getBoundingClientRect();
    return word.left < box.left - 1 || word.right > box.right + 1;
}).map(one => one.textContent)"""


async def test_no_text_of_a_picture_is_written_over_another(tmp_path: Path) -> None:
    machines = sorted((Path(__file__).parents[1] / "data" / "machines").glob("*.txt"))
    snapshots = {f"{nodes}": crowded(nodes, 3 * nodes) for nodes in (1, 2, 3, 12, 13, 36, 64)}
    for path in machines:
        tree = tmp_path / path.stem
        await asyncio.to_thread(unpack, path.read_text(), tree)
        snapshots[path.stem] = replace(make_snapshot(), machine=read_machine(tree), ledger=Ledger())
    async with browser(tmp_path) as chromium:
        page = await chromium.open("about:blank", *DESK)
        for name, snapshot in snapshots.items():
            for width in (342.0, 740.0, WIDTH):
                drawn = tmp_path / "map.svg"
                await asyncio.to_thread(drawn.write_text, machine_map(nodes_view(snapshot)["nodes"], width))
                await page.go(drawn.as_uri())
                assert await page.value(OVERLAPS) == [], (name, width)
                assert await page.value(OUTSIDE) == [], (name, width)


async def try_a_pod(page: Page) -> None:
    filled = "document.querySelector('#sizes [name={}]').value = '{}'"
    for name, text in (("memory", "10Mi"), ("cpus", "1"), ("annotations", "required-nodes=1")):
        await page.value(filled.format(name, text))
    await page.value("document.getElementById('sizes').requestSubmit()")
    await page.wait_for("document.querySelector('#tried h3') !== null")
    assert "node 1" in (await texts(page, "#tried p"))[0]
    await page.value(filled.format("hugepages", "2Mi"))
    await page.value("document.getElementById('sizes').requestSubmit()")
    await page.wait_for("document.querySelector('#tried .refused') !== null")
    assert "hugepages" in (await texts(page, "#tried .refused"))[0]


async def see_what_happened(page: Page) -> None:
    """The eviction is one of node 0."""
    for node, evicted in ((0, 1), (1, 0)):
        await page.value(PRESSED.format(f"[data-node='{node}']"))
        await page.wait_for(f"document.querySelector('#happened small').textContent.includes('node {node}')")
        assert await page.value("document.querySelectorAll('#happened td.evicted').length") == evicted


async def test_containers_are_found_explained_and_tried_and_what_happened_is_seen(tmp_path: Path) -> None:
    """Beside a daemon's controller with a real store, over the agent socket."""
    owner, mirror = pod("g", QosClass.GUARANTEED), Mirror()
    strict = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
    async with controlled(tmp_path / "state", strict) as one, agents_served(one, tmp_path / "a.sock"):
        for name in ("web", "db"):
            made = container(name, owner, memory_bytes=100 << 20, milli_cpus=1000)
            await one.controller.create_container(owner, made)
        with pytest.raises(PlacementError):
            await one.controller.create_container(owner, container("large", owner, memory_bytes=900 << 30))
        await one.controller.state.recorder.evicted([evicted_on_node_0("g/db")])
        link = DaemonLink(tmp_path / "a.sock", mirror)
        running = asyncio.create_task(link.run())
        try:
            async with serving(mirror, link.ask) as url, browser(tmp_path) as chromium:
                for size in (DESK, PHONE):
                    page = await chromium.open(url, *size)
                    await page.wait_for(IS_LIVE)
                    await page.wait_for("document.querySelectorAll('#containers td.name').length === 2")
                    await page.wait_for("document.querySelectorAll('#happened rect[class]').length > 3")
                    shown = "[...document.querySelectorAll('#containers tr:not(.head)')]"
                    seen = f"{shown}.filter(row => row.offsetParent !== null).length"
                    await page.value(TYPED.format("words", "placed DB"))
                    assert await page.value(seen) == 1
                    await page.value(TYPED.format("words", ""))
                    assert await page.value(seen) == 2
                    await try_a_pod(page)
                    await see_what_happened(page)
                    assert await page.value(OVERLAPS) == []
                    letters = "document.querySelector('#happened text').getBoundingClientRect().height"
                    assert 9 < await page.value(letters) < 20
                    await page.screenshot(SCREENSHOTS / f"asked-{size[0]}.png")
                    assert await page.value(OVERFLOW) == 0
                    await page.value("document.querySelector('#containers td.name span').click()")
                    await page.wait_for("document.querySelector('#why h3') !== null")
                    assert await page.value("document.getElementById('explained').open")
                    assert "db" in (await texts(page, "#why h3"))[0]
                    await page.screenshot(SCREENSHOTS / f"explained-{size[0]}.png")
                    assert await page.value(OVERFLOW) == 0
                    assert page.complaints == []
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
