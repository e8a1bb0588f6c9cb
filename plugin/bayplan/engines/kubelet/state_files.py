"""kubelet's two state files, read by somebody else than kubelet: all that is wrong with both at once, and
damage, another policy and another machine told apart.

kubelet ends at the first of these, with one sentence; that sentence is part of the problem, because people
search for it. What a file says of reservations is not held against anything: they are kubelet's.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from bayplan.engines.kubelet import cpu_checkpoint as cpu_file
from bayplan.engines.kubelet import memory_checkpoint as memory_file
from bayplan.engines.kubelet.checkpoint_text import CORRUPTED, payload_of
from bayplan.engines.kubelet.cpu_state import CpuState, CpuStateError
from bayplan.engines.kubelet.memory_checkpoint import Checkpoint
from bayplan.engines.kubelet.memory_restore import start
from bayplan.engines.kubelet.memory_state import MemoryManagerError, MemoryState
from bayplan.errors import ParseError, Problem, excerpt
from bayplan.kubelet.manager_options import STATIC, MemoryManagerPolicy
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.machine import MEMORY, Machine, hugepages
from bayplan.quantity import counted, format_bytes
from bayplan.sets import CpuSet, cpus_text

CPU_FILE: Final = cpu_file.FILE_NAME
MEMORY_FILE: Final = memory_file.FILE_NAME

_INTACT: Final = "the one of its content, as kubelet writes it (kubelet: checkpoint is corrupted)"
_WHOLE_PODS: Final = "none; bayplan knows no CPUs and no memory of a pod as a whole"


def read_cpu_file(
    text: str, machine: Machine, reserved: CpuSet, refs: Mapping[str, tuple[str, str]]
) -> tuple[CpuState, tuple[Problem, ...]]:
    """The state in a cpu_manager_state of any version, and what is wrong with it on *machine*.

    *reserved* are the only CPUs that it may lack (strict-cpu-reservation), *refs* are pod uid and container
    name by container id, which version 1 lacks.
    """
    try:
        content = cpu_file.read_checkpoint(text, refs, pod_level_managers=True)
    except CpuStateError as error:
        if str(error).endswith(CORRUPTED):
            return CpuState(), (_wrong_checksum(CPU_FILE, text),)
        return CpuState(), (Problem(f"{CPU_FILE}, content", excerpt(str(error)), "what kubelet writes"),)
    if content.policy_name != STATIC:
        return CpuState(), (_other_policy(CPU_FILE, content.policy_name, STATIC),)
    try:
        state = cpu_file.state_of(content)
    except CpuStateError as error:
        return CpuState(), (Problem(f"{CPU_FILE}, content", excerpt(str(error)), "what kubelet writes"),)
    return state, tuple(_wrong_cpus(state, machine, reserved))


def read_memory_file(text: str, machine: Machine) -> tuple[MemoryState, tuple[Problem, ...]]:
    """The state in a memory_manager_state of any version, and what is wrong with it on *machine*."""
    try:
        content = memory_file.read_checkpoint(text, MEMORY_FILE, pod_level_managers=True)
        state = memory_file.state_of(content)
    except ParseError as error:
        found = excerpt(f"{error.found} where {error.expected} was expected")
        return MemoryState(), (Problem(f"{MEMORY_FILE}, content", found, "what kubelet writes"),)
    except memory_file.CheckpointError:
        return MemoryState(), (_wrong_checksum(MEMORY_FILE, text),)
    static = MemoryManagerPolicy.STATIC.value
    if content.policy_name != static:
        return MemoryState(), (_other_policy(MEMORY_FILE, content.policy_name, static),)
    return state, tuple(_wrong_memory(content, state, machine))


def _wrong_checksum(file: str, text: str) -> Problem:
    """A problem with the checksum that counts in a file, which is one of JSON."""
    name = "checksum" if payload_of(text) is None else "dataChecksum"
    found = {key.lower(): value for key, value in json.loads(text).items()}
    return Problem(f"{file}, {name}", excerpt(repr(found.get(name.lower(), 0))), _INTACT)


def _other_policy(file: str, found: str, expected: str) -> Problem:
    return Problem(
        f"{file}, policyName", repr(found), f"{expected!r}; under another policy nothing is assigned"
    )


def _wrong_cpus(state: CpuState, machine: Machine, reserved: CpuSet) -> Iterator[Problem]:
    assigned = CpuSet()
    for pod_uid, name, cpus in state.items():
        assigned |= cpus
        if not cpus.isdisjoint(state.shared):
            where, expected = f"{CPU_FILE}, {pod_uid}/{name}", f"none of the defaultCpuSet {state.shared}"
            yield Problem(where, cpus_text(cpus), expected)
    for pod_uid, cpus in sorted(state.budgets.items()):
        assigned |= cpus
        yield Problem(f"{CPU_FILE}, podEntries, {pod_uid}", cpus_text(cpus), _WHOLE_PODS)
    known, online = state.shared | assigned, machine.online_cpus
    if not known <= online:
        yield _other_machine(CPU_FILE, cpus_text(known - online), f"CPUs of this machine: {online}")
    if not online - reserved <= known:
        yield _other_machine(CPU_FILE, f"{cpus_text(known)} only", f"all of this machine: {online}")


def _wrong_memory(content: Checkpoint, state: MemoryState, machine: Machine) -> Iterator[Problem]:
    for pod_uid in sorted(state.pod_blocks):
        yield Problem(f"{MEMORY_FILE}, podEntries, {pod_uid}", "memory of the pod", _WHOLE_PODS)
    changed = tuple(_changed_nodes(state, machine))
    yield from changed
    if changed or not content.nodes:
        return
    reserved = {
        node: {resource: table.system_reserved for resource, table in memory.tables.items()}
        for node, memory in state.nodes.items()
    }
    try:
        gates = FeatureGates(pod_level_resource_managers=bool(state.pod_blocks))
        start(MemoryManagerPolicy.STATIC, machine, reserved, gates, state)
    except MemoryManagerError as error:
        yield Problem(
            f"{MEMORY_FILE}, machineState", "other sums", f"those of its entries (kubelet: {error})"
        )


def _changed_nodes(state: MemoryState, machine: Machine) -> Iterator[Problem]:
    """The nodes and amounts in which *machine* is not the one of *state*."""
    here = {
        node.id: {MEMORY: node.memory_bytes}
        | {hugepages(size): amount for size, amount in node.hugepages_bytes.items()}
        for node in machine.nodes
    }
    for node in sorted(here.keys() | state.nodes.keys()):
        where = f"node {node}"
        if node not in state.nodes:
            yield _other_machine(MEMORY_FILE, f"nothing of {where}", "all nodes of this machine")
        elif node not in here:
            yield _other_machine(MEMORY_FILE, where, "nodes of this machine")
        else:
            there = {resource: table.total for resource, table in state.nodes[node].tables.items()}
            for resource in sorted(there.keys() | here[node].keys()):
                one, other = there.get(resource, 0), here[node].get(resource, 0)
                if one != other:
                    found = f"{format_bytes(one)} ({counted(one, 'byte')}) of {resource} on {where}"
                    yield _other_machine(
                        MEMORY_FILE, found, f"{format_bytes(other)} ({counted(other, 'byte')})"
                    )


def _other_machine(file: str, found: str, expected: str) -> Problem:
    return Problem(f"{file}, machine", found, f"{expected}; the machine has changed since kubelet wrote it")
