"""``python packaging/dev/mutants.py MODULE TEST...``: change *MODULE* in one place after the other, and see
whether the tests notice. `make mutants` runs it.

A mutant is the module with one operator, constant, condition or result changed. It lives in a copy of the
package, which the tests import instead: the work tree stays as it is. One that no test fails for has
survived, and is printed with its line: a test is missing, or the line is not needed, or both ways are right.
The order is a fixed one that jumps through the module, so that a bounded run sees all of it. The exit status
is 1 if more survive than `--may-survive` says.

cosmic-ray brings 27 packages and changes the work tree; mutmut brings a dozen, among them a text user
interface.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path("plugin/bayplan")
SLOWEST: Final = 8.0
"""A mutant whose tests take so many times longer than those of the module as it is runs for ever: it is
noticed."""
_COMPARISONS: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: Final = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def changed(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901 - one branch for each kind
    """*node* in other ways, each wrong unless nothing depends on it."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        yield ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield node.values[0]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        yield ast.Call(ast.Name(_CALLS[node.func.id], ast.Load()), node.args, node.keywords)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.If):
        yield ast.If(ast.Constant(value=False), node.body, node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        yield ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(value=None))


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Every mutant of *source*: its line, what is changed there, and the whole text."""
    tree = ast.parse(source)
    in_annotations = {
        id(below)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for below in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in in_annotations or not hasattr(node, "lineno"):
            continue
        for other in changed(node):
            was, now = ast.unparse(node), ast.unparse(ast.fix_missing_locations(copy.deepcopy(other)))
            before = copy.copy(node.__dict__), node.__class__
            node.__class__, node.__dict__ = other.__class__, {**before[0], **other.__dict__}
            text = ast.unparse(ast.fix_missing_locations(tree))
            node.__class__, node.__dict__ = before[1], before[0]
            first, second = (part.splitlines()[0] for part in (was, now))
            yield before[0]["lineno"], f"{first}  ->  {second}", text


def run(package: Path, tests: list[str], most_s: float | None) -> bool:
    """Whether *tests* pass with the package below *package*."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not matrix",
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return not subprocess.run(  # noqa: S603 - pytest of this environment
            command, env=environment, capture_output=True, timeout=most_s, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="change a module in one place after the other, and run tests"
    )
    parser.add_argument("module", type=Path, help="a file of the package")
    parser.add_argument("tests", nargs="+", help="what pytest is to run")
    parser.add_argument("--minutes", type=float, default=10, help="so long (10)")
    parser.add_argument("--may-survive", type=int, default=0, metavar="COUNT", help="so many may (0)")
    arguments = parser.parse_args()
    found = list(mutants(arguments.module.read_text()))
    random.Random(0).shuffle(found)  # noqa: S311 - an order, not a secret
    survived = tried = 0
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(PACKAGE, Path(scratch, "bayplan"), ignore=shutil.ignore_patterns("__pycache__"))
        target = Path(scratch, "bayplan", arguments.module.relative_to(PACKAGE))
        begun_s = time.monotonic()
        if not run(Path(scratch), arguments.tests, None):
            parser.error("the tests fail without any change")
        most_s = (time.monotonic() - begun_s) * SLOWEST
        for line, what, text in found:
            if time.monotonic() - begun_s > arguments.minutes * 60:
                break
            target.write_text(text)
            tried += 1
            if run(Path(scratch), arguments.tests, most_s):
                survived += 1
                print(f"{arguments.module}:{line}: {what}", flush=True)  # noqa: T201 - what it is for
    print(f"{tried} of {len(found)} mutants, {survived} survived")  # noqa: T201 - what it is for
    return int(survived > arguments.may_survive)


if __name__ == "__main__":
    sys.exit(main())
