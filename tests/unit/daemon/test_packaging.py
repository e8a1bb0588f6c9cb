"""The systemd unit and the containerd drop-in fit the daemon's defaults."""

import configparser
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bayplan.agent.command_line import AgentSettings
from bayplan.config.settings import Settings
from bayplan.errors import EXIT_CONFIG, EXIT_FAILURE, EXIT_UNAVAILABLE
from bayplan.oci.node_checks import _CAPABILITIES
from support.coroutines import PATIENCE_S

PACKAGING = Path(__file__).parents[3] / "packaging"
INSTALLED = Path("/opt/bayplan")
UNIT = PACKAGING / "systemd" / "bayplan.service"
AGENT_UNIT = UNIT.with_name("bayplan-agent.service")


def unit(path: Path = UNIT) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # how configparser is told to keep case
    parsed.read_string(path.read_text())
    return parsed


def test_the_units_directories_are_the_defaults() -> None:
    service, defaults = unit()["Service"], Settings()
    assert Path("/var/lib") / service["StateDirectory"] == defaults.state_directory
    assert Path("/run") / service["RuntimeDirectory"] == defaults.admin_socket.parent
    assert defaults.oci_socket is not None
    assert defaults.oci_socket.parent == defaults.admin_socket.parent
    assert service["ConfigurationDirectory"] == "bayplan"


def test_the_unit_notifies_restarts_and_survives_the_oom_killer() -> None:
    service = unit()["Service"]
    assert (service["Type"], service["NotifyAccess"], service["Restart"]) == ("notify", "main", "always")
    assert int(service["OOMScoreAdjust"]) == -998
    assert int(service["WatchdogSec"]) > 0
    assert Path(service["ExecStart"]) == INSTALLED / "bin" / "baypland"
    assert service["ExecReload"] == '/bin/sh -c "kill -HUP ${MAINPID}"'


def test_the_unit_leaves_the_runtime_alone() -> None:
    section = unit()["Unit"]
    assert not {"Requires", "BindsTo", "PartOf"} & set(section)
    assert {"containerd.service", "crio.service"} <= set(section["After"].split())


def test_the_unit_can_reach_what_the_daemon_needs() -> None:
    service = unit()["Service"]
    # Bundles that the wrapper has rewritten, and the state of the OCI runtimes, are in the latter two.
    assert service["ReadWritePaths"].split() == ["/sys/fs/cgroup", "/run", "-/var/lib/containers"]
    assert (service["ProtectControlGroups"], service["ProtectKernelTunables"]) == ("no", "no")
    assert set(service["RestrictAddressFamilies"].split()) == {"AF_UNIX", "AF_NETLINK"}
    # Interfaces of pods; the mounts of a container of the hook.
    assert service["RestrictNamespaces"].split() == ["net", "mnt"]
    assert set(service["SystemCallFilter"].split()) == {"@system-service", "@mount"}
    assert "PrivateDevices" not in service
    assert service["DevicePolicy"] == "closed"


def prevented(path: Path) -> set[int]:
    """The exit statuses after which the unit is not started again."""
    return {int(status) for status in unit(path)["Service"]["RestartPreventExitStatus"].split()}


@pytest.mark.parametrize("path", [UNIT, AGENT_UNIT], ids=["daemon", "agent"])
def test_a_restart_is_not_tried_where_it_cannot_help_nor_every_second(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["Restart"] == "always"
    assert int(service["RestartSec"].removesuffix("s")) >= 5
    # The other two are systemd's own, of systemd.exec(5): the program, the user is not there.
    assert prevented(path) - {203, 217} == {EXIT_CONFIG}
    for status in (EXIT_FAILURE, EXIT_UNAVAILABLE):
        assert status not in prevented(path)


@pytest.mark.parametrize(
    ("program", "words", "again"),
    [
        ("baypland", ["--log-level=loud"], False),
        ("baypland", ["--config={directory}/wrong.toml"], False),
        ("baypland", ["--state-dir=/proc/bayplan"], True),
        ("bayplan-agent", ["--listen=nowhere"], False),
        ("bayplan-agent", ["--listen=192.0.2.1:9"], True),
    ],
)
def test_exit_statuses_say_whether_to_start_it_again(
    tmp_path: Path, program: str, words: list[str], *, again: bool
) -> None:
    (tmp_path / "wrong.toml").write_text("engine = 3\n")
    sockets = ["--admin-socket", str(tmp_path / "admin.sock")] if program == "baypland" else []
    argv = [Path(sys.prefix, "bin", program), *sockets, *(word.format(directory=tmp_path) for word in words)]
    finished = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert finished.returncode > 0
    path = UNIT if program == "baypland" else AGENT_UNIT
    assert (finished.returncode not in prevented(path)) == again, finished.stderr


@pytest.mark.interop
@pytest.mark.parametrize("path", [UNIT, AGENT_UNIT], ids=["daemon", "agent"])
def test_systemd_understands_the_unit(tmp_path: Path, path: Path) -> None:
    # It wants the program to be there, which is this environment's where none is installed.
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace(str(INSTALLED), sys.prefix))
    finished = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert finished.stderr.strip() == ""
    assert finished.returncode == 0


def test_the_agents_unit_runs_it_without_privileges_where_the_daemon_lets_it_in() -> None:
    service, defaults = unit(AGENT_UNIT)["Service"], AgentSettings()
    user = (PACKAGING / "systemd" / "bayplan-agent.conf").read_text().splitlines()[-1].split()
    assert user[:2] == ["u", service["User"]]
    assert service["User"] == service["Group"] == Settings().agent_group
    assert service["CapabilityBoundingSet"] == ""
    assert Path(service["ExecStart"].split()[0]) == INSTALLED / "bin" / "bayplan-agent"
    assert defaults.daemon_socket == Settings().agent_socket
    assert defaults.pod_resources_socket is not None
    assert Path("/run") / service["RuntimeDirectory"] == defaults.pod_resources_socket.parent
    assert not {"Requires", "BindsTo", "PartOf"} & set(unit(AGENT_UNIT)["Unit"])


@pytest.mark.interop
def test_the_agents_unit_exposes_next_to_nothing() -> None:
    finished = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(AGENT_UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for bayplan-agent.service: ([0-9.]+)", finished.stdout)
    assert found is not None, finished.stdout + finished.stderr
    assert float(found[1]) < 2


def test_set_up_installs_where_unit_and_documents_say() -> None:
    script = (PACKAGING / "dev" / "setup.sh").read_text()
    assert re.findall(r"^installed=(.+)$", script, re.MULTILINE) == [str(INSTALLED)]
    assert re.findall(r"^units=\((.+)\)$", script, re.MULTILINE)[0].split() == [UNIT.name, AGENT_UNIT.name]
    readme = (PACKAGING.parent / "README.md").read_text()
    section = readme.partition("## Install\n")[2].partition("\n## ")[0]
    assert str(INSTALLED) in section
    makefile = (PACKAGING.parent / "Makefile").read_text()
    for target in ("install", "uninstall"):
        assert re.search(rf"^{target}: ##.*\n\t@\$\(SETUP\) {target}$", makefile, re.MULTILINE)
    hooks = f"{INSTALLED}/share/bayplan/packaging/install-hooks"
    assert hooks in (PACKAGING.parent / "docs" / "oci-hook.md").read_text()
    project = tomllib.loads((PACKAGING.parent / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared["packaging/install-hooks"] == hooks.removeprefix(f"{INSTALLED}/")
    commands = re.findall(r"^commands=\((.+)\)$", script, re.MULTILINE)[0].split()
    assert set(project["project"]["scripts"]) == set(commands)


def test_unit_doctor_and_document_have_the_same_capabilities() -> None:
    granted = unit()["Service"]["CapabilityBoundingSet"].split()
    page = (PACKAGING.parent / "docs" / "security.md").read_text()
    assert re.findall(r"^\| (CAP_\w+) \|", page, re.MULTILINE) == granted
    assert {name for name, _ in _CAPABILITIES.values()} == set(granted)


def test_the_containerd_drop_in_switches_on_what_the_daemon_connects_to() -> None:
    content = tomllib.loads((PACKAGING / "containerd" / "90-bayplan.toml").read_text())
    nri = content["plugins"]["io.containerd.nri.v1.nri"]
    assert content["version"] == 2
    assert nri["disable"] is False
    assert nri["disable_connections"] is False
    assert Path(nri["socket_path"]) == Settings().nri_socket
    assert Settings().request_deadline_ms < 1000 * int(nri["plugin_request_timeout"].removesuffix("s"))
