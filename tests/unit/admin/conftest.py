"""The snapshot that the views and the admin socket show. Tests here may be coroutines."""

import pytest

from bayplan.views.snapshot import Snapshot
from support.coroutines import pytest_pyfunc_call
from support.snapshots import make_snapshot

__all__ = ["pytest_pyfunc_call", "snapshot"]


@pytest.fixture
def snapshot() -> Snapshot:
    return make_snapshot()
