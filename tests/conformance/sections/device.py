"""The Device Manager's tables: hints, aligned allocation, what a plugin is asked."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bayplan.engines.kubelet.topology_hints import ProviderHints
from bayplan.sets import NodeSet
from conformance.device_manager import Device, DeviceManager, Devices, DeviceState
from conformance.sections import Case, Folder, Section, expect
from conformance.sections.pods import gates, pod
from conformance.sections.topology import hint, hint_set

_FILE: Final = "device_manager_hints.json"
_POD, _CONTAINER, _OTHER = "pod", "container", "other"


def _devices(written: Sequence[Mapping[str, Any]]) -> dict[str, Device]:
    return {
        device["id"]: Device(None if device["numa_nodes"] is None else NodeSet(device["numa_nodes"]))
        for device in written
    }


def _state(allocated: Mapping[str, Mapping[str, Mapping[str, Sequence[str]]]] | None) -> DeviceState:
    return DeviceState(
        {
            pod_uid: {
                container: {resource: Devices(ids) for resource, ids in held.items()}
                for container, held in containers.items()
            }
            for pod_uid, containers in (allocated or {}).items()
        }
    )


def _expect_hints(found: ProviderHints, expected: Mapping[str, Any]) -> None:
    """Compare hints as sets: their order does not matter, and which resources have any does."""
    answers = {name: None if hints is None else set(hints.listed()) for name, hints in (found or {}).items()}
    listed = {name: hint_set(hints) for name, hints in expected.items()}
    expect(
        "hints",
        answers,
        {name: None if hints is None else set(hints.hints) for name, hints in listed.items()},
    )


def _manager(case: Case) -> DeviceManager:
    return DeviceManager({resource: _devices(written) for resource, written in case["devices"].items()})


def _container_hints(case: Case, _: Folder) -> None:
    written = pod(case["pod"])
    found: dict[str, Any] = {}
    for container in written.containers:
        found |= _manager(case).hints(_state(case["allocatedDevices"]), written, container) or {}
    _expect_hints(found, case["expectedHints"])


def _pod_hints(case: Case, _: Folder) -> None:
    found = _manager(case).pod_hints(_state(case["allocatedDevices"]), pod(case["pod"]))
    _expect_hints(found, case["expectedHints"])


def _aligned(case: Case, _: Folder) -> None:
    """The file says which devices come out, not what the plugin had answered. It is made to answer with these
    and then with every device off the hint's nodes, which must not come in while aligned ones are left."""
    resource, devices = case["resource"], _devices(case["devices"])
    nodes = hint(case["hint"]).nodes
    preferred = list(case["expectedPreferredAllocation"] or ())
    if preferred and nodes is not None:
        preferred += [name for name, device in devices.items() if nodes.isdisjoint(device.nodes or NodeSet())]
    manager = DeviceManager({resource: devices}, prefer=lambda *_: preferred)
    state = _state(case["allocatedDevices"])
    given = manager.choose(state, _POD, _CONTAINER, resource, case["request"], nodes)
    expect("number of devices", len(given), case["request"])
    on_node: dict[str, int] = {}
    for name in given:
        for node in devices[name].nodes or ():
            on_node[str(node)] = on_node.get(str(node), 0) + 1
    expect("devices by node", on_node, case["expectedAlignment"])
    missing = set(case["expectedPreferredAllocation"] or ()) - given
    expect("preferred devices that were not given", missing, set())


def _parameters(case: Case, _: Folder) -> None:
    asked: list[dict[str, object]] = []

    def prefer(resource: str, available: Devices, must: Devices, size: int) -> tuple[str, ...]:
        asked.append({"resource": resource, "available": set(available), "must": set(must), "size": size})
        return ()

    resource = case["resource"]
    state = DeviceState(
        {_OTHER: {_OTHER: {resource: Devices(case["allocatedDevices"])}}},
        {_POD: {resource: Devices(case["reusableDevices"])}},
    )
    manager = DeviceManager({resource: _devices(case["allDevices"])}, prefer=prefer)
    manager.choose(state, _POD, _CONTAINER, resource, case["request"], hint(case["hint"]).nodes)
    expected = {
        "resource": resource,
        "available": set(case["expectedAvailable"]),
        "must": set(case["expectedMustInclude"]),
        "size": case["expectedSize"],
    }
    expect("what the plugin was asked", asked, [expected])


def _pod_request(case: Case, _: Folder) -> None:
    manager = DeviceManager({name: {} for name in case["registeredDevices"]}, gates())
    expect("requested", manager.pod_requested(pod(case["pod"])), case["expected"])


SECTIONS: Final = (
    Section(_FILE, "get_topology_hints", _container_hints),
    Section(_FILE, "get_pod_topology_hints", _pod_hints),
    Section(_FILE, "topology_aligned_allocation", _aligned),
    Section(_FILE, "preferred_allocation_parameters", _parameters),
    Section(_FILE, "pod_device_request", _pod_request),
)
