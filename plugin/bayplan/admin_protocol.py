"""Names and limits that both ends of the admin socket use. Imports nothing heavy; the CLI starts with it.

One request per connection: a line of JSON, answered by a line of JSON. A request is an object with ``verb``
and what the verb needs; an answer has ``apiVersion`` and ``kind``, which is ``Error`` when it failed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bayplan.printable import printable_lines, printable_values

API_VERSION: Final = "bayplan/v1"
DEFAULT_SOCKET: Final = Path("/run/bayplan/admin.sock")
DEFAULT_OCI_SOCKET: Final = Path("/run/bayplan/oci.sock")

MAX_REQUEST_BYTES: Final = 1 << 20
"""Pod manifests, for what-if, are some kilobytes each."""

MAX_ANSWER_BYTES: Final = 64 << 20
"""A status of 1000 containers with their reasons is about 1 MB."""

MAX_PODS: Final = 200
"""So many pods are rehearsed at once, at about a millisecond each."""

REFUSED_SINCE_S: Final = 3600
"""What was refused is news for so long, unless somebody asks for more."""

REPORTED_SINCE_S: Final = 86_400
"""A report is about so long, unless somebody asks for more."""

MAX_SOCKET_PATH_BYTES: Final = 100
"""Linux allows 107 (unix(7)); the rest is for the name under which a new socket is made."""

SIZES: Final = ("name", "memory", "cpus", "hugepages", "annotations")
"""What a pod is described by in ``sizes`` of what-if, all of them texts."""

LOG_LEVELS: Final = ("debug", "info", "warning", "error")

_WHOLE_TEXTS: Final = ("text", "listing", "message")
"""Fields of answers (of metrics, record-topology and errors) that are texts of several lines, for files or
people."""


def printable_answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    """*answer* with every text in it printable and bounded, also texts of others."""
    return {
        key: printable_lines(value)
        if key in _WHOLE_TEXTS and isinstance(value, str)
        else printable_values(value)
        for key, value in answer.items()
    }
