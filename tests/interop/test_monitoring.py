"""The alert rules and the Grafana board, by Prometheus' own programs.

The rules are checked and unit-tested by promtool. Every query of the board is asked of a Prometheus that
scrapes what an agent knows of a real daemon, which is connected to a simulated runtime.
"""

import asyncio
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import pytest
from msgspec.structs import replace

from bayplan.agent.command_line import Address, AgentSettings
from bayplan.agent.http.port import HttpPort
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.placement.page_placement import ContainerPages, LivePages, NodeMemory, Plan
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from bayplan.views.snapshot import Snapshot
from support.flavors import CONTAINERD_2_3
from support.mirrors import nobody, show
from support.plugin_calls import OperationError
from support.runtime import FakeRuntime
from support.workloads import GUARANTEED, make_container, make_pod

pytestmark = pytest.mark.interop

PROJECT = Path(__file__).parents[2]
MONITORING = PROJECT / "packaging" / "monitoring"
PATIENCE_S = 60


def program(name: str) -> str:
    """One of Prometheus' programs, as set-up has put it into the cache."""
    cache = Path(
        os.environ.get("BAYPLAN_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bayplan")
    )
    found = shutil.which(name, path=cache / "prometheus") or shutil.which(name)
    if found is None:
        pytest.fail(f"there is no {name}: packaging/dev/setup.sh interop", pytrace=False)
    return found


def promtool(*words: str, directory: Path = MONITORING) -> str:
    done = subprocess.run(
        [program("promtool"), *words], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_right() -> None:
    assert "SUCCESS" in promtool("check", "rules", "alerts.yaml")


def test_each_alert_fires_on_what_it_is_for_and_on_nothing_else(tmp_path: Path) -> None:
    shutil.copy(MONITORING / "alerts.yaml", tmp_path)
    shutil.copy(Path(__file__).parent / "alerts_test.yaml", tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yaml", directory=tmp_path)


def queries() -> Iterator[tuple[str, str]]:
    """Title of the panel and expression, with the board's variables as they are when nothing is chosen."""
    board = json.loads((MONITORING / "grafana-board.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")


class Prometheus:
    """A Prometheus that scrapes one address every half second."""

    def __init__(self, directory: Path, scraped: tuple[str, int]) -> None:
        self._directory = directory
        target = f"{scraped[0]}:{scraped[1]}"
        (directory / "prometheus.yml").write_text(
            "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
            f"scrape_configs: [{{job_name: bayplan, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        self._port = free_port()

    async def __aenter__(self) -> Self:
        with (self._directory / "prometheus.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                program("prometheus"),
                f"--config.file={self._directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                stderr=log,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def values(self, expression: str) -> list[float]:
        """What the query returns; nothing while Prometheus is not there yet."""
        address = f"http://127.0.0.1:{self._port}/api/v1/query?"
        address += urllib.parse.urlencode({"query": expression})
        try:
            answer = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(address)))
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is not ready yet
                return []
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        except urllib.error.URLError:
            return []
        return [float(one["value"][1]) for one in answer["data"]["result"]]

    async def wait_for(self, expression: str) -> None:
        """Wait until the query returns numbers."""
        while not any(math.isfinite(value) for value in await self.values(expression)):
            assert self._process.returncode is None, (self._directory / "prometheus.log").read_text()
            await asyncio.sleep(0.1)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@asynccontextmanager
async def following_daemon(directory: Path, runtime: FakeRuntime) -> AsyncIterator[Mirror]:
    """What an agent knows of a real daemon that *runtime* is connected to."""
    await runtime.listen(directory / "nri.sock")
    argv = [
        *("--nri-socket", str(directory / "nri.sock"), "--state-dir", str(directory / "state")),
        *("--admin-socket", str(directory / "admin.sock"), "--agent-socket", str(directory / "agent.sock")),
        *("--oci-socket", "none", "--topology-manager-policy", "single-numa-node"),
    ]
    with (directory / "daemon.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bayplan.daemon.baypland", *argv, stderr=log
        )
    mirror = Mirror()
    following = asyncio.create_task(DaemonLink(directory / "agent.sock", mirror).run())
    try:
        await runtime.synchronized()
        yield mirror
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await runtime.stop()
        process.terminate()
        await process.wait()


async def create_and_refuse(runtime: FakeRuntime) -> None:
    pod = make_pod("web", qos=GUARANTEED)
    asking = {"cpu_shares": 1024, "cpu_quota_us": 100_000, "oom_score_adj": -997}
    main = make_container(pod, "main", memory_limit_bytes=64 * MIB, **asking)
    await runtime.run_pod(pod)
    await runtime.create_container(pod, main)
    await runtime.start_container(main.id)
    with pytest.raises(OperationError):
        await runtime.create_container(pod, make_container(pod, "huge", memory_limit_bytes=1 << 50, **asking))


def with_pages(mirror: Mirror) -> Snapshot:
    """The daemon's state as the mirror has it, and pages of its containers, which have no cgroups here."""
    snapshot = mirror.snapshot
    assert snapshot is not None
    node = snapshot.machine.nodes[0].id
    pages = {
        key: ContainerPages(key, key, NodeSet([node]), MIB, {node: 30 * MIB, node + 1: 10 * MIB})
        for key in snapshot.ledger.entries
    }
    nodes = {one.id: NodeMemory(GIB, MIB, MIB) for one in snapshot.machine.nodes}
    nodes[node + 1] = NodeMemory(GIB)
    return replace(snapshot, live=LivePages(snapshot.taken_us, nodes, pages, Plan()))


async def test_every_query_of_the_board_returns_data(tmp_path: Path) -> None:
    runtime, shown = FakeRuntime(CONTAINERD_2_3), Mirror()
    port = HttpPort(Address("127.0.0.1", 0), AgentSettings(), shown, nobody)
    await port.start()
    try:
        async with (
            Prometheus(tmp_path, port.server.address) as prometheus,
            following_daemon(tmp_path, runtime) as known,
        ):
            while known.snapshot is None or known.snapshot.runtime is None:
                await known.wait_for_change(known.revision)
            show(shown, with_pages(known))
            await prometheus.wait_for("bayplan_info")
            await create_and_refuse(runtime)
            while known.snapshot.counters.get("decisions_refused", 0) < 1:
                await known.wait_for_change(known.revision)
            show(shown, with_pages(known))
            for title, expression in queries():
                async with asyncio.timeout(PATIENCE_S):
                    try:
                        await prometheus.wait_for(expression)
                    except asyncio.CancelledError:
                        pytest.fail(f"{title}: no data for {expression}")
    finally:
        await port.close()
