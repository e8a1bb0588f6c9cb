"""The manifests of packaging/kubernetes, rendered from the Helm chart, beside what they repeat: the systemd
units, the image, the documented rights; and whether the chart is still the one that they were rendered from.
tests/interop/test_chart.py renders them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan import __version__
from bayplan.agent.command_line import ClusterTask, build_parser
from bayplan.config import keys
from bayplan.config.keys import KEYS
from bayplan.config.load import load_settings
from bayplan.config.values import InvalidValueError
from support.chart_manifests import CHART, MANIFESTS, PROJECT, chart_files, with_heading

Object = dict[str, Any]

OBJECTS: list[Object] = list(yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")))
OF_THE_CHART = {
    *("nriSocket", "ociSocket", "ociDeadline", "ociUndecided", "crioSocket", "containerdSocket"),
    *("stateDirectory", "adminSocket", "agentSocket", "agentGroup", "logFormat", "placementDirectory"),
    "cdiDirectory",
}
"""Keys whose values are the chart's own: paths in the container, and what is for hooks only."""


def found(kind: str, name: str) -> Object:
    (one,) = (one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return one


def pod_of(name: str) -> Object:
    spec: Object = found("DaemonSet", name)["spec"]["template"]["spec"]
    return spec


def container(pod: Object, kind: str = "containers") -> Object:
    (one,) = pod[kind]
    assert isinstance(one, dict)
    return one


DAEMON, AGENT = pod_of("bayplan"), pod_of("bayplan-agent")


def test_they_were_rendered_from_this_chart() -> None:
    kept = MANIFESTS.read_text(encoding="utf-8")
    _, _, rendered = kept.partition("\n")
    assert kept == with_heading(rendered, chart_files()), "chart or manifests were changed: `make manifests`"


def test_the_digest_follows_every_file_of_the_chart() -> None:
    files = chart_files()
    assert {"Chart.yaml", "values.yaml", "values.schema.json", "templates/daemon.yaml"} <= files.keys()
    changed = [files | {name: content + b" "} for name, content in files.items()]
    without = [{name: files[name] for name in files if name != one} for one in files]
    texts = [with_heading("", one) for one in (files, *changed, *without)]
    assert len(set(texts)) == len(texts)


def test_chart_image_and_project_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    for pod in (DAEMON, AGENT):
        for one in (*pod["containers"], *pod.get("initContainers", ())):
            assert one["image"].rpartition(":")[2] == __version__


def test_the_agent_is_the_image_s_user() -> None:
    image = (PROJECT / "Containerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):\1$", image, re.MULTILINE)
    assert f"u bayplan-agent {user} " in image
    ids = {AGENT["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")}
    assert ids == {int(user)}


def bounded() -> list[str]:
    """The command line of the daemon's container up to the daemon."""
    daemon = container(DAEMON)
    words: list[str] = daemon["command"] + daemon["args"]
    return words[: words.index("/usr/bin/baypland")]


def test_the_daemon_keeps_the_capabilities_of_its_unit() -> None:
    unit = (PROJECT / "packaging/systemd/bayplan.service").read_text()
    (granted,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    (bounding,) = (word for word in bounded() if word.startswith("--bounding-set="))
    first, *kept = bounding.removeprefix("--bounding-set=").split(",")
    assert first == "-all"
    assert {f"CAP_{one.removeprefix('+').upper()}" for one in kept} == set(granted.split())


@pytest.mark.root
def test_it_gives_all_others_away() -> None:
    kept = capabilities(*bounded(), "cat", "/proc/self/status")
    # CAP_CHOWN 0, DAC_OVERRIDE 1, KILL 5, SYS_CHROOT 18, SYS_PTRACE 19, SYS_ADMIN 21, SYS_NICE 23,
    # SYS_RESOURCE 24
    # (include/uapi/linux/capability.h); as far as who runs the test has them.
    wanted = sum(1 << number for number in (0, 1, 5, 18, 19, 21, 23, 24))
    wanted &= capabilities("cat", "/proc/self/status")["CapBnd"]
    assert wanted
    assert {kept[name] for name in ("CapBnd", "CapEff", "CapPrm")} == {wanted}
    assert (kept["CapInh"], kept["NoNewPrivs"]) == (0, 1)


def capabilities(*words: str) -> dict[str, int]:
    """Of a process that shows its own status."""
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return {
        name: int(value, 16)
        for name, value in re.findall(r"^(Cap\w+|NoNewPrivs):\s+(\w+)$", said, re.MULTILINE)
    }


def test_both_programs_understand_their_flags(tmp_path: Path) -> None:
    (tmp_path / "bayplan.yaml").write_text(found("ConfigMap", "bayplan")["data"]["bayplan.yaml"])
    daemon = container(DAEMON)
    words = (daemon["command"] + daemon["args"])[len(bounded()) + 1 :]
    arguments = keys.build_parser().parse_args(words)
    (mount,) = (one for one in daemon["volumeMounts"] if one["name"] == "configuration")
    assert [str(path.parent) for path in arguments.config] == [mount["mountPath"]]
    settings = load_settings([tmp_path / path.name for path in arguments.config], keys.given_flags(arguments))
    mounts = {one["mountPath"] for one in daemon["volumeMounts"]}
    assert settings.oci_socket is None
    assert settings.agent_socket is not None
    places = (settings.nri_socket, settings.admin_socket, settings.agent_socket)
    assert {str(path.parent) for path in places} | {str(settings.state_directory)} <= mounts
    agent = build_parser().parse_args(container(AGENT)["args"])
    assert agent.cluster_tasks == frozenset(ClusterTask) - {ClusterTask.EVICTIONS, ClusterTask.CLAIMS}
    assert str(agent.daemon_socket.parent) in {one["mountPath"] for one in container(AGENT)["volumeMounts"]}


def test_the_agent_may_do_what_is_documented_and_nothing_else() -> None:
    page = (PROJECT / "docs/kubernetes.md").read_text()
    (role,) = re.findall(r"\n\n((?:    apiVersion: rbac.*\n)(?:    .*\n)+)", page)
    assert found("ClusterRole", "bayplan-agent")["rules"] == yaml.safe_load(role)["rules"]
    assert not [one for one in OBJECTS if one["kind"].startswith("Role")]
    (binding,) = (one for one in OBJECTS if one["kind"] == "ClusterRoleBinding")
    assert [one["name"] for one in binding["subjects"]] == [AGENT["serviceAccountName"]]
    assert DAEMON["serviceAccountName"] != AGENT["serviceAccountName"]
    assert DAEMON["automountServiceAccountToken"] is False


def test_the_schema_knows_every_key_that_is_not_the_chart_s() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert list(schema["properties"]["config"]["properties"]) == [
        name for name in KEYS if name not in OF_THE_CHART
    ]
    assert KEYS.keys() >= OF_THE_CHART


def test_the_schema_has_the_choices_of_every_key_that_has_some() -> None:
    """What the daemon would refuse on the node, Helm refuses before."""
    known = json.loads((CHART / "values.schema.json").read_text())["properties"]["config"]["properties"]
    with_choices = set()
    for name, schema in known.items():
        with pytest.raises(InvalidValueError) as refused:
            KEYS[name].read(name, ["no", "such", 1])
        words = refused.value.problems[0].expected.split(" or ")
        if len(words) > 1 and all(word.isalpha() for word in "".join(words).replace("-", "").split()):
            if not accepted(name, words):
                continue
            with_choices.add(name)
            assert [word for word in schema.get("enum", ()) if word is not False] == words or (
                words == ["true", "false"] and schema == {"type": "boolean"}
            ), name
        assert all(accepted(name, [word]) for word in schema.get("enum", ()))
    assert with_choices > {"engine", "topologyManagerPolicy", "shadow"}


def accepted(name: str, values: list[Any]) -> bool:
    try:
        for value in values:
            KEYS[name].read(name, {"true": True, "false": False}.get(value, value))
    except InvalidValueError:
        return False
    return True


def test_the_step_before_the_daemon_sees_of_the_node_what_it_reads_and_changes_nothing() -> None:
    init = container(DAEMON, "initContainers")
    sources = {one["name"]: one["hostPath"]["path"] for one in DAEMON["volumes"] if "hostPath" in one}
    mounted = {one["mountPath"]: sources[one["name"]] for one in init["volumeMounts"]}
    assert mounted == {
        f"/host{path}": path
        for path in ("/run/nri", "/sys/fs/cgroup", "/run/bayplan-placements", "/etc", "/usr")
    }
    assert all(one["readOnly"] for one in init["volumeMounts"])
    context = init["securityContext"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]


def test_the_node_can_take_what_the_schema_lets_through() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    path = schema["definitions"]["hostPath"]["pattern"]
    assert all(re.search(path, one) for one in ("/var/lib/bayplan", "/run/nri", "/data/x.y/"))
    assert not any(re.search(path, one) for one in ("/", "//", "/var", "var/lib", "/var/../etc", ""))
    # The agent is not root, and has no capability.
    assert schema["properties"]["agent"]["properties"]["port"]["minimum"] == 1024


@pytest.mark.parametrize(
    ("files", "status", "said"),
    [
        ({}, 1, "NRI switched on"),
        ({"etc/containerd/config.toml": "version = 2\n"}, 1, "90-bayplan.toml"),
    ],
)
def test_the_step_before_the_daemon_says_what_to_do(
    tmp_path: Path, files: dict[str, str], status: int, said: str
) -> None:
    for name, text in files.items():
        (tmp_path / "host" / name).parent.mkdir(parents=True)
        (tmp_path / "host" / name).write_text(text)
    (tmp_path / "host").mkdir(exist_ok=True)
    init = container(DAEMON, "initContainers")
    (script,) = init["args"]
    script = script.replace("/dev/termination-log", f"{tmp_path}/message")
    script = script.replace("--root /host", f"--root {tmp_path}/host")
    finished = subprocess.run(
        [*init["command"], script],
        env={"PATH": f"{Path(sys.prefix, 'bin')}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == status
    assert said in finished.stdout
    assert finished.stdout == (tmp_path / "message").read_text()
