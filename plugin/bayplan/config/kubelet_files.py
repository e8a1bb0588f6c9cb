"""kubelet's own files among ours: its file and its drop-ins are one configuration, as in kubelet.

Source of the rules: cmd/kubelet/app/server.go of v1.37.2, loadConfigFile and mergeKubeletConfigurations. A
drop-in is a JSON merge patch (RFC 7386) on what stands before it: tables are merged, null takes a key away,
anything else replaces. The default of evictionHard is filled in before the first drop-in, and never again.
What kubelet's documents leave out has kubelet's default, unless another file or a flag says something of it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from bayplan.config.keys import FEATURE_GATES, KEYS
from bayplan.config.kubelet_documents import KUBELETS_API, KUBELETS_KIND
from bayplan.config.settings import Settings
from bayplan.config.sources import Document, Source, Values
from bayplan.config.values import InvalidValueError, items, join, show
from bayplan.errors import ParseError, Problem, excerpt, meant_by
from bayplan.model.kubelet_version import GateFault, KubeletRules, faults, gates_of, resolved
from bayplan.model.policy import MemoryReservationPolicy
from bayplan.placement.foreign_cpusets import PinningManager
from bayplan.printable import pattern

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
_SHUTDOWN: Final = (
    "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate {gate}"
)
_MEMORY_QOS: Final = "MemoryQoS"
_FACTOR: Final = "memoryThrottlingFactor"
_RESERVATION: Final = "memoryReservationPolicy"
_REQUIRES: Final = "{key} {value} requires feature gate {gate}"
_REQUIRED: Final = "{gate} feature gate is required for Kubelet configuration option {key}"
_NOT_SET: Final = "`{key}` must not be set if {gate} feature gate is not enabled"
_GATED: Final[Mapping[str, tuple[str, str]]] = {
    "cpuCFSQuotaPeriod": (
        "CustomCPUCFSQuotaPeriod",
        _REQUIRES.replace("{key}", "{key} (--cpu-cfs-quota-period)"),
    ),
    "crashLoopBackOff": (
        "KubeletCrashLoopBackOffMax",
        "FeatureGate {gate} not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set",
    ),
    "defaultPodSysctls": ("DefaultPodSysctls", _REQUIRED),
    "enableSystemLogQuery": ("NodeLogQuery", "{gate} feature gate is required for {key}"),
    "imageMaximumGCAge": ("ImageMaximumGCAge", _REQUIRED),
    "imagePullCredentialsVerificationPolicy": ("KubeletEnsureSecretPulledImages", _NOT_SET),
    "preloadedImagesVerificationAllowlist": ("KubeletEnsureSecretPulledImages", _NOT_SET),
    "serverTLSBootstrap": ("RotateKubeletServerCertificate", _REQUIRES),
    "shutdownGracePeriod": ("GracefulNodeShutdown", _SHUTDOWN),
    "shutdownGracePeriodCriticalPods": ("GracefulNodeShutdown", _SHUTDOWN),
    "shutdownGracePeriodByPodPriority": (
        "GracefulNodeShutdownBasedOnPodPriority",
        "Specifying {key} requires feature gate {gate}",
    ),
}
"""The feature gates that keys take, and kubelet's sentence without: pkg/kubelet/apis/config/validation. One
that is locked in all versions has no row."""
_FILLED_IN: Final[Mapping[str, object]] = {
    "crashLoopBackOff": {"maxContainerRestartPeriod": "5m0s"},
    "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages",
}
"""What these get where their gate is on, before the first drop-in is read: v1beta1/defaults.go."""
_SAYS_NOTHING: Final = pattern(r"[0.hmsunµ]*")
"""A text that is empty, or a duration of zero."""

_PARTNERS: Final[Mapping[str, Sequence[str]]] = {
    _RESERVED_TWICE[0]: _RESERVED_TWICE,
    **{key: (key, _GATES) for key in (_FACTOR, _RESERVATION, *_GATED)},
}
"""The keys that do not go together, by the one that a problem names."""

_META: Final = ("apiVersion", "kind")
_KEY_NAMES: Final = """
    address allowedUnsafeSysctls authentication authorization cgroupDriver cgroupRoot cgroupsPerQOS
    clusterDNS clusterDomain configMapAndSecretChangeDetectionStrategy containerLogMaxFiles
    containerLogMaxSize containerLogMaxWorkers containerLogMonitorInterval containerRuntimeEndpoint
    contentType cpuCFSQuota cpuCFSQuotaPeriod cpuManagerPolicy cpuManagerPolicyOptions
    cpuManagerReconcilePeriod crashLoopBackOff enableContentionProfiling enableControllerAttachDetach
    enableDebugFlagsHandler enableDebuggingHandlers enableProfilingHandler enableServer
    enableSystemLogHandler enableSystemLogQuery enforceNodeAllocatable eventBurst eventRecordQPS
    evictionHard evictionMaxPodGracePeriod evictionMinimumReclaim evictionPressureTransitionPeriod
    evictionSoft evictionSoftGracePeriod failCgroupV1 failSwapOn featureGates fileCheckFrequency
    hairpinMode healthzBindAddress healthzPort httpCheckFrequency imageGCHighThresholdPercent
    imageGCLowThresholdPercent imageMaximumGCAge imageMinimumGCAge
    imagePullCredentialsVerificationPolicy imageServiceEndpoint iptablesDropBit iptablesMasqueradeBit
    kernelMemcgNotification kubeAPIBurst kubeAPIQPS kubeReserved kubeReservedCgroup kubeletCgroups
    localStorageCapacityIsolation logging makeIPTablesUtilChains maxOpenFiles maxParallelImagePulls
    maxPods memoryManagerPolicy memorySwap memoryThrottlingFactor mergeDefaultEvictionSettings
    nodeLeaseDurationSeconds nodeStatusMaxImages nodeStatusReportFrequency nodeStatusUpdateFrequency
    oomScoreAdj podCIDR podLogsDir podPidsLimit podsPerCore port preloadedImagesVerificationAllowlist
    protectKernelDefaults providerID qosReserved readOnlyPort registerNode registerWithTaints
    registryBurst registryPullQPS reservedMemory reservedSystemCPUs resolvConf rotateCertificates
    runOnce runtimeRequestTimeout seccompDefault serializeImagePulls serverTLSBootstrap
    showHiddenMetricsForVersion shutdownGracePeriod shutdownGracePeriodByPodPriority
    shutdownGracePeriodCriticalPods singleProcessOOMKill staticPodPath staticPodURL staticPodURLHeader
    streamingConnectionIdleTimeout syncFrequency systemCgroups systemReserved systemReservedCgroup
    tlsCertFile tlsCipherSuites tlsMinVersion tlsPrivateKeyFile topologyManagerPolicy
    topologyManagerPolicyOptions topologyManagerScope tracing userNamespaces volumePluginDir
    volumeStatsAggPeriod
"""
_KEYS_OF_1_34: Final = frozenset(_KEY_NAMES.split())
"""The keys of a KubeletConfiguration: ``config/v1beta1/types.go`` of the module kubelet. None of them was
taken away up to v1.37; later ones are in `bayplan.model.kubelet_version`."""

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
    values, setters = _merged(documents, kubelet)
    blamed = _wrong_gates(documents, _said_gates(values), kubelet)
    gates = resolved(kubelet.minor, _said_gates(values))
    if gates:
        values[_GATES] = gates
    known = _KEYS_OF_1_34 | kubelet.later_keys
    values = {key: value for key, value in values.items() if key in known}
    wrong = (
        *_reserved_twice(values),
        *_without_memory_qos(values, gates, kubelet),
        *_without_gate(values, gates, kubelet),
    )
    # Of two keys that do not go together the document that sets one last is wrong.
    blamed |= {
        problem: max(
            (setters[key] for key in _PARTNERS[problem.path] if values.get(key) and key in setters), default=0
        )
        for problem in wrong
    }
    return [
        _source(
            document,
            {key: value for key, value in values.items() if setters.get(key) == number},
            [problem for problem, by in blamed.items() if by == number],
            remarks=tuple(_unknown_keys(document, known, kubelet)),
        )
        for number, document in enumerate(documents)
    ]


def overridden_by_flags(flags: Mapping[str, Sequence[str]], settings: Settings) -> Iterator[str]:
    """Which of the *flags* that kubelet runs with say something else than *settings*, which were made of its
    files: flags win over them."""
    for key in KEYS.values():
        texts = flags.get(key.flag, ())
        if not texts or not (key.of_kubelet or (key.of_managers and settings.engine_kind.is_kubelets)):
            continue
        # What it cannot mean kubelet does not start with.
        with suppress(InvalidValueError, ParseError):
            said = key.plain(texts)
            if key.name == _GATES and isinstance(said, Mapping):
                known, have = gates_of(settings.kubelet_minor), settings.feature_gates
                differ = [
                    gate
                    for gate, on in said.items()
                    if gate in FEATURE_GATES
                    and on is not have.get(gate, known[gate].default if gate in known else False)
                ]
            else:
                differ = [key.name] if key.read(key.flag, said) != getattr(settings, key.field) else []
            if differ:
                flag = excerpt(" ".join(f"--{key.flag}={text}" for text in texts))
                what = f"it wins over kubelet's files, and {', '.join(differ)} is something else here"
                yield f"kubelet runs with {flag}: {what}; give baypland the same flag"


def pinning_managers(
    sources: Sequence[Source], flags: Mapping[str, Sequence[str]]
) -> dict[PinningManager, str]:
    """The managers of kubelet that pin containers, with where that is said: in *sources*, or by the *flags*
    that kubelet runs with."""
    found = {manager: source.name for source in sources for manager in source.pinning}
    for (key, policy), manager in _PINNING.items():
        for said in flags.get(KEYS[key].flag, ())[-1:]:
            found.pop(manager, None)
            if said == policy:
                found[manager] = "kubelet's command line"
    return found


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


def _merged(documents: Sequence[Document], kubelet: KubeletRules) -> tuple[dict[str, object], dict[str, int]]:
    """The configuration that *documents* come to, and which of them was the last to set each key.

    Like kubelet it takes nothing and the empty text for a key that is not there.
    """
    values: dict[str, object] = {}
    setters: dict[str, int] = {}
    with_drop_ins = len(documents) > 1 or any(document.file.drop_in for document in documents)
    for number, document in enumerate(documents):
        own = number == 0 and not document.file.drop_in
        if own:
            values = dict(document.values)
            if values.get(_HARD) is not None or len(documents) > 1:
                values[_HARD] = _with_default_eviction(values)
        if number == 0 and with_drop_ins:
            values = _filled_in(values, kubelet)
        if not own:
            values = _patched(values, document.values)
        setters |= dict.fromkeys(document.values, number)
    if with_drop_ins:
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


def _filled_in(values: Mapping[str, object], kubelet: KubeletRules) -> dict[str, object]:
    """*values* with defaults that last if a drop-in switches off what they take."""
    gates: dict[str, object] = {name: gate.default for name, gate in gates_of(kubelet.minor).items()}
    gates |= resolved(kubelet.minor, _said_gates(values))
    found = dict(values)
    for key, default in _FILLED_IN.items():
        if gates[_GATED[key][0]] is True:
            said = {} if found.get(key) in (None, "") else {key: found[key]}
            found |= _patched({key: default}, said)
    return found


def _with_default_eviction(values: Mapping[str, object]) -> object:
    """The evictionHard of kubelet's file, as kubelet completes it."""
    hard = values.get(_HARD)
    if hard is None:
        return DEFAULT_EVICTION_HARD
    if isinstance(hard, Mapping) and values.get(_MERGES_DEFAULTS) is True:
        return {**DEFAULT_EVICTION_HARD, **hard}
    return hard


def _said_gates(values: Mapping[str, object]) -> dict[str, object]:
    """The feature gates that *values* have. To kubelet null is false."""
    said = values.get(_GATES)
    if not isinstance(said, Mapping):
        return {}
    return {gate: False if value is None else value for gate, value in said.items()}


def _wrong_gates(
    documents: Sequence[Document], merged: Mapping[str, object], kubelet: KubeletRules
) -> dict[Problem, int]:
    """The feature gates with which kubelet would not start, and which document is to blame for each.

    Its own file alone must be right, since it gets its defaults before drop-ins are read; and the end."""
    if not documents or not kubelet.refuses_gates:
        return {}
    said = [_said_gates(document.values) for document in documents]
    first = {} if documents[0].file.drop_in else said[0]
    wrong = {_in_words(fault, kubelet): 0 for fault in _faults(first, kubelet)}
    for fault in _faults(merged, kubelet):
        naming = {fault.gate, *fault.missing}
        by = [number for number, gates in enumerate(said) if not naming.isdisjoint(gates)]
        # AllAlpha and AllBeta stand for the gates that are not named.
        by = by or [number for number, gates in enumerate(said) if gates]
        wrong.setdefault(_in_words(fault, kubelet), by[-1])
    return wrong


def _faults(gates: Mapping[str, object], kubelet: KubeletRules) -> Iterator[GateFault]:
    return faults(kubelet.minor, {gate: value for gate, value in gates.items() if isinstance(value, bool)})


def _in_words(fault: GateFault, kubelet: KubeletRules) -> Problem:
    found, expected = show(fault.on), f"a gate that kubelet {kubelet} has"
    if fault.missing:
        found = f"{found}, but {' and '.join(fault.missing)} off"
        expected = "all of them on, or this one off"
    elif fault.locked:
        expected = f"{show(not fault.on)}, to which it is locked, or nothing"
    elif fault.known_to:
        versions = " to ".join(f"1.{minor}" for minor in sorted({fault.known_to[0], fault.known_to[-1]}))
        expected += f", unlike {versions}; kubeletVersion says which one reads the file"
    elif near := meant_by(fault.gate, gates_of(kubelet.minor)):
        expected += f", {near} perhaps"
    path = join(_GATES, fault.gate)
    return Problem(path, found, f"{expected}; kubelet: {fault.sentence}")


def _unknown_keys(document: Document, known: Collection[str], kubelet: KubeletRules) -> Iterator[str]:
    """Remarks on keys that kubelet of this version does not know: it warns, or with drop-ins is silent, and
    starts without them (``kubeletconfig/util/codec``)."""
    spelled = {key.lower(): key for key in known}
    for key in document.values:
        if key in known or key in _META:
            continue
        near = spelled.get(key.lower()) or meant_by(key, known)
        advice = f"; perhaps {near}" if near else ""
        yield f"{excerpt(key)}: without effect; kubelet {kubelet} does not know it{advice}"


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


def _without_gate(
    values: Mapping[str, object], gates: Mapping[str, object], kubelet: KubeletRules
) -> Iterator[Problem]:
    """The keys whose feature gate is off, or not there yet."""
    known = gates_of(kubelet.minor)
    for key, (gate, sentence) in _GATED.items():
        if (
            not kubelet.refuses_gates
            or gate not in known
            or gates.get(gate, known[gate].default) is not False
        ):
            continue
        if _says_something(key, values.get(key)):
            kubelets = sentence.format(key=key, gate=gate, value=show(values[key]).strip("'"))
            expected = (
                f"nothing, or {_GATES} with {gate} true, which kubelet {kubelet} does not have by itself"
            )
            yield Problem(key, show(values[key]), f"{expected}; kubelet: {kubelets}")


def _says_something(key: str, value: object) -> bool:
    """Whether *value* of a key that takes a feature gate takes it."""
    if key == "cpuCFSQuotaPeriod":
        return value not in (None, "100ms", "0.1s")
    if key == "crashLoopBackOff" and isinstance(value, Mapping):
        return value.get("maxContainerRestartPeriod") is not None
    return bool(value) and not (isinstance(value, str) and _SAYS_NOTHING.fullmatch(value))


def _source(
    document: Document,
    values: Mapping[str, object],
    problems: Collection[Problem],
    remarks: tuple[str, ...],
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
        remarks=remarks,
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
    """What kubelet would not take at all: without its kind a file is none of its own, but a drop-in is."""
    version, kind = (document.values.get(key) for key in ("apiVersion", "kind"))
    if document.file.drop_in:
        return tuple(
            Problem(key, show(found), f"{expected!r}; kubelet takes no other drop-in")
            for key, found, expected in (("apiVersion", version, KUBELETS_API), ("kind", kind, KUBELETS_KIND))
            if found != expected
        )
    if version == KUBELETS_API:
        return ()
    sentence = f'no kind "{KUBELETS_KIND}" is registered for version "{version}"'
    if version in (None, ""):
        sentence = "Object 'apiVersion' is missing"
    return (Problem("apiVersion", show(version), f"{KUBELETS_API!r}; kubelet: {sentence}"),)


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
