"""The Topology Manager's tables: masks, merge, options, admission."""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from bayplan.engines.kubelet.hint_merge import largest_of_smallest, rank
from bayplan.engines.kubelet.topology_hints import Distances, Hint, HintSet, ProviderHints, subsets
from bayplan.engines.kubelet.topology_manager import TopologyManager, single_node
from bayplan.kubelet.manager_options import (
    OPTIONS,
    ManagerConfigError,
    Maturity,
    OptionGates,
    TopologyOptions,
)
from bayplan.kubelet.pod import ContainerSpec, PodSpec
from bayplan.model.machine import Machine, Node
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.sets import CpuSet, NodeSet
from conformance.sections import Case, Folder, Section, expect, expect_error

_BITMASK: Final = "bitmask.json"
_TABLES: Final = "topology_manager.json"

_TEST_OPTIONS: Final = {
    **OPTIONS,
    "fancy-new-option": Maturity.BETA,
    "fancy-alpha-option": Maturity.ALPHA,
}
"""kubelet's tests add an option at each level, since it has none there at the moment."""


def hint(written: Any) -> Hint:
    """A hint, in either spelling: an object, or ``[nodes, preferred]``."""
    nodes, preferred = written if isinstance(written, list) else (written["affinity"], written["preferred"])
    return Hint(None if nodes is None else NodeSet(nodes), preferred)


def hint_set(written: Sequence[Any] | None) -> HintSet | None:
    """A list of hints; None stays None."""
    return None if written is None else HintSet(tuple(hint(each) for each in written))


def provider_hints(written: Mapping[str, Any] | None) -> ProviderHints:
    """A provider's answer."""
    return None if written is None else {name: hint_set(hints) for name, hints in written.items()}


def distances(written: Mapping[str, Sequence[int] | None] | None) -> Distances:
    """Distances, as a list by node id for each node."""
    return Distances(
        {int(node): dict(enumerate(row)) for node, row in (written or {}).items() if row is not None}
    )


# Masks. kubelet's masks are 64 bits wide; ours have no end, so that "fill" is checked with 64 nodes.


def _mask(bits: Sequence[int] | None) -> NodeSet:
    return NodeSet(bits or ())


def _text(nodes: NodeSet) -> str:
    """A mask as kubelet prints it: binary digits, at least two."""
    return f"{nodes.mask:02b}"


def _combined(name: str, combine: Callable[[NodeSet, NodeSet], NodeSet]) -> Callable[[Case, Folder], None]:
    def check(case: Case, _: Folder) -> None:
        first, *others = (_mask(bits) for bits in case["masks"])
        for other in others:
            first = combine(first, other)
        expect("mask", _text(first), case[f"{name}Mask"])

    return check


def _mask_case(field: str, answer: Callable[[Case], object]) -> Callable[[Case, Folder], None]:
    def check(case: Case, _: Folder) -> None:
        expect(field, answer(case), case[field])

    return check


def _iterate(case: Case, _: Folder) -> None:
    found = list(subsets(NodeSet(range(case["numbits"]))))
    expect("number of masks", len(set(found)), 2 ** case["numbits"] - 1)
    sizes = [len(nodes) for nodes in found]
    expect("ascending sizes", sizes, sorted(sizes))


def _narrower(first: NodeSet, second: NodeSet) -> bool:
    return rank(Hint(first, preferred=True)) < rank(Hint(second, preferred=True))


_MASK_CHECKS: Final[Mapping[str, Callable[[Case, Folder], None]]] = {
    "add": _mask_case("expectedMask", lambda case: _text(NodeSet() | _mask(case["bits"]))),
    "and": _combined("and", lambda one, other: one & other),
    "any_set": _mask_case(
        "expectedSet", lambda case: not _mask(case["mask"]).isdisjoint(_mask(case["checkBits"]))
    ),
    "clear": _mask_case("clearedMask", lambda case: _text(_mask(case["mask"]) - _mask(case["mask"]))),
    "count": _mask_case("expectedCount", lambda case: len(_mask(case["bits"]))),
    "fill": _mask_case("filledMask", lambda case: _text(_mask(case["mask"]) | NodeSet.parse("0-63"))),
    "get_bits": _mask_case("expectedBits", lambda case: list(_mask(case["bits"])) or None),
    "is_empty": _mask_case("expectedEmpty", lambda case: not _mask(case["mask"])),
    "is_equal": _mask_case(
        "expectedEqual", lambda case: _mask(case["firstMask"]) == _mask(case["secondMask"])
    ),
    "is_greater_than": _mask_case(
        "expectedFirstGreater", lambda case: _mask(case["firstMask"]).mask > _mask(case["secondMask"]).mask
    ),
    "is_less_than": _mask_case(
        "expectedFirstLower", lambda case: _mask(case["firstMask"]).mask < _mask(case["secondMask"]).mask
    ),
    "is_narrower_than": _mask_case(
        "expectedFirstNarrower", lambda case: _narrower(_mask(case["firstMask"]), _mask(case["secondMask"]))
    ),
    "is_set": _mask_case("expectedSet", lambda case: case["checkBit"] in _mask(case["mask"])),
    "iterate_bit_masks": _iterate,
    "new_bit_mask": _mask_case("expectedMask", lambda case: _text(_mask(case["bits"]))),
    "new_emptyi_bit_mask": _mask_case("expectedMask", lambda _: _text(NodeSet())),
    "or": _combined("or", lambda one, other: one | other),
    "remove": _mask_case(
        "expectedMask", lambda case: _text(_mask(case["bitsSet"]) - _mask(case["bitsRemove"]))
    ),
}


# Merge and comparisons.


def _merge(case: Case, _: Folder) -> None:
    policy = TopologyPolicy(case["policy"])
    order = distances(case["numa_distances"]) if case["prefer_closest_numa"] else None
    manager = TopologyManager(policy, NodeSet(case["numa_nodes"]), distances=order)
    verdict = manager.decide([provider_hints(each) for each in case["providers_hints"]])
    expect("hint", verdict.hint, hint(case["expected"]))
    expect("admitted", verdict.admitted, case["expected_admit"])


def _random_merge(case: Case, _: Folder) -> None:
    order = distances(case["distances"]) if case["prefer_closest"] else None
    providers = [provider_hints(each) for each in case["providers"]]
    for name, expected in case["result"].items():
        manager = TopologyManager(TopologyPolicy(name), NodeSet(case["nodes"]), distances=order)
        verdict = manager.decide(providers)
        expect(f"{name}: hint", verdict.hint, hint(expected["hint"]))
        expect(f"{name}: admitted", verdict.admitted, expected["admit"])


def _none_merge(case: Case, _: Folder) -> None:
    manager = TopologyManager(TopologyPolicy.NONE, NodeSet([0, 1]))
    verdict = manager.decide([provider_hints(each) for each in case["providersHints"]])
    expect("hint", verdict.hint, hint(case["expectedHint"]))
    expect("admitted", verdict.admitted, case["expectedAdmit"])


def _compare(case: Case, _: Folder) -> None:
    candidate = hint(case["candidate"])
    current = None if case["current"] is None else hint(case["current"])
    wanted = case["best_non_preferred_affinity_count"]
    better = bool(candidate.nodes) and (current is None or rank(candidate, wanted) < rank(current, wanted))
    expect("better hint", "candidate" if better else "current", case["expected"])


def _largest_of_smallest(case: Case, _: Folder) -> None:
    sets = [hint_set(hints) or HintSet() for hints in case["hints"]]
    expect("size", largest_of_smallest(sets), case["expected"])


def _single_node(case: Case, _: Folder) -> None:
    found = [set(single_node(hint_set(hints) or HintSet()).hints) for hints in case["allResources"]]
    expected = [{hint(each) for each in hints or ()} for hints in case["expectedResources"] or ()]
    expect("hints left", found, expected)


def _closest(case: Case, _: Folder) -> None:
    order = distances(case["numaInfo"]["NUMADistances"])
    candidate, current = (Hint(NodeSet(case[name]), preferred=True) for name in ("candidate", "current"))
    better = rank(candidate, distances=order) < rank(current, distances=order)
    expect("closer", "candidate" if better else "current", case["expected"])


def _average(case: Case, _: Folder) -> None:
    mask = NodeSet(case["bm"]).mask
    total = distances(case["distance"]).total(mask)
    expect("average", total / mask.bit_count() ** 2 if mask else 0.0, case["expectedAvg"])


# Configuration.


def _machine(topology: Sequence[Mapping[str, Any]] | None) -> Machine:
    nodes = (
        Node(
            id=node["Id"],
            cpus=CpuSet(),
            memory_bytes=node["Memory"],
            distances=dict(enumerate(node["Distances"] or ())),
        )
        for node in topology or ()
    )
    return Machine(nodes=tuple(nodes), cpus=())


def _numa_info(case: Case, _: Folder) -> None:
    options = TopologyOptions(prefer_closest=case["opts"]["PreferClosestNUMA"])
    try:
        manager = TopologyManager.of(_machine(case["topology"]), TopologyPolicy.RESTRICTED, options=options)
    except ManagerConfigError as error:
        expect_error(error, case["expectedErr"])
        return
    expect_error(None, case["expectedErr"])
    expected = case["expectedNUMAInfo"]
    expect("nodes", list(manager.everything), expected["Nodes"])
    known = {} if manager.distances is None else manager.distances.rows
    found = {str(node): list(known[node].values()) if known else None for node in manager.everything}
    expect("distances", found, expected["NUMADistances"])


def _policy_options(case: Case, _: Folder) -> None:
    gates = _gates(case)
    try:
        options = TopologyOptions.parse(case["policyOptions"] or {}, gates)
    except ManagerConfigError as error:
        expect_error(error, case["expectedErr"])
        return
    expect_error(None, case["expectedErr"])
    expected = case["expectedOptions"]
    expect("prefer closest", options.prefer_closest, expected["PreferClosestNUMA"])
    expect("most nodes", options.max_nodes, expected["MaxAllowableNUMANodes"])


def _option_available(case: Case, _: Folder) -> None:
    available = _gates(case).unavailable(case["option"]) is None
    expect("available", available, case["expectedAvailable"])


def _gates(case: Case) -> OptionGates:
    """The gates, of which a case switches one."""
    names = {"TopologyManagerPolicyAlphaOptions": "alpha", "TopologyManagerPolicyBetaOptions": "beta"}
    switched = {names[case["featureGate"]]: case["featureGateEnable"]} if case["featureGate"] else {}
    return OptionGates(options=_TEST_OPTIONS, **switched)


def _new_manager(case: Case, _: Folder) -> None:
    """Machines with many nodes are refused by kubelet and only remarked on by the engine, in the same words.
    Without a policy kubelet does not look at the options."""
    machine = _machine(case["topology"])
    try:
        policy = _named(TopologyPolicy, "policy", case["policyName"])
        none = policy is TopologyPolicy.NONE
        options = TopologyOptions() if none else TopologyOptions.parse(case["policyOptions"] or {})
        manager = TopologyManager.of(machine, policy, options=options)
    except ManagerConfigError as error:
        expect_error(error, case["expectedError"])
        return
    beyond = None if none else options.beyond_kubelet(len(machine.nodes))
    expect_error(beyond or case["topologyError"], case["expectedError"])
    if not case["expectedError"]:
        expect("policy", manager.policy.value, case["expectedPolicy"])


_Choice = TypeVar("_Choice", bound=Enum)


def _named(kind: type[_Choice], what: str, name: str) -> _Choice:
    """Of kubelet's names that one; the configuration reads them as it reads all choices."""
    try:
        return kind(name)
    except ValueError:
        raise ManagerConfigError(f'unknown {what}: "{name}"') from None


def _scope(case: Case, _: Folder) -> None:
    try:
        scope = _named(TopologyScope, "scope", case["scopeName"])
    except ManagerConfigError as error:
        expect_error(error, case["expectedError"])
        return
    expect_error(None, case["expectedError"])
    expect("scope", scope.value, case["expectedScope"])


# Admission.


class _Stub:
    """A provider with fixed hints that allocates nothing, as in kubelet's test."""

    def __init__(self, answer: ProviderHints) -> None:
        self._answer = answer

    def hints(self, state: None, pod: PodSpec, container: ContainerSpec) -> ProviderHints:
        del state, pod, container
        return self._answer

    def pod_hints(self, state: None, pod: PodSpec) -> ProviderHints:
        del state, pod
        return self._answer

    def allocate(self, state: None, pod: PodSpec, container: ContainerSpec, hint: Hint) -> None:
        del state, pod, container, hint

    def allocate_pod(self, state: None, pod: PodSpec, hint: Hint) -> None:
        del state, pod, hint


_POLICIES: Final = {
    "None": TopologyPolicy.NONE,
    "BestEffort": TopologyPolicy.BEST_EFFORT,
    "Restricted": TopologyPolicy.RESTRICTED,
    "single-numa-node": TopologyPolicy.SINGLE_NUMA_NODE,
}


def _admit(case: Case, _: Folder) -> None:
    """The policy is named only in the case's name; both scopes must agree for a pod of one container."""
    named = re.search(r"\. (\S+) Policy\.", case["name"])
    policy = _POLICIES[named[1] if named else ""]
    info = case["policy"].get("bestEffortPolicy", case["policy"]).get("numaInfo") or {"Nodes": []}
    pod = PodSpec(uid="pod", containers=(ContainerSpec("container"),))
    stubs = [_Stub(provider_hints(each["th"])) for each in case["hp"]]
    for scope in TopologyScope:
        admission = TopologyManager(policy, NodeSet(info["Nodes"]), scope).admit(None, pod, stubs)
        expect(f"{scope.value}: admitted", admission.admitted, case["expected"])
        expect(f"{scope.value}: reason", admission.reason == "TopologyAffinityError", not case["expected"])


SECTIONS: Final = (
    *(Section(_BITMASK, name, check) for name, check in _MASK_CHECKS.items()),
    Section(_TABLES, "merge", _merge),
    Section(_TABLES, "none_merge", _none_merge),
    Section(_TABLES, "compare_hints_narrowest", _compare),
    Section(_TABLES, "max_of_min_affinity_counts", _largest_of_smallest),
    Section(_TABLES, "single_numa_filter_hints", _single_node),
    Section(_TABLES, "numa_info", _numa_info),
    Section(_TABLES, "closest", _closest),
    Section(_TABLES, "calculate_average_distance", _average),
    Section(_TABLES, "policy_options", _policy_options),
    Section(_TABLES, "policy_options_available", _option_available),
    Section(_TABLES, "new_manager", _new_manager),
    Section(_TABLES, "scope", _scope),
    Section(_TABLES, "admit", _admit),
    Section("oracle_tm_merge.jsonl", None, _random_merge),
)
