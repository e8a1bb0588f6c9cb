"""Whoever silences a check says why, on the same line."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BARE = re.compile(r"#\s*(ruff:\s*)?(noqa(: *[A-Z0-9, ]+)?|type:\s*ignore(\[[a-z, -]+\])?)\s*(#|$)")
REASONED = re.compile(r"(noqa: [A-Z0-9, ]+ - |type: ignore\[[a-z, -]+\]  # (?!noqa|type:))\w")


def test_no_check_is_silenced_without_a_reason() -> None:
    files = [ROOT / "hooks" / "oci-hook", ROOT / "hooks" / "oci_hook.py"]
    files += (
        one
        for part in ("plugin", "tests")
        for one in (ROOT / part).rglob("*.py")
        if "_proto" not in one.parts
    )
    bare = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        if file != Path(__file__)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if BARE.search(line) and not REASONED.search(line)
    ]
    assert not bare, "\n".join(bare)


def test_what_is_a_reason() -> None:
    for line in (
        "x  # noqa",
        "x  # noqa: A1",
        "x  # type: ignore[misc]",
        "x  # type: ignore[misc]  # noqa: A1",
    ):
        assert BARE.search(line)
        assert not REASONED.search(line)
    for line in (
        "x  # noqa: A1 - why",
        "x  # type: ignore[misc]  # why",
        "x  # type: ignore[a]  # noqa: A1 - why",
    ):
        assert REASONED.search(line)
