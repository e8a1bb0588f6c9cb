"""CRI's list of containers, from a real gRPC server that knows the real names and field numbers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from bayplan.errors import UnavailableError
from bayplan.oci.cri import list_containers

LISTED = bytes.fromhex(
    "0a09" "0a0372756e" "3001" "3807"  # {id: "run", state: RUNNING (1), created_at: 7}
    "0a06" "0a046d616465"  # {id: "made"}, state CREATED (0) is not written
    "0a09" "0a05656e646564" "3002"  # {id: "ended", state: EXITED (2)}
    "0a09" "0a05756e6b6e6f" "3003"  # {id: "unkno", state: UNKNOWN (3)}
)  # fmt: skip


class Server:
    """A CRI runtime that answers with given bytes."""

    def __init__(self, path: Path, answer: Callable[[], bytes]) -> None:
        def reply(request: bytes, context: grpc.ServicerContext) -> bytes:
            assert request == b""
            return answer()

        handler = grpc.unary_unary_rpc_method_handler(reply)
        service = grpc.method_handlers_generic_handler(
            "runtime.v1.RuntimeService", {"ListContainers": handler}
        )
        self._server = grpc.server(ThreadPoolExecutor(1), handlers=(service,))
        self._server.add_insecure_port(f"unix:{path}")

    def __enter__(self) -> None:
        self._server.start()

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def test_ids_and_what_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "crio.sock"
    with Server(path, lambda: LISTED):
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
    with Server(path, lambda: b"\xff\xff"), pytest.raises(UnavailableError, match="cannot list containers"):
        list_containers(path, 30)
