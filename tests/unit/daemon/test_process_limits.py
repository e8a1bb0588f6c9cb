"""The daemon protects itself where nobody chose otherwise."""

from pathlib import Path

import pytest

from bayplan.daemon.process_limits import OOM_SCORE_ADJ, protect


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
