"""docs/metrics.md is what the definitions say."""

from pathlib import Path

from bayplan.views.metrics import EVENTS, METRICS
from reference.metrics_page import page

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `make reference`"


def test_it_has_every_metric_and_every_event() -> None:
    for name in (*(metric.name for metric in METRICS), *EVENTS):
        assert f"\n| `{name}` | " in page()
