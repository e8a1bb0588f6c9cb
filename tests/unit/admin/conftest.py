"""The snapshot that the views and the admin socket show."""

import pytest

from bayplan.views.snapshot import Snapshot
from support.snapshots import make_snapshot


@pytest.fixture
def snapshot() -> Snapshot:
    return make_snapshot()
