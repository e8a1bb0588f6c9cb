"""Writes the oom_score_adj of containers whose runtime cannot set it.

The container exists and has not started yet. What fails is logged and counted; the container starts all the
same.
"""

import logging
from collections.abc import Callable

from bayplan.control.threads import InThread
from bayplan.errors import BayplanError
from bayplan.host import proc
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import Hierarchy
from bayplan.model.workload import Container, Pod

logger = logging.getLogger(__name__)


class OomScoreAdjWriter:
    """Call it to set the value for all processes of a container. *failed* is called when that fails."""

    def __init__(self, hierarchy: Hierarchy, in_thread: InThread, failed: Callable[[], object]) -> None:
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._failed = failed

    async def __call__(self, pod: Pod, container: Container, value: int) -> None:
        """Write *value*."""

        def processes() -> tuple[int, ...]:
            with ContainerCgroup.find(
                self._hierarchy, container.cgroups_path, pod.cgroup_parent, container.id
            ) as cgroup:
                return cgroup.processes()

        try:
            await self._in_thread(lambda: proc.write_oom_score_adj_of_all(processes, value))
        except BayplanError as error:
            self._failed()
            logger.warning("oom_score_adj not set", extra={"container": container.id, "problem": str(error)})
