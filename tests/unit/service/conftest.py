"""The snapshot that the views and the admin socket show."""

import pytest

from bayplan.service.views import Snapshot
from bayplan.testing.snapshots import make_snapshot


@pytest.fixture
def snapshot() -> Snapshot:
    return make_snapshot()
