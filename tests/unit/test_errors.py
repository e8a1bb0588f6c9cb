"""Every error names the thing, the value found and what was expected."""

import pytest

from bayplan.errors import (
    EXIT_CONFIG,
    EXIT_FAILURE,
    EXIT_UNAVAILABLE,
    BayplanError,
    ConfigError,
    HostError,
    ParseError,
    PlacementError,
    Problem,
    StateError,
    UnavailableError,
)


@pytest.mark.parametrize(
    ("error", "text", "exit_code"),
    [
        (
            ConfigError("bayplan.toml", (Problem("$.logLevel", "'loud'", "debug, info, warning or error"),)),
            "bayplan.toml: $.logLevel: found 'loud', expected debug, info, warning or error",
            EXIT_CONFIG,
        ),
        (
            ConfigError("flags", (Problem("a", "1", "2"), Problem("b", "3", "4"))),
            "flags: 2 problems:\n  a: found 1, expected 2\n  b: found 3, expected 4",
            EXIT_CONFIG,
        ),
        (ParseError("CPU list", "x", "0-3"), "CPU list: found 'x', expected 0-3", EXIT_FAILURE),
        (HostError("/sys/x", "is empty"), "/sys/x: is empty", EXIT_FAILURE),
        (StateError("/var/x", "disk full"), "state store /var/x: disk full", EXIT_FAILURE),
        (UnavailableError("/run/x", "nobody there"), "/run/x: nobody there", EXIT_UNAVAILABLE),
        (PlacementError("ns/p/c", "no room"), "TopologyAffinityError: ns/p/c: no room", EXIT_FAILURE),
    ],
)
def test_messages_and_exit_codes(error: BayplanError, text: str, exit_code: int) -> None:
    assert str(error) == text
    assert error.on_one_line() == text.replace("2 problems:\n  ", "").replace("\n ", ";")
    assert error.exit_code == exit_code
