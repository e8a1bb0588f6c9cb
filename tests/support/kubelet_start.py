"""What kubelet itself does with its state at its start and before a decision, for which the daemon has a
ledger.
"""

from collections.abc import Iterable, Mapping

from bayplan.engines.kubelet import cpu_checkpoint, memory_checkpoint
from bayplan.engines.kubelet.cpu_state import CpuState, CpuStateError
from bayplan.engines.kubelet.memory_checkpoint import CheckpointError
from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import MemoryState
from bayplan.errors import ParseError
from bayplan.kubelet.pod import FeatureGates, PodSpec
from conformance.endings import memory_without


def restore_checkpoint(
    text: str | None,
    policy_name: str,
    *,
    path: str = cpu_checkpoint.FILE_NAME,
    container_refs: Mapping[str, tuple[str, str]] | None = None,
    pod_level_managers: bool = False,
) -> CpuState:
    """The state that a cpu_manager_state holds; an empty one if there is none (*text* None). *policy_name* is
    cpuManagerPolicy, the rest as for `cpu_checkpoint.read_checkpoint`.

    Raises:
        CpuStateError: the file cannot be used; the text is kubelet's, which refuses to start then.
    """
    if text is None:
        return CpuState()
    try:
        found = cpu_checkpoint.read_checkpoint(
            text, container_refs or {}, pod_level_managers=pod_level_managers
        )
        return _state(found, policy_name)
    except CpuStateError as error:
        raise CpuStateError(
            f"could not restore state from checkpoint: {error}, please drain this node and delete the CPU "
            f'manager checkpoint file "{path}" before restarting Kubelet'
        ) from error


def _state(found: cpu_checkpoint.CpuCheckpoint, policy_name: str) -> CpuState:
    if found.policy_name != policy_name:
        raise CpuStateError(
            f'configured policy "{policy_name}" differs from state checkpoint policy "{found.policy_name}"'
        )
    return cpu_checkpoint.state_of(found)


def restored(text: str | None, path: str, policy_name: str, gates: FeatureGates) -> MemoryState:
    """The state that the file at *path*, with the content *text* (None: no file), records.

    Which nodes the machine has is not looked at here, see `bayplan.engines.kubelet.state_files`.

    Raises:
        CheckpointError: the file is damaged, or was written under another policy.
    """
    if text is None:
        return MemoryState()
    try:
        checkpoint = memory_checkpoint.read_checkpoint(
            text, path, pod_level_managers=gates.pod_level_resource_managers
        )
        state = memory_checkpoint.state_of(checkpoint)
    except ParseError as error:
        raise CheckpointError(path, str(error)) from error
    if checkpoint.policy_name != policy_name:
        problem = (
            f'[memorymanager] configured policy "{policy_name}" differs from state checkpoint policy '
            f'"{checkpoint.policy_name}"'
        )
        raise CheckpointError(path, problem)
    return state


def without_stale(manager: MemoryManager, active: Iterable[PodSpec]) -> MemoryManager:
    """*manager* without the containers that belong to none of the *active* pods. kubelet calls this before
    every decision, which is also what takes back the memory of pods refused halfway."""
    alive = {(pod.uid, container.name) for pod in active for container in pod.all_containers}
    after = manager
    for pod_uid, containers in manager.state.assignments.items():
        for name in containers:
            if (pod_uid, name) not in alive:
                after = memory_without(after, pod_uid, name)
    return after
