"""``python packaging/dev/mutants.py MODULE TEST...``: change *MODULE* in one place after the other, and see
whether the tests notice. `make mutants` runs it.

A mutant is the module with one operator, constant, condition or result of a function changed. One that no
test fails for has survived, and is printed with its line: a test is missing, or the line is not needed, or
both ways are right. The order is a fixed one that jumps through the module, so that a bounded run sees all of
it. The exit status is 1 if more survive than `--may-survive` says.

The tests are collected once, and run once to see which of them runs which line. Each mutant is a fork of that
process, in which the functions get the changed code; only the tests that run the changed statement are run,
the quickest first. So a mutant costs what these tests cost, and not the two seconds of a CPU that pytest and
the package take to load. What is done while the module is imported is not done again: its constants, defaults
and decorators are not changed. Programs that tests start are as they were.

cosmic-ray brings 27 packages and changes the work tree; mutmut brings a dozen, among them a text user
interface.
"""

import argparse
import ast
import copy
import gc
import os
import random
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

import pytest

SLOWEST: Final = 8
"""A mutant whose tests take so many times longer than those of the module as it is runs for ever: it is
noticed."""
WAITING_S: Final = 30.0
"""So long the tests of a mutant may wait for something that a quick test does not wait for."""
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


class Mutant(NamedTuple):
    """One change: *node* of a statement that has these *lines* becomes *other*."""

    node: ast.AST
    other: ast.AST
    lines: frozenset[int]

    @property
    def text(self) -> str:
        """What was there, and what is there now."""
        now = ast.fix_missing_locations(copy.deepcopy(self.other))
        first, second = (ast.unparse(part).splitlines()[0] for part in (self.node, now))
        return f"{first}  ->  {second}"

    def make(self) -> None:
        """Change the tree that the node is of."""
        self.node.__dict__, self.node.__class__ = (  # type: ignore[assignment] - a node of another kind
            {**self.node.__dict__, **self.other.__dict__},
            self.other.__class__,
        )


def statements(node: ast.AST, *, inside: bool = False) -> Iterator[ast.stmt]:
    """The statements of the functions in *node*."""
    for below in ast.iter_child_nodes(node):
        function = isinstance(below, ast.FunctionDef | ast.AsyncFunctionDef)
        if inside and isinstance(below, ast.stmt) and not function and not isinstance(below, ast.ClassDef):
            yield below
        yield from statements(below, inside=inside or function)


def parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """*statement* and what is in it, without the statements in it and without annotations."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        below = [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt)]
        annotation = getattr(node, "annotation", None)
        waiting += [one for one in below if one is not annotation]


def mutants(tree: ast.Module) -> Iterator[Mutant]:
    """Every mutant of *tree*."""
    for statement in statements(tree):
        inner = [
            one.lineno for one in ast.walk(statement) if isinstance(one, ast.stmt) and one is not statement
        ]
        last = min(inner) - 1 if inner else statement.end_lineno or statement.lineno
        own = {statement.lineno, *range(statement.lineno, last + 1)}
        for node in parts(statement):
            lines = own | {getattr(node, "lineno", statement.lineno)}
            for other in changed(node):
                yield Mutant(node, other, frozenset(lines))


def codes(code: CodeType) -> Iterator[CodeType]:
    """*code*, and that of all functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


class Mutants:
    """In place of a run of the tests: what they notice."""

    def __init__(self, module: Path, minutes: float) -> None:
        self.module, self.path = module, str(module.resolve())
        self.tree = ast.parse(module.read_text())
        self.minutes = minutes
        self.found = list(mutants(self.tree))
        self.tried = self.survived = 0
        self.lines: dict[pytest.Item, set[int]] = {}
        self.took_s: dict[pytest.Item, tuple[float, float]] = {}
        """Of a CPU, and by the clock."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """No test looks for a simpler example of what it found."""
        from hypothesis import Phase, settings  # noqa: PLC0415 - pytest warns of plugins loaded before it

        settings.register_profile(
            "mutants", settings.get_profile("few"), phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests on the module as it is, then on each mutant."""
        begun_s = time.monotonic()
        for item in session.items:
            self._note(session, item)
        if session.testsfailed:
            raise session.Interrupted("the tests fail without any change")
        functions = [
            one
            for one in gc.get_objects()
            if isinstance(one, FunctionType) and one.__code__.co_filename == self.path
        ]
        gc.freeze()
        random.Random(0).shuffle(self.found)  # noqa: S311 - an order, not a secret
        for mutant in self.found:
            if time.monotonic() - begun_s > self.minutes * 60:
                break
            self.tried += 1
            items = [one for one in session.items if self.lines[one] & mutant.lines]
            items.sort(key=self.took_s.__getitem__)
            if not items or self._survives(session, items, mutant, functions):
                self.survived += 1
                line = getattr(mutant.node, "lineno", min(mutant.lines))
                why = "" if items else "  (no test runs it)"
                session.config.get_terminal_writer().line(f"{self.module}:{line}: {mutant.text}{why}")
        return True

    def _note(self, session: pytest.Session, item: pytest.Item) -> None:
        """Run *item*; note how long it takes, and which lines of the module it runs."""
        lines = self.lines[item] = set()

        def trace(frame: FrameType, _event: str, _argument: object) -> Any:
            if frame.f_code.co_filename != self.path:
                return None
            lines.add(frame.f_lineno)
            return trace

        begun_s = time.process_time(), time.monotonic()
        threading.settrace(trace)
        sys.settrace(trace)
        try:
            self._run(session, [item])
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type] - typeshed does not know that it may be None
        self.took_s[item] = (time.process_time() - begun_s[0], time.monotonic() - begun_s[1])

    @staticmethod
    def _run(session: pytest.Session, items: list[pytest.Item]) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                break

    def _survives(
        self, session: pytest.Session, items: list[pytest.Item], mutant: Mutant, functions: list[FunctionType]
    ) -> bool:
        """Whether *items* pass where *functions* have the code of *mutant*."""
        child = os.fork()
        if not child:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                most_s = 2 + SLOWEST * sum(self.took_s[one][0] for one in items)
                resource.setrlimit(resource.RLIMIT_CPU, (int(most_s), resource.RLIM_INFINITY))
                mutant.make()
                code = compile(ast.fix_missing_locations(self.tree), self.path, "exec", dont_inherit=True)
                changed_codes = {(one.co_qualname, one.co_firstlineno): one for one in codes(code)}
                for function in functions:
                    own = function.__code__
                    function.__code__ = changed_codes[own.co_qualname, own.co_firstlineno]
                self._run(session, items)
                os._exit(bool(session.testsfailed))
            finally:
                os._exit(2)
        waiting = select.poll()
        pidfd = os.pidfd_open(child)
        waiting.register(pidfd, select.POLLIN)
        if not waiting.poll(1000 * (WAITING_S + SLOWEST * sum(self.took_s[one][1] for one in items))):
            os.kill(child, signal.SIGKILL)
        os.close(pidfd)
        return not os.waitpid(child, 0)[1]


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
    run = Mutants(arguments.module, arguments.minutes)
    options = ["-x", "-q", "--tb=no", "-n", "0", "-p", "no:cacheprovider", "-m", "not matrix"]
    if status := pytest.main([*options, *arguments.tests], plugins=[run]):
        return int(status)
    print(f"{run.tried} of {len(run.found)} mutants, {run.survived} survived")  # noqa: T201 - what it is for
    return int(run.survived > arguments.may_survive)


if __name__ == "__main__":
    sys.exit(main())
