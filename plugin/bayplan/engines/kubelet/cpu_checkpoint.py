"""kubelet's file cpu_manager_state: its text, its checksum, and what can be read from the older formats.

Version 1 lists CPU sets by container id, version 2 by pod and container, version 3 (with the feature gate
PodLevelResourceManagers) also by pod. The checksum covers a dump of Go's structure, not the JSON text, so
that the dump is made here too. Version 4 is a version 2 with the content of a version 3 in its payload
(`bayplan.engines.kubelet.checkpoint_text`). Text in, text out: nothing here opens a file.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.kubelet.checkpoint_text import (
    CORRUPTED,
    ENDS_EARLY,
    NIL,
    Payload,
    dump_map,
    ends_early,
    fnv1a_32,
    go_json,
    is_uint64,
    json_of,
    payload_of,
)
from bayplan.engines.kubelet.cpu_state import CpuState, CpuStateError
from bayplan.errors import excerpt
from bayplan.sets import CpuSet

FILE_NAME: Final = "cpu_manager_state"

_INT64_DIGITS: Final = 19
_POD_LEVEL_VERSION: Final = 3
_STRUCTURE: Final = "CPUManagerCheckpoint"


class CpuCheckpoint(Struct, frozen=True):
    """The content of a file, uninterpreted. ``entries`` values are CPU lists, or in version 1 one list per
    container id; a JSON null is None, because the checksum of null differs from that of empty."""

    version: int
    policy_name: str = ""
    default_cpus: str = ""
    entries: Mapping[str, Any] | None = field(default_factory=dict)
    pod_entries: Mapping[str, CpuSet | None] | None = field(default_factory=dict)
    checksum: int = 0

    def dump(self, structure: str = _STRUCTURE) -> str:
        """The text that the checksum covers, of the structure with that name."""
        entry_type = "map[string]string" if self.version == 1 else "map[string]map[string]string"
        parts = [
            f"PolicyName:(string){self.policy_name}",
            f"DefaultCPUSet:(string){self.default_cpus}",
            f"Entries:({entry_type}){_dumped(self.entries)}",
        ]
        if self.version == _POD_LEVEL_VERSION:
            pods = self.pod_entries
            sets = None if pods is None else {pod: _dumped_set(cpus) for pod, cpus in pods.items()}
            parts.append(f"PodEntries:(state.PodCPUAssignments){_dumped(sets)}")
        return f"(*state.{structure}){{{' '.join(parts)} Checksum:(checksum.Checksum)0}}"

    def computed_checksum(self) -> int:
        """The checksum of the content: FNV-1a, 32 bits."""
        return fnv1a_32(self.dump())

    @property
    def intact(self) -> bool:
        """Whether the checksum is right. Up to version 2 a file may do without one; from there on it may also
        be that of the structure under the name of its version, which some kubelets have written."""
        if self.checksum == 0 and self.version < _POD_LEVEL_VERSION:
            return True
        own = (f"{_STRUCTURE}V{self.version}",) if self.version > 1 else ()
        return self.checksum in (fnv1a_32(self.dump(name)) for name in (_STRUCTURE, *own))


def format_checkpoint(state: CpuState, policy_name: str, *, pod_level_managers: bool = False) -> str:
    """The file's text for *state*, as kubelet would write it."""
    entries = {
        pod_uid: {container: str(cpus) for container, cpus in containers.items()}
        for pod_uid, containers in state.assignments.items()
    }
    pods = state.budgets if pod_level_managers else {}
    checkpoint = CpuCheckpoint(
        version=_POD_LEVEL_VERSION if pod_level_managers else 2,
        policy_name=policy_name,
        default_cpus=str(state.shared),
        entries=entries,
        pod_entries=pods,
    )
    content: dict[str, Any] = {"policyName": policy_name, "defaultCpuSet": str(state.shared)}
    if entries:
        content["entries"] = {
            pod_uid: dict(sorted(containers.items())) for pod_uid, containers in sorted(entries.items())
        }
    if pods:
        content["podEntries"] = {pod_uid: {"cpuSet": str(cpus)} for pod_uid, cpus in sorted(pods.items())}
    content["checksum"] = checkpoint.computed_checksum()
    return go_json(content)


def decode_checkpoint(text: str, version: int) -> CpuCheckpoint:
    """The content of a file read as *version*, as Go reads it: names in any case, unknown ones ignored.

    Raises:
        CpuStateError: not JSON, or not of that shape. The checksum is not looked at.
    """
    try:
        content = json_of(text)
    except json.JSONDecodeError as error:
        raise CpuStateError(_json_problem(text, error)) from error
    if not isinstance(content, dict):
        raise CpuStateError(f"json: cannot unmarshal {_kind(content)} into the CPU manager's checkpoint")
    found = {key.lower(): value for key, value in content.items()}
    entry = _text if version == 1 else _table(_text)
    pods = _table(_pod_cpus) if version == _POD_LEVEL_VERSION else _ignored
    return CpuCheckpoint(
        version=version,
        policy_name=_text(found.get("policyname"), "policyName"),
        default_cpus=_text(found.get("defaultcpuset"), "defaultCpuSet"),
        entries=_table(entry)(found.get("entries", {}), "entries"),
        pod_entries=pods(found.get("podentries", {}), "podEntries"),
        checksum=_number(found.get("checksum"), "checksum"),
    )


def parse_cpus(text: str) -> CpuSet:
    """A CPU list as kubelet reads it: `CpuSet.parse` with the error texts of Go's strconv.

    Raises:
        CpuStateError: *text* is not a list of ids and rising ranges.
    """
    cpus = CpuSet()
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        low = _atoi(first)
        high = _atoi(last) if dash else low
        if low > high:
            raise CpuStateError(f'invalid range "{part}" ({low} > {high})')
        if low < 0 or high > CpuSet.max_id:
            raise CpuStateError(f'invalid CPU list "{part}" (ids go from 0 to {CpuSet.max_id})')
        cpus |= CpuSet.of_mask(((1 << (high - low + 1)) - 1) << low)
    return cpus


def read_checkpoint(
    text: str, container_refs: Mapping[str, tuple[str, str]], *, pod_level_managers: bool
) -> CpuCheckpoint:
    """The content of a file in the first version that fits, brought to version 2 or 3. *container_refs* are
    pod uid and container name by container id, for version 1. Without *pod_level_managers*, the feature gate
    PodLevelResourceManagers, version 3 is not read.

    Raises:
        CpuStateError: no version fits; the text ends with `CORRUPTED` where only a checksum is wrong.
    """
    payload = payload_of(text)
    if payload is not None:
        _check_fields_beside(text)
        return _of_payload(payload, pod_level_managers=pod_level_managers)
    versions = (3, 1, 2) if pod_level_managers else (1, 2)
    problem = CpuStateError(CORRUPTED)
    for version in versions:
        try:
            checkpoint = decode_checkpoint(text, version)
        except CpuStateError as error:
            problem = error
            continue
        if checkpoint.intact:
            return _migrated(checkpoint, container_refs) if version == 1 else checkpoint
        problem = CpuStateError(CORRUPTED)
    raise problem


def _check_fields_beside(text: str) -> None:
    """Check the types of the fields beside a payload: all that kubelet looks at of them."""
    try:
        decode_checkpoint(text, version=2)
    except CpuStateError as error:
        problem = f"failed to deserialize cpu manager checkpoint: {error}"
        raise CpuStateError(f"could not load v4 checkpoint: {problem}") from error


def _of_payload(payload: Payload, *, pod_level_managers: bool) -> CpuCheckpoint:
    """The content of version 4, whose pods as a whole count with the feature gate only."""
    try:
        content = decode_checkpoint(payload.text, _POD_LEVEL_VERSION)
    except CpuStateError as error:
        problem = f"failed to deserialize cpu manager checkpoint data: {error}"
        raise CpuStateError(f"could not load v4 checkpoint: {problem}") from error
    if not payload.intact:
        raise CpuStateError(f"could not load v4 checkpoint: {CORRUPTED}")
    return content if pod_level_managers else replace(content, pod_entries={})


def _migrated(checkpoint: CpuCheckpoint, container_refs: Mapping[str, tuple[str, str]]) -> CpuCheckpoint:
    """Version 1 as version 2: container ids become pod and container."""
    entries: dict[str, dict[str, str]] = {}
    for container_id, cpus in (checkpoint.entries or {}).items():
        if container_id not in container_refs:
            raise CpuStateError(
                "error migrating v1 checkpoint state to v2 checkpoint state: "
                f"containerID '{container_id}' not found in initial containers list"
            )
        pod_uid, container = container_refs[container_id]
        entries.setdefault(pod_uid, {})[container] = cpus
    return CpuCheckpoint(2, checkpoint.policy_name, checkpoint.default_cpus, entries)


def state_of(checkpoint: CpuCheckpoint) -> CpuState:
    """The state that a checkpoint of version 2 or 3 records.

    Raises:
        CpuStateError: a CPU list is none.
    """
    try:
        shared = parse_cpus(checkpoint.default_cpus)
    except CpuStateError as error:
        raise CpuStateError(
            f'could not parse default cpu set "{checkpoint.default_cpus}": {error}'
        ) from error
    assignments: dict[str, dict[str, CpuSet]] = {}
    for pod_uid, containers in (checkpoint.entries or {}).items():
        assignments[pod_uid] = {}
        for container, text in (containers or {}).items():
            try:
                assignments[pod_uid][container] = parse_cpus(text)
            except CpuStateError as error:
                raise CpuStateError(
                    f'could not parse cpuset "{text}" for container "{container}" in pod "{pod_uid}": {error}'
                ) from error
    budgets = {pod_uid: cpus or CpuSet() for pod_uid, cpus in (checkpoint.pod_entries or {}).items()}
    return CpuState(shared=shared, assignments=assignments, budgets=budgets)


def _dumped(value: Any) -> str:
    """A map of strings, or of maps of them, as the dump prints it."""
    if value is None:
        return NIL
    if isinstance(value, str):
        return value
    return dump_map(f"{key}:{_dumped(value[key])}" for key in sorted(value))


def _dumped_set(cpus: CpuSet | None) -> str:
    elements = NIL if cpus is None else dump_map(f"{cpu}:{{}}" for cpu in cpus)
    return f"{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}}){elements}}}}}"


def _text(value: Any, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _mismatch(value, name, "string")
    return value


def _number(value: Any, name: str) -> int:
    if value is None:
        return 0
    if not is_uint64(value):
        raise _mismatch(value, name, "uint64")
    return value


def _table(member: Callable[[Any, str], Any]) -> Callable[[Any, str], dict[str, Any] | None]:
    def read(value: Any, name: str) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _mismatch(value, name, "map")
        return {key: member(found, name) for key, found in value.items()}

    return read


def _ignored(value: Any, name: str) -> dict[str, Any]:
    del value, name
    return {}


def _pod_cpus(value: Any, name: str) -> CpuSet | None:
    found = {key.lower(): cpus for key, cpus in (_table(_text)(value, name) or {}).items()}
    return parse_cpus(found["cpuset"]) if "cpuset" in found else None


def _mismatch(value: Any, name: str, expected: str) -> CpuStateError:
    return CpuStateError(f"json: cannot unmarshal {_kind(value)} into field {name} of type {expected}")


def _kind(value: Any) -> str:
    """Go's word for the kind of a JSON value."""
    kinds = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _json_problem(text: str, error: json.JSONDecodeError) -> str:
    """Go's words for the usual case, a file that was cut off; else the place and what stands there."""
    if ends_early(error):
        return ENDS_EARLY
    if error.__cause__ is not None:
        return f"JSON that cannot be read ({error.msg})"
    return f"invalid character {text[error.pos]!r} at offset {error.pos} of JSON input ({error.msg})"


def _atoi(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        raise CpuStateError(f'strconv.Atoi: parsing "{text}": invalid syntax')
    if len(digits) > _INT64_DIGITS or not -(1 << 63) <= int(text) < 1 << 63:
        raise CpuStateError(f'strconv.Atoi: parsing "{excerpt(text)}": value out of range')
    return int(text)
