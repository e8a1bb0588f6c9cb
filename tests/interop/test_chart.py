"""The Helm chart, rendered by Helm, held against its schema, Kubernetes' own, and bayplan's parser."""

import functools
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import IMAGE, helm, manifests, rendered
from testbed.errors import TestBedError
from testbed.gobuild import go_program
from testbed.kubernetes import KUBERNETES, KUBERNETES_VERSION

from bayplan.config.keys import KEYS
from bayplan.config.load import load_settings
from bayplan.errors import BayplanError
from support.chart_manifests import CHART, MANIFESTS, PROJECT
from support.kubernetes_page import documented_objects
from support.kubernetes_schema import Schema

pytestmark = [pytest.mark.interop, pytest.mark.matrix]

EXPOSED = ("agent.http.exposed=true", "agent.http.tokenSecret=token", "agent.http.tlsSecret=tls")
VARIANTS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "namespace": ("namespace.create=true",),
    "exposed": EXPOSED,
    "monitored": (*EXPOSED, "agent.http.serviceMonitor=true"),
    "pod resources": ("agent.podResources=true", "agent.seLinuxOptions.type=spc_t"),
    "kubelet's file": ("daemon.kubeletConfig=/var/lib/kubelet/config.yaml", "daemon.maxUnavailable=20%"),
    "no check": ("daemon.checkPrerequisites=false", "daemon.updateStrategy=OnDelete"),
    "claims": ("agent.clusterTasks={pods,claims}", "agent.kubeletDirectory=/data/kubelet"),
    "everything": ("agent.clusterTasks={topology,pods,events,evictions,claims}", "agent.podResources=true"),
    "no cluster tasks": ("agent.clusterTasks=null",),
    "no agent": ("agent.enabled=false", "image.pullSecrets={one,two}", "image.tag=other"),
}


def sets(*assignments: str) -> list[str]:
    return [f"--set={one}" for one in assignments]


def objects(*assignments: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(rendered(*sets(*assignments))) if one is not None]


@functools.cache
def kubernetes() -> Schema:
    try:
        go = go_program()
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)
    found = subprocess.run(
        [go, "mod", "download", "-json", f"{KUBERNETES}@{KUBERNETES_VERSION}"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    directory = Path(json.loads(found.stdout)["Dir"])
    return Schema(json.loads((directory / "api/openapi-spec/swagger.json").read_text()))


def test_helm_has_nothing_to_say() -> None:
    finished = helm("lint", "--strict", CHART, IMAGE)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_manifests_are_those_of_the_chart() -> None:
    assert MANIFESTS.read_text() == manifests(), "run `make manifests`"


@pytest.mark.parametrize("assignments", VARIANTS.values(), ids=VARIANTS)
def test_kubernetes_knows_every_field(assignments: tuple[str, ...]) -> None:
    found = objects(*assignments)
    assert found
    beside = [one for one in found if one["kind"] != "ServiceMonitor"]
    assert len(found) - len(beside) == ("agent.http.serviceMonitor=true" in assignments)
    assert [problem for one in beside for problem in kubernetes().problems(one)] == []


def test_the_schema_of_kubernetes_refuses_what_it_does_not_know() -> None:
    """Or the test above could not fail."""
    (daemon_set,) = (one for one in objects("agent.enabled=false") if one["kind"] == "DaemonSet")
    daemon_set["spec"]["template"]["spec"]["hostPid"] = True
    daemon_set["spec"]["minReadySeconds"] = "1"
    del daemon_set["spec"]["selector"]
    assert kubernetes().problems(daemon_set) == [
        "DaemonSet.spec.selector: missing",
        "DaemonSet.spec.template.spec.hostPid: no such field",
        "DaemonSet.spec.minReadySeconds: found '1', expected integer",
    ]


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("demon.updateStrategy=OnDelete", "demon"),
        ("daemon.updateStrategy=Recreate", "/daemon/updateStrategy"),
        ("daemon.nriDirectory=run/nri", "/daemon/nriDirectory"),
        ("daemon.nriDirectory=/var/run/nri", "/daemon/nriDirectory"),
        ("daemon.maxUnavailable=0", "/daemon/maxUnavailable"),
        ("config.topologyManagerPolic=restricted", "/config"),
        ("config.engine=foo", "/config/engine"),
        ("daemon.stateDirectory=/", "/daemon/stateDirectory"),
        ("agent.port=80", "/agent/port"),
        ("config.stateDirectory=/elsewhere", "/config"),
        ("agent.clusterTasks={topology,nodes}", "/agent/clusterTasks/1"),
        ("agent.http.exposed=true", "/agent/http/tokenSecret"),
        ("agent.http.serviceMonitor=true", "/agent/http/serviceMonitor"),
    ],
)
def test_wrong_values_are_named(assignment: str, said: str) -> None:
    finished = helm("template", "bayplan", CHART, IMAGE, *sets(assignment))
    assert finished.returncode != 0
    assert said in finished.stderr


@pytest.mark.parametrize("release", ["bayplan.v1", "1bayplan"])
def test_a_release_is_called_as_its_service_may_be(release: str) -> None:
    exposed = sets("agent.http.exposed=true", "agent.http.tokenSecret=a", "agent.http.tlsSecret=b")
    finished = helm("template", release, CHART, IMAGE, *exposed)
    assert finished.returncode != 0
    assert release in finished.stderr
    assert helm("template", release, CHART, IMAGE).returncode == 0


def test_the_image_has_to_be_named() -> None:
    finished = helm("template", "bayplan", CHART)
    assert finished.returncode != 0
    assert "repository" in finished.stderr


@pytest.mark.parametrize("task", ["topology", "pods", "events", "evictions"])
def test_an_agent_has_the_rights_of_its_tasks_alone(task: str) -> None:
    (role,) = (one for one in objects(f"agent.clusterTasks={{{task}}}") if one["kind"] == "ClusterRole")
    expected = {
        "topology": {"noderesourcetopologies"},
        "pods": {"pods"},
        "events": {"events"},
        "evictions": {"pods/eviction"},
    }
    # Which kubelet the node has is asked for with any task.
    named = [name for rule in role["rules"] for name in rule["resources"]]
    assert sorted(named) == sorted({"nodes", *expected[task]})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--kube-version=1.36.3"], ["v1.36.3"]),
        (
            ["--kube-version=1.36.3", "--set=daemon.clusterVersion=v1.35.1-gke.1256000"],
            ["v1.35.1-gke.1256000"],
        ),
        (["--set=daemon.clusterVersion=none"], []),
    ],
)
def test_the_daemon_is_told_the_clusters_version(flags: list[str], expected: list[str]) -> None:
    (pod,) = (
        one["spec"]["template"]["spec"]
        for one in yaml.safe_load_all(rendered(*flags))
        if one is not None and one["kind"] == "DaemonSet" and one["metadata"]["name"] == "bayplan"
    )
    told = pod["containers"][0].get("env", [])
    assert [one["value"] for one in told] == expected
    assert {one["name"] for one in told} <= {"BAYPLAN_CLUSTER_VERSION"}


def examples() -> dict[str, dict[str, Any]]:
    """The example of each key in docs/configuration.md, and the values that docs/kubernetes.md shows."""
    page = (PROJECT / "docs/configuration.md").read_text()
    found = dict(re.findall(r"^### `(\w+)`\n(?:(?!^### ).*\n)*?- Example: `(.*)`$", page, flags=re.MULTILINE))
    named = {name: tomllib.loads(text) for name, text in found.items()}
    values = [one.get("config", {}) for one in documented_objects()]
    return {**named, **{f"values {number}": one for number, one in enumerate(values)}}


def test_every_documented_configuration_arrives_as_it_is_written(tmp_path: Path) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    names = schema["properties"]["config"]["properties"].keys()
    found = examples()
    assert names <= found.keys() <= {*KEYS, *(one for one in found if one.startswith("values "))}
    assert any(found[one] for one in found if one.startswith("values "))
    for name, config in found.items():
        if name in KEYS and name not in names:
            continue
        (tmp_path / "values.yaml").write_text(yaml.safe_dump({"config": config}))
        text = rendered("--values", tmp_path / "values.yaml", "--show-only=templates/configmap.yaml")
        results = []
        for path, content in (
            (tmp_path / "direct.yaml", yaml.safe_dump(config)),
            (tmp_path / "bayplan.yaml", yaml.safe_load(text)["data"]["bayplan.yaml"]),
        ):
            path.write_text(content)
            try:
                settings: object = load_settings([path], {})
            except BayplanError as error:  # an example of something that goes with other keys only
                settings = str(error)
            results.append(repr(settings).replace(str(path), "FILE"))
        assert results[0] == results[1], name
