"""No test depends on how fast a machine is: one patience for all that wait, and no time that is compared."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
CLOCKS = {"monotonic", "perf_counter", "process_time"}
CONSTANTS = {"PATIENCE_S", "LIMIT_S"}
OWNER = "support/coroutines.py"
FAILING = {
    "settimeout",
    "wait",
    "wait_for",
    "join",
    "get",
    "run",
    "communicate",
    "urlopen",
    "create_connection",
}
"""What fails, or gives up without a word, when the seconds that it is given are over."""


def called(node: ast.AST) -> str:
    """The name of the function or method that is called."""
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))


def waited_s(call: ast.Call) -> ast.AST | None:
    """The argument that says how long a call that can fail waits at most."""
    # `asyncio.wait` returns then; who goes on says what is to be so.
    if called(call) not in FAILING or ast.unparse(call.func) == "asyncio.wait":
        return None
    named = [one.value for one in call.keywords if one.arg == "timeout"]
    bare = call.args if called(call) in ("settimeout", "join") else ()
    return next(iter([*named, *bare]), None)


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def hurried(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a test would fail on a machine that is slow enough: the line, and what is wrong there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(is_number(one) for one in node.comparators):
            if CLOCKS & {called(one) for one in ast.walk(node.left)}:
                yield node.lineno, "compares a time with a number"
        elif isinstance(node, ast.Assign) and is_number(node.value):
            if CONSTANTS & {one.id for one in node.targets if isinstance(one, ast.Name)}:
                yield node.lineno, "has a patience of its own"
        elif isinstance(node, ast.Call) and (limit := waited_s(node)) is not None and is_number(limit):
            yield node.lineno, "waits for a number of seconds"
        elif isinstance(node, ast.AsyncWith):
            for one in node.items:
                context = one.context_expr
                if called(context) == "timeout" and any(map(is_number, getattr(context, "args", ()))):
                    yield context.lineno, "waits for a number of seconds"


def test_no_test_is_hurried() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line} {problem}"
        for part in ("unit", "property", "simulate", "support")
        for path in sorted((TESTS / part).rglob("*.py"))
        if str(path.relative_to(TESTS)) != OWNER
        for line, problem in hurried(ast.parse(path.read_text()))
    ]
    assert found == []


def test_what_is_hurried() -> None:
    for text in (
        "assert time.monotonic() - begun_s < 60",
        "PATIENCE_S = 20",
        "async def f():\n    async with asyncio.timeout(10):\n        pass",
        "one.settimeout(10)",
        "threads[0].join(60)",
        "subprocess.run(argv, check=False, timeout=60)",
        "urlopen(url, timeout=10)",
        "asyncio.wait_for(done.wait(), timeout=5)",
    ):
        assert list(hurried(ast.parse(text))), text
    for text in (
        "assert slices <= passed_s + 2",
        "async def f():\n    async with asyncio.timeout(PATIENCE_S):\n        pass",
        "one.settimeout(PATIENCE_S)",
        "await asyncio.wait([again], timeout=0.2)",
        "', '.join(names)",
    ):
        assert not list(hurried(ast.parse(text))), text
