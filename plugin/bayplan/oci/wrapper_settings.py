"""The settings of bayplan-runtime as a value, for checks; the wrapper itself is a shell script and reads them
itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bayplan.errors import Problem

PATH: Final = "/etc/bayplan/oci-runtime.conf"
KEYS: Final = ("runtime", "socket", "timeout", "on-failure")
MAX_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class WrapperSettings:
    """The texts of the lines ``key = value``, and what is wrong with them."""

    values: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def parse_wrapper_settings(text: str) -> WrapperSettings:
    """The settings in *text*, by the rules of the shell that reads them: blanks around ``=``, no quotes."""
    values: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split(None, 2)
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 2 or words[1] != "=":  # noqa: PLR2004 - key, sign and value
            problems.append(
                Problem(f"{PATH}:{number}", repr(line.strip()), "key = value, with blanks around =")
            )
        elif words[0] not in KEYS:
            problems.append(Problem(f"{PATH}:{number}", words[0], f"one of {', '.join(KEYS)}"))
        else:
            values[words[0]] = words[2].strip() if len(words) > 2 else ""  # noqa: PLR2004 - key, sign and value
    problems += [problem for key, value in values.items() if (problem := _wrong(key, value)) is not None]
    return WrapperSettings(values, tuple(problems))


def _wrong(key: str, value: str) -> Problem | None:
    if key == "on-failure" and value not in ("", "allow", "refuse"):
        return Problem(f"{PATH}: on-failure", value, "allow or refuse")
    if key == "timeout" and value and not _is_timeout(value):
        return Problem(f"{PATH}: timeout", value, f"seconds above 0, at most {MAX_TIMEOUT_S:g}")
    if key in ("runtime", "socket") and value and not value.startswith("/"):
        return Problem(f"{PATH}: {key}", value, "an absolute path")
    return None


def _is_timeout(value: str) -> bool:
    try:
        return 0 < float(value) <= MAX_TIMEOUT_S
    except ValueError:
        return False
