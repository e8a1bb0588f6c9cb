"""The table of a container's life: whole, as it is documented, and with the properties that it is for."""

from itertools import product
from pathlib import Path

import pytest

from bayplan.model.life import AWAITED, HELD, OF_THE_LIVING, TABLE, Action, LifeStep, Phase, Report, step_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "life.md"
WORDS = {
    Action.KEEP: "keep",
    Action.CHANGE: "decide again",
    Action.ENTER: "enter",
    Action.RELEASE: "release",
    Action.IGNORE: "-",
    Action.ENTER_IF_ALIVE: "enter if alive",
    Action.RELEASE_IF_DEAD: "release if dead",
}
EVERY = list(product(Report, Phase))
SETTLED = [
    (report, phase, has_process, step_of(report, phase).settled(phase, has_process=has_process))
    for report, phase in EVERY
    for has_process in (True, False)
]


def test_each_report_is_dealt_with_in_each_phase() -> None:
    assert {(report, phase) for report, row in TABLE.items() for phase in row} == set(EVERY)


def test_a_step_says_what_it_does_to_who_holds_what() -> None:
    """Who holds something is kept, changed or released; who holds nothing is entered or left."""
    for report, phase, _, step in SETTLED:
        where = f"{report} in {phase}"
        if phase in HELD:
            assert step.action in (Action.KEEP, Action.CHANGE, Action.RELEASE), where
            assert (step.action is Action.RELEASE) == (step.phase not in HELD), where
        else:
            assert step.action in (Action.ENTER, Action.IGNORE), where
            assert (step.action is Action.ENTER) == (step.phase in HELD), where


def test_what_has_ended_is_entered_again_with_a_process_only() -> None:
    for report, phase, has_process, step in SETTLED:
        if phase is Phase.ENDED and not has_process and report is not Report.FOUND:
            assert step == LifeStep(Action.IGNORE, Phase.ENDED), report


def test_whoever_is_alive_comes_in_whatever_was_heard_before() -> None:
    """By every report of the living, but of those who were refused."""
    for report, phase, has_process, step in SETTLED:
        if report in OF_THE_LIVING and has_process and phase is not Phase.REFUSED:
            assert step.phase in HELD, f"{report} in {phase}"


@pytest.mark.parametrize("report", [Report.STOPPED, Report.REMOVED, Report.NOT_LISTED, Report.EXITED])
def test_an_end_is_an_end_in_every_phase(report: Report) -> None:
    assert {step_of(report, phase).action for phase in HELD} == {Action.RELEASE}
    assert {step_of(report, phase).phase for phase in Phase}.isdisjoint(HELD)


def test_nobody_waits_for_ever() -> None:
    """Who need not have a process yet is released when it gets none in time, and with its pod."""
    for phase in AWAITED:
        assert step_of(Report.OVERDUE, phase) == LifeStep(Action.RELEASE, Phase.ENDED)
        stopped = step_of(Report.POD_STOPPED, phase)
        assert stopped.settled(phase, has_process=False) == LifeStep(Action.RELEASE, Phase.ENDED)
        assert stopped.settled(phase, has_process=True) == LifeStep(Action.KEEP, phase)


def test_no_report_takes_a_process_back() -> None:
    """What comes late or doubled leaves one that runs where it is, unless the runtime's list says
    otherwise."""
    for report, phase, has_process, step in SETTLED:
        if phase is Phase.RUNNING and has_process and report is not Report.LISTED_CREATED:
            assert step.phase in (Phase.RUNNING, Phase.ENDED), report


def test_the_document_has_the_table() -> None:
    lines = [f"| report | {' | '.join(phase.value for phase in Phase)} |", f"|---{'|---' * len(Phase)}|"]
    for report, row in TABLE.items():
        cells = [_cell(row[phase], phase) for phase in Phase]
        lines.append(f"| {report.value} | {' | '.join(cells)} |")
    assert "\n".join(lines) in DOCUMENT.read_text(encoding="utf-8")


def _cell(step: LifeStep, before: Phase) -> str:
    return WORDS[step.action] + ("" if step.phase is before else f", {step.phase.value}")
