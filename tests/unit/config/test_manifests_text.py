"""Files of manifests: what is read of them, and that everything else is one sentence with the file's name."""

import errno
import os
from pathlib import Path

import pytest

from bayplan.cli.bayplan import main
from bayplan.config.yaml_text import read_manifests
from bayplan.errors import ConfigError

Capture = pytest.CaptureFixture[str]


def test_dates_are_texts_as_for_kubernetes(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(
        "metadata: {name: 2026-11-21, creationTimestamp: 2026-11-21T10:00:00Z}\n---\n---\nkind: Pod\n"
    )
    assert read_manifests(str(path)) == [{"metadata": {"name": "2026-11-21"}}, {"kind": "Pod"}]


@pytest.mark.parametrize(
    "content",
    [
        b"a: [",
        b"\xff\xfe",
        b"a: !!bool x",
        b"a: !!timestamp x",
        b"a: !!python/object:os.system x",
        b"metadata: !!binary aGk=",
        b"spec: !!set {a}",
        b"spec: {cpus: .nan}",
        b"items: &loop [*loop]",
        b"&loop [*loop]",
        b"spec: 9" + b"9" * 5000,
        pytest.param(b"[" * 1500, id="nested too deeply"),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path: Path, capsys: Capture, content: bytes) -> None:
    path = tmp_path / "pods.yaml"
    path.write_bytes(content)
    assert main(["what-if", str(path), "--admin-socket", str(tmp_path / "none.sock")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"bayplan: {path}: the file: found ")
    assert len(said) < 1000


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_manifests(str(tmp_path / "none.yaml"))
    (problem,) = caught.value.problems
    assert (caught.value.source, problem.path) == (f"{tmp_path}/none.yaml", "the file")
    assert problem.found == os.strerror(errno.ENOENT)


@pytest.mark.parametrize("count", ["0", "-1", "201", "1000000000", "9" * 5000, "two"])
def test_a_number_of_pods_that_nobody_rehearses(capsys: Capture, count: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["what-if", "--memory", "1Gi", f"--count={count}"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "--count: found" in said
    assert len(said) < 2000


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--memory", "4Gib"], ["--memory: found '4Gib'"]),
        (["--memory", ""], ["--memory: found ''"]),
        (["--memory=-1"], ["--memory: found '-1'"]),
        (["--cpus", "two"], ["--cpus: found 'two'"]),
        (["--hugepages", "2Mi"], ["--hugepages: found '2Mi'"]),
        (["--hugepages", "2Qi=4Mi"], ["--hugepages: SIZE: found '2Qi'"]),
        (["--hugepages", "0=4Mi"], ["--hugepages: SIZE: found '0'"]),
        (
            [
                *("--memory", "9" * 5000, "--memory-limit", "much", "--cpus", "1,5", "--annotation", "a"),
                *("--hugepages", "2Mi=some", "--hugepages", "big=1Gi", "--hugepages", "=", "--name", "a/b"),
            ],
            [
                *("--memory: found '999", "--memory-limit: found 'much'", "--cpus: found '1,5'"),
                *("--hugepages: AMOUNT: found 'some'", "--hugepages: SIZE: found 'big'"),
                *("--hugepages: found '='", "--annotation: found 'a'"),
            ],
        ),
    ],
)
def test_sizes_that_are_none_are_named_all_at_once_and_nobody_is_asked(
    tmp_path: Path, capsys: Capture, words: list[str], wrong: list[str]
) -> None:
    assert main(["what-if", *words, "--admin-socket", str(tmp_path / "none.sock")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bayplan: command line: ")
    for one in wrong:
        assert one in said
    assert said.count(", expected ") == len(wrong)
    assert len(said) < 2000
