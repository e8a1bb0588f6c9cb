"""The structure of kubelet's file ``memory_manager_state``, and the checksum over it."""

from collections.abc import Mapping

from msgspec import Struct

from bayplan.engines.kubelet.checkpoint_text import NIL, dump_map, fnv1a_32
from bayplan.engines.kubelet.memory.state import MemoryTable


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
        f"Entries:(state.ContainerMemoryAssignments){_entries(checkpoint.entries)}{pods} "
        "Checksum:(checksum.Checksum)0}"
    )


def _nodes(nodes: Mapping[int, SavedNode] | None) -> str:
    if nodes is None:
        return NIL
    return dump_map(f"{node}:<*>{_node(nodes[node])}" for node in sorted(nodes))


def _node(node: SavedNode) -> str:
    tables = node.tables
    written = (
        NIL if tables is None else dump_map(f"{name}:<*>{_table(tables[name])}" for name in sorted(tables))
    )
    return (
        f"{{NumberOfAssignments:(int){node.assignments} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){written} Cells:([]int){_ids(node.cells)}}}"
    )


def _table(table: MemoryTable) -> str:
    return (
        f"{{TotalMemSize:(uint64){table.total} SystemReserved:(uint64){table.system_reserved} "
        f"Allocatable:(uint64){table.allocatable} Reserved:(uint64){table.reserved} "
        f"Free:(uint64){table.free}}}"
    )


def _entries(entries: SavedEntries | None) -> str:
    if entries is None:
        return NIL
    return dump_map(f"{uid}:{_containers(entries[uid])}" for uid in sorted(entries))


def _containers(containers: Mapping[str, SavedBlocks] | None) -> str:
    if containers is None:
        return NIL
    return dump_map(f"{name}:{_blocks(containers[name])}" for name in sorted(containers))


def _pod_entries(entries: Mapping[str, SavedBlocks] | None) -> str:
    if entries is None:
        return NIL
    return dump_map(
        f"{uid}:{{MemoryBlocks:([]state.Block){_blocks(entries[uid])}}}" for uid in sorted(entries)
    )


def _blocks(blocks: SavedBlocks) -> str:
    return NIL if blocks is None else f"[{' '.join(_block(block) for block in blocks)}]"


def _block(block: SavedBlock) -> str:
    return (
        f"{{NUMAAffinity:([]int){_ids(block.nodes)} Type:(v1.ResourceName){block.resource} "
        f"Size:(uint64){block.size_bytes}}}"
    )


def _ids(ids: tuple[int, ...] | None) -> str:
    return NIL if ids is None else f"[{' '.join(map(str, ids))}]"
