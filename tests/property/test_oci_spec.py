"""Random specs through the rewriting: only our fields change, and every other value keeps its very text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.model.workload import Adjustment
from bayplan.oci.documents import OciError, merged, parse_spec, spec_patch
from bayplan.oci.protocol import MAX_BODY_BYTES, MAX_TEXT_BYTES, Answer, Status, Verb, parse_header
from bayplan.oci.workloads import container_from, is_sandbox, pod_from
from bayplan.sets import CpuSet, NodeSet


class Number(str):
    """The text of a number, compared as text: 1e3 is not 1000.0 to a decoder of integers."""

    __slots__ = ()


def read(document: bytes) -> Any:
    """A document with its numbers as they are written."""
    return json.loads(document, parse_int=Number, parse_float=Number, parse_constant=Number)


numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(["1e3", "1E+2", "-0", "0.10", "18446744073709551615", "1.7976931348623157e+308"]),
)
leaves = st.one_of(st.none(), st.booleans(), st.text(max_size=8), numbers.map(Number))
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
unknown = st.dictionaries(st.text(max_size=6).map(lambda key: f"x{key}"), anything, max_size=3)
texts = st.dictionaries(
    st.sampled_from(["memory.high", "memory.max", "cpu.idle", "io.max"]), st.sampled_from(["", "1", "0"])
)


def written(value: Any) -> str:
    """*value* as JSON, with numbers as their texts and white space that nobody needs."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{ " + " ,".join(f"{json.dumps(key)} : {written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + " ]"
    return json.dumps(value)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    def maybe(fields: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
        present = {key: draw(value) for key, value in fields.items() if draw(st.booleans())}
        return {**present, **draw(unknown)}

    amounts = st.integers(0, 2**63 - 1).map(lambda value: Number(str(value)))
    resources = maybe({"unified": texts, "pids": unknown, "devices": st.lists(unknown, max_size=2)})
    if draw(st.booleans()):
        ids = st.sampled_from(["", "0", "1-3"])
        resources["cpu"] = maybe({"shares": amounts, "quota": amounts, "cpus": ids, "mems": ids})
    if draw(st.booleans()):
        resources["memory"] = maybe({"limit": amounts, "swap": amounts})
    linux = maybe({"cgroupsPath": st.sampled_from(["/a/b", "s.slice:crio:x", ""]), "seccomp": unknown})
    if draw(st.booleans()):
        linux["resources"] = draw(st.sampled_from([resources, None]))
    document = {"linux": linux, **maybe({"mounts": st.lists(unknown, max_size=2), "hooks": unknown})}
    if draw(st.booleans()):
        document["process"] = maybe({"args": st.lists(st.text(max_size=4)), "env": st.just(["A=1"])})
    if draw(st.booleans()):
        document["annotations"] = draw(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3))
    return document


adjustments = st.builds(
    Adjustment,
    cpuset_cpus=st.sampled_from([None, CpuSet([0, 1, 5])]),
    cpuset_mems=st.sampled_from([None, NodeSet([1])]),
    memory_limit_bytes=st.sampled_from([None, 1 << 40]),
    oom_score_adj=st.sampled_from([None, -997, 1000]),
    unified=st.dictionaries(st.sampled_from(["memory.high", "memory.oom.group"]), st.just("1"), max_size=2),
)


def expected(document: dict[str, Any], change: Adjustment) -> dict[str, Any]:
    """*document* with the change made on plain values, the slow and obvious way."""
    resources = dict(document["linux"].get("resources") or {})
    parts: dict[str, dict[str, Any]] = {"cpu": {}, "memory": {}, "unified": {}}
    if change.cpuset_cpus is not None:
        parts["cpu"]["cpus"] = str(change.cpuset_cpus)
    if change.cpuset_mems is not None:
        parts["cpu"]["mems"] = str(change.cpuset_mems)
    if change.memory_limit_bytes is not None:
        parts["memory"]["limit"] = Number(change.memory_limit_bytes)
    present = resources.get("unified") or {}
    parts["unified"] = {key: value for key, value in change.unified.items() if key not in present}
    after = dict(document)
    for key, part in parts.items():
        if part:
            resources[key] = {**(resources.get(key) or {}), **part}
    if any(parts.values()):
        after["linux"] = {**document["linux"], "resources": resources}
    if change.oom_score_adj is not None and "process" in document:
        after["process"] = {**document["process"], "oomScoreAdj": Number(change.oom_score_adj)}
    return after


@given(specs(), adjustments)
def test_only_our_fields_change(document: dict[str, Any], change: Adjustment) -> None:
    text = written(document).encode()
    patch = spec_patch(change, parse_spec(text, "spec"))
    assert read(merged(text, patch, "spec")) == expected(document, change)
    if not patch:
        assert expected(document, change) == document


@given(specs(), adjustments)
def test_rewriting_twice_is_rewriting_once(document: dict[str, Any], change: Adjustment) -> None:
    text = written(document).encode()
    once = merged(text, spec_patch(change, parse_spec(text, "spec")), "spec")
    assert merged(once, spec_patch(change, parse_spec(once, "spec")), "spec") == once


@given(st.one_of(st.binary(max_size=200), anything.map(lambda value: written(value).encode())))
def test_any_bytes_are_a_spec_or_an_error_with_a_name(document: bytes) -> None:
    try:
        spec = parse_spec(document, "the file")
        container_from(spec, "id")
    except OciError as error:
        problem = str(error)
    else:
        pod_from(spec, "id", spec.annotations or {})
        is_sandbox(spec)
        return
    assert problem.startswith(("the file: ", "linux.resources."))


UNIFIED = (
    "memory.max", "memory.low", "memory.min", "memory.high", "cpu.max", "cpu.weight", "cpu.weight.nice",
    "cpu.idle", "cpuset.cpus", "cpuset.mems", "cpuset.cpus.exclusive", "hugetlb.2MB.max",
    "hugetlb.2MB.rsvd.max",
)  # fmt: skip
FIELDS = (
    *(("linux", "resources", "memory", key) for key in ("limit", "reservation", "swap")),
    *(("linux", "resources", "cpu", key) for key in ("shares", "quota", "period", "idle", "cpus", "mems")),
    *(("linux", "resources", "unified", key) for key in UNIFIED),
    *(("linux", "resources", "hugepageLimits", 0, key) for key in ("pageSize", "limit")),
    *(("linux", "resources", "devices", 0, key) for key in ("allow", "type", "major", "minor")),
    *(("linux", "resources", key) for key in ("memory", "cpu", "unified", "hugepageLimits", "devices")),
    *(("linux", "memoryPolicy", key) for key in ("mode", "nodes", "flags")),
    ("linux", "memoryPolicy", "flags", 0),
    ("linux", "cgroupsPath"),
    ("process", "oomScoreAdj"),
)
BESIDE = {"pageSize": "2MB", "path": "/dev/a", "type": "c"}
"""What items of lists must have."""
WRONG = st.one_of(
    anything,
    st.sampled_from(["x" * 100_000, "9" * 5_000, "\0", "\u202e", "0-99999", "-1", "max", "1e3", "a\n\nb"]),
    st.sampled_from([str(1 << 31), str(1 << 63), str(1 << 64), str(-(1 << 63) - 1), "1.5", "9" * 400]).map(
        Number
    ),
)


def with_value(place: tuple[str | int, ...], value: Any) -> Any:
    """The document that has only *value*, at *place*."""
    for key in reversed(place):
        value = [{**BESIDE, **value} if isinstance(value, dict) else value] if key == 0 else {key: value}
    return {"linux": {}, **value}


@given(st.sampled_from(FIELDS), WRONG)
def test_a_wrong_value_is_one_short_sentence_with_its_place(place: tuple[str | int, ...], value: Any) -> None:
    document = written(with_value(place, value)).encode()
    try:
        container_from(parse_spec(document, "the file"), "id")
    except OciError as error:
        problem = str(error)
    else:
        return
    assert problem.isprintable()
    assert len(problem) < 500
    names = [str(key) for key in place if isinstance(key, str)]
    assert names[-1] in problem or f"{names[-1]}[" in problem or names[-2] in problem


@given(specs(), st.dictionaries(st.text(max_size=30), st.text(max_size=20), max_size=4))
def test_annotations_of_others_never_stop_anything(
    document: dict[str, Any], annotations: dict[str, str]
) -> None:
    keys = ("Labels", "Metadata", "Annotations", "CgroupParent", "PodLinuxResources")
    noise = dict(zip((f"io.kubernetes.cri-o.{key}" for key in keys), annotations.values(), strict=False))
    spec = parse_spec(written({**document, "annotations": {**annotations, **noise}}).encode(), "spec")
    pod = pod_from(spec, "id", {**annotations, **noise})
    assert pod.id == container_from(spec, "id").pod_id == "id"


def test_a_document_that_is_no_object_cannot_be_changed() -> None:
    with pytest.raises(OciError, match="linux: resources"):
        merged(b'{"linux": {"resources": 7}}', {"linux": {"resources": {"cpu": {"cpus": "0"}}}}, "the file")


@given(
    st.one_of(
        st.binary(max_size=80),
        st.builds(
            lambda verb, length: f"bayplan-oci/1 {verb} {length}\n".encode(),
            st.one_of(st.sampled_from([verb.value for verb in Verb]), st.text(max_size=20)),
            st.one_of(st.integers(-5, 2**70), st.text(max_size=5)),
        ),
    )
)
def test_any_first_line_is_a_bounded_request_or_an_error(line: bytes) -> None:
    try:
        header = parse_header(line)
    except OciError as error:
        answer = Answer.saying(Status.ERROR, str(error)).encode()
    else:
        assert line == b"bayplan-oci/1 %s %s\n" % (header.verb.value.encode(), line.split()[2])
        assert 0 <= header.body_bytes <= MAX_BODY_BYTES
        return
    assert answer.startswith(b"error ")
    assert answer.count(b"\n") == 1


@given(st.sampled_from(Status), st.text())
def test_an_answer_is_one_line_of_bounded_length(status: Status, text: str) -> None:
    head, _, body = Answer.saying(status, text).encode().partition(b"\n")
    assert head == b"%s %d" % (status.value.encode(), len(body))
    assert len(body) <= MAX_TEXT_BYTES
    assert body.decode().splitlines() in ([], [body.decode()])
