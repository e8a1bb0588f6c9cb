"""The file ``memory_manager_state``: checksums, bytes, what is refused; and both files of kubelet 1.37."""

from typing import Any, Final

from bayplan.engines.kubelet.cpu_state import CpuStateError
from bayplan.engines.kubelet.memory_checkpoint import (
    CheckpointError,
    checkpoint_of,
    checksum,
    dump,
    format_checkpoint,
    parse_checkpoint,
    state_of,
)
from bayplan.engines.kubelet.memory_state import Blocks, MemoryState
from conformance.sections import Case, Folder, MismatchError, Section, expect, expect_error
from conformance.sections.memory import blocks, nodes, state
from conformance.sections.pods import gates
from support.kubelet_start import restore_checkpoint, restored

_PATH = "/var/lib/kubelet/memory_manager_state"


def _restore(case: Case, folder: Folder) -> None:
    """An empty content means that there is no file."""
    del folder
    switches = gates(pod_level=True, managers=case["feature_pod_level_resource_managers"])
    expected = case["expected_error_contains"]
    try:
        found = restored(case["file_content"] or None, _PATH, case["configured_policy"], switches)
    except CheckpointError as error:
        if not expected or expected not in str(error):
            raise MismatchError("error", str(error), expected) from error
        return
    expect("error", "", expected)
    if case["expected_machine_state"] is not None:
        expect("nodes", dict(found.nodes), _without_cells(nodes(case["expected_machine_state"]), found))
    if case["expected_assignments"] is not None:
        expect("assignments", _plain(found), _plain(state(None, case["expected_assignments"])))
    if case["expected_pod_assignments"] is not None:
        expect("pods", dict(found.pod_blocks), _pod_blocks(case["expected_pod_assignments"]))


def _generated(case: Case, folder: Folder) -> None:
    """Files as kubelet wrote them, with the text that it hashed."""
    del folder
    version = case["format_version"]
    found = parse_checkpoint(case["file_content"])
    expect("hashed text", dump(found, version), case["dump_text"])
    expect("checksum", checksum(found, version), case["checksum"])
    expect("file", format_checkpoint(found, version), case["file_content"])
    switches = gates(pod_level=True, managers=version > 1)
    expect("restored", restored(case["file_content"], _PATH, found.policy_name, switches), state_of(found))


def _real(case: Case, folder: Folder) -> None:
    """The file of a node, which knew version 1 only."""
    del folder
    found = parse_checkpoint(case["file_content"])
    expect("checksum", checksum(found, 1), case["checksum"])
    expect("file", format_checkpoint(found, 1), case["file_content"])


def _helpers(case: Case, folder: Folder) -> None:
    """What is set comes back, also through the file."""
    del folder
    found = state(case["machine_state"], case["assignments"])
    text = format_checkpoint(checkpoint_of("static", found), 1)
    expect("state", restored(text, _PATH, "static", gates(pod_level=True)), found)


_SAID_OF_CONTENT: Final = ("default cpuset cannot be empty", "the expected machine state is different")
"""kubelet's errors about a file that it could read."""


def _state_file(case: Case, folder: Folder) -> None:
    """A file of either manager, and whether kubelet can read it."""
    del folder
    expected = case["accepted"] or ""
    error = None
    try:
        if case["kind"] == "cpu":
            restore_checkpoint(case["text"], "static", pod_level_managers=True)
        else:
            restored(case["text"], _PATH, "Static", gates(managers=True))
    except (CheckpointError, CpuStateError) as raised:
        error = raised
    readable = any(words in expected for words in _SAID_OF_CONTENT)
    expect_error(error, None if readable else expected.removesuffix(", ..."))


def _plain(found: MemoryState) -> dict[str, dict[str, Blocks]]:
    return {uid: dict(containers) for uid, containers in found.assignments.items()}


def _pod_blocks(written: dict[str, Any]) -> dict[str, Blocks]:
    """The table names the pods' blocks as Go does."""
    return {
        uid: blocks(next(value for key, value in each.items() if key.lower() == "memoryblocks"))
        for uid, each in written.items()
    }


def _without_cells(expected: dict[int, Any], found: MemoryState) -> dict[int, Any]:
    """The unit tests leave the cells of the expected nodes out; they are not compared."""
    return {
        node: type(memory)(memory.tables, memory.assignments, found.nodes[node].group)
        for node, memory in expected.items()
    }


_FILE = "memory_manager_state.json"

SECTIONS = (
    Section(_FILE, "restore", _restore),
    Section(_FILE, "helpers", _helpers),
    Section(_FILE, "real_world_sample", _real),
    Section(_FILE, "generated_by_kubelet_code", _generated),
    Section("state_files.json", "files", _state_file),
)
