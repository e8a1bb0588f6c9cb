"""The containers of a CRI runtime, asked for over its own socket, by a process of its own.

grpc costs 70 ms and 18 MiB, and a node asks rarely: after each Synchronize, and once a container has had no
process for a while. So a child asks, which ends with its answer. Here are both sides: the functions that
start it and block until it has ended, and what it does (`main`).
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bayplan.errors import ParseError, UnavailableError
from bayplan.model.workload import Container, ContainerState, Pod
from bayplan.oci.documents import OciError, parse_spec
from bayplan.oci.workloads import container_from, is_sandbox, pod_from

TIMEOUT_S: Final = 2.0
_START_S: Final = 5.0
"""For the child to be there; on an emulated machine it takes two."""
MAX_ANSWER_BYTES: Final = 64 << 20
"""Some 10,000 containers with long annotations; grpc's own limit is 4 MiB."""

_SERVICE: Final = "/runtime.v1.RuntimeService/"
_EXIT_UNAVAILABLE: Final = 3
_CHILD: Final = (
    "import sys; sys.path[:] = {path!r}; from bayplan.oci.cri import main; sys.exit(main(sys.argv[1:]))"
)
_STATES: Final = (
    ContainerState.CREATED,
    ContainerState.RUNNING,
    ContainerState.STOPPED,
    ContainerState.UNKNOWN,
)
"""By their numbers in CRI."""


def list_containers(socket: Path, timeout_s: float = TIMEOUT_S) -> Mapping[str, bool]:
    """The ids of all containers that the runtime at *socket* has; False for those that have ended.

    Raises:
        UnavailableError: nobody answers there, or not as a CRI runtime does.
    """
    return {str(key): bool(alive) for key, alive in _ask(socket, (), timeout_s).items()}


def describe_containers(
    socket: Path, ids: Iterable[str], timeout_s: float = TIMEOUT_S
) -> list[tuple[Pod, Container]]:
    """Those of the containers *ids* that the runtime at *socket* still has, and whose specs can be read: each
    with its pod, as NRI would describe them but for what only NRI has.

    Raises:
        UnavailableError: as for `list_containers`.
    """
    found = (_described(one) for one in _ask(socket, sorted(ids), timeout_s).values())
    return [one for one in found if one is not None]


def _ask(socket: Path, ids: Sequence[str], timeout_s: float) -> dict[str, Any]:
    what = "describe" if ids else "list"
    if not socket.exists():
        raise UnavailableError(str(socket), f"cannot {what} containers: there is no such socket")
    # Isolated as an installed daemon is, which takes its library from no environment.
    child = [sys.executable, "-IS", "-c", _CHILD.format(path=sys.path), str(socket), str(timeout_s), *ids]
    try:
        done = subprocess.run(child, capture_output=True, timeout=timeout_s + _START_S, check=False)  # noqa: S603 - this program itself
    except subprocess.TimeoutExpired as error:
        problem = f"cannot {what} containers: no answer within {timeout_s + _START_S:g} s"
        raise UnavailableError(str(socket), problem) from error
    except OSError as error:
        raise UnavailableError(str(socket), f"cannot {what} containers: {error}") from error
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
    raise UnavailableError(str(socket), f"cannot {what} containers: {lines[-1]}")


def _described(answer: Mapping[str, Any]) -> tuple[Pod, Container] | None:
    """The container that the child has *answer*; None if it is a pod's own, or its spec cannot be read."""
    container_id, sandbox = answer["id"], answer["sandbox"]
    try:
        spec = parse_spec(json.dumps(answer["spec"]).encode(), f"spec of container {container_id}")
        if is_sandbox(spec):
            return None
        container = container_from(spec, container_id, answer["pid"])
        pod = pod_from(spec, container_id, {})
    except (OciError, ParseError):
        return None
    return (
        replace(
            pod,
            id=answer["sandbox_id"],
            name=sandbox["name"] or pod.name,
            namespace=sandbox["namespace"] or pod.namespace,
            uid=sandbox["uid"] or pod.uid,
            annotations=sandbox["annotations"],
            labels=sandbox["labels"],
        ),
        replace(
            container,
            pod_id=answer["sandbox_id"],
            name=answer["name"] or container.name,
            labels=answer["labels"],
            state=_STATES[answer["state"]] if answer["state"] < len(_STATES) else ContainerState.UNKNOWN,
        ),
    )


def main(arguments: Sequence[str]) -> int:
    """Ask the runtime at the socket ``arguments[0]``, within ``arguments[1]`` seconds for each question, for
    the containers with the other arguments as ids, or for all ids; the answer goes to standard output as
    JSON, an error to standard error as one line. The exit status."""
    socket, timeout_s, *ids = arguments
    import grpc  # noqa: PLC0415 - only the child needs it

    options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES), ("grpc.enable_http_proxy", 0)]
    try:
        with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
            runtime = _Runtime(channel, float(timeout_s))
            answer = runtime.described(ids) if ids else runtime.listed()
    except grpc.RpcError as error:
        sys.stderr.write(f"{error.code().name}: {error.details()}\n")
        return _EXIT_UNAVAILABLE
    json.dump(answer, sys.stdout)
    return 0


class _Runtime:
    """A CRI runtime at the other end of *channel*, a gRPC channel."""

    def __init__(self, channel: Any, timeout_s: float) -> None:
        self._channel, self._timeout_s = channel, timeout_s

    def listed(self) -> dict[str, bool]:
        """The ids of all containers; False for those that have ended."""
        from bayplan._proto.cri import api_pb2 as pb  # noqa: PLC0415 - only the child needs it

        answer = self._call("ListContainers", pb.ListContainersRequest(), pb.ListContainersResponse)
        return {one.id: one.state != pb.CONTAINER_EXITED for one in answer.containers}

    def described(self, ids: Sequence[str]) -> dict[str, object]:
        """The containers *ids*, as far as they exist, by id: what `_described` reads."""
        from bayplan._proto.cri import api_pb2 as pb  # noqa: PLC0415 - only the child needs it

        listed = self._call("ListContainers", pb.ListContainersRequest(), pb.ListContainersResponse)
        sandboxes = self._call("ListPodSandbox", pb.ListPodSandboxRequest(), pb.ListPodSandboxResponse)
        sandbox_by_id = {one.id: one for one in sandboxes.items}
        documents: dict[str, object] = {}
        for one in listed.containers:
            sandbox = sandbox_by_id.get(one.pod_sandbox_id)
            if one.id not in ids or sandbox is None:
                continue
            request = pb.ContainerStatusRequest(container_id=one.id, verbose=True)
            status = self._call("ContainerStatus", request, pb.ContainerStatusResponse)
            details = _details(status.info.get("info", ""))
            documents[one.id] = {
                "id": one.id,
                "name": one.metadata.name,
                "state": one.state,
                "labels": dict(one.labels),
                "spec": details.get("runtimeSpec") or {},
                "pid": details.get("pid") or 0,
                "sandbox_id": sandbox.id,
                "sandbox": {
                    "name": sandbox.metadata.name,
                    "namespace": sandbox.metadata.namespace,
                    "uid": sandbox.metadata.uid,
                    "labels": dict(sandbox.labels),
                    "annotations": dict(sandbox.annotations),
                },
            }
        return documents

    def _call(self, method: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return call(request, timeout=self._timeout_s)


def _details(text: str) -> dict[str, Any]:
    """What containerd and CRI-O say of a container beyond CRI, in JSON."""
    try:
        details = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return details if isinstance(details, dict) else {}
