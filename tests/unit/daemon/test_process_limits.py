"""The daemon protects itself where nobody chose otherwise."""

import resource
from pathlib import Path

import pytest

from bayplan.daemon.process import NEEDED_FILES, OOM_SCORE_ADJ, WATCHED_FILES, protect, spare_files


def root_with(tmp_path: Path, score: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/oom_score_adj").write_text(f"{score}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after"), [("0", OOM_SCORE_ADJ), ("-998", -998), ("-999", -999), ("300", 300)]
)
def test_only_what_nobody_chose_is_changed(tmp_path: Path, before: str, after: int) -> None:
    root = root_with(tmp_path, before)
    protect(root)
    assert int((root / "proc/self/oom_score_adj").read_text()) == after


def test_where_it_is_not_allowed_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    protect(tmp_path)
    assert caplog.messages == ["not protected from being killed when memory runs out"]


@pytest.mark.parametrize("more", [0, 1, 7, 500, WATCHED_FILES + 10])
def test_no_file_is_given_out_twice(more: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(NEEDED_FILES + more, before[1]), before[1]))
    try:
        given_out = spare_files()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert min(given_out) >= 0
    assert sum(given_out) == min(more, WATCHED_FILES)
