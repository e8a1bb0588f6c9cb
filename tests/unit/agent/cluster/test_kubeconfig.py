"""Where the API server is and who asks it; and asking with what a kubeconfig has, over real TLS."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.agent.cluster.api import IN_CLUSTER, Api, ApiError, api_server
from bayplan.agent.command_line import ClusterTask, parse
from bayplan.agent.http_client import Server
from bayplan.errors import ConfigError, UnavailableError
from support.fake_api_server import NODE, FakeApiServer
from support.fake_kubelet import RECORDED, TOKEN

CA = (RECORDED / "kubelet.pem").read_bytes()


def written(directory: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "other", "cluster": {}}, {"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path = directory / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


async def test_the_server_of_a_kubeconfig_is_asked_with_its_token(tmp_path: Path) -> None:
    fake = FakeApiServer()
    with fake.serving():
        cluster = {
            "server": f"https://127.0.0.1:{fake.port}/",
            "certificate-authority-data": base64.b64encode(CA).decode(),
            "tls-server-name": "node",
        }
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        for user in ({"token": TOKEN}, {"tokenFile": "token"}):
            api = Api(api_server(written(tmp_path, cluster, user)))
            assert (await api.get(f"/api/v1/nodes/{NODE}", dict))["metadata"]["uid"] == "node-uid"
        with pytest.raises(ApiError, match="answers 401: Unauthorized"):
            await Api(api_server(written(tmp_path, cluster, {"token": "other"}))).get("/api", dict)
        elsewhere = {**cluster, "tls-server-name": "elsewhere"}
        with pytest.raises(UnavailableError, match="certificate verify failed"):
            await Api(api_server(written(tmp_path, elsewhere, {"token": TOKEN}))).get("/api", dict)


def test_files_are_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    cluster = {"server": "https://api:6443", "certificate-authority": "ca.pem"}
    user = {"client-certificate": "/pki/agent.pem", "client-key-data": base64.b64encode(b"key").decode()}
    assert api_server(written(tmp_path, cluster, user)) == Server(
        "https://api:6443", tmp_path / "ca.pem", certificate=Path("/pki/agent.pem"), key=b"key"
    )


def test_a_service_account_is_that_of_the_pod(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(ConfigError, match="service account"):
        api_server(IN_CLUSTER, environment, tmp_path)
    (tmp_path / "token").write_text("secret")
    with pytest.raises(ConfigError, match="service account"):
        api_server(IN_CLUSTER, {}, tmp_path)
    expected = Server("https://[fd00::1]:6443", tmp_path / "ca.crt", token=tmp_path / "token")
    assert api_server(IN_CLUSTER, environment, tmp_path) == expected


def test_all_problems_of_a_kubeconfig_are_named_at_once(tmp_path: Path) -> None:
    cluster = {"server": "http://api", "insecure-skip-tls-verify": True, "certificate-authority-data": "%"}
    with pytest.raises(ConfigError) as caught:
        api_server(written(tmp_path, cluster, {"exec": {"command": "login"}}))
    assert [problem.path for problem in caught.value.problems] == [
        "cluster.server",
        "cluster.insecure-skip-tls-verify",
        "user.exec",
        "cluster.certificate-authority-data",
    ]


@pytest.mark.parametrize("content", [b"", b"3", b"{", b"\xff", b"contexts: 3", b"clusters: [3]"])
def test_what_is_no_kubeconfig_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        api_server(path)
    with pytest.raises(ConfigError, match="No such file"):
        api_server(tmp_path / "gone")


def test_flags_of_the_api_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NODE_NAME", "node-a")
    settings = parse(["--kubeconfig", "in-cluster", "--cluster-tasks", "pods,evictions"])
    assert (settings.kubeconfig, settings.node_name) == (IN_CLUSTER, "node-a")
    assert settings.cluster_tasks == {ClusterTask.PODS, ClusterTask.EVICTIONS}
    # What ends pods, or books room, is asked for by name.
    assert parse([]).cluster_tasks == set(ClusterTask) - {ClusterTask.EVICTIONS, ClusterTask.CLAIMS}
    for wrong in (["--cluster-tasks", "all"], ["--remove-topology"]):
        with pytest.raises(SystemExit):
            parse(wrong)
        assert wrong[0] in capsys.readouterr().err
