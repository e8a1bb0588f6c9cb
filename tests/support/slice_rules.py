"""The API server's rules for a ResourceSlice (`resource.k8s.io/v1`, Kubernetes 1.37), as far as ours may
break them, and what the scheduler then reads from a pool of slices."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bayplan.quantity import parse_quantity

Object = dict[str, Any]

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_MOST_DEVICES: Final = 128
_MOST_ADVANCED_DEVICES: Final = 64
"""Where one has a taint or a list."""
_MOST_VALUES: Final = 48
_MOST_ENTRIES: Final = 32
_MOST_NAME: Final = 253
_MOST_STRING: Final = 64


def complaints(made: Object) -> list[str]:
    """What the API server says against the slice *made*; nothing if it takes it."""
    return list(_complaints(made))


def _complaints(made: Object) -> Iterator[str]:
    name, spec = made["metadata"]["name"], made["spec"]
    if not _SUBDOMAIN.fullmatch(name) or len(name) > _MOST_NAME:
        yield f"metadata.name: {name}"
    pool, devices = spec["pool"], spec["devices"]
    if pool["generation"] < 0 or pool["resourceSliceCount"] < 1:
        yield f"pool: {pool}"
    advanced = any(any(map(_list_of, device["attributes"].values())) for device in devices)
    if len(devices) > (_MOST_ADVANCED_DEVICES if advanced else _MOST_DEVICES):
        yield f"devices: {len(devices)}"
    if len({device["name"] for device in devices}) != len(devices):
        yield "devices: a name twice"
    for device in devices:
        yield from _of_device(device)


def _of_device(device: Object) -> Iterator[str]:
    name, attributes, capacity = device["name"], device["attributes"], device["capacity"]
    if not _LABEL.fullmatch(name):
        yield f"name: {name}"
    if len(attributes) + len(capacity) > _MOST_ENTRIES:
        yield f"{name}: {len(attributes)} attributes and {len(capacity)} capacities"
    for key in (*attributes, *capacity):
        domain, _, identifier = key.rpartition("/")
        if not _IDENTIFIER.fullmatch(identifier) or (domain and not _SUBDOMAIN.fullmatch(domain)):
            yield f"{name}: {key}"
    for key, value in attributes.items():
        texts = [str(value.get("string", "")), *_list_of(value)]
        if len(value) != 1 or [] in value.values() or max(map(len, texts)) > _MOST_STRING:
            yield f"{name}: {key}: {value}: exactly one value must be specified"
    if sum(max(1, len(_list_of(value))) for value in attributes.values()) > _MOST_VALUES:
        yield f"{name}: more than {_MOST_VALUES} values of attributes"
    yield from _of_mapping(device)
    for key, one in capacity.items():
        if "requestPolicy" in one and not device.get("allowMultipleAllocations"):
            yield f"{name}: {key}: a policy without several allocations"
        yield from (f"{name}: {key}: {problem}" for problem in _of_policy(one))


def _list_of(attribute: Object) -> list[str]:
    return list(attribute.get("strings", ()))


def without_lists(made: Object) -> Object:
    """What the API server makes of the slice *made* while `DRAListTypeAttributes` is off: a list is dropped,
    and leaves an attribute without a value."""
    devices = [
        {
            **device,
            "attributes": {
                name: {key: one for key, one in value.items() if key != "strings"}
                for name, value in device["attributes"].items()
            },
        }
        for device in made["spec"]["devices"]
    ]
    return {**made, "spec": {**made["spec"], "devices": devices}}


def _of_mapping(device: Object) -> Iterator[str]:
    name, capacity = device["name"], device["capacity"]
    for resource, one in device.get("nodeAllocatableResources", {}).items():
        mapping = one["mapping"]
        if not (resource in ("cpu", "memory") or resource.startswith("hugepages-")):
            yield f"{name}: {resource} is not of a node"
        if mapping["capacityKey"] not in capacity or parse_quantity(mapping["capacityMultiplier"]) <= 0:
            yield f"{name}: {mapping}"


def _of_policy(capacity: Object) -> Iterator[str]:
    """validateRequestPolicy: a range has its default, its value and its step in it; of single values each is
    to be had, and one is the default."""
    if "requestPolicy" not in capacity:
        return
    value, policy = parse_quantity(capacity["value"]), capacity["requestPolicy"]
    default = parse_quantity(policy["default"])
    if "validValues" in policy:
        single = [parse_quantity(one) for one in policy["validValues"]]
        if default not in single or max(single) > value or "validRange" in policy:
            yield f"{policy} of the value {value}"
        return
    least, step = (parse_quantity(policy["validRange"][key]) for key in ("min", "step"))
    if not least <= default <= value:
        yield f"default {default}"
    if (default - least) % step:
        yield f"default {default} is no step"
    if least + step > value:
        yield f"a step of {step} above the value {value}"


def pool_devices(slices: Sequence[Object]) -> dict[str, Object] | None:
    """The devices that the scheduler takes from the *slices* of one pool, by name: those of the highest
    generation; None while they are not complete."""
    newest = max((one["spec"]["pool"]["generation"] for one in slices), default=0)
    current = [one["spec"] for one in slices if one["spec"]["pool"]["generation"] == newest]
    if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
        return None
    return {device["name"]: device for spec in current for device in spec["devices"]}
