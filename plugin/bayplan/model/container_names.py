"""The names of containers: how sentences name one, and which ones a word on a command line means."""

from typing import Final

from bayplan.model.workload import Container, Pod
from bayplan.printable import MOST_NAME_CHARACTERS, printable

MIN_ID_PREFIX: Final = 12
"""So many characters of a container's id stand for it; crictl shows 13, docker 12."""


def container_name(pod: Pod, container: Container) -> str:
    """The name people know a container by: ``namespace/pod/container``; the id where a name is missing,
    ``-/-/id`` without a pod. It stands in sentences, so that each part is printable and bounded."""
    # A container without a pod has one of its own, with its id.
    pod_name = pod.name or ("-" if pod.id == container.id else pod.id or container.pod_id)
    parts = (pod.namespace or "-", pod_name, container.name or container.id)
    return "/".join(printable(part, MOST_NAME_CHARACTERS) for part in parts)


def names_container(subject: str, name: str, container_id: str) -> bool:
    """Whether *subject* names the container *name* (``namespace/pod/container``) with that id.

    It may be the id, the beginning of one, the whole name, ``namespace/pod``, ``pod/container`` or a pod.
    """
    if subject == container_id or (len(subject) >= MIN_ID_PREFIX and container_id.startswith(subject)):
        return True
    wanted, parts = subject.split("/"), name.split("/")
    if len(wanted) == 1:
        return wanted == parts[1:2]
    return wanted in (parts, parts[:2], parts[1:])
