"""Where the containers of CRI-O and podman are: in the storage that both use, with their processes' ids.

Each has a directory DRIVER-containers/ID/userdata below the storage's run root. The OCI runtime writes the id
of the first process there, after its createRuntime hooks. CRI-O has the bundle there too; podman has it below
the graph root. Containers of other users than root are in storages of their own, which are not read.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bayplan.files import read_text
from bayplan.oci.bundle import CONFIG

USERDATA: Final = "userdata"
_SETTINGS: Final = ("etc/containers/storage.conf", "usr/share/containers/storage.conf")
"""The first that is there counts, and hides the other."""
_RUN_ROOT: Final = "/run/containers/storage"
_GRAPH_ROOT: Final = "/var/lib/containers/storage"
_CONTAINERS: Final = "*-containers"


@dataclass(frozen=True, slots=True)
class Storage:
    """Both directories of the storage, below our root."""

    run_root: Path
    graph_root: Path


@dataclass(frozen=True, slots=True)
class Started:
    """A container that was started: its id, its bundle, and the text of the file with its process id."""

    container_id: str
    bundle: Path
    pid: str


def read_storage(root: Path) -> Storage:
    """The storage of root's containers below *root*; the defaults where its settings cannot be read."""
    settings: object = {}
    for path in _SETTINGS:
        try:
            settings = tomllib.loads(read_text(root / path)).get("storage")
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            pass
        break
    options = settings if isinstance(settings, dict) else {}
    return Storage(
        _at(root, options.get("runroot"), _RUN_ROOT), _at(root, options.get("graphroot"), _GRAPH_ROOT)
    )


def started(storage: Storage, elsewhere: Collection[Path] = ()) -> Iterator[Started]:
    """The containers that have, or had, a process. *elsewhere* is more that is like DRIVER-containers."""
    for directory in sorted({*storage.run_root.glob(_CONTAINERS), *elsewhere}):
        for one in sorted(directory.glob(f"*/{USERDATA}")):
            try:
                pid = read_text(one / "pidfile", errors="replace").strip()
            except OSError:
                continue
            container_id = one.parent.name
            podman = storage.graph_root / directory.name / container_id / USERDATA
            bundle = podman if not (one / CONFIG).exists() and podman.is_dir() else one
            yield Started(container_id, bundle, pid)


def failed_creations(root: Path, sandbox_ids: Mapping[str, str]) -> set[str]:
    """The ids of the containers that CRI-O gave up creating: the directory of each is gone, that of its
    sandbox is not. *sandbox_ids* are those of the sandboxes by those of the containers.

    CRI-O makes it before it asks over NRI, and removes it with the container, or when the creation fails.
    Without the sandbox's it is another storage than CRI-O's, which says nothing.
    """
    directories = tuple(read_storage(root).run_root.glob(_CONTAINERS))

    def is_there(name: str) -> bool:
        return any((one / name).is_dir() for one in directories)

    return {key for key, sandbox_id in sandbox_ids.items() if is_there(sandbox_id) and not is_there(key)}


def _at(root: Path, found: object, default: str) -> Path:
    path = found if isinstance(found, str) and found.startswith("/") else default
    return root / path.lstrip("/")
