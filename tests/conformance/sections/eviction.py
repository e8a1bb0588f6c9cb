"""Eviction thresholds and what follows from them: reading, meeting, deriving, ranking, messages."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bayplan.errors import ParseError
from bayplan.kubelet.eviction_manager import (
    NodeCondition,
    PodUsage,
    SignalObservation,
    Threshold,
    ThresholdError,
    ThresholdValue,
    conditions,
    eviction_note,
    eviction_order,
    met,
    parse_percentage,
    read_grace_period,
    read_min_reclaim,
    read_threshold,
    reclaimed_first,
    thresholds_of,
    with_allocatable,
    with_container_fs,
    without_grace_period,
)
from bayplan.kubelet.pod import PodLevelResources, PodSpec
from bayplan.model.machine import MEMORY
from bayplan.quantity import parse_bytes
from conformance.sections import Case, Folder, Section, expect
from conformance.sections.pods import amounts, container, gates

_FILE: Final = "eviction.json"
_OPERATOR: Final = "LessThan"
_POD: Final = "pod-eviction-message"
"""The name of every pod in the table of messages; only its annotations show it."""


def _config(case: Case, folder: Folder) -> None:
    """The four tables of the configuration; their order is a Go map's, so it does not count."""
    del folder
    try:
        hard, soft = (_read(case[key], read_threshold) for key in ("evictionHard", "evictionSoft"))
        grace = _read(case["evictionSoftGracePeriod"], read_grace_period)
        reclaims = _read(case["evictionMinReclaim"], read_min_reclaim)
        wrong = [sentence for _, sentence in without_grace_period(soft, grace)]
    except ThresholdError as error:
        wrong = [str(error)]
    expect("refused", bool(wrong), case["expectErr"])
    if not wrong:
        found = thresholds_of(hard, soft, grace, reclaims, case["allocatableConfig"] or ())
        expect("thresholds", set(found), set(_thresholds(case["expectThresholds"])))
        expect("their number", len(found), len(case["expectThresholds"]))


def _percentage(case: Case, folder: Folder) -> None:
    """The case's name is the text."""
    del folder
    try:
        share = parse_percentage(case["name"])
    except ParseError:
        expect("refused", True, case["hasError"])
        return
    expect("refused", False, case["hasError"])
    expect("share", share, case["value"])


def _allocatable(case: Case, folder: Folder) -> None:
    del folder
    found = with_allocatable(_thresholds(case["thresholds"]))
    expect("thresholds", set(found), set(_thresholds(case["expected"])))
    expect("their number", len(found), len(case["expected"]))


def _container_fs(case: Case, folder: Folder) -> None:
    """The table expects up to four thresholds; one without an operator can never be met, and isn't there."""
    del folder
    found, dropped = with_container_fs(
        _thresholds(case["thresholdList"]), image_fs=case["imageFs"], container_fs=case["containerFs"]
    )
    expect("some are dropped", bool(dropped), case["expectErr"])
    wanted = [value for key, value in case.items() if key.startswith("expectedContainerFs")]
    ours = {each for each in found if each.signal.startswith("containerfs")}
    expect("thresholds", ours, set(_thresholds(each for each in wanted if each["Operator"])))


def _same_value(case: Case, folder: Folder) -> None:
    del folder
    expect("equal", _value(case["a"]) == _value(case["b"]), case["equal"])


def _met(case: Case, folder: Folder) -> None:
    """One of the two tables misspells the switch."""
    del folder
    switch = next(value for key, value in case.items() if key.startswith("enforceMinRe"))
    observations = {
        signal: SignalObservation(seen["available"], seen["capacity"] or 0)
        for signal, seen in case["observations"].items()
    }
    found = met(_thresholds(case["thresholds"]), observations, until_reclaimed=switch)
    expect("met", found, _thresholds(case["result"]))


def _conditions(case: Case, folder: Folder) -> None:
    del folder
    expect("conditions", [each.value for each in conditions(_thresholds(case["inputs"]))], case["result"])


def _has_condition(case: Case, folder: Folder) -> None:
    del folder
    expect("there", NodeCondition(case["item"]).value in case["inputs"], case["result"])


def _reclaimed(case: Case, folder: Folder) -> None:
    """The table leaves the minimum to reclaim out of the threshold that it expects."""
    del folder
    found = reclaimed_first(_thresholds(case["thresholds"]))
    expect("found", found is not None, case["expectedReclaimableToBeFound"])
    if found is None:
        return
    (wanted,) = _thresholds([case["expectedThreshold"]])
    threshold, resource = found
    same = (threshold.signal, threshold.value, threshold.grace_period_ns)
    expect("threshold", same, (wanted.signal, wanted.value, wanted.grace_period_ns))
    expect("resource", resource, case["expectedResourceName"])


def _message(case: Case, folder: Folder) -> None:
    """Where nothing is expected, no pod may be named."""
    del folder
    level = case["podResources"]
    pod = PodSpec(
        "u",
        name=_POD,
        containers=tuple(container(each) for each in case["containers"]),
        init_containers=tuple(container(each) for each in case["initContainers"] or ()),
        resources=PodLevelResources(amounts(level["Requests"]), amounts(level["Limits"])),
    )
    note = eviction_note(
        MEMORY,
        pod,
        {each["name"]: parse_bytes(each["usage"]) for each in case["containerMemoryStats"]},
        gates(pod_level=case["podLevelResourcesEnabled"]),
        pod_usage_bytes=parse_bytes(case["podMemoryStats"]) if case["podMemoryStats"] else None,
    )
    named = [
        f"Container {each['name']} was using {each['usage']}, request is {each['request']}, "
        "has larger consumption of memory. "
        for each in case["expectedContainerMessage"] or ()
    ]
    expect("containers named", note.message.count("Container "), len(named))
    for sentence in named:
        expect(sentence, sentence in note.message, expected=True)
    wanted = case["expectedAnnotations"]
    if wanted is None:
        wanted = {} if named else {"offending_containers": ""}
    expect("annotations", {key: note.annotations.get(key) for key in wanted}, wanted)


def _ranking(case: Case, folder: Folder) -> None:
    """A pod's request is given as a whole."""
    del folder
    pods = [
        PodUsage(
            each["name"],
            each["working_set"] if each["has_stats"] else None,
            each["memory_request"],
            each["priority"],
        )
        for each in case["pods"]
    ]
    expect("order", [each.name for each in eviction_order(pods)], case["eviction_order"])


def _read(written: Mapping[str, str] | None, read: Any) -> dict[str, Any]:
    return {signal: read(signal, text) for signal, text in (written or {}).items()}


def _value(written: Mapping[str, Any]) -> ThresholdValue:
    """The tables hold quantities as whole numbers; a percentage beside one does not count."""
    if written["Quantity"] is not None:
        return ThresholdValue(written["Quantity"])
    return ThresholdValue(share=written["Percentage"])


def _thresholds(written: Iterable[Mapping[str, Any]]) -> tuple[Threshold, ...]:
    """Thresholds as Go has them. All that are real have the same operator."""
    found = []
    for each in written:
        expect("operator", each["Operator"] in {_OPERATOR, ""}, expected=True)
        reclaim = each["MinReclaim"]
        found.append(
            Threshold(
                each["Signal"],
                _value(each["Value"]),
                each["GracePeriod"],
                None if reclaim is None else _value(reclaim),
            )
        )
    return tuple(found)


SECTIONS: Final = (
    Section(_FILE, "parse_threshold_config", _config),
    Section(_FILE, "parse_percentage", _percentage),
    Section(_FILE, "add_allocatable_thresholds", _allocatable),
    Section(_FILE, "add_container_fs_thresholds", _container_fs),
    Section(_FILE, "compare_threshold_value", _same_value),
    Section(_FILE, "thresholds_met", _met),
    Section(_FILE, "percentage_thresholds_met", _met),
    Section(_FILE, "node_conditions", _conditions),
    Section(_FILE, "has_node_conditions", _has_condition),
    Section(_FILE, "get_reclaimable_threshold", _reclaimed),
    Section(_FILE, "eviction_message", _message),
    Section("oracle_eviction_rank.jsonl", None, _ranking),
)
