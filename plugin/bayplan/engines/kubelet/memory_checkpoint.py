"""kubelet's file ``memory_manager_state``: its JSON in and out, the checksum over it, and what it says as a
`MemoryState`.

Version 1 of the format knows containers only, version 2 (with the gate PodLevelResourceManagers) also
pods that were placed as a whole. Version 3 is a version 1 with the content of a version 2 in its payload
(`bayplan.engines.kubelet.checkpoint_text`). The checksum of absent differs from that of empty: so a
checkpoint keeps that difference (None and empty), and a `MemoryState`, which does not, is made last.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.kubelet.checkpoint_text import (
    CORRUPTED,
    ENDS_EARLY,
    NIL,
    dump_map,
    ends_early,
    fnv1a_32,
    go_json,
    json_of,
    payload_of,
)
from bayplan.engines.kubelet.memory_state import (
    Block,
    Blocks,
    MemoryManagerError,
    MemoryState,
    MemoryTable,
    NumaNodeState,
)
from bayplan.errors import ParseError
from bayplan.quantity import whole_number
from bayplan.sets import NodeSet


class SavedBlock(Struct, frozen=True):
    """A block as the file has it."""

    nodes: tuple[int, ...] | None
    resource: str
    size_bytes: int


class SavedNode(Struct, frozen=True):
    """A node as the file has it."""

    assignments: int
    tables: Mapping[str, MemoryTable] | None
    cells: tuple[int, ...] | None


SavedBlocks = tuple[SavedBlock, ...] | None
SavedEntries = Mapping[str, Mapping[str, SavedBlocks] | None]


class Checkpoint(Struct, frozen=True):
    """The content of the file. ``checksum`` is what the file says."""

    policy_name: str
    nodes: Mapping[int, SavedNode] | None
    entries: SavedEntries | None
    pod_entries: Mapping[str, SavedBlocks] | None
    checksum: int = 0


def checksum(checkpoint: Checkpoint, version: int) -> int:
    """The checksum that the file must carry in that version of the format (1 or 2)."""
    return fnv1a_32(dump(checkpoint, version))


def dump(checkpoint: Checkpoint, version: int) -> str:
    """The text that is hashed."""
    pods = ""
    if version > 1:
        pods = f" PodEntries:(state.PodMemoryAssignments){_pod_entries(checkpoint.pod_entries)}"
    return (
        f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){checkpoint.policy_name} "
        f"MachineState:(state.NUMANodeMap){_nodes(checkpoint.nodes)} "
        f"Entries:(state.ContainerMemoryAssignments){_entries_dump(checkpoint.entries)}{pods} "
        "Checksum:(checksum.Checksum)0}"
    )


def _nodes(nodes: Mapping[int, SavedNode] | None) -> str:
    if nodes is None:
        return NIL
    return dump_map(f"{node}:<*>{_node_dump(nodes[node])}" for node in sorted(nodes))


def _node_dump(node: SavedNode) -> str:
    tables = node.tables
    written = (
        NIL
        if tables is None
        else dump_map(f"{name}:<*>{_table_dump(tables[name])}" for name in sorted(tables))
    )
    return (
        f"{{NumberOfAssignments:(int){node.assignments} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){written} Cells:([]int){_ids(node.cells)}}}"
    )


def _table_dump(table: MemoryTable) -> str:
    return (
        f"{{TotalMemSize:(uint64){table.total} SystemReserved:(uint64){table.system_reserved} "
        f"Allocatable:(uint64){table.allocatable} Reserved:(uint64){table.reserved} "
        f"Free:(uint64){table.free}}}"
    )


def _entries_dump(entries: SavedEntries | None) -> str:
    if entries is None:
        return NIL
    return dump_map(f"{uid}:{_containers(entries[uid])}" for uid in sorted(entries))


def _containers(containers: Mapping[str, SavedBlocks] | None) -> str:
    if containers is None:
        return NIL
    return dump_map(f"{name}:{_blocks_dump(containers[name])}" for name in sorted(containers))


def _pod_entries(entries: Mapping[str, SavedBlocks] | None) -> str:
    if entries is None:
        return NIL
    return dump_map(
        f"{uid}:{{MemoryBlocks:([]state.Block){_blocks_dump(entries[uid])}}}" for uid in sorted(entries)
    )


def _blocks_dump(blocks: SavedBlocks) -> str:
    return NIL if blocks is None else f"[{' '.join(_block_dump(block) for block in blocks)}]"


def _block_dump(block: SavedBlock) -> str:
    return (
        f"{{NUMAAffinity:([]int){_ids(block.nodes)} Type:(v1.ResourceName){block.resource} "
        f"Size:(uint64){block.size_bytes}}}"
    )


def _ids(ids: tuple[int, ...] | None) -> str:
    return NIL if ids is None else f"[{' '.join(map(str, ids))}]"


FILE_NAME: Final = "memory_manager_state"

_KIND: Final = "memory manager checkpoint"
_INT64_MAX: Final = (1 << 63) - 1
_UINT64_MAX: Final = (1 << 64) - 1
_TABLE: Final = ("total", "systemReserved", "allocatable", "reserved", "free")


class CheckpointError(MemoryManagerError):
    """The file cannot be used. ``problem`` is what is wrong with it, in kubelet's words where it has some."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"could not restore state from checkpoint: {self.problem}, please drain this node and delete "
            f'the memory manager checkpoint file "{self.path}" before restarting Kubelet'
        )


def read_checkpoint(text: str, path: str, *, pod_level_managers: bool) -> Checkpoint:
    """The content of a file of any version, with pods as a whole under the feature gate only.

    Raises:
        ParseError: as for `parse_checkpoint`, which says what is wrong with the shape.
        CheckpointError: a checksum is wrong, or the payload is no content.
    """
    payload = payload_of(text)
    if payload is not None:
        # kubelet looks at the fields beside a payload for nothing but their types.
        _deserialized(text, path, "memory manager checkpoint", pods=False)
        content = _deserialized(payload.text, path, "memory manager checkpoint data")
        if not payload.intact:
            raise CheckpointError(path, f"could not load v3 checkpoint: {CORRUPTED}")
        return content if pod_level_managers else replace(content, pod_entries={})
    content = parse_checkpoint(text)
    if pod_level_managers and content.checksum == checksum(content, version=2):
        return content
    if content.checksum not in (0, checksum(content, version=1)):
        raise CheckpointError(path, CORRUPTED)
    return replace(content, pod_entries={})


def _deserialized(text: str, path: str, what: str, *, pods: bool = True) -> Checkpoint:
    try:
        return parse_checkpoint(text, pods=pods)
    except ParseError as error:
        why = ENDS_EARLY if ENDS_EARLY in error.expected else error
        problem = f"could not load v3 checkpoint: failed to deserialize {what}: {why}"
        raise CheckpointError(path, problem) from error


def parse_checkpoint(text: str, *, pods: bool = True) -> Checkpoint:
    """Read the fields of the JSON as kubelet does: unknown keys are ignored, missing ones are zero or nil.
    Without *pods* pods as a whole are an unknown key.

    Raises:
        ParseError: not JSON, or a value of the wrong type or out of range.
    """
    try:
        content = _object(json_of(text), "a JSON object")
    except json.JSONDecodeError as error:
        problem = ENDS_EARLY if ends_early(error) else str(error)
        raise ParseError(_KIND, text[:40], f"JSON ({problem})") from error
    states = _field(content, "machineState", {})
    entries = _field(content, "entries", {})
    whole = _field(content, "podEntries", {}) if pods else {}
    return Checkpoint(
        policy_name=_text(_field(content, "policyName", "")),
        nodes=None
        if states is None
        else {_node_id(key): _node(value) for key, value in _object(states, "nodes by id").items()},
        entries=None if entries is None else _entries(entries),
        pod_entries=None
        if whole is None
        else {
            uid: _blocks(_field(_object(entry, "a pod's memory"), "memoryBlocks", None))
            for uid, entry in _object(whole, "pods by uid").items()
        },
        checksum=_number(_field(content, "checksum", 0), _UINT64_MAX),
    )


def format_checkpoint(checkpoint: Checkpoint, version: int) -> str:
    """The file's content as kubelet writes it, byte for byte, with a fresh checksum.

    *version* 1 leaves out pods that were placed as a whole.
    """
    states = checkpoint.nodes
    content: dict[str, Any] = {
        "policyName": checkpoint.policy_name,
        "machineState": None if states is None else {str(node): _node_json(states[node]) for node in states},
    }
    if checkpoint.entries:
        content["entries"] = {
            uid: None
            if containers is None
            else {name: _blocks_json(blocks) for name, blocks in containers.items()}
            for uid, containers in checkpoint.entries.items()
        }
    if checkpoint.pod_entries and version > 1:
        content["podEntries"] = {
            uid: {"memoryBlocks": _blocks_json(blocks)} for uid, blocks in checkpoint.pod_entries.items()
        }
    content["checksum"] = checksum(checkpoint, version)
    return go_json(_maps_sorted(content))


def checkpoint_of(policy_name: str, state: MemoryState) -> Checkpoint:
    """The checkpoint that records *state*."""
    return Checkpoint(
        policy_name=policy_name,
        nodes={
            node: SavedNode(memory.assignments, memory.tables, tuple(memory.group))
            for node, memory in state.nodes.items()
        },
        entries={
            uid: {name: _saved(blocks) for name, blocks in containers.items()}
            for uid, containers in state.assignments.items()
        },
        pod_entries={uid: _saved(blocks) for uid, blocks in state.pod_blocks.items()},
    )


def state_of(checkpoint: Checkpoint) -> MemoryState:
    """The state that a checkpoint records.

    Raises:
        ParseError: a node id is not one.
    """
    return MemoryState(
        nodes={
            node: NumaNodeState(saved.tables or {}, saved.assignments, _node_set(saved.cells))
            for node, saved in (checkpoint.nodes or {}).items()
        },
        assignments={
            uid: {name: _unsaved(blocks) for name, blocks in (containers or {}).items()}
            for uid, containers in (checkpoint.entries or {}).items()
        },
        pod_blocks={uid: _unsaved(blocks) for uid, blocks in (checkpoint.pod_entries or {}).items()},
    )


def _entries(value: Any) -> SavedEntries:
    return {
        uid: None
        if containers is None
        else {name: _blocks(blocks) for name, blocks in _object(containers, "containers by name").items()}
        for uid, containers in _object(value, "pods by uid").items()
    }


def _node(value: Any) -> SavedNode:
    content = _object(value, "a node's memory")
    tables = _field(content, "memoryMap", None)
    return SavedNode(
        assignments=_number(_field(content, "numberOfAssignments", 0), _INT64_MAX, -_INT64_MAX),
        tables=None
        if tables is None
        else {name: _table(table) for name, table in _object(tables, "tables by resource").items()},
        cells=_numbers(_field(content, "cells", None)),
    )


def _table(value: Any) -> MemoryTable:
    content = _object(value, "a memory table")
    return MemoryTable(*(_number(_field(content, key, 0), _UINT64_MAX) for key in _TABLE))


def _blocks(value: Any) -> SavedBlocks:
    return None if value is None else tuple(_block(each) for each in _list(value))


def _block(value: Any) -> SavedBlock:
    content = _object(value, "a memory block")
    return SavedBlock(
        nodes=_numbers(_field(content, "numaAffinity", None)),
        resource=_text(_field(content, "type", "")),
        size_bytes=_number(_field(content, "size", 0), _UINT64_MAX),
    )


def _node_json(node: SavedNode) -> dict[str, Any]:
    tables = node.tables
    return {
        "numberOfAssignments": node.assignments,
        "memoryMap": None if tables is None else {name: _table_json(tables[name]) for name in tables},
        "cells": node.cells,
    }


def _table_json(table: MemoryTable) -> dict[str, int]:
    sizes = (table.total, table.system_reserved, table.allocatable, table.reserved, table.free)
    return dict(zip(_TABLE, sizes, strict=True))


def _blocks_json(blocks: SavedBlocks) -> list[dict[str, Any]] | None:
    if blocks is None:
        return None
    return [
        {"numaAffinity": block.nodes, "type": block.resource, "size": block.size_bytes} for block in blocks
    ]


def _maps_sorted(content: Mapping[str, Any]) -> dict[str, Any]:
    """Go sorts the keys of maps as text, and leaves those of structures in their order."""
    structures = {"machineState": 1, "entries": 2, "podEntries": 1}
    return {key: _sorted(value, structures.get(key, 0)) for key, value in content.items()}


def _sorted(value: Any, levels: int) -> Any:
    if not levels or value is None:
        if isinstance(value, dict) and isinstance(value.get("memoryMap"), dict):
            return value | {"memoryMap": dict(sorted(value["memoryMap"].items()))}
        return value
    return {key: _sorted(value[key], levels - 1) for key in sorted(value)}


def _saved(blocks: Blocks) -> SavedBlocks:
    return tuple(SavedBlock(tuple(block.nodes), block.resource, block.size_bytes) for block in blocks)


def _unsaved(blocks: SavedBlocks) -> Blocks:
    return tuple(Block(_node_set(block.nodes), block.resource, block.size_bytes) for block in blocks or ())


def _node_set(ids: tuple[int, ...] | None) -> NodeSet:
    for number in ids or ():
        if not 0 <= number <= NodeSet.max_id:
            raise ParseError(_KIND, str(number), f"NUMA node ids from 0 to {NodeSet.max_id}")
    return NodeSet(ids or ())


def _field(content: Mapping[str, Any], key: str, missing: Any) -> Any:
    """The value of a key, which Go finds in any case of its letters. Null leaves the zero value, except where
    that is nil anyway (maps and lists)."""
    found = key if key in content else next((each for each in content if each.lower() == key.lower()), None)
    if found is None:
        return missing
    value = content[found]
    return missing if value is None and not isinstance(missing, dict) else value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ParseError(_KIND, _shown(value), what)
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ParseError(_KIND, _shown(value), "a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ParseError(_KIND, _shown(value), "text")
    return value


def _numbers(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(_number(each, _INT64_MAX, -_INT64_MAX) for each in _list(value))


def _number(value: Any, most: int, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ParseError(_KIND, _shown(value), f"a whole number from {least} to {most}")
    return value


def _node_id(key: str) -> int:
    node_id = whole_number(key)
    if node_id is None or node_id > NodeSet.max_id:
        raise ParseError(_KIND, key, f"a NUMA node id from 0 to {NodeSet.max_id}")
    return node_id


def _shown(value: Any) -> str:
    return repr(value)[:40]
