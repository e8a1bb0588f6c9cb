"""Plugins of nri-plugins, unmodified, beside the daemon: what they set stays, and what several would set is
refused by their names. memory-qos and memory-policy are launched by the runtime, resource managers connect to
it."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli.client import ask
from bayplan.quantity import MIB

sys.path.insert(0, str(Path(__file__).parent))

from goside import NEWEST, PATIENCE_S, GoSide, build
from testbed.errors import TestBedError
from testbed.gobuild import compiled

pytestmark = [pytest.mark.interop, pytest.mark.root]

HERE = Path(__file__).parent
MODULE = "github.com/containers/nri-plugins/cmd/plugins"
# By the name of its program, which begins with its place among the plugins, what each is configured with.
PLUGINS = {
    "40-memory-qos": "classes: [{name: half, swaplimitratio: 0.5}]\nunifiedannotations: [memory.oom.group]\n",
    "50-memory-policy": (
        "injectMpolset: true\nclasses: [{name: all, policy: {mode: MPOL_INTERLEAVE, nodes: '0'}}]\n"
    ),
}
# Both place every container, as bayplan does: CPUs and nodes.
MANAGERS = {"balloons": "BalloonsPolicy", "topology-aware": "TopologyAwarePolicy"}
MANAGER_CONFIG = """
apiVersion: config.nri/v1alpha1
kind: {kind}
metadata: {{name: default}}
spec:
  reservedResources: {{cpu: 750m}}
  pinCPU: {pins}
  pinMemory: {pins}
"""
MANAGERS_INDEX = "50"
# A pod that is the manager's, and one that is bayplan's.
OPTED_OUT = {"bayplan.dev/opt-out": "true"}
PRESERVED = {f"{what}.preserve.resource-policy.nri.io": "true" for what in ("cpu", "memory")}
# Also where the machine has v1, with which there is no memory.high. Nothing is read in these cgroups.
ON_CGROUP_V2 = """
mount -t cgroup2 none /sys/fs/cgroup
echo cpuset memory >"$0"
mount --bind "$0" /sys/fs/cgroup/cgroup.controllers
exec "$@"
"""
ASKED = {
    "class.memory-qos.nri.io": "half",
    # bayplan sets it, too.
    "memory.oom.group.memory-qos.nri.io": "0",
    "class.memory-policy.nri.io": "all",
}
BURSTABLE = {
    "resources": {
        "cpu": {"shares": {"value": 256}},
        "memory": {"limit": {"value": 100 * MIB}},
    },
    "oomScoreAdj": {"value": 900},
}


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    """The programs of the plugins."""
    try:
        return {
            name: compiled(HERE / "nri_plugins", name[3:], package=f"{MODULE}/{name[3:]}") for name in PLUGINS
        }
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module", params=MANAGERS)
def manager(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A resource manager: its name and its program."""
    name = str(request.param)
    try:
        return name, compiled(HERE / "nri_plugins", name, package=f"{MODULE}/{name}")
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def bare_runtime() -> Iterator[GoSide]:
    """A runtime that launches nothing."""
    with (
        tempfile.TemporaryDirectory() as place,
        contextlib.closing(GoSide(build(NEWEST), Path(place), "-request-timeout", f"{PATIENCE_S}s")) as one,
    ):
        yield one


@contextlib.contextmanager
def managing(runtime: GoSide, manager: tuple[str, Path], *, pins: bool = True) -> Iterator[None]:
    """The resource manager, once it is synchronized."""
    name, program = manager
    place = runtime.socket.parent
    config = place / "manager.yaml"
    config.write_text(MANAGER_CONFIG.format(kind=MANAGERS[name], pins=str(pins).lower()))
    argv = [str(program), f"--nri-socket={runtime.socket}", f"--nri-plugin-name={name}"]
    argv += [f"--nri-plugin-index={MANAGERS_INDEX}", f"--config-file={config}"]
    argv += [f"--pid-file={place / 'manager.pid'}", f"--state-dir={place / 'manager'}"]
    with (place / "manager.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        assert runtime.notice()["error"] == ""
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture
def runtime(programs: Mapping[str, Path]) -> Iterator[GoSide]:
    """A runtime that launches them."""
    with tempfile.TemporaryDirectory() as place:
        plugins, configs = Path(place, "plugins"), Path(place, "configs")
        for directory in (plugins, configs):
            directory.mkdir()
        for name, text in PLUGINS.items():
            shutil.copy2(programs[name], plugins / name)
            (configs / f"{name[3:]}.conf").write_text(text)
        flags = ("-plugins", str(plugins), "-plugin-configs", str(configs))
        patient = ("-request-timeout", f"{PATIENCE_S}s")
        with contextlib.closing(GoSide(build(NEWEST), Path(place), *patient, *flags)) as one:
            yield one


@contextlib.contextmanager
def daemon(runtime: GoSide, directory: Path, index: str) -> Iterator[Path]:
    """The daemon, at that place among the plugins, once it is synchronized; the path of its admin socket."""
    admin = runtime.socket.parent / "admin.sock"
    argv = ["unshare", "--mount", "sh", "-ec", ON_CGROUP_V2, str(directory / "controllers")]
    argv += [sys.executable, "-m", "bayplan.daemon.baypland", f"--plugin-index={index}"]
    argv += [f"--nri-socket={runtime.socket}", f"--admin-socket={admin}", "--oci-socket=none"]
    argv += ["--agent-socket=none", "--measured-reservation=false", "--memory-pressure=off"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([*argv, f"--state-dir={directory / 'state'}"], stderr=log)
    try:
        assert runtime.notice()["error"] == ""
        yield admin
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def created(runtime: GoSide, annotations: Mapping[str, str], name: str = "c") -> dict[str, Any]:
    pod = {"pod": f"pod-{name}", "parent": f"/kubepods/burstable/pod{name}", "annotations": annotations}
    assert runtime.do("RunPodSandbox", **pod)["error"] == ""
    return runtime.do("CreateContainer", **pod, id=name, linux=BURSTABLE)


def set_by(done: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The resources for the CPUs that plugins have set together, and where they have mounted something."""
    assert done["error"] == ""
    adjusted = done["response"]["adjust"]
    return adjusted["linux"]["resources"]["cpu"], [one["destination"] for one in adjusted.get("mounts", ())]


def test_what_others_set_stays(runtime: GoSide, tmp_path: Path) -> None:
    with daemon(runtime, tmp_path, "90") as admin:
        done = created(runtime, ASKED)
        assert done["error"] == ""
        adjusted = done["response"]["adjust"]
        assert adjusted["linux"]["resources"]["unified"] == {
            "memory.high": f"{50 * MIB}",
            "memory.swap.max": "max",
            "memory.oom.group": "0",
        }
        assert adjusted["args"][0].endswith("/mpolset")
        # And bayplan's own beside it.
        assert adjusted["linux"]["resources"]["cpu"]["cpus"]
        (entry,) = ask(admin, "status")["containers"]
        assert entry["id"] == "c"


def test_what_several_would_set_is_refused_by_their_names(runtime: GoSide, tmp_path: Path) -> None:
    with daemon(runtime, tmp_path, "10"):
        error = created(runtime, ASKED)["error"]
        for named in ("bayplan", "memory-qos", "memory.oom.group"):
            assert named in error
        without = {key: value for key, value in ASKED.items() if "oom.group" not in key}
        done = created(runtime, without)
        assert done["error"] == ""
        unified = done["response"]["adjust"]["linux"]["resources"]["unified"]
        assert (unified["memory.oom.group"], unified["memory.high"]) == ("1", f"{50 * MIB}")


def test_two_that_place_a_container_are_refused_by_their_names(
    bare_runtime: GoSide, manager: tuple[str, Path], tmp_path: Path
) -> None:
    with managing(bare_runtime, manager), daemon(bare_runtime, tmp_path, "10"):
        error = created(bare_runtime, {})["error"]
        for named in ("bayplan", manager[0], "CPU"):
            assert named in error


def test_where_a_manager_that_was_asked_before_has_placed_a_container_it_stays(
    bare_runtime: GoSide, manager: tuple[str, Path], tmp_path: Path
) -> None:
    with managing(bare_runtime, manager), daemon(bare_runtime, tmp_path, "90") as admin:
        cpu, _ = set_by(created(bare_runtime, {}))
        status = ask(admin, "status")
        (entry,) = status["containers"]
        assert (entry["cpus"], entry["cpusPinnedByOthers"]) == (cpu["cpus"], True)
        assert (entry["mems"], entry["memsPinnedByOthers"]) == (cpu["mems"], True)
        # What it may use there is nobody else's.
        assert entry["bookedBytes"] == {"0": {"memory": 100 * MIB}}
        assert [reason["code"] for reason in entry["reasons"]] == ["pinned"]
        assert [one for one in status["problems"] if "kubelet" in one and "pins" in one] == []


@pytest.mark.parametrize("index", ["10", "90"])
def test_pods_of_a_manager_and_pods_of_bayplan_run_on_one_node(
    bare_runtime: GoSide, manager: tuple[str, Path], tmp_path: Path, index: str
) -> None:
    with managing(bare_runtime, manager), daemon(bare_runtime, tmp_path, index) as admin:
        theirs, mounted = set_by(created(bare_runtime, OPTED_OUT, "theirs"))
        assert theirs["cpus"]
        assert theirs["mems"]
        assert mounted == ["/.nri-resource-policy"]
        ours, mounted = set_by(created(bare_runtime, PRESERVED, "ours"))
        assert ours["cpus"]
        assert mounted == ["/.nri-resource-policy"]
        entries = {one["id"]: one for one in ask(admin, "status")["containers"]}
        assert entries.keys() == {"theirs", "ours"}


def test_a_manager_that_pins_nothing_keeps_what_else_it_sets(
    bare_runtime: GoSide, manager: tuple[str, Path], tmp_path: Path
) -> None:
    with managing(bare_runtime, manager, pins=False), daemon(bare_runtime, tmp_path, "90"):
        cpu, mounted = set_by(created(bare_runtime, {}))
        assert cpu["cpus"]
        assert mounted == ["/.nri-resource-policy"]
