"""The runner itself: what it counts, what it does not pass over, and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.sections import Folder, MismatchError, Section, expect, expect_error
from conformance.vectors import main, references, run, sections, unknown

AND = "bitmask.json"
TESTS = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, content in files.items():
            kind = "jsonl" if isinstance(content, str) else "json"
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{name}.{kind}").write_text(text)
        return tmp_path

    return write


def masks(expected):
    return {"_schema": "", "and": [{"name": "one", "masks": [[0, 1], [1]], "andMask": expected}]}


def test_right_answers_pass(folder, capsys):
    assert main([str(folder(bitmask=masks("10")))]) == 0
    printed = capsys.readouterr().out
    assert "1/1      ok  bitmask.json:and" in printed
    assert printed.endswith("1 passed, 0 failed, 0 unknown tables\n")


def test_a_wrong_answer_is_shown_with_its_name_and_both_values(folder, capsys):
    assert main([str(folder(bitmask=masks("11")))]) == 1
    printed = capsys.readouterr().out
    assert "0/1      FAILED  bitmask.json:and" in printed
    assert "case 0 \"one\": mask: found '10', expected '11'" in printed


def test_a_case_that_makes_the_engine_raise_has_failed(folder, capsys):
    assert main([str(folder(bitmask={"and": [{"masks": [[-1]]}]}))]) == 1
    assert "case 0: ParseError at sets.py" in capsys.readouterr().out


def test_only_the_first_failures_are_printed(folder, capsys):
    case = masks("11")["and"][0]
    assert main([str(folder(bitmask={"and": [case] * 5}))]) == 1
    printed = capsys.readouterr().out
    assert printed.count("expected '11'") == 3
    assert "... and 2 more" in printed


def test_unknown_tables_and_files_are_reported_and_fail(folder, capsys):
    path = folder(bitmask=masks("10") | {"xor": []}, planets={"near": []}, lines='{"a": 1}\n', broken="{")
    assert main([str(path)]) == 1
    printed = capsys.readouterr().out
    for name in ("bitmask.json:xor", "planets.json:near", "lines.jsonl"):
        assert f"UNKNOWN  {name}" in printed
    assert "FAILED  broken.jsonl: can't be read: line 1: " in printed
    assert printed.endswith("1 passed, 1 failed, 3 unknown tables\n")


def test_what_holds_no_cases_is_said(folder, capsys):
    assert main([str(folder(bitmask=masks("10"), oracle_cpu_topologies={"t": [{}]}))]) == 0
    assert "no cases  oracle_cpu_topologies.json: read by oracle_take" in capsys.readouterr().out


def test_folders_in_the_folder_count_each_by_itself(folder, capsys):
    path = folder(bitmask=masks("10"))
    (path / "later").mkdir()
    (path / "empty").mkdir()
    (path / "later" / AND).write_text(json.dumps(masks("11")))
    assert main([str(path)]) == 1
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.endswith(":")] == [f"{path}:", f"{path}/later:"]
    assert "1 passed, 0 failed, 0 unknown tables\n" in printed
    assert printed.endswith("0 passed, 1 failed, 0 unknown tables\n")


def test_missing_files_are_absent_not_failed(folder, capsys):
    assert main([str(folder(bitmask=masks("10")))]) == 0
    printed = capsys.readouterr().out
    assert "absent  oracle_tm_merge.jsonl" in printed
    assert printed.endswith("1 passed, 0 failed, 0 unknown tables\n")


def test_a_folder_without_cases_proves_nothing(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert f"NOTHING  {tmp_path}: no file in it holds a case" in printed
    assert printed.endswith("0 passed, 0 failed, 0 unknown tables\n")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (["and"], "the file holds a list, expected tables by name"),
        ({"and": 7}, "the table is a int, expected a list of cases"),
    ],
)
def test_a_known_table_of_another_form_has_failed(tmp_path, content, why, capsys):
    (tmp_path / AND).write_text(json.dumps(content))
    (tmp_path / "topology_manager.json").write_text("{}")
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "FAILED  bitmask.json:and" in printed
    assert f"case 0: {why}" in printed


@pytest.mark.parametrize("content", [b"", b'{"and": [{"masks"', b"\xff\xfe"])
def test_a_damaged_file_is_one_failure(tmp_path, content, capsys):
    (tmp_path / AND).write_bytes(content)
    (tmp_path / "folder.json").mkdir()
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert printed.count("FAILED") == 1
    assert "FAILED  bitmask.json: can't be read: " in printed
    assert printed.endswith("0 passed, 1 failed, 0 unknown tables\n")


def test_fields_that_no_check_reads_are_ignored(folder):
    written = masks("10")
    written["and"][0] |= {"later": {"added": [1]}, "andMaskHex": "2"}
    written |= {"_later": "added"}
    assert main([str(folder(bitmask=written))]) == 0


def test_a_folder_is_needed(tmp_path):
    with pytest.raises(SystemExit) as raised:
        main([str(tmp_path / "nowhere")])
    assert raised.value.code == 2


def test_tables_that_are_objects_give_keys_and_values(folder):
    seen = []
    section = Section("planets.json", "near", lambda case, _: seen.append(case))
    result = run(section, Folder(folder(planets={"near": {"mars": 1, "venus": 2}})))
    assert seen == [["mars", 1], ["venus", 2]]
    assert (result.cases, result.passed) == (2, 2)


def test_no_table_is_claimed_twice():
    names = [str(section) for section in sections()]
    assert len(names) == len(set(names))
    assert not set(names) & set(references())


def test_all_recorded_tables_are_known(request):
    data = request.config.rootpath / "tests" / "data" / "vectors"
    assert not list(unknown(Folder(data)))
    assert not list(unknown(Folder(data.parent / "vectors-1.37")))
    assert {name for name in references() if not (data / name.partition(":")[0]).exists()} == set()


def test_errors_are_compared_by_what_the_record_has_of_them():
    expect_error(ValueError("no such thing as 7"), "no such thing")
    expect_error(None, None)
    for found, expected in ((None, "no"), (ValueError("no"), None), (ValueError("no"), "yes")):
        with pytest.raises(MismatchError):
            expect_error(found, expected)
    with pytest.raises(MismatchError, match="size: found 1, expected 2"):
        expect("size", 1, 2)


def test_it_runs_as_a_module(folder):
    command = [sys.executable, "-m", "conformance", str(folder(bitmask=masks("10")))]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("1 passed, 0 failed, 0 unknown tables\n")
