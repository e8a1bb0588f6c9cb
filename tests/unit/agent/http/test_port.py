"""The agent's HTTP port: metrics in every format, health, tokens, certificates."""

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from bayplan.agent.command_line import Address, AgentSettings
from bayplan.agent.http.port import Certificate, HttpPort, MetricsPage
from bayplan.agent.http.server import PageRequest
from bayplan.agent.mirror import Mirror
from bayplan.errors import ConfigError
from bayplan.views.metrics import METRICS, Facts, metrics_text
from support.http import get
from support.mirrors import mirror_of, nobody
from support.snapshots import make_snapshot

TLS = Path(__file__).parents[3] / "data" / "tls"
"""Two certificates with their keys, which are good for nothing else."""

Where = tuple[str, int]


@contextlib.asynccontextmanager
async def serving(mirror: Mirror, **settings) -> AsyncIterator[Where]:
    port = HttpPort(Address("127.0.0.1", 0), AgentSettings(**settings), mirror, nobody)
    await port.start()
    try:
        yield port.server.address
    finally:
        await port.close()


def all_samples(families) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples
    }


async def test_metrics_are_those_of_the_daemon_and_of_this_process() -> None:
    snapshot = make_snapshot()
    async with serving(mirror_of(snapshot)) as address:
        answer = await get(address, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    served = all_samples(parse_text(answer.text))
    ours = all_samples(parse_text(metrics_text(Facts.of(snapshot))))
    assert ours.items() <= served.items()
    assert ("process_resident_memory_bytes", frozenset()) in served
    assert {name for name, _ in served.keys() - ours.keys()} <= {
        *(name for name, _ in served if name.startswith(("process_", "python_")))
    }


async def test_prometheus_own_formats_and_packing_are_answered() -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    async with serving(mirror_of(make_snapshot())) as address:
        answer = await get(address, "/metrics", Accept=accept, Accept_Encoding="gzip")
        plain = await get(address, "/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-encoding"] == "gzip"
    names = {family.name for family in parse_openmetrics(answer.text)}
    assert {metric.name.removesuffix("_total") for metric in METRICS} <= names
    assert "content-encoding" not in plain.headers


async def test_names_of_others_cannot_break_the_page() -> None:
    odd = replace(make_snapshot(), engine='a"b\\c\nd{}\x1b[31m')
    async with serving(mirror_of(odd)) as address:
        answer = await get(address, "/metrics")
    (engine,) = (
        one.labels["engine"]
        for family in parse_text(answer.text)
        for one in family.samples
        if one.name == "bayplan_info"
    )
    assert engine == r'a"b\c\nd{}\x1b[31m'


async def test_who_asks_within_a_second_gets_the_same_page() -> None:
    now_s, request = 100.0, PageRequest("/metrics")
    page = MetricsPage(Mirror(), 0, lambda: now_s)
    first, *others = await asyncio.gather(*(page(request) for _ in range(50)))
    assert all(other is first for other in others)
    now_s = 100.9
    assert await page(request) is first
    now_s = 101.0
    assert await page(request) is not first


async def test_health_says_what_is_missing() -> None:
    mirror = Mirror()
    async with serving(mirror) as address:
        assert (await get(address, "/livez")).text == "ok\n"
        answer = await get(address, "/readyz")
        assert (answer.status, answer.text) == (503, "baypland does not answer\n")
        assert "bayplan_info" not in (await get(address, "/metrics")).text
    mirror = mirror_of(make_snapshot())
    async with serving(mirror) as address:
        answer = await get(address, "/readyz")
        assert (answer.status, answer.text) == (200, "ok\n")
        mirror.disconnected()
        assert (await get(address, "/readyz")).status == 503
        assert (await get(address, "/livez")).status == 200


async def test_what_was_known_last_is_shown_as_such_while_the_daemon_is_away() -> None:
    mirror = mirror_of(make_snapshot())
    mirror.disconnected()
    async with serving(mirror) as address:
        served = all_samples(parse_text((await get(address, "/metrics")).text))
    assert served["bayplan_daemon_connected", frozenset()] == 0
    assert served["bayplan_uptime_seconds", frozenset()] == 100


async def test_a_token_is_needed_for_all_but_health_and_can_be_replaced(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with serving(mirror_of(make_snapshot()), token_file=token) as address:
        assert (await get(address, "/livez")).status == 200
        assert (await get(address, "/readyz")).status == 200
        refused = await get(address, "/metrics")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        for wrong in ("Bearer other", "Bearer ", "Basic first", "first", "Bearer f\xefrst"):
            assert (await get(address, "/metrics", Authorization=wrong)).status == 401
        assert (await get(address, "/metrics", Authorization="bearer first")).status == 200
        fresh = tmp_path / "fresh"
        fresh.write_text("second")
        fresh.replace(token)
        assert (await get(address, "/metrics", Authorization="Bearer first")).status == 401
        assert (await get(address, "/metrics", Authorization="Bearer second")).status == 200
        token.unlink()
        assert (await get(address, "/metrics", Authorization="Bearer second")).status == 503


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.:9476", "127.0.0.1", "127.0.0.53:80", "[::1]", "[::1]:80", "map.example:443"],
)
async def test_on_loopback_its_own_names_and_the_allowed_ones_are_answered(host: str) -> None:
    async with serving(mirror_of(make_snapshot()), allowed_hosts=("proxy", "Map.example")) as address:
        assert (await get(address, "/metrics", Host=host)).status == 200


@pytest.mark.parametrize(
    "host", ["", "rebound.example", "rebound.example:9476", "127.0.0.1.example", "10.0.0.1"]
)
async def test_on_loopback_another_name_is_not_answered(host: str) -> None:
    async with serving(mirror_of(make_snapshot())) as address:
        for path in ("/", "/metrics", "/events", "/livez"):
            answer = await get(address, path, Host=host)
            assert (answer.status, "another name" in answer.text) == (421, True)


async def test_with_tls_every_name_is_answered() -> None:
    trusting = ssl.create_default_context(cafile=str(TLS / "one.pem"))
    trusting.check_hostname = False
    async with serving(Mirror(), tls_cert=TLS / "one.pem", tls_key=TLS / "one.key") as address:
        assert (await get(address, "/livez", trusting, Host="node.example")).status == 200


@pytest.mark.parametrize("content", [None, b"", b"  \n", b"x" * 5000])
def test_a_token_that_is_none_is_refused_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    with pytest.raises(ConfigError, match=str(token)):
        HttpPort(Address("127.0.0.1", 0), AgentSettings(token_file=token), Mirror(), nobody)


async def test_https_is_served_with_a_certificate_that_can_be_replaced(tmp_path: Path) -> None:
    cert, key = (Path(shutil.copy(TLS / f"one.{kind}", tmp_path)) for kind in ("pem", "key"))
    tls = Certificate(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    trusting.check_hostname = False
    async with serving(mirror_of(make_snapshot()), tls_cert=cert, tls_key=key) as address:
        assert (await get(address, "/livez", trusting)).text == "ok\n"
        with pytest.raises((ConnectionError, ValueError, IndexError)):
            await get(address, "/livez")
    key.write_text("no key")
    with pytest.raises(ConfigError, match="a certificate in PEM"):
        tls.refresh()
    shutil.copy(TLS / "two.pem", cert)
    shutil.copy(TLS / "two.key", key)
    tls.refresh()
