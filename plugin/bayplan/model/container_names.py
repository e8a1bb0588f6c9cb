"""The names of containers: how sentences name one, and which ones a word on a command line means."""

import difflib
from collections.abc import Iterable
from typing import Final

from bayplan.model.workload import Container, Pod
from bayplan.printable import MOST_NAME_CHARACTERS, printable

MIN_ID_PREFIX: Final = 12
"""So many characters of a container's id stand for it; crictl shows 13, docker 12."""

_NOTHING: Final = "-"
"""In place of the name of a pod or namespace that is not there."""

_PARTS: Final = 3
_MIN_SIMILAR_ID: Final = 4
_MAX_SPELLINGS: Final = 1000
"""To compare the spelling of a word with so many takes 50 ms."""


def container_name(pod: Pod, container: Container) -> str:
    """The name people know a container by: ``namespace/pod/container``; the id where a name is missing,
    ``-/-/id`` without a pod. It stands in sentences, so that each part is printable and bounded."""
    # A container without a pod has one of its own, with its id.
    pod_name = pod.name or (_NOTHING if pod.id == container.id else pod.id or container.pod_id)
    parts = (pod.namespace or _NOTHING, pod_name, container.name or container.id)
    name = "/".join(parts)
    if len(name) <= MOST_NAME_CHARACTERS and name.isprintable():
        return name
    return "/".join(printable(part, MOST_NAME_CHARACTERS) for part in parts)


def parts_in_pod(name: str) -> tuple[str, str, str] | None:
    """Namespace, pod and container of a *name* as `container_name` makes it; None for a container in no
    pod of Kubernetes.

    >>> parts_in_pod("shop/web-0/main")
    ('shop', 'web-0', 'main')
    >>> parts_in_pod("-/-/1f")
    """
    parts = name.split("/")
    if len(parts) != _PARTS or parts[0] == _NOTHING:
        return None
    namespace, pod, container = parts
    return namespace, pod, container


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


def similar_pods(subject: str, containers: Iterable[tuple[str, str]]) -> list[str]:
    """The pods (``namespace/pod``) that *subject* may mean although it names none of *containers* (name and
    id), in their order: those with it somewhere in a name or at the beginning of an id, else those that are
    spelled alike.

    >>> similar_pods("web", [("shop/web-0/main", "1f"), ("shop/web-1/main", "2f"), ("shop/db/main", "3f")])
    ['shop/web-0', 'shop/web-1']
    >>> similar_pods("web0", [("shop/web-0/main", "1f"), ("shop/web-1/main", "2f")])
    ['shop/web-0']
    >>> similar_pods("shop/bd", [("shop/web-0/main", "1f"), ("shop/db/main", "3f")])
    ['shop/db']
    """
    wanted, letters = subject.lower(), _letters(subject)
    found, spellings = dict[str, None](), dict[str, str]()
    for name, container_id in containers:
        pod = name.rpartition("/")[0]
        by_id = len(wanted) >= _MIN_SIMILAR_ID and container_id.lower().startswith(wanted)
        if by_id or (letters and letters in _letters(name)):
            found[pod] = None
        elif len(spellings) < _MAX_SPELLINGS:
            spellings.setdefault(pod.lower() if "/" in wanted else pod.rpartition("/")[2].lower(), pod)
    # Of names with a namespace that much is the same anyway.
    least = 0.75 if "/" in wanted else 0.6
    return list(found) or [
        spellings[one] for one in difflib.get_close_matches(wanted, spellings, cutoff=least)
    ]


def _letters(name: str) -> str:
    """A name without what is easily left out of it."""
    return name.lower().replace("-", "").replace("_", "").replace(".", "")
