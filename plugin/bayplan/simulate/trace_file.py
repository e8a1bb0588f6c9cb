"""A trace: the events that a simulation plays, and how they are read from a file of JSON lines, or of a YAML
list of the same objects."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from bayplan.config.values import InvalidValueError, ProblemCollector, invalid, items, show, unknown_key
from bayplan.config.yaml_text import parse_yaml
from bayplan.errors import ConfigError, ParseError, Problem, excerpt
from bayplan.files import MIB, STANDARD_INPUT, given_text
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import NEWEST, KubeletRules
from bayplan.model.machine import Machine
from bayplan.model.qos import quota_from_milli, shares_from_milli
from bayplan.model.resources import DEFAULT_PERIOD_US, Resources
from bayplan.quantity import parse_bytes, parse_milli_cpus
from bayplan.simulate.manifest import GeneratedNames, PlannedPod, plan_manifest, sizes_manifest

MAX_TRACE_BYTES: Final = 64 * MIB
"""About 300,000 pods."""

_SIZES: Final = ("memory", "memoryLimit", "cpus", "hugepages", "qos", "annotations")
_KINDS: Final = ("arrive", "depart", "resize")


class Arrival(Struct, frozen=True):
    """A pod comes."""

    pod: PlannedPod

    @property
    def name(self) -> str:
        """``namespace/pod``."""
        return self.pod.name


class Departure(Struct, frozen=True):
    """The pod *name* (``namespace/pod``) goes; one that is not there, because it was refused, is no error."""

    name: str


class Resize(Struct, frozen=True):
    """The container *name* (``namespace/pod/container``) is to have other resources."""

    name: str
    change: Resources


Event = Arrival | Departure | Resize


def read_trace(path: Path, machine: Machine, kubelet: KubeletRules = NEWEST) -> list[Event]:
    """The events of the file at *path* (``-`` is the standard input), for pods on *machine* that *kubelet*
    creates; the format is in docs/simulate.md.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    content = given_text(path, "a trace of pods", MAX_TRACE_BYTES)
    collector = ProblemCollector()
    events: list[Event] = []
    names = GeneratedNames()
    in_yaml = path.suffix in (".yaml", ".yml") or (str(path) == STANDARD_INPUT and _is_list(content))
    with collector:
        for where, value in _documents(content, in_yaml=in_yaml):
            with collector:
                events += _events(where, value, machine, names, kubelet)
    if collector.problems:
        raise ConfigError(str(path), tuple(collector.problems))
    return events


def _is_list(content: str) -> bool:
    """Whether a text without a name is a list in YAML, of which JSON's are some, and no JSON lines."""
    lines = (line for line in content.splitlines() if line.strip() and not line.startswith("#"))
    return not next(lines, "{").lstrip().startswith("{")


def _documents(content: str, *, in_yaml: bool) -> Iterator[tuple[str, object]]:
    """The objects of the file, each with where it is."""
    if in_yaml:
        value = parse_yaml(content)
        if not isinstance(value, list):
            raise invalid("the file", show(value), "a list of events")
        yield from ((f"event {number}", one) for number, one in enumerate(value, 1))
        return
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            yield f"line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise invalid(f"line {number}", str(error), "a JSON object") from error


def _events(
    where: str, value: object, machine: Machine, names: GeneratedNames, kubelet: KubeletRules
) -> list[Event]:
    event = dict(items(where, value))
    kinds = [key for key in _KINDS if key in event]
    if len(kinds) != 1:
        raise invalid(where, ", ".join(event) or "nothing", f"one of {', '.join(_KINDS)}")
    kind = kinds[0]
    subject = event.pop(kind)
    if kind == "depart":
        _no_more(where, event, ())
        return [Departure(_name(where, subject))]
    if kind == "resize":
        _no_more(where, event, ("memory", "cpus"))
        return [Resize(_container_name(where, subject), _change(where, event))]
    _no_more(where, event, () if isinstance(subject, Mapping) else _SIZES)
    manifest = subject if isinstance(subject, Mapping) else _manifest(where, subject, event)
    try:
        return [Arrival(pod) for pod in plan_manifest(manifest, machine, names=names, kubelet=kubelet)]
    except ConfigError as error:
        located = [Problem(f"{where}: {one.path}", one.found, one.expected) for one in error.problems]
        raise InvalidValueError(*located) from error


def _manifest(where: str, subject: object, sizes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The manifest of a pod that is given by its sizes."""
    if not isinstance(subject, str) or not subject:
        raise invalid(where, show(subject), "arrive: a name, or a pod manifest")
    qos = sizes.get("qos")
    if qos is not None and qos not in [one.value for one in QosClass]:
        raise invalid(f"{where}: qos", show(qos), "Guaranteed, Burstable or BestEffort")

    def amount(key: str) -> str | None:
        return None if sizes.get(key) is None else str(sizes[key])

    def texts(key: str) -> dict[str, str]:
        return {name: str(text) for name, text in items(f"{where}: {key}", sizes.get(key, {}))}

    return sizes_manifest(
        subject,
        memory=amount("memory"),
        memory_limit=amount("memoryLimit"),
        cpus=amount("cpus"),
        hugepages=texts("hugepages"),
        qos=qos,
        annotations=texts("annotations"),
    )


def _change(where: str, event: Mapping[str, Any]) -> Resources:
    memory_bytes = milli = None
    try:
        if "memory" in event:
            memory_bytes = parse_bytes(str(event["memory"]))
        if "cpus" in event:
            milli = parse_milli_cpus(str(event["cpus"]))
    except ParseError as error:
        raise invalid(where, repr(excerpt(error.found)), error.expected) from error
    return Resources(
        memory_limit_bytes=memory_bytes,
        cpu_shares=None if milli is None else shares_from_milli(milli),
        cpu_quota_us=None if milli is None else quota_from_milli(milli),
        cpu_period_us=None if milli is None else DEFAULT_PERIOD_US,
    )


def _no_more(where: str, event: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in event:
        if key not in known:
            raise InvalidValueError(unknown_key(where, key, known or _KINDS))


def _name(where: str, value: object) -> str:
    """``namespace/pod``; the namespace may be left out."""
    if not isinstance(value, str) or not value:
        raise invalid(where, show(value), "the name of a pod")
    parts = value.split("/")
    return "/".join(parts[:2]) if len(parts) > 1 else f"default/{value}"


def _container_name(where: str, value: object) -> str:
    """``namespace/pod/container``; as for sizes, namespace and container may be left out."""
    pod = _name(where, value)
    return f"{pod}/{'/'.join(str(value).split('/')[2:]) or 'main'}"
