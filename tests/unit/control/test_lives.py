"""The owner of the phases: what is remembered of those that have ended, and what a restart and a list say."""

from msgspec.structs import replace

from bayplan.control.lives import REMEMBERED, Lives
from bayplan.model.decision import Decision, Interval, Outcome, QosClass, QosSource, Request
from bayplan.model.ledger import Entry
from bayplan.model.life import Phase, Report
from bayplan.model.origin import NRI, Hook, Origin, Wrapper
from bayplan.model.workload import Container, ContainerState
from bayplan.sets import CpuSet
from support.machines import container, pod

OWNER = pod("web", QosClass.BURSTABLE)
MAIN = container("x", OWNER)


def entry(container_id: str, origin: Origin = NRI) -> Entry:
    request = Request(
        container_id,
        OWNER.id,
        "n",
        QosClass.BURSTABLE,
        QosSource.CGROUP_PARENT,
        Interval(0, 0, "no limit"),
    )
    return Entry(Decision(request, Outcome.PLACED), recorded_origin=origin.recorded)


def with_cpus(cpus: CpuSet | None) -> Container:
    return replace(MAIN, resources=replace(MAIN.resources, cpuset_cpus=cpus))


def test_the_last_ends_are_remembered_and_no_more() -> None:
    lives = Lives()
    for number in range(REMEMBERED + 10):
        lives.end(str(number), Report.STOPPED)
    phases = [lives.phase(str(number)) for number in range(REMEMBERED + 10)]
    assert phases == [Phase.UNKNOWN] * 10 + [Phase.ENDED] * REMEMBERED


def test_the_first_end_counts_and_a_creation_begins_another_life() -> None:
    lives = Lives()
    lives.begin("x", Phase.DECIDED)
    first = lives.of("x")
    lives.end("x", Report.STOPPED)
    lives.end("x", Report.REMOVED)
    assert lives.ended_by("x") is Report.STOPPED
    lives.begin("x", Phase.DECIDED)
    assert lives.of("x") is not first
    assert (lives.phase("x"), lives.ended_by("x")) == (Phase.DECIDED, None)


def test_an_end_is_certain_only_if_more_than_a_list_says_so() -> None:
    lives = Lives()
    lives.restore({}, ["recorded"], ())
    lives.end("unlisted", Report.NOT_LISTED)
    lives.end("removed", Report.REMOVED)
    assert [key for key in ("recorded", "unlisted", "removed", "x") if lives.has_certainly_ended(key)] == [
        "removed"
    ]
    lives.begin("removed", Phase.DECIDED)
    assert not lives.has_certainly_ended("removed")


def test_the_cpus_that_were_sent_before_the_end_are_known_until_another_life_begins() -> None:
    lives, sent, before = Lives(), CpuSet([2, 3]), CpuSet([3])
    lives.end("x", Report.STOPPED, replace(entry("x"), notified_cpus=sent, previous_cpus=before))
    lives.end("x", Report.REMOVED)
    found = [lives.has_cpus_from_before(with_cpus(cpus)) for cpus in (sent, before, CpuSet([2]), None)]
    assert found == [True, True, False, False]
    lives.begin("x", Phase.RUNNING)
    assert not lives.has_cpus_from_before(with_cpus(sent))


def test_who_does_not_run_yet_is_known_at_any_time() -> None:
    lives = Lives()
    lives.begin("nri", Phase.DECIDED)
    lives.begin("wrapper", Phase.REWRITTEN)
    lives.begin("running", Phase.RUNNING)
    assert lives.starting == {"nri": Phase.DECIDED}
    lives.go_on("nri", Phase.STARTING)
    assert lives.starting == {"nri": Phase.STARTING}
    lives.go_on("nri", Phase.RUNNING)
    assert lives.starting == {}
    assert lives.held == {"nri", "wrapper", "running"}


def test_after_a_restart_those_without_an_entry_have_ended() -> None:
    lives, hook = Lives(), Hook.of(OWNER, replace(MAIN, pid=42))
    wrapper = Wrapper.of(OWNER, MAIN)
    entries = {"a": entry("a"), "b": entry("b"), "h": entry("h", hook), "w": entry("w", wrapper)}
    lives.restore(entries, ["b", "gone", "a"], under_way={"b"})
    phases = {key: lives.phase(key) for key in ("a", "b", "h", "w", "gone", "new")}
    assert phases == {
        "a": Phase.RUNNING,
        "b": Phase.DECIDED,
        "h": Phase.RUNNING,
        "w": Phase.REWRITTEN,
        "gone": Phase.ENDED,
        "new": Phase.UNKNOWN,
    }


def test_what_a_list_does_not_have_has_ended_but_for_what_may_be_under_way() -> None:
    lives = Lives()
    for key, phase in (
        ("gone", Phase.RUNNING),
        ("made", Phase.DECIDED),
        ("let through", Phase.UNDECIDED),
        ("refused", Phase.REFUSED),
        ("stays", Phase.CREATED),
    ):
        lives.begin(key, phase)
    running = replace(MAIN, id="stays", state=ContainerState.RUNNING)
    stopped = replace(MAIN, id="gone", state=ContainerState.STOPPED)
    lives.synchronized({"stays": entry("stays")}, [running, stopped])
    assert lives.ended_by("gone") is Report.STOPPED
    assert (lives.phase("made"), lives.phase("let through")) == (Phase.UNKNOWN, Phase.UNKNOWN)
    assert lives.refused == {"refused"}
    assert lives.phase("stays") is Phase.RUNNING
