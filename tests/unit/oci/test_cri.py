"""What a CRI runtime says of its containers, from a real gRPC server with the real names and numbers."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from bayplan.errors import UnavailableError
from bayplan.model.workload import ContainerState
from bayplan.oci.cri import describe_containers, list_containers

LISTED = bytes.fromhex(
    "0a09" "0a0372756e" "3001" "3807"  # {id: "run", state: RUNNING (1), created_at: 7}
    "0a06" "0a046d616465"  # {id: "made"}, state CREATED (0) is not written
    "0a09" "0a05656e646564" "3002"  # {id: "ended", state: EXITED (2)}
    "0a09" "0a05756e6b6e6f" "3003"  # {id: "unkno", state: UNKNOWN (3)}
)  # fmt: skip

SPEC = {
    "ociVersion": "1.2.1",
    "process": {"args": ["sleep"], "cwd": "/", "oomScoreAdj": -997},
    "annotations": {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": "box"},
    "linux": {
        "cgroupsPath": "/kubepods/podu/c1",
        "resources": {"cpu": {"quota": 200_000, "period": 100_000}, "memory": {"limit": 1 << 30}},
    },
}


class Server:
    """A CRI runtime that answers each method with given bytes."""

    def __init__(self, path: Path, answers: Mapping[str, Callable[[bytes], bytes]]) -> None:
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(lambda request, _, answer=answer: answer(request))
            for method, answer in answers.items()
        }
        service = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers)
        self._server = grpc.server(ThreadPoolExecutor(1), handlers=(service,))
        self._server.add_insecure_port(f"unix:{path}")

    def __enter__(self) -> None:
        self._server.start()

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def field(number: int, value: bytes | str) -> bytes:
    """A field of a message, of the wire type that has a length."""
    encoded = value.encode() if isinstance(value, str) else value
    length, size = len(encoded), b""
    while length > 0x7F:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + encoded


def entry(key: str, value: str) -> bytes:
    """An entry of a map."""
    return field(1, key) + field(2, value)


def runtime(spec: object = SPEC) -> dict[str, Callable[[bytes], bytes]]:
    """A runtime with the container ``c1`` of the pod ``box``, and one whose pod is gone."""
    container = field(1, "c1") + field(2, "box") + field(3, field(1, "main")) + bytes([6 << 3, 1])
    container += field(8, entry("app", "web"))
    orphan = field(1, "c2") + field(2, "gone") + bytes([6 << 3, 1])
    metadata = field(1, "pod") + field(2, "uid-1") + field(3, "default")
    sandbox = field(1, "box") + field(2, metadata) + field(5, entry("tier", "x"))
    sandbox += field(6, entry("bayplan.dev/preferred-nodes", "1"))

    def status(request: bytes) -> bytes:
        assert request == field(1, "c1") + bytes([2 << 3, 1])
        return field(2, entry("info", json.dumps({"pid": 77, "runtimeSpec": spec, "sandboxID": "box"})))

    return {
        "ListContainers": lambda _: field(1, container) + field(1, orphan),
        "ListPodSandbox": lambda _: field(1, sandbox),
        "ContainerStatus": status,
    }


def test_ids_and_what_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "crio.sock"
    with Server(path, {"ListContainers": lambda _: LISTED}):
        assert list_containers(path, 30) == {"run": True, "made": True, "ended": False, "unkno": True}


def test_nobody_there_and_an_answer_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(
        UnavailableError, match=r"none\.sock: cannot list containers: there is no such socket"
    ):
        list_containers(tmp_path / "none.sock", 30)
    (tmp_path / "nobody.sock").touch()
    with pytest.raises(UnavailableError, match=r"nobody\.sock: cannot list containers: UNAVAILABLE"):
        list_containers(tmp_path / "nobody.sock", 30)
    path = tmp_path / "crio.sock"
    with (
        Server(path, {"ListContainers": lambda _: b"\xff\xff"}),
        pytest.raises(UnavailableError, match="cannot list containers"),
    ):
        list_containers(path, 30)


def test_a_container_with_its_pod(tmp_path: Path) -> None:
    path = tmp_path / "crio.sock"
    with Server(path, runtime()):
        [(pod, container)] = describe_containers(path, ["c1", "c2", "c3"], 30)
    assert (pod.id, pod.name, pod.namespace, pod.uid) == ("box", "pod", "default", "uid-1")
    assert pod.annotations == {"bayplan.dev/preferred-nodes": "1"}
    assert pod.labels == {"tier": "x"}
    assert pod.cgroup_parent == "/kubepods/podu"
    assert (container.id, container.pod_id, container.name, container.pid) == ("c1", "box", "main", 77)
    assert container.labels == {"app": "web"}
    assert container.state is ContainerState.RUNNING
    assert container.oom_score_adj == -997
    assert container.resources.memory_limit_bytes == 1 << 30


@pytest.mark.parametrize(
    "spec", [None, {}, [], {"linux": 3}, {"ociVersion": "1.2", "linux": {"resources": []}}]
)
def test_a_spec_that_cannot_be_read_is_left_out(tmp_path: Path, spec: object) -> None:
    path = tmp_path / "crio.sock"
    with Server(path, runtime(spec)):
        described = describe_containers(path, ["c1"], 30)
    assert all(container.id == "c1" for _, container in described)


def test_asking_loads_no_grpc(tmp_path: Path) -> None:
    """That would make the daemon larger by a third for good."""
    path = tmp_path / "crio.sock"
    code = (
        "import sys; from pathlib import Path; from bayplan.oci.cri import list_containers; "
        f"print(list_containers(Path({str(path)!r}), 30), 'grpc' in sys.modules)"
    )
    with Server(path, runtime()):
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "{'c1': True, 'c2': True} False\n"
