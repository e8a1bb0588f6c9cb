"""Names that would move the cursor, begin a line of their own, or never end, through the real daemon and the
simulator: no way out carries them."""

import asyncio
import io
import json
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bayplan._proto.nri import api_pb2 as pb
from bayplan.cli.bayplan import VERBS, main
from bayplan.oci.protocol import Verb
from bayplan.printable import MOST_CHARACTERS
from bayplan.quantity import GIB
from support.coroutines import PATIENCE_S
from support.flavors import CONTAINERD_2_3
from support.oci_client import ask as ask_oci
from support.plugin_calls import OperationError
from support.runtime import FakeRuntime
from support.workloads import BEST_EFFORT, GUARANTEED, make_container, make_pod

pytestmark = pytest.mark.root

HOOK = Path(__file__).parents[2] / "hooks" / "oci-hook"
HOSTILE = {
    "controls": "\x1b[2J\r\nFORGED\x07\x7f\x9b1m\u202e\u2028\u2066end",
    "endless": "x" * 100_000,
}
STYLES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Node:
    """A runtime, the daemon that it talks to, and what the daemon logs."""

    runtime: FakeRuntime
    admin: Path
    oci: Path
    log: Path
    asked: set[object] = field(default_factory=set)
    """The verbs that the admin socket was asked."""

    async def ask(self, **request: object) -> dict[str, Any]:
        """The answer of the admin socket; its bytes are looked at first."""
        self.asked.add(request.get("verb"))
        reader, writer = await asyncio.open_unix_connection(str(self.admin), limit=1 << 26)
        writer.write(json.dumps(request).encode() + b"\n")
        line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
        writer.transport.abort()
        answer: dict[str, Any] = json.loads(line)
        check_values(answer)
        return answer


@asynccontextmanager
async def node(directory: Path, runtime: FakeRuntime, *more: str) -> AsyncIterator[Node]:
    await runtime.listen(directory / "nri.sock")
    one = Node(runtime, directory / "admin.sock", directory / "oci.sock", directory / "log")
    argv = [
        *(sys.executable, "-m", "bayplan.daemon.baypland", "--nri-socket", str(directory / "nri.sock")),
        *("--state-dir", str(directory / "state"), "--admin-socket", str(one.admin)),
        *("--agent-socket", "none"),
        *("--oci-socket", str(one.oci), "--topology-manager-policy", "single-numa-node"),
        *("--oci-deadline", "30s", "--request-deadline", "30s", "--log-level", "debug", *more),
        *("--record", str(directory / "recording")),
    ]
    with one.log.open("wb") as log:
        process = subprocess.Popen(argv, stderr=log)  # noqa: ASYNC220 - to start it takes no time
        try:
            await asyncio.wait_for(runtime.synchronized(), PATIENCE_S)
            yield one
        finally:
            await runtime.stop()
            process.terminate()
            process.wait(PATIENCE_S)


def check_text(text: str) -> None:
    """Every line is printable, bounded and ours."""
    for line in text.split("\n"):
        assert line.isprintable(), repr(line[:300])
        assert not line.startswith("FORGED")
        assert len(line) < 10 * MOST_CHARACTERS


def check_values(value: object, key: str = "") -> None:
    """Every text is one printable line; but for those that are texts of ours with lines."""
    if isinstance(value, dict):
        for name, item in value.items():
            check_text(name)
            check_values(item, name)
    elif isinstance(value, list):
        for item in value:
            check_values(item)
    elif isinstance(value, str):
        check_text(value)
        assert "\n" not in value or key in ("text", "listing", "message")


def hostile_pod(hostile: str, number: int, qos: str, **annotations: str) -> pb.PodSandbox:
    pod = make_pod(f"pod{number}{hostile}", namespace=f"team{hostile}", qos=qos)
    pod.annotations.update({key.replace("_", "-"): text for key, text in annotations.items()})
    pod.labels[hostile] = hostile
    return pod


async def live(one: Node, hostile: str) -> list[str]:
    """Containers with such names are created, changed and removed; what the runtime was answered."""
    told = []
    pod = hostile_pod(hostile, 1, BEST_EFFORT)
    container = make_container(pod, f"main{hostile}", oom_score_adj=1000)
    await one.runtime.run_pod(pod)
    await one.runtime.create_container(pod, container)
    await one.runtime.start_container(container.id)
    large = hostile_pod(hostile, 2, GUARANTEED)
    asking = {"cpu_shares": 1024, "cpu_quota_us": 100_000, "oom_score_adj": -997}
    wrong = hostile_pod(hostile, 3, GUARANTEED)
    wrong.annotations[f"bayplan.dev/{hostile}"] = hostile
    wrong.annotations["bayplan.dev/preferred-nodes"] = hostile
    wrong.annotations["bayplan.dev/hint-devices"] = hostile
    for owner, memory_bytes in ((large, 1 << 50), (wrong, GIB >> 6), (wrong, 1 << 50)):
        refused = make_container(owner, f"c{hostile}", memory_limit_bytes=memory_bytes, **asking)
        try:
            await one.runtime.create_container(owner, refused)
        except OperationError as error:
            told.append(str(error))
    update = pb.LinuxResources()
    update.memory.limit.value = 1 << 50
    for container_id in list(one.runtime.containers):
        try:
            await one.runtime.update_container(container_id, update)
        except OperationError as error:
            told.append(str(error))
    return told


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What a command prints to a pipe and to a terminal."""
    printed = []
    for is_terminal in (False, True):
        streams = io.StringIO(), io.StringIO()
        for stream in streams:
            stream.isatty = lambda is_terminal=is_terminal: is_terminal  # type: ignore[method-assign]  # stands in for it in a test
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", streams[0])
            patch.setattr(sys, "stderr", streams[1])
            main(words)
        printed += [STYLES.sub("", stream.getvalue()) for stream in streams]
    return "".join(printed)


async def ask_everything(one: Node, hostile: str) -> list[str]:
    """All that the admin socket can be asked; the names of the containers that it shows."""
    status = await one.ask(verb="status")
    assert len(json.dumps(status)) < 200_000
    names = [str(container["name"]) for container in status["containers"]]
    for verb in ("nodes", "metrics", "ping", "release", "log-level", "top", "refused", "report", "check"):
        await one.ask(verb=verb)
    # A verb that comes has to be asked here.
    _, _, known = (await one.ask(verb="none"))["message"].partition("expected one of ")
    assert known
    for subject in (*names, "pod2" + hostile, hostile, "team" + hostile):
        await one.ask(verb="explain", subject=subject)
        await one.ask(verb="history", subject=subject)
    manifest = {"kind": "Pod", "metadata": {"name": hostile}, "spec": {"containers": [{"name": "c"}]}}
    for pods in ([manifest], [{"kind": hostile}], hostile):
        await one.ask(verb="what-if", pods=pods)
    await one.ask(verb="export-state")
    await one.ask(verb="check")
    for text in (hostile, json.dumps({"policyName": hostile, "entries": {hostile: {hostile: hostile}}})):
        await one.ask(
            verb="import-state", files=dict.fromkeys(("cpu_manager_state", "memory_manager_state"), text)
        )
    for text in (hostile, claims_of_kubelet(hostile)):
        await one.ask(verb="import-claims", checkpoint=text, specs={hostile: hostile})
    for request in ({"verb": hostile}, {"verb": "log-level", "level": hostile}, {"apiVersion": hostile}):
        assert (await one.ask(**request))["kind"] == "Error"
    assert set(known.split(", ")) <= one.asked
    return names


def claims_of_kubelet(hostile: str) -> str:
    """kubelet's record of a claim with such names."""
    device = {
        "PoolName": hostile,
        "DeviceName": hostile,
        "RequestNames": [hostile],
        "CDIDeviceIDs": [hostile],
    }
    claim = {"ClaimUID": hostile, "ClaimName": hostile, "Namespace": hostile, "PodUIDs": {hostile: {}}}
    states = [{**claim, "DriverState": {"dra.cpu": {"Devices": [device]}}}]
    data = json.dumps({"kind": "DRACheckpoint", "ClaimInfoStateList": states})
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())})


def commands(directory: Path, hostile: str, names: list[str]) -> list[tuple[str, ...]]:
    """Every verb of the command line, on a node whose files have such texts."""
    root, quoted = directory / "root", json.dumps(hostile).replace("\x7f", "\\u007f")
    containerd = f"version = 3\nimports = [{quoted}]\n[plugins.{quoted}]\nx = {quoted}\n"
    hook = {
        "version": "1.0.0",
        "hook": {"path": f"/{hostile}"},
        "when": {"always": True},
        "stages": [hostile],
    }
    files = {
        "etc/bayplan/oci-runtime.conf": f"runtime = /{hostile}\n{hostile} = {hostile}\n",
        "etc/crio/crio.conf": f"[crio.runtime]\ndefault_runtime = {quoted}\nhooks_dir = [{quoted}]\n"
        f"[crio.runtime.runtimes.{quoted}]\nruntime_path = {quoted}\n",
        "etc/containerd/config.toml": containerd,
        "cpu_manager_state": json.dumps(
            {"policyName": "static", "defaultCpuSet": "0", "entries": {hostile: {hostile: "0"}}}
        ),
        "memory_manager_state": json.dumps({"policyName": hostile}),
        "usr/share/containers/oci/hooks.d/90-bayplan.json": json.dumps(hook),
        "dra_manager_state": claims_of_kubelet(hostile),
        "cdi/dra.k8s.io-cpu_claim-x.json": hostile,
        "sys/devices/system/node/online": hostile,
        "sys/devices/system/cpu/online": hostile,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    recorded = (directory / "recording").read_text()
    assert "placed" in recorded
    (directory / "otherwise").write_text(recorded.replace('"outcome":"placed"', '"outcome":"refused"'))
    named = [("--name", hostile, "--memory", "1Gi"), ("--memory", hostile)]
    named.append(("--memory", "1Gi", "--annotation", f"bayplan.dev/{hostile}={hostile}"))
    calls: dict[str, list[tuple[str, ...]]] = {
        **{
            verb: [()]
            for verb in ("status", "nodes", "ping", "metrics", "log-level", "release", "refused", "report")
        },
        "claims": [()],
        **{verb: [(name,) for name in (*names, hostile)] for verb in ("explain", "history")},
        "top": [("--once", "--interval=0.5")],
        "what-if": named,
        "doctor": [("--root", str(root))],
        "record-topology": [("--root", str(root))],
        "map": [("--svg", str(root / "map.svg"))],
        "simulate": [],  # has a test of its own
        "import-state": [
            ("--kubelet-directory", str(root)),
            ("--kubelet-directory", str(root / hostile[:9])),
            ("--kubelet-directory", str(root), "--only", "claims", "--cdi-directory", str(root / "cdi")),
        ],
        "export-state": [(str(root),)],
        "replay": [(str(directory / name),) for name in ("recording", "otherwise")],
    }
    assert calls.keys() == VERBS.keys()
    return [(verb, *words) for verb, given in calls.items() for words in given]


async def hand_over(one: Node, hostile: str) -> None:
    """Every request of a hook and of a wrapper, and the hook itself."""
    state = json.dumps({"id": hostile, "ociVersion": hostile, "bundle": hostile, "pid": hostile})
    for verb in Verb:
        for body in (state.encode(), hostile.encode(), b"\0".join([hostile.encode()] * 4)):
            status, answer = await ask_oci(one.oci, verb.value, body)
            if status != "ok":
                check_text(answer.decode())
    argv = [sys.executable, str(HOOK), f"--socket={one.oci}", "--timeout=30", "--on-failure=refuse"]
    hooked = await asyncio.to_thread(
        subprocess.run,
        [*argv, "--log-socket=/nowhere", "createRuntime"],
        input=json.dumps({"id": hostile, "pid": 1, "bundle": "/" + hostile}).encode(),
        capture_output=True,
        check=False,
    )
    assert hooked.returncode == 1
    check_text(hooked.stderr.decode())
    # As the wrapper calls it; the runtime's log is what containerd and podman read.
    for form in ("text", "json"):
        log = one.log.with_name(f"runtime-{form}.log")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system_log:
            system_log.bind(str(one.log.with_name(f"system-log-{form}")))
            words = [f"--log-socket={system_log.getsockname()}", "--runtime=/bin/true", f"--log={log}"]
            words += [f"--log-format={form}", f"--bundle={hostile}", f"--id={hostile}", "create"]
            wrapped = await asyncio.to_thread(
                subprocess.run, [*argv, *words], capture_output=True, check=False
            )
            check_text(system_log.recv(1 << 20).decode())
        assert wrapped.returncode == 1
        assert wrapped.stderr
        check_text(wrapped.stderr.decode())
        check_text(log.read_text())
        assert len(log.read_text().splitlines()) == 1
        assert form == "text" or json.loads(log.read_text())["msg"]


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize(("log_format", "annotation_errors"), [("json", "refuse"), ("text", "default")])
async def test_no_way_out_of_the_daemon_carries_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, log_format: str, annotation_errors: str
) -> None:
    hostile = HOSTILE[kind]

    runtime = FakeRuntime(CONTAINERD_2_3)
    found = hostile_pod(hostile, 0, BEST_EFFORT)
    earlier = make_container(found, f"earlier{hostile}", oom_score_adj=1000)
    earlier.state = pb.CONTAINER_RUNNING
    runtime.pods[found.id], runtime.containers[earlier.id] = found, earlier
    forms = ("--log-format", log_format, "--annotation-errors", annotation_errors)
    async with node(tmp_path, runtime, *forms) as one:
        refusals = await live(one, hostile)
        assert len(refusals) >= 2
        for refusal in refusals:
            # What stands before it is the runtime's own.
            said = refusal.partition("TopologyAffinityError")[2]
            assert said
            assert "\n" not in said
            check_text(said)
        names = await ask_everything(one, hostile)
        assert len(names) >= 2
        await hand_over(one, hostile)
        for words in commands(tmp_path, hostile, names):
            for form in ("table", "json"):
                options = (f"--output={form}", f"--admin-socket={one.admin}")
                printed = await asyncio.to_thread(command, monkeypatch, *words, *options)
                assert printed
                check_text(printed)
    log = (tmp_path / "log").read_text()
    check_text(log)
    assert "Traceback" not in log
    assert ("FORGED" if kind == "controls" else "xxxx") in log
    for line in log.splitlines():
        assert log_format != "json" or json.loads(line)["msg"]


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_way_out_of_the_simulator_carries_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    hostile = HOSTILE[kind].replace("\u2028", "")
    (tmp_path / "machine.toml").write_text('[[nodes]]\ncpus = 4\nmemory = "8Gi"\n')
    events: list[dict[str, object]] = [
        {"arrive": f"{hostile}/a{hostile}", "memory": "1Gi", "cpus": "1"},
        {"arrive": f"b{hostile}", "memory": "1Ti", "cpus": "1"},
        {"resize": f"{hostile}/a{hostile}", "memory": "2Ti"},
        {"depart": f"{hostile}/a{hostile}"},
    ]
    for wrong in (None, {hostile: hostile}, {"arrive": "x", "memory": hostile}, {"depart": hostile}):
        lines = [json.dumps(event) for event in (*events, *([wrong] if wrong else []))]
        (tmp_path / "trace.jsonl").write_text("\n".join(lines))
        for form in ("table", "json"):
            printed = command(
                monkeypatch,
                *("simulate", "--topology", str(tmp_path / "machine.toml"), "--steps", f"--output={form}"),
                *(
                    "--trace",
                    str(tmp_path / "trace.jsonl"),
                    "--set",
                    "topologyManagerPolicy=single-numa-node",
                ),
            )
            assert printed
            check_text(printed)
