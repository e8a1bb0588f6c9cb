"""kubelet's word about a request: exact where the spec agrees, and no use where anything contradicts it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.model.decision import QosClass, QosSource, Request
from bayplan.model.kubelet_requests import (
    BY_KUBELET,
    ContainerFacts,
    ContainerKind,
    Contradiction,
    PodFacts,
    with_kubelet_request,
)
from bayplan.model.request import changed_request, derive_request
from bayplan.model.resources import Resources
from bayplan.model.wishes import Wishes
from bayplan.quantity import GIB, MIB
from support.kubelet_pods import amounts, asked, facts, kubelet_pod, sandbox
from support.machines import machine

CAPACITY = 64 * GIB
MACHINE = machine(1, 64, CAPACITY)
STEP = CAPACITY // 1000
ONE = kubelet_pod(facts("a", 300 * MIB, GIB))


def derived(pod: PodFacts, name: str = "a", wishes: Wishes = Wishes()) -> Request:
    """What the spec alone shows."""
    return derive_request(sandbox(pod), asked(pod, name, CAPACITY), MACHINE, wishes)


def told(request: Request, pod: PodFacts, name: str = "a", *, running: bool = False) -> Request:
    exact = with_kubelet_request(request, pod, f"{name}-name", CAPACITY, running=running)
    assert isinstance(exact, Request), exact
    return exact


def problem(request: Request, pod: PodFacts, *, running: bool = False) -> str:
    found = with_kubelet_request(request, pod, "a-name", CAPACITY, running=running)
    assert isinstance(found, Contradiction), found
    return found.problem


def with_amounts(pod: PodFacts, one: ContainerFacts) -> PodFacts:
    return replace(pod, containers=(one, *pod.containers[1:]))


def test_a_burstable_request_is_known_to_the_byte() -> None:
    request = derived(ONE)
    assert not request.memory.exact
    exact = told(request, ONE)
    assert (exact.memory.low_bytes, exact.memory.high_bytes) == (300 * MIB, 300 * MIB)
    assert exact.memory.source == BY_KUBELET
    assert exact.shown_memory == request.memory
    assert replace(exact, memory=request.memory, spec_memory=None) == request


def test_kubelets_word_goes_before_an_annotation() -> None:
    request = derived(ONE, wishes=Wishes(memory_request_bytes=290 * MIB))
    assert request.memory.source == "annotation"
    assert told(request, ONE).memory.high_bytes == 300 * MIB


@pytest.mark.parametrize("qos", [QosClass.GUARANTEED, QosClass.BEST_EFFORT])
def test_what_the_spec_shows_exactly_keeps_its_source(qos: QosClass) -> None:
    one = facts("a", GIB, GIB) if qos is QosClass.GUARANTEED else facts("a", milli=None)
    pod = kubelet_pod(one, qos=qos)
    assert told(derived(pod), pod).memory == derived(pod).memory


def test_a_sidecar_that_has_the_score_of_another_container_is_known() -> None:
    pod = kubelet_pod(facts("a", 10 * MIB, kind=ContainerKind.SIDECAR), facts("b", 8 * GIB))
    assert derived(pod, "a").score == derived(pod, "b").score
    assert told(derived(pod, "a"), pod, "a").memory.high_bytes == 10 * MIB
    assert told(derived(pod, "b"), pod, "b").memory.high_bytes == 8 * GIB


def test_a_pod_with_requests_as_a_whole_is_promised_them_by_its_containers_together() -> None:
    """What no container requests is shared out, as kubelet does it for their scores."""
    pod = kubelet_pod(facts("a", GIB), facts("b"), pod_level=amounts(8 * GIB, 10 * GIB))
    assert derived(pod).memory_limit_bytes == 10 * GIB
    exact = [told(derived(pod, name), pod, name).memory.high_bytes for name in "ab"]
    assert exact == [4 * GIB + GIB // 2, 3 * GIB + GIB // 2]


WHOLE = kubelet_pod(
    facts("a", GIB, 2 * GIB, milli=1000),
    qos=QosClass.GUARANTEED,
    pod_level=amounts(4 * GIB, 4 * GIB, 4000),
)


def test_that_a_guaranteed_pod_has_resources_as_a_whole_its_spec_says() -> None:
    spec = asked(WHOLE, "a", CAPACITY)
    quota = replace(spec.resources, cpu_quota_us=400_000, cpu_period_us=100_000)
    shown = derive_request(sandbox(WHOLE), replace(spec, resources=quota), MACHINE)
    assert (shown.pod_level, shown.exclusive_cpus) == (True, 0)
    assert told(shown, WHOLE) == shown
    hidden = derived(WHOLE)
    assert not hidden.pod_level
    assert "is not its limit" in problem(hidden, WHOLE)
    nothing = kubelet_pod(facts("a", None, milli=None), qos=QosClass.GUARANTEED, pod_level=amounts(GIB, GIB))
    assert told(derived(nothing), nothing) == derived(nothing)


@pytest.mark.parametrize(
    ("lie", "word"),
    [
        (kubelet_pod(facts("b", 300 * MIB, GIB)), "no container"),
        (replace(ONE, qos=QosClass.GUARANTEED), "Guaranteed"),
        (with_amounts(ONE, facts("a", 300 * MIB, 2 * GIB)), "limit"),
        (with_amounts(ONE, facts("a", 2 * GIB, GIB)), "above its limit"),
        (with_amounts(ONE, facts("a", 300 * MIB, GIB, milli=500)), "CPU shares"),
        (with_amounts(ONE, facts("a", 300 * MIB + STEP, GIB)), "oom_score_adj"),
        (with_amounts(ONE, facts("a", 300 * MIB - STEP, GIB)), "oom_score_adj"),
        (with_amounts(ONE, facts("a", 0, GIB)), "oom_score_adj"),
    ],
)
def test_what_the_spec_disproves_does_not_count(lie: PodFacts, word: str) -> None:
    assert word in problem(derived(ONE), lie)


def test_a_sidecars_score_is_no_way_to_claim_less_than_it_proves() -> None:
    lie = kubelet_pod(facts("a", 10 * MIB, kind=ContainerKind.SIDECAR), facts("b", 20 * MIB))
    assert "oom_score_adj" in problem(derived(kubelet_pod(facts("a", 8 * GIB))), lie)


def test_a_container_outside_of_kubelets_tree_is_not_kubelets() -> None:
    request = replace(derived(ONE), qos_source=QosSource.INFERRED)
    assert "kubelet's" in problem(request, ONE)


def test_a_protection_that_was_made_of_the_request_proves_it() -> None:
    spec = asked(ONE, "a", CAPACITY)
    spec = replace(spec, resources=replace(spec.resources, unified={"memory.low": str(300 * MIB)}))
    request = derive_request(sandbox(ONE), spec, MACHINE)
    assert told(request, ONE).memory == request.memory
    assert "memory.low" in problem(request, with_amounts(ONE, facts("a", 301 * MIB, GIB)))


def test_while_a_resize_is_under_way_either_amount_can_be_the_containers() -> None:
    desired = amounts(500 * MIB, 2 * GIB, 200)
    resizing = kubelet_pod(facts("a", 300 * MIB, GIB, desired=desired), resized=True)
    before = told(derived(ONE), resizing, running=True)
    assert before.memory.high_bytes == 300 * MIB
    change = Resources(memory_limit_bytes=2 * GIB, cpu_shares=204)
    changed = changed_request(before, asked(ONE, "a", CAPACITY).resources, change, MACHINE)
    after = told(changed, resizing, running=True)
    assert (after.memory.high_bytes, after.memory.source, after.cpu_milli) == (500 * MIB, BY_KUBELET, 200)


def test_a_request_that_was_resized_without_a_word_to_the_runtime_is_known() -> None:
    """kubelet does not tell the runtime of another memory request alone; the score stays as it was."""
    later = with_amounts(ONE, facts("a", 900 * MIB, GIB))
    assert "oom_score_adj" in problem(told(derived(ONE), ONE), later, running=True)
    resized = replace(later, resized=True)
    assert told(told(derived(ONE), ONE), resized, running=True).memory.high_bytes == 900 * MIB
    assert "oom_score_adj" in problem(derived(ONE), resized)  # a new container has a new score


REQUESTS = st.integers(0, 80 * GIB)


@given(own=REQUESTS, other=REQUESTS, milli=st.integers(0, 300_000), kind=st.sampled_from(ContainerKind))
def test_whatever_kubelet_asks_for_it_is_believed(
    own: int, other: int, milli: int, kind: ContainerKind
) -> None:
    own, other = min(own, CAPACITY), min(other, CAPACITY)
    pod = kubelet_pod(facts("a", own, milli=milli, kind=kind), facts("b", other))
    assert told(derived(pod), pod).memory.high_bytes == own
    again = told(told(derived(pod), pod), pod, running=True)
    assert again.memory.high_bytes == own


@given(own=st.integers(0, CAPACITY), lie=st.integers(0, CAPACITY))
def test_no_lie_about_an_ordinary_container_is_larger_than_a_thousandth_of_the_machine(
    own: int, lie: int
) -> None:
    pod = kubelet_pod(facts("a", own))
    found = with_kubelet_request(derived(pod), with_amounts(pod, facts("a", lie)), "a-name", CAPACITY)
    # Above 99.7 % of the machine, and below one thousandth, kubelet's scores are one.
    if isinstance(found, Request) and max(own, lie) < 997 * STEP and min(own, lie) > 2 * STEP:
        assert abs(found.memory.high_bytes - own) <= STEP + 1
