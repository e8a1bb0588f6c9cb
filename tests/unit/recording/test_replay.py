"""What `bayplan replay` says: differences, what is wrong with a file, and how it looks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli.bayplan import main
from bayplan.errors import EXIT_CONFIG, EXIT_FAILURE
from support.recordings import RECORDINGS, TRACE

Capture = pytest.CaptureFixture[str]
Lines = list[dict[str, Any]]
BEGIN = b'{"kind":"Begin","begun_us":0}\n'


def edited(path: Path, edit: Callable[[Lines], object]) -> Path:
    """The recording of a trace, with its lines changed by *edit*."""
    lines: Lines = [json.loads(line) for line in (RECORDINGS / TRACE).read_text().splitlines()]
    edit(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def decisions(lines: Lines) -> Lines:
    return [line for line in lines if line["kind"] == "Decide"]


def replayed(path: Path, capsys: Capture) -> tuple[int, dict[str, Any]]:
    status = main(["replay", str(path), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_same_answers_are_said_so(capsys: Capture) -> None:
    assert main(["replay", str(RECORDINGS / TRACE)]) == 0
    assert "every answer is the same." in capsys.readouterr().out


def test_another_place_is_a_difference_with_its_line(tmp_path: Path, capsys: Capture) -> None:
    def move(lines: Lines) -> None:
        placed = next(one for one in decisions(lines) if one["answer"]["placement"]["mems"] == "0")
        placed["answer"]["placement"]["mems"] = "3"

    path = edited(tmp_path / "recording", move)
    status, said = replayed(path, capsys)
    assert status == EXIT_FAILURE
    (one,) = said["differences"]
    assert one["changed"] == ["placement"]
    assert "on node 3" in one["recorded"]
    assert "on node 0" in one["now"]
    assert json.loads(path.read_text().splitlines()[one["line"] - 1])["request"]["name"] == one["name"]


def test_other_words_for_the_same_decision_are_counted_and_are_no_failure(
    tmp_path: Path, capsys: Capture
) -> None:
    def reword(lines: Lines) -> None:
        decisions(lines)[0]["answer"]["reasons"].append({"code": "old", "text": "as it was said before"})

    status, said = replayed(edited(tmp_path / "recording", reword), capsys)
    assert status == 0
    assert (said["different"], said["explainedOtherwise"]) == (0, 1)
    assert said["differences"][0]["recorded"].endswith("as it was said before")


def test_another_policy_decides_otherwise(tmp_path: Path, capsys: Capture) -> None:
    def spread(lines: Lines) -> None:
        policy = next(line["policy"] for line in lines if line.get("policy"))
        policy["strategy"] = "spread"

    status, said = replayed(edited(tmp_path / "recording", spread), capsys)
    assert status == EXIT_FAILURE
    assert 0 < said["different"] < said["questions"]


def test_a_claim_that_others_completed_otherwise_is_named(tmp_path: Path, capsys: Capture) -> None:
    def complete(lines: Lines) -> None:
        asked = next(line for line in lines if line["kind"] == "CompletedClaims")
        asked["answer"] = {"c1": {"nodes": "0", "amounts_bytes": {"memory": 5}}}

    status, said = replayed(edited(tmp_path / "recording", complete), capsys)
    assert status == EXIT_FAILURE
    (one,) = said["differences"]
    assert one["question"] == "CompletedClaims"
    assert one["recorded"].startswith("c1: ")
    assert one["now"] == "no container"


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_of_differences_fits(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    def refuse(lines: Lines) -> None:
        for one in decisions(lines)[:5]:
            one["answer"]["outcome"] = "refused"

    monkeypatch.setenv("COLUMNS", str(width))
    path = edited(tmp_path / "recording", refuse)
    assert main(["replay", str(path)]) == EXIT_FAILURE
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert "4 answered otherwise" in " ".join(shown.split())
    for heading in ("WHO", "RECORDED", "NOW"):
        assert heading in shown


def test_a_line_that_is_cut_off_is_left_out_and_said(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "recording"
    path.write_bytes((RECORDINGS / TRACE).read_bytes()[:-10])
    status, said = replayed(path, capsys)
    assert status == 0
    assert said["cutOff"]
    assert main(["replay", str(path)]) == 0
    assert "The last line is cut off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "line 1: found nothing whole"),
        (BEGIN[:-1], "line 1: found nothing whole"),
        (b"[]\n", "line 1: found"),
        (b'{"kind":"Changed"}\n', "line 1: found another one"),
        (b'{"kind":"Begin","begun_us":0,"format":9,"version":"9.0"}\n', "found format 9 of bayplan 9.0"),
        (BEGIN + b'x\n{"kind":"Odd"}\n', "2 problems:\n  line 2: "),
        (
            b'{"kind":"Begin","begun_us":0}\n{"kind":"Begin","begun_us":0}\n',
            "line 2: found a second beginning",
        ),
        (BEGIN + b'{"kind":"MovesBack","at_us":0,"answer":[]}\n', "line 2: found a question"),
        (BEGIN + b'{"kind":"Changed","machine":{"nodes":{}}}\n', "line 2: "),
        (b"\xff\xfe\n", "line 1: "),
    ],
)
def test_what_is_no_recording_is_named(tmp_path: Path, capsys: Capture, content: bytes, named: str) -> None:
    path = tmp_path / "recording"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == EXIT_CONFIG
    assert f"{path}: " in (said := capsys.readouterr().err)
    assert named in said
