"""What the fields of an OCI spec mean for devices, the same whether the spec comes over NRI or as a document.

Pure, on plain texts and numbers: the wire formats are others' business.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from bayplan.model.workload import DeviceType

DEVICE_TYPES: Final = {"c": DeviceType.CHARACTER, "u": DeviceType.CHARACTER, "b": DeviceType.BLOCK}
"""``u`` is an unbuffered character device, the same to the kernel. Pipes (``p``) are no devices."""

DEVICE_TREES: Final = ("/dev/", "/sys/")
"""Mounts with a source below can be about devices, all others cannot."""

NETWORK: Final = "network"
"""The type of the namespace that interfaces are in."""

_CDI_ANNOTATION: Final = "cdi.k8s.io/"
_EVERY_TYPE: Final = frozenset({"", "a"})


def opens_everything(*, allow: bool, kind: str, major: int | None, minor: int | None) -> bool:
    """Whether a rule of the device cgroup opens all devices, as those of privileged containers do. Numbers
    below zero are any number."""
    return allow and kind in _EVERY_TYPE and all(one is None or one < 0 for one in (major, minor))


def cdi_names(listed: Iterable[str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """CDI names that a runtime lists, and those in annotations, where clients put them before CRI had a field
    for them; each once."""
    names = list(listed)
    for key in annotations:
        if key.startswith(_CDI_ANNOTATION):
            names += [name.strip() for name in annotations[key].split(",")]
    return tuple(dict.fromkeys(filter(None, names)))
