"""baypland from the outside: what it says about wrong configurations, and how it exits."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayplan.config.load import load_settings
from bayplan.config.settings import Settings
from bayplan.daemon.baypland import check, main, wrong_on_this_machine
from bayplan.errors import ConfigError
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.sets import CpuSet
from support.coroutines import PATIENCE_S
from support.sysfs import SysfsTree

GIB = 1 << 30
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def machine_root(tmp_path: Path) -> Path:
    """A recorded machine of two nodes."""
    machine = Machine(
        tuple(Node(node, CpuSet([node]), 4 * GIB, {}, {0: 10, 1: 10}) for node in (0, 1)),
        tuple(Cpu(cpu, cpu, cpu, cpu, None) for cpu in (0, 1)),
    )
    root = tmp_path / "machine"
    SysfsTree(machine).write(root)
    return root


def test_wrong_files_and_flags_are_status_2_and_one_message(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "bayplan.toml"
    path.write_text('logLevel = "loud"\n')
    assert main(["--config", str(path), "--plugin-index", "x"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    first, *problems = captured.err.splitlines()
    assert first == "baypland: configuration: 2 problems:"
    named = (f"  {path}: logLevel: found 'loud', ", "  command line: --plugin-index: found 'x', ")
    assert [one.startswith(name) for one, name in zip(problems, named, strict=True)] == [True, True]


def test_check_config_says_what_it_comes_to(machine_root: Path) -> None:
    settings = Settings(sources=("/etc/bayplan/bayplan.toml",), notices=("c.yaml: kubelet pins CPUs itself",))
    assert check(settings, machine_root).splitlines() == [
        "The configuration is good. Read: /etc/bayplan/bayplan.toml.",
        "Note: c.yaml: kubelet pins CPUs itself.",
        "Engine exact, policy best-effort on NUMA nodes 0-1.",
        "Node 0 keeps 50Mi memory from containers.",
        "Node 1 keeps 50Mi memory from containers.",
    ]


def test_check_config_holds_it_against_the_machine(machine_root: Path) -> None:
    with pytest.raises(ConfigError, match="found NUMA node 5,"):
        check(Settings(reserved_memory={5: {"memory": GIB}}), machine_root)


def test_what_files_and_machine_say_is_reported_together(machine_root: Path, tmp_path: Path) -> None:
    """Sums and nodes are checked with all that can be read; nothing is concluded from what can't."""
    path = tmp_path / "kubelet.yaml"
    path.write_text(
        """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
memoryManagerPolicy: Static
systemReserved: {memory: 924Mi}
reservedMemory:
- {numaNode: 0, limits: {memory: 1Gi, disk: 1Gi}}
- {numaNode: 0, limits: {memory: 1Gi}}
- {numaNode: 7, limits: {memory: 0}}
"""
    )

    def said(**flags: str) -> list[str]:
        texts = {"engine": ["kubelet"], **{key: [text] for key, text in flags.items()}}
        with pytest.raises(ConfigError) as raised:
            load_settings(
                [path],
                texts,
                more_problems=lambda settings, unread: wrong_on_this_machine(settings, unread, machine_root),
            )
        found = [f"{one.path.removeprefix(f'{path}: ')}: {one.found}" for one in raised.value.problems]
        return [each.partition(", and ")[0] for each in found]

    of_file = [
        "reservedMemory[0].limits.disk: an unknown resource",
        "reservedMemory[1].limits.memory: a second amount, 1Gi",
        "reservedMemory[2].limits.memory: 0",
    ]
    node = "on this machine: reservedMemory: NUMA node 7"
    cpus = "on this machine: cpuManagerPolicy: 'static'"
    total = "on this machine: reservedMemory: 2Gi of memory in all (node 0 2Gi)"
    assert said() == [*of_file, node, total, cpus]
    assert said(kubeReserved="memory=lots") == [
        *of_file,
        "command line: --kube-reserved.memory: 'lots'",
        node,
    ]
    for flag, wrong in (("x:memory=1Gi", "[0].numaNode: 'x'"), ("1", ": '1'")):
        assert said(reservedMemory=flag) == [*of_file, f"command line: --reserved-memory{wrong}", node, cpus]


def test_nothing_is_concluded_from_a_file_that_cannot_be_read(machine_root: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("{")
    asked = []
    with pytest.raises(ConfigError, match="expected YAML") as raised:
        load_settings([path], {"engine": ["kubelet"]}, more_problems=lambda *what: asked.append(what) or ())
    assert (len(raised.value.problems), asked) == (1, [])


def test_a_machine_that_cannot_be_read_hides_no_problem_of_the_files(tmp_path: Path) -> None:
    assert wrong_on_this_machine(Settings(reserved_memory={5: {"memory": GIB}}), (), tmp_path) == ()


def test_check_config_on_this_machine(capsys: Capture, tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.touch()
    assert main(["--config", str(empty), "--check-config"]) == 0
    assert str(empty) in capsys.readouterr().out
    arguments = ["--config", str(empty), "--check-config", "--reserved-memory", "999:memory=1Gi"]
    assert main(arguments) == 2
    assert "node 999" in capsys.readouterr().err


@pytest.mark.parametrize(("redirected", "why"), [(">/dev/full", errno.ENOSPC), (">&-", errno.EBADF)])
def test_an_answer_that_cannot_be_written_is_one_sentence(tmp_path: Path, redirected: str, why: int) -> None:
    empty = tmp_path / "empty.toml"
    empty.touch()
    command = (
        f'exec "{sys.executable}" -m bayplan.daemon.baypland --check-config --config "{empty}" {redirected}'
    )
    finished = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr.startswith("baypland: ")
    assert finished.stderr.endswith(f": {os.strerror(why)}\n")


def test_a_state_directory_that_cannot_be_used_ends_in_one_message(tmp_path: Path) -> None:
    obstacle = tmp_path / "file"
    obstacle.touch()
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "bayplan.daemon.baypland", "--log-format", "text"),
            *("--state-dir", str(obstacle / "state"), "--admin-socket", str(tmp_path / "admin.sock")),
            *("--nri-socket", str(tmp_path / "nri.sock")),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert finished.returncode == 1
    assert str(obstacle / "state") in finished.stderr
    assert "Traceback" not in finished.stderr


def test_help_and_check_config_do_not_load_the_daemon() -> None:
    program = (
        "import sys\nfrom bayplan.daemon.baypland import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'google.protobuf', 'sqlite3', 'asyncio', 'yaml', 'grpc', 'pyroute2', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--reserved-memory" in finished.stdout
    assert finished.stderr.strip() == "[]"


@pytest.mark.parametrize("encoding", ["ascii:strict", "latin-1:strict"])
def test_any_terminal_can_be_told_what_is_wrong(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "\u00e4\u2603.yaml"
    path.write_text("logLevel: \u2603\n\u00e4\x85: 1\n")
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    for arguments in (["--check-config", "--config", str(path)], ["--\u2603"]):
        ended = subprocess.run(
            [sys.executable, "-m", "bayplan.daemon.baypland", *arguments],
            env=environ,
            capture_output=True,
            check=False,
        )
        assert ended.returncode == 2
        written = ended.stderr.decode(encoding.partition(":")[0])
        assert r"\u2603" in written
        assert "Traceback" not in written


def test_what_is_switched_off_or_read_on_few_nodes_is_not_loaded() -> None:
    script = "import sys, bayplan.daemon.app; print({'bayplan.recording', 'yaml'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"set()\n"
    )
