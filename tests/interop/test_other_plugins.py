"""Plugins of nri-plugins, unmodified, launched by the runtime beside the daemon: what they set stays, and
what several would set is refused by their names."""

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

from goside import NEWEST, PATIENCE_S, GoSide, GoSideError, build, compiled

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
    except GoSideError as error:
        pytest.fail(str(error), pytrace=False)


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
    argv += [sys.executable, "-m", "bayplan.daemon.main", f"--plugin-index={index}"]
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


def created(runtime: GoSide, annotations: Mapping[str, str]) -> dict[str, Any]:
    one = {"pod": "p", "parent": "/kubepods/burstable/podp", "id": "c", "linux": BURSTABLE}
    return runtime.do("CreateContainer", **one, annotations=annotations)


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
