"""Which containers somebody means by a word on a command line."""

from typing import Final

MIN_ID_PREFIX: Final = 12
"""So many characters of a container's id stand for it; crictl shows 13, docker 12."""


def names_container(subject: str, name: str, container_id: str) -> bool:
    """Whether *subject* means the container *name* (``namespace/pod/container``) with that id.

    It may be the id, the beginning of one, the whole name, ``namespace/pod``, ``pod/container`` or a pod.
    """
    if subject == container_id or (len(subject) >= MIN_ID_PREFIX and container_id.startswith(subject)):
        return True
    wanted, parts = subject.split("/"), name.split("/")
    if len(wanted) == 1:
        return wanted == parts[1:2]
    return wanted in (parts, parts[:2], parts[1:])
