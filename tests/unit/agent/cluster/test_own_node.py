"""Which kubelet the node has, by its Node object: said to the daemon, again when it is another one."""

from pathlib import Path

import pytest

from bayplan.agent.cluster.node_objects import KubeletVersionWatch
from bayplan.agent.mirror import DaemonLink, Mirror
from support.conditions import running, until
from support.fake_api_server import NODE, FakeApiServer

PATH = f"/api/v1/nodes/{NODE}"


class Link(DaemonLink):
    """Keeps what would be said."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"), Mirror())
        self.versions: list[str] = []

    def know_kubelet(self, version: str) -> None:
        self.versions.append(version)


def node(version: str, boot_id: str = "") -> dict[str, object]:
    info = {"bootID": boot_id, "kubeletVersion": version}
    return {"metadata": {"name": NODE, "uid": "node-uid"}, "status": {"nodeInfo": info}}


async def test_the_version_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bayplan.logs")
    api, link = FakeApiServer(), Link()
    with api.serving():
        async with running(KubeletVersionWatch(api.api(), NODE, link, interval_s=0.005)):
            await until(lambda: len(api.requests) >= 2)
            assert link.versions == []  # kubelet has not said it yet
            api.objects[PATH] = node("v1.36.3")
            await until(lambda: "v1.36.3" in link.versions)
            api.objects[PATH] = node("v1.37.2")
            await until(lambda: "v1.37.2" in link.versions)
            api.forbidden.add(("GET", PATH))
            await until(lambda: caplog.records)
            api.forbidden.clear()
            await until(lambda: len(caplog.records) >= 2)
    assert len(caplog.records) == 2


async def test_what_another_machine_has_under_this_name_is_not_said() -> None:
    api, link = FakeApiServer(), Link()
    api.objects[PATH] = node("v1.36.3", boot_id="another")
    with api.serving():
        async with running(KubeletVersionWatch(api.api(), NODE, link, interval_s=0.005)):
            await until(lambda: len(api.requests) >= 3)
    assert link.versions == []
