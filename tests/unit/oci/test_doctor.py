"""What the doctor finds on nodes that are trees of real files: engines' own formats, sockets, modes."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from bayplan.oci.container_engines import read_container_engines
from bayplan.oci.doctor import DEADLINE_MS, Examination
from bayplan.oci.node_checks import DaemonState, Level

HOOK = "/usr/libexec/bayplan/oci-hook"
WRAPPER = "/usr/libexec/bayplan/bayplan-runtime"
HOOKS_D = "/usr/share/containers/oci/hooks.d"
CONNECTED_CRIO = DaemonState("cri-o")
IDLE = DaemonState()


class Node:
    """A root directory that is filled file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._sockets: list[socket.socket] = []

    def write(self, path: str, text: str = "", mode: int = 0o644) -> Path:
        target = self.root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    def program(self, path: str, mode: int = 0o755) -> Path:
        return self.write(path, "#!/bin/sh\n", mode)

    def hook(self, path: str, *stages: str, program: str = HOOK) -> None:
        content = {"version": "1.0.0", "hook": {"path": program}, "when": {"always": True}, "stages": stages}
        self.write(path, json.dumps(content))

    def socket(self, path: str, mode: int = 0o600) -> None:
        target = self.root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        # Below a long temporary directory the path may be too long for bind.
        directory = os.open(target.parent, os.O_RDONLY)
        self._sockets.append(socket.socket(socket.AF_UNIX))
        self._sockets[-1].bind(f"/proc/self/fd/{directory}/{target.name}")
        os.close(directory)
        target.chmod(mode)

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def forms(self, daemon: DaemonState | None = IDLE) -> dict[str, tuple[str, str, str, str]]:
        forms = Examination(self.root, daemon).forms
        return {one.engine: (one.nri, one.hook, one.precreate, one.wrapper) for one in forms}

    def found(self, daemon: DaemonState | None = IDLE, level: Level | None = None) -> dict[str, str]:
        findings = Examination(self.root, daemon).findings
        return {one.subject: one.text for one in findings if level in (None, one.level)}


@pytest.fixture
def node(tmp_path: Path) -> Any:
    one = Node(tmp_path)
    one.program(HOOK)
    one.program(WRAPPER)
    one.program("/usr/bin/python3")
    one.socket("/run/bayplan/oci.sock")
    yield one
    one.close()


def test_a_bare_node(tmp_path: Path) -> None:
    examination = Examination(tmp_path, None)
    assert examination.forms == ()
    view = examination.view()
    assert view["health"] == "error"
    assert [finding["subject"] for finding in view["findings"]] == ["baypland"]


def test_crio_with_the_hook_is_well(node: Node) -> None:
    node.program("/usr/bin/crio")
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    node.hook(f"{HOOKS_D}/90-bayplan-poststop.json", "poststop")
    assert node.forms() == {"CRI-O": ("", "active", "", "")}
    assert Examination(node.root, IDLE).view()["health"] == "ok"


def test_crio_reads_only_the_directories_that_it_is_told(node: Node) -> None:
    node.hook("/etc/containers/oci/hooks.d/90-bayplan.json", "createRuntime")
    node.write("/etc/crio/crio.conf", "[crio.runtime]\n")
    assert node.forms() == {"CRI-O": ("", "", "", "")}
    node.write("/etc/crio/crio.conf.d/10-a", f'[crio.runtime]\nhooks_dir = ["{HOOKS_D}"]\n')
    node.write("/etc/crio/crio.conf.d/20-b", '[crio.runtime]\nhooks_dir = ["/etc/containers/oci/hooks.d"]\n')
    assert node.forms() == {"CRI-O": ("", "active", "", "")}


def test_crio_with_nri_connected_and_the_hook_is_two_at_once(node: Node) -> None:
    node.write("/etc/crio/crio.conf")
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    node.socket("/var/run/nri/nri.sock")
    assert node.forms(CONNECTED_CRIO)["CRI-O"] == ("connected", "active", "", "")
    assert "NRI and hook are active at once" in node.found(CONNECTED_CRIO, Level.WARNING)["CRI-O"]
    assert Examination(node.root, CONNECTED_CRIO).view()["health"] == "warning"
    # Somebody else is connected.
    assert node.forms(DaemonState("containerd"))["CRI-O"][0] == "on"
    assert "is not connected to CRI-O" in node.found(IDLE, Level.WARNING)["CRI-O"]
    node.write("/etc/crio/crio.conf.d/10-nri", "[crio.nri]\nenable_nri = false\n")
    assert node.forms()["CRI-O"] == ("", "active", "", "")


def test_hook_and_wrapper_are_two_at_once_but_a_handler_is_not(node: Node) -> None:
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    runtimes = f'[crio.runtime.runtimes.numa]\nruntime_path = "{WRAPPER}"\n'
    node.write("/etc/crio/crio.conf", runtimes)
    assert node.forms()["CRI-O"] == ("", "active", "", "numa")
    assert node.found() == {}
    node.write("/etc/crio/crio.conf.d/90-default", '[crio.runtime]\ndefault_runtime = "numa"\n')
    assert node.forms()["CRI-O"] == ("", "active", "", "default")
    assert "hook and wrapper are active at once" in node.found(level=Level.WARNING)["CRI-O"]


@pytest.mark.parametrize("program", [HOOK, "/usr/bin/somebody-elses"])
def test_a_precreate_definition_in_crios_directory_is_an_error(node: Node, program: str) -> None:
    node.program(program)
    node.program("/usr/bin/podman")
    node.hook(f"{HOOKS_D}/50-early.json", "precreate", program=program)
    assert node.found(level=Level.ERROR) == {}
    node.program("/usr/local/bin/crio")
    assert "keeps CRI-O from starting" in node.found(level=Level.ERROR)[f"{HOOKS_D}/50-early.json"]


def test_podman_takes_the_last_directory_that_has_a_name(node: Node) -> None:
    node.program("/usr/bin/podman")
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    assert node.forms()["podman"] == ("", "active", "", "")
    node.hook("/usr/share/bayplan/podman-hooks.d/90-bayplan.json", "precreate")
    drop_in = f'[engine]\nhooks_dir = ["{HOOKS_D}", "/usr/share/bayplan/podman-hooks.d"]\n'
    node.write("/etc/containers/containers.conf.d/90-bayplan.conf", drop_in)
    assert node.forms()["podman"] == ("", "", "active", "")
    assert node.found() == {}


def test_podman_appends_where_it_is_asked_to(node: Node) -> None:
    node.write("/etc/containers/containers.conf", f'[engine]\nhooks_dir = ["{HOOKS_D}"]\n')
    node.write(
        "/etc/containers/containers.conf.d/90.conf", '[engine]\nhooks_dir = ["/opt/hooks", {append=true}]\n'
    )
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    node.hook("/opt/hooks/91-more.json", "precreate")
    assert node.forms()["podman"] == ("", "active", "active", "")
    assert "hook and precreate are active at once" in node.found()["podman"]


def test_podman_and_docker_with_the_wrapper(node: Node) -> None:
    node.write(
        "/usr/share/containers/containers.conf",
        '[engine]\nruntime = "bayplan"\n'
        f'[engine.runtimes]\nbayplan = ["/nonexistent/bayplan-runtime", "{WRAPPER}"]\n',
    )
    node.program("/usr/bin/podman")
    runtimes = {"bayplan": {"path": WRAPPER}, "nvidia": {"path": "nvidia-container-runtime"}}
    node.write("/etc/docker/daemon.json", json.dumps({"runtimes": runtimes}))
    assert node.forms() == {"podman": ("", "", "", "default"), "docker": ("", "", "", "bayplan")}
    assert node.found() == {}


@pytest.mark.parametrize(
    ("version", "plugin"), [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")]
)
def test_containerd_follows_imports(node: Node, version: int, plugin: str) -> None:
    node.socket("/run/nri/nri.sock")
    node.write("/etc/containerd/config.toml", f'version = {version}\nimports = ["conf.d/*.toml"]\n')
    drop_in = (
        f'version = {version}\n[plugins."{plugin}".containerd]\ndefault_runtime_name = "numa"\n'
        f'[plugins."{plugin}".containerd.runtimes.numa.options]\nBinaryName = "{WRAPPER}"\n'
        '[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n'
    )
    assert node.forms() == {"containerd": ("on", "", "", "")}
    node.write("/etc/containerd/conf.d/90.toml", drop_in)
    assert node.forms() == {"containerd": ("", "", "", "default")}
    node.write("/etc/containerd/conf.d/90.toml", drop_in.replace("true", "false"))
    assert node.forms(DaemonState("containerd")) == {"containerd": ("connected", "", "", "default")}
    assert "NRI and wrapper" in node.found(DaemonState("containerd"))["containerd"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/containerd/config.toml", "version = \n"),
        ("/etc/crio/crio.conf", "[crio\n"),
        ("/etc/crio/crio.conf.d/90-half.conf", "[crio"),
        ("/etc/containers/containers.conf", "engine = {"),
        ("/etc/containerd/config.toml", "a = " + "[" * 5000),
        ("/etc/docker/daemon.json", "[]"),
        (f"{HOOKS_D}/10-half.json", "{"),
        (f"{HOOKS_D}/10-pathless.json", '{"version": "1.0.0", "hook": {}}'),
    ],
)
def test_a_broken_file_is_named_once(node: Node, path: str, text: str) -> None:
    node.program("/usr/bin/crio")
    node.program("/usr/bin/podman")
    node.write(path, text)
    errors = [one for one in Examination(node.root, IDLE).findings if one.level is Level.ERROR]
    (error,) = errors
    assert error.subject.startswith(path)
    assert "expected" in error.text


def test_programs_that_are_missing_not_executable_or_not_safe(node: Node) -> None:
    node.write("/etc/crio/crio.conf", f'[crio.runtime.runtimes.x]\nruntime_path = "{WRAPPER}"\n')
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    (node.root / HOOK[1:]).chmod(0o644)
    (node.root / WRAPPER[1:]).chmod(0o775)
    found = node.found(level=Level.ERROR)
    assert "not executable" in found[HOOK]
    assert "others than root can change it" in found[WRAPPER]
    (node.root / HOOK[1:]).unlink()
    assert "no such program" in node.found(level=Level.ERROR)[HOOK]


def test_the_interpreter_is_there_and_new_enough(node: Node) -> None:
    node.program("/usr/bin/podman")
    python = node.root / "usr/bin/python3"
    python.unlink()
    assert "/usr/bin/python3" not in node.found()  # Nobody needs it.
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    assert "is not there" in node.found(level=Level.ERROR)["/usr/bin/python3"]
    for version, is_wrong in (("3.6", True), ("3.8", True), ("3.9", False), ("3.13", False), ("4.0", False)):
        node.program(f"/usr/bin/python{version}")
        python.unlink(missing_ok=True)
        python.symlink_to(f"python{version}")
        found = node.found(level=Level.ERROR)
        assert ("/usr/bin/python3" in found) == is_wrong
    assert node.found() == {}


def test_the_hook_at_a_stage_that_is_not_its_own(node: Node) -> None:
    node.program("/usr/bin/podman")
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createContainer")
    node.hook(f"{HOOKS_D}/50-other.json", "createContainer", program=WRAPPER)
    found = node.found(level=Level.ERROR)
    assert set(found) == {f"{HOOKS_D}/90-bayplan.json"}
    assert "has oci-hook at the stage createContainer" in found[f"{HOOKS_D}/90-bayplan.json"]


def test_a_wrapper_without_the_hook_beside_it(node: Node) -> None:
    node.program("/opt/bayplan-runtime")
    node.write("/etc/docker/daemon.json", json.dumps({"runtimes": {"b": {"path": "/opt/bayplan-runtime"}}}))
    assert HOOK not in node.found()
    (node.root / HOOK[1:]).unlink()
    assert "needed by the runtime b of docker" in node.found(level=Level.ERROR)[HOOK]


@pytest.mark.parametrize(
    ("text", "subjects"),
    [
        ("runtime = /usr/bin/runc\ntimeout = 1.5\non-failure = refuse\n# hello = x\n", set()),
        ("runtime = runc\n", {": runtime"}),
        ("runtime = /usr/bin/crun\n", {": runtime"}),
        (f"runtime = {WRAPPER}\n", {": runtime"}),
        ("runtime=/usr/bin/runc\nrun time = 1\nretries = 3\n", {":1", ":2", ":3"}),
        ("timeout = soon\non-failure = maybe\nsocket = x\n", {": timeout", ": on-failure", ": socket"}),
    ],
)
def test_the_wrappers_settings(node: Node, text: str, subjects: set[str]) -> None:
    node.program("/usr/bin/runc")
    node.write("/etc/bayplan/oci-runtime.conf", text)
    prefix = "/etc/bayplan/oci-runtime.conf"
    assert {one.removeprefix(prefix) for one in node.found(level=Level.ERROR)} == subjects


def test_the_daemons_socket(node: Node) -> None:
    node.program("/usr/bin/podman")
    path = node.root / "run/bayplan/oci.sock"
    assert "/run/bayplan/oci.sock" not in node.found()
    path.chmod(0o666)
    assert "/run/bayplan/oci.sock" not in node.found()  # Nothing here uses it.
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    assert "others than root may connect" in node.found(level=Level.ERROR)["/run/bayplan/oci.sock"]
    path.unlink()
    assert "is not there" in node.found(level=Level.ERROR)["/run/bayplan/oci.sock"]
    path.touch()
    assert "is not a socket" in node.found(level=Level.ERROR)["/run/bayplan/oci.sock"]
    node.write("/etc/bayplan/oci-runtime.conf", "socket = /run/other.sock\n")
    assert "is not there" in node.found(level=Level.ERROR)["/run/other.sock"]


def test_no_daemon_and_nobody_who_asks(node: Node) -> None:
    node.program("/usr/bin/podman")
    assert "no engine asks it" in node.found(level=Level.WARNING)["baypland"]
    assert "no daemon answers" in node.found(None, Level.ERROR)["baypland"]


def test_the_view_is_plain_values(node: Node) -> None:
    node.program("/usr/bin/podman")
    node.hook(f"{HOOKS_D}/90-bayplan.json", "createRuntime")
    view = Examination(node.root, None).view()
    assert json.loads(json.dumps(view)) == view
    assert view["engines"] == [
        {"name": "podman", "version": "", "nri": "", "hook": "active", "precreate": "", "wrapper": ""}
    ]
    assert set(view["findings"][0]) == {"level", "subject", "text", "advice"}


def test_runtimes_and_kubelets_that_the_kernel_may_kill_are_named(node: Node) -> None:
    for pid, program, score in (
        (10, "containerd", 0),
        (11, "containerd-shim", 0),
        (12, "kubelet", -999),
        (13, "crio", 500),
        (14, "sh", 0),
    ):
        node.write(f"/proc/{pid}/comm", f"{program}\n")
        node.write(f"/proc/{pid}/oom_score_adj", f"{score}\n")
    node.write("/proc/15/comm", "containerd\n")
    node.write("/proc/meminfo", "")
    found = node.found(CONNECTED_CRIO, Level.WARNING)
    unprotected = {subject: text for subject, text in found.items() if "oom_score_adj" in text}
    assert unprotected == {
        "containerd (process 10)": ("has the oom_score_adj 0: when memory runs out the kernel may kill it"),
        "crio (process 13)": "has the oom_score_adj 500: when memory runs out the kernel may kill it",
    }


@pytest.mark.parametrize("distribution", ["k3s", "rke2"])
def test_the_containerd_of_a_distribution_is_found_with_the_template_to_change(
    node: Node, distribution: str
) -> None:
    directory = f"/var/lib/rancher/{distribution}/agent/etc/containerd"
    node.write(
        f"{directory}/config.toml", 'version = 2\n[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n'
    )
    name = f"containerd ({distribution})"
    assert node.forms() == {name: ("", "", "", "")}
    (finding,) = [one for one in Examination(node.root, IDLE).findings if one.subject == name]
    assert f"{directory}/config.toml.tmpl" in finding.advice
    assert node.forms(DaemonState("containerd"))[name][0] == "connected"
    assert name not in node.found(DaemonState("containerd"))


def test_a_daemon_that_is_connected_is_believed_whatever_files_say(node: Node) -> None:
    assert node.forms(DaemonState("containerd", "v2.1.0")) == {"containerd": ("connected", "", "", "")}
    node.write("/etc/crio/crio.conf", "[crio.nri]\nenable_nri = false\n")
    assert node.forms(CONNECTED_CRIO) == {"CRI-O": ("connected", "", "", "")}
    assert node.found(CONNECTED_CRIO) == {}
    assert "CRI-O" in node.found()


@pytest.mark.parametrize(
    ("path", "section", "key"),
    [
        ("/etc/containerd/config.toml", 'plugins."io.containerd.nri.v1.nri"', "plugin_request_timeout"),
        ("/etc/crio/crio.conf", "crio.nri", "nri_plugin_request_timeout"),
    ],
)
def test_a_runtime_that_waits_too_short_for_an_answer(node: Node, path: str, section: str, key: str) -> None:
    name = "containerd" if "containerd" in path else "CRI-O"
    connected = DaemonState(name.lower())
    for text, wrong in ((f"{DEADLINE_MS}ms", True), ("2s", False), ("soon", True)):
        node.write(path, f'version = 2\n[{section}]\n{key} = "{text}"\n')
        assert bool(node.found(connected)) is wrong
    node.write(path, f'version = 2\n[{section}]\n{key} = "500ms"\n')
    (finding,) = Examination(node.root, connected).findings
    assert finding.subject == name
    assert key in finding.advice


NRI_TABLE = 'plugins."io.containerd.nri.v1.nri"'
TIMEOUT = 'plugin_request_timeout = "20s"'
MAIN = "/etc/containerd/config.toml"


def misplaced(node: Node) -> list[tuple[str, str, str, str]]:
    (engine,) = read_container_engines(node.root)
    return [(one.path, one.table, one.key, one.value) for one in engine.misplaced]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    "table",
    [
        "",
        "plugins",
        "nri",
        "timeouts",
        "plugins.nri",
        "plugins.io.containerd.nri.v1.nri",
        '"io.containerd.nri.v1.nri"',
        'plugins."io.containerd.nri.v1"',
        'plugins."io.containerd.grpc.v1.cri"',
        'plugins."io.containerd.grpc.v1.cri".nri',
        f"{NRI_TABLE}.default_validator",
        NRI_TABLE,
    ],
)
def test_a_timeout_of_nri_is_misplaced_in_every_table_but_its_own(
    node: Node, version: int, table: str
) -> None:
    node.write(MAIN, f"version = {version}\n" + (f"[{table}]\n" if table else "") + f"{TIMEOUT}\n")
    expected = [] if table == NRI_TABLE else [(MAIN, table, "plugin_request_timeout", '"20s"')]
    assert misplaced(node) == expected


@pytest.mark.parametrize(
    "line",
    [
        "disable = true",
        "disable_connections = false",
        'plugin_path = "/opt/nri/plugins"',
        'plugin_config_path = "/etc/nri/conf.d"',
        'plugin_registration_timeout = "25s"',
        'socket_path = "/var/run/nri/nri.sock"',
    ],
)
def test_each_key_of_nri_is_named_with_its_value(node: Node, line: str) -> None:
    key, _, value = line.partition(" = ")
    node.write(MAIN, f"version = 2\n{line}\n")
    assert misplaced(node) == [(MAIN, "", key, value)]
    (finding,) = Examination(node.root, DaemonState("containerd")).findings
    assert (finding.level, finding.subject) == (Level.WARNING, MAIN)
    assert line in finding.text
    assert "the root of the file" in finding.text
    assert f"[{NRI_TABLE}]" in finding.advice


@pytest.mark.parametrize(
    ("table", "line", "name"),
    [
        ("", 'nri_plugin_request_timeout = "60s"', "nri_plugin_request_timeout"),
        ("crio.runtime", 'nri_plugin_request_timeout = "60s"', "nri_plugin_request_timeout"),
        ("nri", "enable_nri = true", "enable_nri"),
        ("crio", 'nri_plugin_dir = "/opt/nri/plugins"', "nri_plugin_dir"),
        # What containerd calls it.
        ("crio.nri", 'plugin_request_timeout = "60s"', "nri_plugin_request_timeout"),
        ("", "disable_connections = true", "nri_disable_connections"),
    ],
)
def test_keys_of_nri_in_vain_in_the_files_of_crio(node: Node, table: str, line: str, name: str) -> None:
    drop_in = "/etc/crio/crio.conf.d/10-nri-timeout.conf"
    node.write("/etc/crio/crio.conf", '[crio.nri]\nenable_nri = true\nnri_plugin_request_timeout = "1m0s"\n')
    assert misplaced(node) == []
    node.write(drop_in, (f"[{table}]\n" if table else "") + f"{line}\n")
    key, _, value = line.partition(" = ")
    assert misplaced(node) == [(drop_in, table, key, value)]
    (finding,) = [one for one in Examination(node.root, CONNECTED_CRIO).findings if one.subject == drop_in]
    assert "[crio.nri]" in finding.advice
    assert (name in finding.advice) is (name != key)


def test_a_key_that_crio_has_is_none_of_containerd(node: Node) -> None:
    node.write(MAIN, f'version = 3\n[{NRI_TABLE}]\nnri_plugin_request_timeout = "60s"\n')
    (finding,) = Examination(node.root, DaemonState("containerd")).findings
    assert "nri_plugin_request_timeout" in finding.text
    assert " plugin_request_timeout" in finding.advice


def test_keys_that_other_plugins_have_too_are_theirs(node: Node) -> None:
    others = '[plugins."io.containerd.snapshotter.v1.x"]\nsocket_path = "/run/x.sock"\ndisable = true\n'
    node.write(MAIN, f"version = 2\n{others}")
    assert misplaced(node) == []
    node.write(MAIN, f"version = 2\n{others}{TIMEOUT}\n")
    assert [key for _, _, key, _ in misplaced(node)] == ["socket_path", "disable", "plugin_request_timeout"]


@pytest.mark.parametrize("version", ["", "version = 1\n"])
def test_version_1_calls_plugins_by_short_names(node: Node, version: str) -> None:
    node.write(MAIN, f"{version}[plugins.nri]\n{TIMEOUT}\n")
    assert misplaced(node) == []
    node.write(MAIN, f"{version}{TIMEOUT}\n")
    assert len(misplaced(node)) == 1


def test_the_import_that_has_the_key_is_named(node: Node) -> None:
    node.write(MAIN, 'version = 3\nimports = ["conf.d/*.toml"]\n')
    node.write("/etc/containerd/conf.d/10.toml", 'imports = ["more/20.toml", "10.toml"]\n')
    node.write("/etc/containerd/conf.d/more/20.toml", f"version = 3\n{TIMEOUT}\n")
    nested = "/etc/containerd/conf.d/more/20.toml"
    node.write("/etc/containerd/conf.d/30.toml", f"[{NRI_TABLE}]\n{TIMEOUT}\n")
    assert misplaced(node) == [(nested, "", "plugin_request_timeout", '"20s"')]


def test_imports_of_a_distribution_are_beside_its_own_file(node: Node) -> None:
    directory = "/var/lib/rancher/k3s/agent/etc/containerd"
    node.write(f"{directory}/config.toml", 'version = 3\nimports = ["d/*.toml"]\n')
    node.write(f"{directory}/d/a.toml", f"{TIMEOUT}\n")
    (finding,) = Examination(node.root, DaemonState("containerd")).findings
    assert finding.subject == f"{directory}/d/a.toml"
    assert f"{directory}/config.toml.tmpl" in finding.advice


@pytest.mark.parametrize(("version", "nri"), [(2, None), (3, True), (4, True)])
def test_nri_is_on_by_default_from_version_3_on(node: Node, version: int, nri: bool | None) -> None:
    node.write(MAIN, f"version = {version}\n")
    (engine,) = read_container_engines(node.root)
    assert engine.nri is nri


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        # The forms in which installers and manuals of these runtimes write them.
        (
            MAIN,
            (
                'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata-fc]\n'
                'runtime_type = "io.containerd.kata-fc.v2"\n'
                '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.katacli]\n'
                'runtime_type = "io.containerd.runc.v1"\n'
                '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.katacli.options]\n'
                'BinaryName = "/usr/bin/kata-runtime"\n'
            ),
            {"kata-fc": "Kata Containers", "katacli": "Kata Containers"},
        ),
        (
            MAIN,
            (
                'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.qemu]\n'
                'runtime_type = "io.containerd.q.v2"\n'
                'runtime_path = "/opt/kata/bin/containerd-shim-kata-v2"\n'
            ),
            {"qemu": "Kata Containers"},
        ),
        (
            MAIN,
            (
                'version = 4\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gvisor]\n'
                'runtime_type = "io.containerd.runsc.v1"\n'
                '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.fc]\n'
                'runtime_type = "aws.firecracker"\n'
            ),
            {"gvisor": "gVisor", "fc": "Firecracker"},
        ),
        (
            MAIN,
            (
                'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.katadbg]\n'
                'runtime_type = "io.containerd.katadbg.v2"\n'
            ),
            {"katadbg": "Kata Containers"},
        ),
        (
            MAIN,
            (
                'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]\n'
                'runtime_type = "io.containerd.runc.v2"\n'
                '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata.options]\n'
                'BinaryName = "/opt/kata/bin/runc"\n'
            ),
            {},
        ),
        (MAIN, 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\nruntimes = 3\n', {}),
        # Version 1, as Kata's own scripts write it for containerd 1.2 to 1.4.
        (
            MAIN,
            (
                '[plugins.cri.containerd.runtimes.kata]\nruntime_type = "io.containerd.runtime.v1.linux"\n'
                '[plugins.cri.containerd.runtimes.kata.options]\nRuntime = "/usr/bin/kata-runtime"\n'
                "[plugins.cri.containerd.untrusted_workload_runtime]\n"
                'runtime_type = "io.containerd.runtime.v1.linux"\nruntime_engine = "/usr/bin/kata-runtime"\n'
            ),
            {"kata": "Kata Containers", "untrusted": "Kata Containers"},
        ),
        (
            "/etc/docker/daemon.json",
            json.dumps(
                {
                    "runtimes": {
                        "kata-runtime": {"path": "/snap/bin/kata-containers.runtime"},
                        "shim": {"runtimeType": "io.containerd.kata.v2"},
                        "runsc": {"path": "/usr/local/bin/runsc", "runtimeArgs": ["--platform=kvm"]},
                        "crun-vm": {"path": "/usr/bin/crun-vm"},
                        "nvidia": {"path": "nvidia-container-runtime"},
                        "crun": {"path": "/usr/bin/crun"},
                        "wrong": 3,
                    }
                }
            ),
            {
                "kata-runtime": "Kata Containers",
                "shim": "Kata Containers",
                "runsc": "gVisor",
                "crun-vm": "crun-vm",
            },
        ),
        (
            "/etc/containers/containers.conf",
            (
                '[engine.runtimes]\nkrun = ["/usr/bin/krun", "/usr/local/bin/krun"]\n'
                'crun = ["/usr/bin/crun"]\nyouki = ["/usr/bin/youki"]\n'
            ),
            {"krun": "libkrun"},
        ),
        (
            "/etc/crio/crio.conf.d/50-kata",
            (
                '[crio.runtime.runtimes.kata]\nruntime_path = "/usr/bin/containerd-shim-kata-v2"\n'
                'runtime_type = "vm"\nruntime_root = "/run/vc"\n'
            ),
            {"kata": "Kata Containers"},
        ),
        (
            "/etc/crio/crio.conf",
            (
                '[crio.runtime.runtimes.runsc]\nruntime_path = "/usr/local/bin/runsc"\nruntime_type = "oci"\n'
                '[crio.runtime.runtimes.own]\nruntime_path = "/opt/own-shim"\nruntime_type = "vm"\n'
                '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\nruntime_type = "oci"\n'
            ),
            {"runsc": "gVisor", "own": "virtual machine"},
        ),
    ],
)
def test_handlers_of_sandboxes_are_a_note_and_nothing_wrong(
    node: Node, path: str, text: str, expected: dict[str, str]
) -> None:
    node.write(path, text)
    (engine,) = read_container_engines(node.root)
    assert engine.sandboxes == expected
    examination = Examination(node.root, DaemonState(engine.name.lower()))
    notes = [one for one in examination.findings if one.level is Level.NOTE]
    assert len(notes) == bool(expected)
    assert all(f"{name} ({kind})" in notes[0].text for name, kind in expected.items())
    # docker and podman ask nobody as long as neither hook nor wrapper is set up.
    assert examination.view()["health"] == ("ok" if engine.name in ("containerd", "CRI-O") else "warning")
