"""What holds for all tests: none fails because a machine is busy, or because of who started it, and where."""

import importlib
import os
import pkgutil
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

import bayplan
from support.coroutines import pytest_pyfunc_call

__all__ = ["pytest_collection_finish", "pytest_pyfunc_call"]

# The profile says how many examples of a property are tried: few in `make test`, many in `make test-all`.
# What is drawn is the same each time, so that nothing fails today that did not fail yesterday. Other draws:
# --hypothesis-profile elsewhere.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", UNHURRIED, derandomize=True, max_examples=50)
settings.register_profile("many", UNHURRIED, derandomize=True, max_examples=1000)
settings.register_profile("elsewhere", UNHURRIED, max_examples=1000)
settings.load_profile("few")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load all modules: Hypothesis draws constants from those that are loaded, whichever tests did that."""
    if any(is_hypothesis_test(getattr(item, "obj", None)) for item in session.items):
        for module in pkgutil.walk_packages(bayplan.__path__, "bayplan."):
            importlib.import_module(module.name)


# What is ignored or blocked is so in every program that tests start, too: a SIGTERM would not end it, and
# nobody would be told how it ended. A script's background jobs ignore SIGINT.
for number, handling in (
    (signal.SIGCHLD, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handling)
signal.pthread_sigmask(signal.SIG_SETMASK, ())

# The command line fits what it prints into so many columns, also for a file.
os.environ.pop("COLUMNS", None)

# Tests have sockets in their directories. The path of one has at most 107 bytes, and takes 85 below this.
LONGEST_TEMPORARY_ROOT = 16
if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMPORARY_ROOT:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/tmp")
