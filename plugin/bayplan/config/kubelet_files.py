"""kubelet's own files among ours: its file and its drop-ins are one configuration, as in kubelet.

Source of the rules: cmd/kubelet/app/server.go of v1.37.2, loadConfigFile and mergeKubeletConfigurations. A
drop-in is a JSON merge patch (RFC 7386) on what stands before it: tables are merged, null takes a key away,
anything else replaces. The default of evictionHard is filled in before the first drop-in, and never again.
What kubelet's documents leave out has kubelet's default, unless another file or a flag says something of it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from bayplan.config.keys import FEATURE_GATES, KEYS
from bayplan.config.kubelet_documents import KUBELETS_API, KUBELETS_KIND
from bayplan.config.sources import Document, Source, Values
from bayplan.config.values import items, join, show
from bayplan.errors import Problem
from bayplan.model.kubelet_version import KubeletRules
from bayplan.model.policy import MemoryReservationPolicy
from bayplan.placement.foreign_cpusets import PinningManager

_HARD: Final = "evictionHard"
_MERGES_DEFAULTS: Final = "mergeDefaultEvictionSettings"
DEFAULT_EVICTION_HARD: Final[Mapping[str, object]] = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}
"""pkg/kubelet/eviction/defaults_linux.go."""

_DEFAULTS: Final[Mapping[str, object]] = {
    "topologyManagerPolicy": "none",
    "topologyManagerScope": "container",
    "cpuManagerPolicy": "none",
    "memoryManagerPolicy": "None",
}
"""kubelet's, where bayplan has others: pkg/kubelet/apis/config/v1beta1/defaults.go, the same from v1.32 to
v1.37. That of evictionHard is apart, because kubelet fills it in for its file only, not for drop-ins alone;
what is not the same in all versions is in `bayplan.model.kubelet_version`."""

_PINNING: Final[Mapping[tuple[str, str], PinningManager]] = {
    ("cpuManagerPolicy", "static"): PinningManager.CPU,
    ("memoryManagerPolicy", "Static"): PinningManager.MEMORY,
}
_RESERVED_TWICE: Final = ("reservedSystemCPUs", "systemReservedCgroup", "kubeReservedCgroup")
_GATES: Final = "featureGates"
_MEMORY_QOS: Final = "MemoryQoS"
_FACTOR: Final = "memoryThrottlingFactor"
_RESERVATION: Final = "memoryReservationPolicy"
_PARTNERS: Final[Mapping[str, Sequence[str]]] = {
    _RESERVED_TWICE[0]: _RESERVED_TWICE,
    _FACTOR: (_FACTOR, _GATES),
    _RESERVATION: (_RESERVATION, _GATES),
}
"""The keys that do not go together, by the one that a problem names."""

_TEXTS: Final = (
    "kubeReserved",
    "systemReserved",
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "cpuManagerPolicyOptions",
    "topologyManagerPolicyOptions",
)
"""The tables of which kubelet reads texts alone: map[string]string in its v1beta1/types.go."""


def kubelet_sources(documents: Sequence[Document], kubelet: KubeletRules) -> list[Source]:
    """*documents*, all of kubelet's, in order: each with the keys that it is the last one to set, and the
    values that these have in the end for that *kubelet*."""
    values, setters = _merged(documents)
    gates = _gates(values, kubelet)
    if gates:
        values[_GATES] = gates
    if not kubelet.reserves_memory:
        values.pop(_RESERVATION, None)
    wrong = (*_reserved_twice(values), *_without_memory_qos(values, gates, kubelet))
    # The last who sets one of two that do not go together is who is wrong.
    blamed = {
        problem: max((setters[key] for key in _PARTNERS[problem.path] if values.get(key)), default=0)
        for problem in wrong
    }
    return [
        _source(
            document,
            {key: value for key, value in values.items() if setters[key] == number},
            [problem for problem, by in blamed.items() if by == number],
            unknown=() if kubelet.reserves_memory or setters.get(_RESERVATION) != number else (_RESERVATION,),
        )
        for number, document in enumerate(documents)
    ]


def kubelet_defaults(documents: Sequence[Document], kubelet: KubeletRules) -> list[Source]:
    """What *documents*, all of kubelet's, leave to kubelet, as the first of all sources; nothing without
    any. *kubelet* has what its version decides."""
    if not documents:
        return []
    factor = kubelet.throttling_factor
    values = {**_DEFAULTS, "memoryThrottlingFactor": "none" if factor is None else factor}
    if not documents[0].file.drop_in:
        values[_HARD] = DEFAULT_EVICTION_HARD
    taken, managers = _taken(values)
    return [Source("kubelet's defaults", taken, of_managers=managers)]


def _merged(documents: Sequence[Document]) -> tuple[dict[str, object], dict[str, int]]:
    """The configuration that *documents* come to, and which of them was the last to set each key.

    Like kubelet it takes nothing and the empty text for a key that is not there.
    """
    values: dict[str, object] = {}
    setters: dict[str, int] = {}
    for number, document in enumerate(documents):
        if number == 0 and not document.file.drop_in:
            values = dict(document.values)
            if values.get(_HARD) is not None or len(documents) > 1:
                values[_HARD] = _with_default_eviction(values)
        else:
            values = _patched(values, document.values)
        setters |= dict.fromkeys(document.values, number)
    if len(documents) > 1 or any(document.file.drop_in for document in documents):
        if _HARD in setters:
            values.setdefault(_HARD, {})
        else:
            values.pop(_HARD, None)
        if isinstance(values.get(_MERGES_DEFAULTS), bool):
            values[_MERGES_DEFAULTS] = False
    return {key: value for key, value in values.items() if value not in (None, "")}, setters


def _patched(values: Mapping[str, object], patch: Mapping[str, object]) -> dict[str, object]:
    """*values* with the merge patch *patch*. No key that is read has tables within tables."""
    result = dict(values)
    for key, value in patch.items():
        known = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            joined = {**known, **value} if isinstance(known, Mapping) else value
            result[key] = {name: one for name, one in joined.items() if value.get(name, one) is not None}
        else:
            result[key] = value
    return result


def _with_default_eviction(values: Mapping[str, object]) -> object:
    """The evictionHard of kubelet's file, as kubelet completes it."""
    hard = values.get(_HARD)
    if hard is None:
        return DEFAULT_EVICTION_HARD
    if isinstance(hard, Mapping) and values.get(_MERGES_DEFAULTS) is True:
        return {**DEFAULT_EVICTION_HARD, **hard}
    return hard


def _gates(values: Mapping[str, object], kubelet: KubeletRules) -> dict[str, object]:
    """The feature gates, with those that AllAlpha and AllBeta stand for. To kubelet null is false."""
    said = values.get(_GATES)
    if not isinstance(said, Mapping):
        return {}
    gates = {gate: False if value is None else value for gate, value in said.items()}
    for name, meant in (("AllAlpha", kubelet.alpha_gates), ("AllBeta", kubelet.beta_gates)):
        if isinstance(gates.get(name), bool):
            gates = dict.fromkeys(meant, gates[name]) | gates
    return gates


def _without_memory_qos(
    values: Mapping[str, object], gates: Mapping[str, object], kubelet: KubeletRules
) -> Iterator[Problem]:
    """What kubelet's files set that takes the gate MemoryQoS, and the gate is off in them."""
    if gates.get(_MEMORY_QOS, kubelet.memory_qos) is not False:
        return
    gate = f"{_GATES} with {_MEMORY_QOS} true"
    if values.get(_RESERVATION) == MemoryReservationPolicy.TIERED.value:
        sentence = 'memoryReservationPolicy "TieredReservation" requires MemoryQoS feature gate to be enabled'
        yield Problem(_RESERVATION, show(values[_RESERVATION]), f"'None', or {gate}; kubelet: {sentence}")
    factor, only = values.get(_FACTOR), kubelet.factor_without_memory_qos
    if (
        only is not None
        and isinstance(factor, int | float)
        and not isinstance(factor, bool)
        and factor != only
    ):
        sentence = "memoryThrottlingFactor must not be set when MemoryQoS feature gate is disabled"
        yield Problem(_FACTOR, show(factor), f"none, {only}, or {gate}; kubelet: {sentence}")


def _source(
    document: Document,
    values: Mapping[str, object],
    problems: Collection[Problem],
    unknown: tuple[str, ...],
) -> Source:
    """What of the keys that *document* sets means the same here; how kubelet's managers work only for their
    engine."""
    taken, managers = _taken(values)
    gates = values.get(_GATES)
    others: Mapping[str, object] = {}
    if isinstance(gates, Mapping):
        ours = {gate: value for gate, value in gates.items() if gate in FEATURE_GATES}
        others = {gate: value for gate, value in gates.items() if gate not in FEATURE_GATES}
        taken[_GATES] = (_GATES, ours)
    return Source(
        document.name,
        taken,
        problems=(*_wrong_kind(document), *_wrong_types(document.values), *problems),
        unknown=unknown,
        of_managers=managers,
        of_kubelet=True,
        other_gates=others,
        pinning=tuple(manager for (key, value), manager in _PINNING.items() if values.get(key) == value),
    )


def _taken(values: Mapping[str, object]) -> tuple[dict[str, tuple[str, object]], Values]:
    """The keys that mean the same here, and those of kubelet's managers."""
    known = [(KEYS[key], value) for key, value in values.items() if key in KEYS]
    return (
        {key.name: (key.name, value) for key, value in known if key.of_kubelet},
        {key.name: (key.name, value) for key, value in known if key.of_managers},
    )


def _wrong_kind(document: Document) -> tuple[Problem, ...]:
    """What kubelet would not take as a drop-in at all."""
    if not document.file.drop_in:
        return ()
    return tuple(
        Problem(key, show(document.values.get(key)), f"{expected!r}; kubelet takes no other drop-in")
        for key, expected in (("apiVersion", KUBELETS_API), ("kind", KUBELETS_KIND))
        if document.values.get(key) != expected
    )


def _wrong_types(values: Mapping[str, object]) -> Iterator[Problem]:
    """What our own files may have without quotes and kubelet does not decode."""
    for key in _TEXTS:
        for name, value in _entries(values, key):
            if not isinstance(value, str | None):
                sentence = f"cannot unmarshal into KubeletConfiguration.{key} of type string"
                yield Problem(join(key, name), show(value), f"a text, in quotes; kubelet: {sentence}")
    for gate, value in _entries(values, _GATES):
        if gate not in FEATURE_GATES and not isinstance(value, bool | None):
            yield Problem(join(_GATES, gate), show(value), "true or false")


def _entries(values: Mapping[str, object], key: str) -> list[tuple[str, object]]:
    """Those of the table *key*; where it is none, that is said by who reads it."""
    table = values.get(key)
    return items(key, table) if isinstance(table, Mapping) else []


def _reserved_twice(values: Mapping[str, object]) -> tuple[Problem, ...]:
    """An explicit list of CPUs and cgroups for the reservations, of which kubelet takes one only."""
    cpus, *groups = _RESERVED_TWICE
    groups = [key for key in groups if values.get(key)]
    if not groups or not values.get(cpus):
        return ()
    found = f"{show(values[cpus])} beside {' and '.join(groups)}"
    kubelet = (
        "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) "
        "or kubeReservedCgroup (--kube-reserved-cgroup)"
    )
    return (Problem(cpus, found, f"one or the other; kubelet: {kubelet}"),)
