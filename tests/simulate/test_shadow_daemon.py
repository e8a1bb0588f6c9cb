"""The real daemon with --shadow between a runtime over NRI, a wrapper and an operator: whatever it is asked,
it opens no file for writing but its own, starts no program, ends nobody, and says what it would have done."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.cli.bayplan import main
from bayplan.cli.client import AnswerError, ask
from support import oci_client
from support.flavors import CONTAINERD_1_7, CONTAINERD_2_3
from support.oci_node import guaranteed, spec
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, GUARANTEED, make_container, make_pod

MIB = 1 << 20
HALF_A_CPU = {"cpu_quota_us": 50_000, "cpu_shares": 512}
AUDITED = """
import os, sys

out = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
busy = False

def note(event, args):
    global busy
    changes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    changes = changes or event.partition(".")[0] == "subprocess" or event in {
        "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink",
        "os.truncate", "os.kill", "os.killpg", "os.exec", "os.posix_spawn", "os.system", "os.setxattr",
        "shutil.rmtree", "signal.pthread_kill",
    }
    if changes and not busy:
        busy = True
        os.write(out, f"{event} {args[0]!r}\\n".encode())
        busy = False

sys.addaudithook(note)
from bayplan.daemon.baypland import main
sys.exit(main(sys.argv[1:]))
"""
OWN = ("open '/proc/self/oom_score_adj'", "open '/dev/null'", "open 'lock'")
"""What the daemon writes of itself, whatever its mode; the lock is opened below the state directory."""


class Daemon:
    """The process, and what it changed."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.admin, self.oci = directory / "admin.sock", directory / "oci.sock"
        self._directory, self._audit = directory, directory / "audit"
        self._argv = [
            *(sys.executable, "-B", "-c", AUDITED, str(self._audit), "--reserved-cpus", "0", *flags),
            *("--oci-socket", str(self.oci), "--admin-socket", str(self.admin), "--agent-socket", "none"),
            *("--state-dir", str(directory / "state"), "--nri-socket", str(directory / "nri.sock")),
            *("--topology-manager-policy", "restricted", "--oci-undecided", "refuse"),
            *("--request-deadline", "30s"),
        ]
        with (directory / "log").open("ab") as log:
            self.process = subprocess.Popen(self._argv, stderr=log)

    def changed(self) -> list[str]:
        """All that is not its own."""
        lines = self._audit.read_text().splitlines()
        assert any("state" in line for line in lines), "the audit sees nothing"
        return [line for line in lines if str(self._directory) not in line and line not in OWN]

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait() == 0


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Any]:
    made: list[Daemon] = []

    def start(*flags: str) -> Daemon:
        made.append(Daemon(tmp_path, *flags))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


@contextlib.asynccontextmanager
async def listening(runtime: FakeRuntime, directory: Path) -> AsyncIterator[FakeRuntime]:
    await runtime.listen(directory / "nri.sock")
    try:
        yield runtime
    finally:
        await runtime.stop()


async def asked(daemon: Daemon, verb: str, **fields: object) -> dict[str, Any]:
    return await asyncio.to_thread(ask, daemon.admin, verb, **fields)


def untouched(container: pb.Container) -> bytes:
    return container.linux.SerializeToString(deterministic=True)


@pytest.mark.parametrize("flavor", [CONTAINERD_1_7, CONTAINERD_2_3], ids=str)
async def test_nothing_leaves_the_daemon(flavor, tmp_path: Path, daemons, capsys) -> None:
    async with listening(FakeRuntime(flavor), tmp_path) as runtime:
        daemon = daemons("--shadow")
        await runtime.synchronized()
        whole, shared = make_pod("whole", qos=GUARANTEED), make_pod("shared", qos=BEST_EFFORT)
        refused = make_pod("refused", qos=GUARANTEED, annotations={"bayplan.dev/required-nodes": "77"})
        wanted = {
            "whole": (whole, make_container(whole, memory_limit_bytes=64 * MIB, **HALF_A_CPU)),
            "shared": (shared, make_container(shared, cpu_shares=2)),
            "refused": (refused, make_container(refused, memory_limit_bytes=1 << 60, **HALF_A_CPU)),
        }
        before = {}
        for name, (pod, container) in wanted.items():
            await runtime.run_pod(pod)
            before[name] = untouched(container)
            await runtime.create_container(pod, container)
            await runtime.start_container(container.id)
        specs = {name: untouched(runtime.containers[one.id]) for name, (_, one) in wanted.items()}
        assert specs == before
        await runtime.update_container(
            wanted["whole"][1].id, pb.LinuxResources(memory={"limit": {"value": 128 * MIB}})
        )

        bundle = tmp_path / "bundle"
        bundle.mkdir()
        config = json.dumps(spec("/pods/crio-abc", resources=guaranteed(1, MIB))).encode()
        (bundle / "config.json").write_bytes(config)
        (bundle / "config.json").chmod(0o600)
        body = b"\0".join([os.fsencode(bundle), b"abc", b"/usr/bin/runc", b""])
        resources = json.dumps({"memory": {"limit": 2 * MIB}}).encode()
        for verb, content in (
            ("create", body),
            ("start", b"abc"),
            ("update", b"abc\0" + resources),
            ("precreate", config),
            ("create", b"nonsense"),
            ("delete", b"abc"),
        ):
            assert await oci_client.ask(daemon.oci, verb, content) == ("ok", b""), verb
        assert (bundle / "config.json").read_bytes() == config

        daemon.process.send_signal(signal.SIGHUP)
        with pytest.raises(AnswerError, match="shadow mode"):
            await asked(daemon, "release", dryRun=False)
        status = await asked(daemon, "status")
        report = await asked(daemon, "report", sinceSeconds=7 * 86_400)
        assert status["shadow"]
        assert report["shadow"]
        # Who would have been refused runs, and is promised nothing; it is not taken for unmanaged either.
        assert {one["name"] for one in status["containers"]} >= {
            "default/whole/main",
            "default/shared/main",
        }
        assert "default/refused/main" not in {one["name"] for one in status["containers"]}
        assert (status["unmanaged"], status["drift"]) == ([], [])
        outcomes = {one["name"]: one["outcome"] for one in report["containers"]}
        assert outcomes["default/refused/main"] == "refused"
        assert report["outcomes"]["refused"] == 1
        for verb in ("status", "report", "refused", "explain"):
            words = [verb, *(["whole"] if verb == "explain" else [])]
            assert await asyncio.to_thread(main, ["--admin-socket", str(daemon.admin), *words]) == 0
            assert "SHADOW MODE" in capsys.readouterr().out

        for pod, _ in wanted.values():
            await runtime.stop_pod(pod.id)
            await runtime.remove_pod(pod.id)
        daemon.end()
        assert daemon.changed() == []
        assert not (tmp_path / "state/state.db").exists()
        assert (tmp_path / "state/shadow/state.db").exists()
        assert "Traceback" not in (tmp_path / "log").read_text()


async def test_the_audit_sees_what_is_done_without_shadow_mode(tmp_path: Path, daemons) -> None:
    """A daemon that applies its decisions rewrites specs: the test above looks in the right place."""
    async with listening(FakeRuntime(CONTAINERD_2_3), tmp_path) as runtime:
        daemon = daemons()
        await runtime.synchronized()
        pod = make_pod("shared", qos=BEST_EFFORT)
        container = make_container(pod, cpu_shares=2)
        before = untouched(container)
        await runtime.run_pod(pod)
        await runtime.create_container(pod, container)
        assert untouched(runtime.containers[container.id]) != before
        assert not (await asked(daemon, "status"))["shadow"]
        daemon.end()
