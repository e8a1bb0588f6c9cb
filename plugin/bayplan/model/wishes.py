"""What a pod asks of bayplan by annotation.

``bayplan.dev/KEY`` holds for every container of the pod, ``CONTAINER.bayplan.dev/KEY`` for one container
and wins over the other. The container's name goes into the prefix, because the part after the slash is
limited to 63 characters and a container's name alone may have as many. To add a key: a reader, a row in
`KEYS`, a field of `Wishes`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.errors import ConfigError, ParseError, Problem, excerpt, meant_by
from bayplan.model.decision import (
    CpuUse,
    CpuWish,
    DeviceHint,
    EvenHugepagesWish,
    ExecCpus,
    MemoryPolicyMode,
    MemoryPolicyWish,
    NodeWish,
    Request,
    TierWish,
)
from bayplan.model.machine import CORE_KINDS, Machine, hugepages
from bayplan.model.memory_kinds import tier_rank
from bayplan.model.policy import CpuPool, CpuRule, PlacementStrategy
from bayplan.model.workload import Pod
from bayplan.printable import pattern
from bayplan.quantity import MILLI_PER_CPU, counted, parse_bytes, whole_number
from bayplan.sets import NodeSet

PREFIX: Final = "bayplan.dev"
DECISION_ANNOTATION: Final = f"{PREFIX}/decision"
"""Not a wish: what was decided, written into the container by us. It is ignored where a pod brings it."""
DEFAULT_CPUS_ANNOTATION: Final = f"{PREFIX}/cpus-by-default"
"""The same of the CPUs that a container was given when there was no time for a decision."""
ALL: Final = "all"
"""In place of the names of devices: every one."""

MAX_CHARACTERS: Final = 16_384
"""In one annotation, while the runtime waits; all nodes of the largest machine, one by one, take 5000."""

MAX_KEY_CHARACTERS: Final = 63
"""Kubernetes' limit for what comes after the slash; a runtime passes on anything."""

MAX_PROBLEMS: Final = 20
"""No more unknown keys than these are reported of one container; they are recorded with its decision."""

_NO_HUGEPAGES: Final[Mapping[int, int]] = {}

ENVIRONMENTS: Final = ("dpdk", "go", "jvm", "openmp")
"""The programs whose variables of the environment a container can have set; see
`bayplan.placement.placement_file`."""

POOL_NAME: Final = pattern(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""What a named pool can be called: an RFC 1123 label."""

_NO_POOLS: Final[Mapping[str, CpuPool]] = {}
_SEPARATOR: Final = ";"
_HINTS_EXPECTED: Final = "DEVICE=NODES, several separated by ;, like gpu=1; nic=0-1"

MEMORY_POLICY_FLAGS: Final[Mapping[str, str]] = {"static": "static_nodes", "relative": "relative_nodes"}
"""The kernel's words for the flags in a tmpfs ``mpol=`` option, and their names in set_mempolicy(2)."""


class Wishes(Struct, frozen=True):
    """The wishes of one container. ``memory_limit_bytes`` is for a container whose spec has no limit,
    ``memory_request_bytes`` for one of which nothing else says exactly what it requests.

    ``added_hints`` count beside those of the container's own devices, of which ``ignored_hints`` names the
    ones that don't count (or ALL); ``replaced_hints`` count instead of everything else.
    ``placement_file`` is None where the operator decides about it; ``environment`` are some of ENVIRONMENTS.
    """

    memory_limit_bytes: int | None = None
    memory_request_bytes: int | None = None
    added_hints: tuple[DeviceHint, ...] = ()
    ignored_hints: frozenset[str] = frozenset()
    replaced_hints: tuple[DeviceHint, ...] | None = None
    nodes: NodeWish | None = None
    tier: TierWish | None = None
    memory_policy: MemoryPolicyWish | None = None
    opted_out: bool = False
    keeps_pages: bool = False
    may_move: bool = True
    strategy: PlacementStrategy | None = None
    even_hugepages: EvenHugepagesWish | None = None
    cpus: CpuWish | None = None
    cpu_kind: str = ""
    placement_file: bool | None = None
    environment: frozenset[str] = frozenset()
    exec_cpus: ExecCpus | None = None
    partition: bool = False
    irqs_away: bool = False


NO_WISHES: Final = Wishes()

_OF_OWN_CPUS: Final[Mapping[str, str]] = {
    "cpu_kind": "cpu-kind",
    "exec_cpus": "exec-cpus",
    "partition": "cpu-partition",
    "irqs_away": "irqs",
    "environment": "placement-environment",
}
"""The fields of `Wishes`, and of a request, that say something of CPUs of a container's own; their keys."""


class AnnotationKey(Struct, frozen=True):
    """One annotation: the field of `Wishes` that it sets, and how its text is read on a machine, if there is
    one (raises ParseError)."""

    field: str
    read: Callable[[str, Machine | None], object]


def _positive_bytes(text: str) -> int:
    amount_bytes = parse_bytes(text)
    if amount_bytes == 0:
        raise ParseError("amount of memory", text, "more than 0 bytes")
    return amount_bytes


def _device_hints(text: str) -> tuple[DeviceHint, ...]:
    """``DEVICE=NODES; ...``; a device's name may hold ``=`` itself, as those of CDI do."""
    hints: dict[str, DeviceHint] = {}
    for part in text.split(_SEPARATOR):
        device, equals, nodes = (word.strip() for word in part.rpartition("="))
        if not equals or not device or not nodes or device in hints:
            raise ParseError("device hints", text, _HINTS_EXPECTED)
        try:
            hints[device] = DeviceHint(device, NodeSet.parse(nodes))
        except ParseError as error:
            raise ParseError("device hints", text, _HINTS_EXPECTED) from error
    return tuple(hints.values())


def _device_names(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(_SEPARATOR)]
    if not all(names) or (ALL in names and len(names) > 1):
        raise ParseError("devices", text, f"{ALL}, or names of devices separated by ;")
    return frozenset(names)


def _nodes(text: str) -> NodeSet:
    nodes = NodeSet.parse(text)
    if not nodes:
        raise ParseError("NUMA node list", text, "at least one node, such as 0 or 0-1")
    return nodes


def _tier(text: str, machine: Machine | None) -> int:
    if machine is not None:
        return tier_rank(machine, text)
    rank = whole_number(text)
    if rank is None:
        raise ParseError("memory tier", text, "a rank: 0 for the fastest tier, 1 for the next one")
    return rank


def _memory_policy(text: str) -> MemoryPolicyWish:
    """``MODE[=FLAG][:NODES]``, as the kernel writes it in tmpfs' mpol option (``interleave=static:0-3``)."""
    head, colon, nodes = text.partition(":")
    mode, equals, flag = head.partition("=")
    modes = [one.value for one in MemoryPolicyMode if one is not MemoryPolicyMode.DEFAULT]
    local = mode == MemoryPolicyMode.LOCAL.value
    if mode not in modes or (equals and flag not in MEMORY_POLICY_FLAGS) or (local and (colon or equals)):
        expected = f"MODE[=FLAG][:NODES], MODE one of {', '.join(modes)}, FLAG static or relative"
        raise ParseError("memory policy", text, f"{expected}; local has neither flag nor nodes")
    return MemoryPolicyWish(
        MemoryPolicyMode(mode),
        _nodes(nodes) if colon else None,
        (MEMORY_POLICY_FLAGS[flag],) if equals else (),
    )


def _even_hugepages(text: str) -> EvenHugepagesWish:
    count = whole_number(text)
    if not count:
        raise ParseError("number of NUMA nodes", text, "how many nodes, 1 or more")
    return EvenHugepagesWish(count)


def _strategy(text: str) -> PlacementStrategy:
    known = {one.value: one for one in PlacementStrategy}
    if text not in known:
        raise ParseError("placement strategy", text, " or ".join(known))
    return known[text]


def _cpu_wish(text: str) -> CpuWish:
    known = {one.value: one for one in CpuUse if one is not CpuUse.POOL}
    use, equals, value = text.partition("=")
    if use == CpuUse.POOL.value and POOL_NAME.fullmatch(value):
        return CpuWish(CpuUse.POOL, pool=value)
    count = whole_number(value) if equals else None
    if use not in known or (equals and (not count or use == CpuUse.SHARED.value)):
        expected = ", ".join(known)
        raise ParseError(
            "use of CPUs", text, f"{expected}, exclusive=NUMBER or isolated=NUMBER of CPUs, or pool=NAME"
        )
    return CpuWish(known[use], count)


def _cpu_kind(text: str, machine: Machine | None) -> str:
    known = CORE_KINDS if machine is None else tuple(machine.cpus_by_kind)
    if text not in known:
        alike = "no kind, as all cores of this machine are alike"
        raise ParseError("kind of cores", text, " or ".join(known) or alike)
    return text


def _exec_cpus(text: str) -> ExecCpus:
    known = {one.value: one for one in ExecCpus}
    if text not in known:
        raise ParseError("CPUs of later processes", text, " or ".join(known))
    return known[text]


def _environment(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(_SEPARATOR))
    if not names <= set(ENVIRONMENTS):
        raise ParseError("environment", text, f"{', '.join(ENVIRONMENTS)}, several separated by ;")
    return names


def _only(known: str) -> Callable[[str], bool]:
    """A reader for a key that has only some *known* texts."""

    def read(text: str) -> bool:
        if text != known:
            raise ParseError("choice", text, known)
        return True

    return read


def _yes_or_no(text: str) -> bool:
    if text not in ("true", "false"):
        raise ParseError("switch", text, "true or false")
    return text == "true"


def _key(field: str, read: Callable[[str], object]) -> AnnotationKey:
    """A key whose text means the same on every machine."""
    return AnnotationKey(field, lambda text, _: read(text))


KEYS: Final[Mapping[str, AnnotationKey]] = {
    "memory-limit": _key("memory_limit_bytes", _positive_bytes),
    "memory-request": _key("memory_request_bytes", parse_bytes),
    "preferred-nodes": _key("nodes", lambda text: NodeWish(_nodes(text))),
    "required-nodes": _key("nodes", lambda text: NodeWish(_nodes(text), required=True)),
    "preferred-tier": AnnotationKey("tier", lambda text, machine: TierWish(_tier(text, machine))),
    "required-tier": AnnotationKey(
        "tier", lambda text, machine: TierWish(_tier(text, machine), required=True)
    ),
    "memory-policy": _key("memory_policy", _memory_policy),
    "hugepages-over-nodes": _key("even_hugepages", _even_hugepages),
    "placement-strategy": _key("strategy", _strategy),
    "cpus": _key("cpus", _cpu_wish),
    "cpu-kind": AnnotationKey("cpu_kind", _cpu_kind),
    "exec-cpus": _key("exec_cpus", _exec_cpus),
    "cpu-partition": _key("partition", _only("isolated")),
    "irqs": _key("irqs_away", _only("away")),
    "opt-out": _key("opted_out", _yes_or_no),
    "keep-pages": _key("keeps_pages", _yes_or_no),
    "may-move": _key("may_move", _yes_or_no),
    "placement-file": _key("placement_file", _yes_or_no),
    "placement-environment": _key("environment", _environment),
    "add-device-hints": _key("added_hints", _device_hints),
    "ignore-device-hints": _key("ignored_hints", _device_names),
    "replace-device-hints": _key("replaced_hints", _device_hints),
}


def read_wishes(
    annotations: Mapping[str, str],
    container_name: str,
    machine: Machine | None = None,
    hugepage_limits_bytes: Mapping[int, int] = _NO_HUGEPAGES,
    forbidden: Collection[str] = (),
) -> Wishes:
    """The wishes for *container_name* in a pod's *annotations*; other prefixes are none of our business.

    With a *machine* they are held against it too, and against the container's *hugepage_limits_bytes*, by
    page size. *forbidden* keys are passed over.

    Raises:
        ConfigError: unknown keys, wrong values and contradictions under our prefix, nodes and tiers that the
            machine lacks, and huge pages that cannot be divided: all of them, for this container, but not
            beyond `MAX_PROBLEMS` unknown keys.
    """
    values: dict[str, Any] = {}
    annotations_of: dict[str, str] = {}
    problems: list[Problem] = []
    for prefix in (PREFIX, f"{container_name}.{PREFIX}"):
        annotation_of: dict[str, str] = {}
        ours = f"{prefix}/"
        asked = (
            one
            for one in annotations.items()
            if one[0].startswith(ours)
            and one[0] not in (DECISION_ANNOTATION, DEFAULT_CPUS_ANNOTATION)
            and one[0].removeprefix(ours) not in forbidden
        )
        for annotation, text in sorted(asked):
            path, key = f"annotation {excerpt(annotation)}", KEYS.get(annotation.removeprefix(ours))
            if key is None:
                problems.append(Problem(path, "an unknown key", _meant(ours, annotation.removeprefix(ours))))
                if len(problems) > MAX_PROBLEMS:
                    break
                continue
            if key.field in annotation_of:
                expected = f"only one of {annotation_of[key.field]} and {annotation}"
                problems.append(Problem(path, "a contradiction", expected))
                continue
            annotation_of[key.field] = annotation
            if len(text) > MAX_CHARACTERS:
                problems.append(Problem(path, repr(excerpt(text)), f"at most {MAX_CHARACTERS} characters"))
                continue
            try:
                values[key.field] = key.read(text, machine)
            except ParseError as error:
                problems.append(Problem(path, repr(excerpt(text)), error.expected))
                continue
            if machine is not None:
                problems += _lacking(machine, path, text, values[key.field])
                problems += _undivided(hugepage_limits_bytes, path, text, values[key.field])
        annotations_of |= annotation_of
    problems += _without_own_cpus(values, annotations_of)
    if problems:
        raise ConfigError(f"annotations for container {excerpt(container_name)}", tuple(problems))
    return Wishes(**values) if values else NO_WISHES


def _without_own_cpus(values: dict[str, Any], annotation_of: Mapping[str, str]) -> list[Problem]:
    """The contradictions among *values* between a wish that leaves a container no CPUs of its own and those
    that say something of such. Where it is the container's and they are its pod's, it wins: they are taken
    out of *values*."""
    wish = values.get("cpus")
    if wish is None or not wish.leaves_none:
        return []
    chosen, problems = annotation_of["cpus"], []
    of_pod = f"{PREFIX}/"
    for field in _OF_OWN_CPUS.keys() & values.keys():
        annotation = annotation_of[field]
        if annotation.startswith(of_pod) and not chosen.startswith(of_pod):
            del values[field]
            continue
        expected = (
            f"only one of {annotation} and {chosen}: {cpu_wish_text(wish)}, which leaves no CPUs of its own"
        )
        problems.append(Problem(f"annotation {annotation}", "a contradiction", expected))
    return sorted(problems, key=lambda one: one.path)


def _meant(prefix: str, key: str) -> str:
    """The key that was probably meant by *key*, or all that there are."""
    if near := meant_by(key[:MAX_KEY_CHARACTERS].lower(), KEYS):
        return f"{prefix}{near}, perhaps"
    return f"one of {', '.join(f'{prefix}{known}' for known in sorted(KEYS))}"


def rule_for(rules: Iterable[CpuRule], pod: Pod, container_name: str) -> CpuRule | None:
    """The rule that counts for a container: the first of *rules* that is for it; None if there is none."""
    for rule in rules:
        here = not rule.namespaces or pod.namespace in rule.namespaces
        named = not rule.containers or container_name in rule.containers
        if here and named and rule.labels.items() <= pod.labels.items():
            return rule
    return None


def unmatched_rules(rules: Sequence[CpuRule], containers: Iterable[tuple[Pod, str]]) -> tuple[str, ...]:
    """A sentence for each of *rules* that counts for none of *containers*, each a pod and a name in it."""
    left = dict(enumerate(rules))
    for pod, name in containers if rules else ():
        if not left:
            break
        rule = rule_for(rules, pod, name)
        left = {place: one for place, one in left.items() if one is not rule}
    return tuple(
        f"cpuRules[{place}] is for none of the containers: {_whose(one)}" for place, one in left.items()
    )


def unjoined_pools(pools: Iterable[str], joined: Collection[str]) -> tuple[str, ...]:
    """A sentence for each of *pools* that no container is in; *joined* are the names of those that containers
    are in."""
    return tuple(
        f"cpuPools.{name} has no members: no rule and no annotation gives one of the containers pool={name}"
        for name in sorted(pools)
        if name not in joined
    )


def closed_pools(
    rules: Sequence[CpuRule], pools: Iterable[str], forbidden: Collection[str]
) -> tuple[str, ...]:
    """A sentence for each of *pools* that no container can be in: none of *rules* gives it, and the
    annotation for it is one of the *forbidden* keys."""
    given = {rule.cpus for rule in rules}
    return tuple(
        f"cpuPools.{name} can have no members: no rule gives it, and {PREFIX}/cpus is forbidden"
        for name in sorted(pools if "cpus" in forbidden else ())
        if f"{CpuUse.POOL.value}={name}" not in given
    )


def _whose(rule: CpuRule) -> str:
    """Which containers *rule* is for."""
    parts = {
        "namespaces": sorted(rule.namespaces),
        "labels": [f"{key}={value}" for key, value in rule.labels.items()],
        "containers": sorted(rule.containers),
    }
    return "; ".join(f"{what} {', '.join(names)}" for what, names in parts.items() if names) or "all"


def ruled_wishes(
    rules: Iterable[CpuRule], pod: Pod, container_name: str, machine: Machine, wishes: Wishes
) -> Wishes:
    """*wishes* with what the one of *rules* that counts gives beside them. What the machine does not have is
    passed over: `wrong_rule` tells the operator."""
    rule = rule_for(rules, pod, container_name)
    if rule is None:
        return wishes
    wrong = wrong_rule(rule, machine) is not None
    cpus = _cpu_wish(rule.cpus) if wishes.cpus is None and rule.cpus and not wrong else wishes.cpus
    kind = wishes.cpu_kind or ("" if wrong or (cpus is not None and cpus.leaves_none) else rule.cpu_kind)
    return replace(wishes, cpus=cpus, cpu_kind=kind)


def wrong_rule(rule: CpuRule, machine: Machine | None = None) -> Problem | None:
    """What no container can have of what *rule* gives; with a *machine*, no container there. None if all is
    possible."""
    try:
        wish = _cpu_wish(rule.cpus) if rule.cpus else None
    except ParseError as error:
        return Problem("cpus", repr(excerpt(rule.cpus)), error.expected)
    if wish is not None and wish.pool and rule.cpu_kind:
        return Problem("cpuKind", repr(excerpt(rule.cpu_kind)), "none beside a pool: cpuPools has its kind")
    if wish is not None and wish.leaves_none and rule.cpu_kind:
        expected = f"none beside cpus: {rule.cpus}, which leaves no CPUs of its own"
        return Problem("cpuKind", repr(excerpt(rule.cpu_kind)), expected)
    if machine is not None and wish is not None and wish.use is CpuUse.ISOLATED and not machine.isolated:
        return Problem(
            "cpus", repr(rule.cpus), "exclusive or shared: this machine has no isolated CPUs (isolcpus)"
        )
    try:
        if rule.cpu_kind:
            _cpu_kind(rule.cpu_kind, machine)
    except ParseError as error:
        return Problem("cpuKind", repr(excerpt(rule.cpu_kind)), error.expected)
    return None


def cpu_wish_text(wish: CpuWish) -> str:
    """*wish* as its annotation."""
    if wish.pool:
        return f"{wish.use.value}={wish.pool}"
    return wish.use.value if wish.count is None else f"{wish.use.value}={wish.count}"


def without_cpu_wishes(wishes: Wishes) -> Wishes:
    """The other ones of *wishes*."""
    return replace(wishes, cpus=None, cpu_kind="")


def wrong_pool(name: str, pools: Collection[str]) -> str:
    """What is expected in place of a pool that is not one of *pools*; empty if *name* is one."""
    if name in pools:
        return ""
    return f"a pool of cpuPools: {', '.join(sorted(pools)) or 'it has none'}"


def wishes_of_own_cpus(request: Request) -> tuple[str, ...]:
    """The keys of the wishes of *request* that concern CPUs of its own."""
    return tuple(key for field, key in _OF_OWN_CPUS.items() if getattr(request, field))


def wrong_cpu_wish(
    request: Request, machine: Machine, pools: Mapping[str, CpuPool] = _NO_POOLS
) -> Problem | None:
    """Why *request* cannot have its CPUs as it wishes, whatever is free on *machine* with *pools*; None if it
    can."""
    wish, expected = request.cpus, ""
    if wish is None:
        return None
    if request.opted_out:
        expected = "no opt-out beside it"
    elif request.pinned_cpus is not None:
        expected = f"a container whose CPUs nobody else chose; somebody set cpuset.cpus {request.pinned_cpus}"
    elif request.pod_level:
        expected = "a container of a pod without resources as a whole, which share their pod's CPUs"
    elif request.wishes_isolated_cpus and not machine.isolated:
        expected = "exclusive or shared: this machine has no isolated CPUs (isolcpus)"
    elif wish.leaves_none:
        keys = wishes_of_own_cpus(request)
        expected = wrong_pool(wish.pool, pools) if wish.pool else ""
        if keys:
            expected = f"a container without {' and '.join(keys)}, as it leaves no CPUs of its own"
    else:
        expected = _wrong_amount(wish, request.requested_milli)
    return Problem(f"annotation {PREFIX}/cpus", repr(cpu_wish_text(wish)), expected) if expected else None


def _wrong_amount(wish: CpuWish, milli: int) -> str:
    """What would be expected where *milli* thousandths of a CPU are requested; empty if all is well."""
    if not milli:
        return "a container that requests CPUs, and this one requests none"
    requests = f"this one requests {milli / MILLI_PER_CPU:g}"
    if (wish.count or 0) * MILLI_PER_CPU > milli:
        return f"a container that requests as many CPUs, and {requests}"
    if wish.count is not None or milli % MILLI_PER_CPU == 0:
        return ""
    some = f"; {wish.use.value}={milli // MILLI_PER_CPU} leaves the rest shared"
    beside = some if milli > MILLI_PER_CPU else ""
    return f"a container that requests a whole number of CPUs, and {requests}{beside}"


def forbidden_annotations(
    annotations: Mapping[str, str], container_name: str, forbidden: Iterable[str]
) -> tuple[str, ...]:
    """Those of a pod's *annotations* that would count for *container_name*, were they not
    *forbidden* keys."""
    prefixes = (PREFIX, f"{container_name}.{PREFIX}")
    names = (f"{prefix}/{key}" for prefix in prefixes for key in sorted(forbidden))
    return tuple(name for name in names if name in annotations)


def readable_wishes(
    annotations: Mapping[str, str],
    container_name: str,
    machine: Machine,
    forbidden: Collection[str] = (),
) -> Wishes:
    """What `read_wishes` reads, or no wishes at all where an annotation is wrong: for containers that exist
    already."""
    try:
        return read_wishes(annotations, container_name, machine, forbidden=forbidden)
    except ConfigError:
        return Wishes()


def _lacking(machine: Machine, path: str, text: str, wish: object) -> list[Problem]:
    """The nodes that *wish* names and *machine* does not have."""
    if isinstance(wish, tuple) and not all(hint.nodes <= machine.node_ids for hint in wish):
        return [Problem(path, repr(excerpt(text)), f"nodes of this machine: {machine.node_ids}")]
    count = len(machine.memory_nodes)
    if isinstance(wish, EvenHugepagesWish) and wish.node_count > count:
        return [Problem(path, repr(excerpt(text)), f"no more than the {counted(count, 'node')} with memory")]
    nodes = wish.nodes if isinstance(wish, NodeWish | MemoryPolicyWish) else None
    if nodes is None or nodes <= machine.memory_nodes:
        return []
    expected = f"nodes of this machine with memory: {machine.memory_nodes}"
    return [Problem(path, repr(excerpt(text)), expected)]


def _undivided(limits_bytes: Mapping[int, int], path: str, text: str, wish: object) -> list[Problem]:
    """The sizes of huge pages of which not every node would get as many."""
    if not isinstance(wish, EvenHugepagesWish):
        return []
    pages = {size_bytes: amount // size_bytes for size_bytes, amount in limits_bytes.items()}
    return [
        Problem(
            path,
            repr(excerpt(text)),
            f"a number that divides the {counted(count, 'page')} of {hugepages(size)}",
        )
        for size, count in sorted(pages.items())
        if count % wish.node_count
    ]
