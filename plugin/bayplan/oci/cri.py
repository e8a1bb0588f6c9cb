"""The containers of a CRI runtime, listed over its own socket. Blocks; grpc is imported on the first call, as
it costs 70 ms and 18 MiB, and a node needs it only once a container has had no process for a while."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bayplan._proto.cri import api_pb2 as pb
from bayplan.errors import UnavailableError

TIMEOUT_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 64 << 20
"""Some 10,000 containers with long annotations; grpc's own limit is 4 MiB."""

_LIST: Final = "/runtime.v1.RuntimeService/ListContainers"
_ENDED: Final = frozenset({pb.CONTAINER_EXITED})


def list_containers(socket: Path, timeout_s: float = TIMEOUT_S) -> Mapping[str, bool]:
    """The ids of all containers that the runtime at *socket* has; False for those that have ended.

    Raises:
        UnavailableError: nobody answers there, or not as a CRI runtime does.
    """
    if not socket.exists():
        raise UnavailableError(str(socket), "cannot list containers: there is no such socket")
    import grpc  # noqa: PLC0415 - few nodes ever need it

    options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        call = channel.unary_unary(
            _LIST,
            request_serializer=pb.ListContainersRequest.SerializeToString,
            response_deserializer=pb.ListContainersResponse.FromString,
        )
        try:
            answer: pb.ListContainersResponse = call(pb.ListContainersRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            problem = f"cannot list containers: {error.code().name}: {error.details()}"
            raise UnavailableError(str(socket), problem) from error
    return {one.id: one.state not in _ENDED for one in answer.containers}
