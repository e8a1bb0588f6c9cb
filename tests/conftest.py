"""What holds for all tests: none fails because a machine is busy, or because of who started it, and where."""

import os
import signal
import tempfile

from hypothesis import HealthCheck, settings

# What is drawn is the same each time, so that nothing fails today that did not fail yesterday. Other draws:
# --hypothesis-profile elsewhere.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("bayplan", UNHURRIED, derandomize=True)
settings.register_profile("elsewhere", UNHURRIED)
settings.load_profile("bayplan")

# What is ignored or blocked is so in every program that tests start, too: a SIGTERM would not end it, and
# nobody would be told how it ended.
for number in (signal.SIGCHLD, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())

# Tests have sockets in their directories. The path of one has at most 107 bytes, and takes 85 below this.
LONGEST_TEMPORARY_ROOT = 16
if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TEMPORARY_ROOT:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/tmp")
