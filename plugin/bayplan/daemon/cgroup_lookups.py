"""Where the cgroups of running containers are looked for, by what their runtime said."""

from collections.abc import Mapping
from typing import NamedTuple

from bayplan.control.state import NodeState


class CgroupLookup(NamedTuple):
    """A container, and where its cgroup is looked for."""

    container_id: str
    cgroups_path: str
    cgroup_parent: str
    cgroups: Mapping[str, str]


def lookups_of(state: NodeState) -> list[CgroupLookup]:
    """The containers that are known to run, with where the cgroup of each is looked for; in any thread."""
    known, found = state.known, []
    for container in list(known.containers.values()):
        pod = known.pods.get(container.pod_id)
        entry = state.ledger.entries.get(container.id)
        found.append(
            CgroupLookup(
                container.id,
                container.cgroups_path,
                "" if pod is None else pod.cgroup_parent,
                {} if entry is None else entry.origin.cgroups,
            )
        )
    return found
