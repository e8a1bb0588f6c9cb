"""Numbers in what people read: one thing is singular, others are plural, an amount is not said twice, and the
amounts of a column have one unit.

What is read is all that the commands show of random pods on small machines. What no pod leads to is held by
the literals of the product: a number in front of a plural is written by `counted`, or can't be 1.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.admin.questions import what_if_view
from bayplan.cli import nodes, status, what_if
from bayplan.cli.decisions import IN_BYTES
from bayplan.cli.layout import Block, Table
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.model.decision import ROOM_TAKEN
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.quantity import GIB
from bayplan.simulate.manifest import plan_manifest, sizes_manifest
from bayplan.simulate.rehearsal import Rehearsal
from bayplan.views.snapshot import Unmanaged
from bayplan.views.status import nodes_view, status_view
from support.machines import machine
from support.snapshots import make_snapshot

PACKAGE = Path(__file__).parents[2] / "plugin" / "bayplan"
THINGS = (
    "answer|attempt|byte|cache|candidate|character|column|container|core|CPU|cpu|decision|device|distance|"
    "document|entry|event|file|group|instance|key|line|list|move|name|node|other|page|part|piece|pod|problem|"
    "process|promise|question|refusal|row|second|set|socket|step|thread|time"
)
PLURAL = rf"(?:{THINGS})(?:s|es)"
_ALONE = r"(?<![\w.,:/-])"
WRONG = (
    rf"{_ALONE}1 (?:[a-z]+ )?{PLURAL}\b",
    rf"{_ALONE}(?:0|[2-9]|[1-9]\d+) (?:exclusive |other |shared |free )?(?:{THINGS})(?![\w(:/-])",
    r"\b(?:nodes|CPUs) \d+(?![\d,:-])",
    r"\b(?:node|CPU) \d+[,-]\d",
    r"\b(\d[\d.]*[KMGT]i) to \1\b",
    rf"{_ALONE}1 [a-zA-Z ]{{0,20}}(?:container|pod|node|CPU|move|piece) (?:are|were|have)\b",
)
AMOUNT = re.compile(r"(?<![\w-])\d[\d.]*([KMGTPE]i)(?![\w-]| hugepages)")


def texts(blocks: list[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield block.title
            for row in block.rows:
                yield from (row,) if isinstance(row, str) else row
        else:
            yield block


def columns_of_amounts(blocks: list[Block]) -> Iterator[tuple[str, set[str]]]:
    """The heading of each column, and the units of the amounts in it; that of sentences is none."""
    for table in (one for one in blocks if isinstance(one, Table)):
        for position, column in enumerate(table.columns):
            cells = [row[position] for row in table.rows if not isinstance(row, str)]
            if column.heading and not any(len(cell.split()) > 6 for cell in cells):
                yield column.heading, {unit for cell in cells for unit in AMOUNT.findall(cell)}


PODS = st.lists(
    st.tuples(
        st.sampled_from([None, "1Mi", "700Mi", "1Gi", "3000Mi", "9Gi", "1500M"]),
        st.sampled_from([None, "1", "2", "3", "1500m", "9"]),
        st.sampled_from(
            [
                {},
                {"bayplan.dev/preferred-nodes": "0-1"},
                {"bayplan.dev/required-nodes": "1"},
                {"bayplan.dev/cpus": "exclusive=1"},
                {"bayplan.dev/cpus": "shared"},
                {"bayplan.dev/memory-policy": "interleave"},
                {"bayplan.dev/pod-resources": "cpu=2,memory=2Gi"},
            ]
        ),
    ),
    max_size=7,
)
MACHINES = [
    machine(1, 1, memory_bytes=4 * GIB),
    machine(2, 2, memory_bytes=4 * GIB),
    machine(3, 4, memory_bytes=2 * GIB),
]


@pytest.mark.parametrize("engine", [ExactEngine, KubeletEngine])
@given(st.sampled_from(MACHINES), st.sampled_from(TopologyPolicy), PODS, st.integers(0, 2))
def test_what_people_read(
    engine: Any,
    on: Machine,
    topology: TopologyPolicy,
    pods: list[tuple[str | None, str | None, dict[str, str]]],
    unmanaged: int,
) -> None:
    policy = PlacementPolicy(topology=topology)
    manifests = [
        sizes_manifest(f"p{number}", memory=memory, cpus=cpus, annotations=wishes)
        for number, (memory, cpus, wishes) in enumerate(pods)
        if memory or cpus
    ]
    daemon = Rehearsal(on, policy, engine())
    for manifest in manifests:
        daemon.admit(plan_manifest(manifest, on)[0])
    found = tuple(Unmanaged(str(number), f"a/b/{number}") for number in range(unmanaged))
    empty = make_snapshot(machine=on, policy=policy, engine=engine().name)
    snapshot = replace(empty, ledger=daemon.ledger, unmanaged=found)
    shown = [*status.wide_blocks(status_view(snapshot)), *nodes.blocks(nodes_view(snapshot))]
    if manifests:
        said = what_if_view(empty, engine(), MemoryPolicyAbility(), manifests)
        shown += what_if.blocks({**said, "remarks": []})
    for text in texts(shown):
        for wrong in WRONG:
            assert not re.search(wrong, text), text
    mixed = {heading: units for heading, units in columns_of_amounts(shown) if len(units) > 1}
    assert not mixed


def test_the_criterion_in_bytes_is_the_engines() -> None:
    assert IN_BYTES == ROOM_TAKEN


@pytest.mark.parametrize(
    "text",
    ["1 containers", "2 CPU are free", "nodes 3 hold", "node 0-1 holds", "64Mi to 64Mi", "1 pod were moved"],
)
def test_what_would_be_wrong(text: str) -> None:
    assert any(re.search(wrong, text) for wrong in WRONG)


BEFORE_A_PLURAL = re.compile(rf" (?:[a-z'-]+ ){{0,2}}{PLURAL}\b")
NEVER_ONE = {
    "times": "not where it is 1",
    "refusal['times']": "not where it is 1",
    "len(self.problems)": "one problem is said without a number",
    "left_out": "only of a text that was cut",
    "_ATTEMPTS": "a constant",
}
NO_NUMBERS = {
    "what": "a verb",
    "node": "an id, in numactl's own words",
    "owners[cpu]": "a name",
    "manager.value": "a name",
    "request.qos.value": "a class",
    "', '.join(kept)": "amounts",
    "', '.join(kinds)": "names",
    "nodes_text(NodeSet(numactl.rows))": "ids",
    "node.cpus & seen_cpus": "ids",
    "all_of_them": "a command",
    "are": "counted before",
    "self.requested": "kubelet's own sentence",
}
ABOVE_A_LIMIT = re.compile(
    r"(?:size|unsent|backlog|most)_bytes$|^length$|timeout_s$|^len\(text\)$", re.IGNORECASE
)


IDS_BEHIND_A_PLURAL = re.compile(r"\b(?:CPUs|nodes|cores|sockets) $")
NO_IDS = {"request.cpus.use.value": "a word", "' or '.join(map(str, alike[:_SETS_NAMED]))": "several"}


def test_ids_have_a_name_that_fits_how_many_there_are() -> None:
    """`nodes_text` and `cpus_text` do; `verb_after` has the verb."""
    unnamed = [
        f"{module}:{literal.lineno}: {words}{{{ids}}}"
        for module, literal in literals()
        for words, ids in pairs(literal, fields_first=False)
        if IDS_BEHIND_A_PLURAL.search(words) and ids not in NO_IDS
    ]
    assert not unnamed


def test_a_number_in_front_of_a_plural_is_counted() -> None:
    uncounted = [
        f"{module}:{literal.lineno}: {{{number}}}{after}"
        for module, literal in literals()
        for number, after in numbers_before_plurals(literal)
    ]
    assert not uncounted


def literals() -> Iterator[tuple[Path, ast.JoinedStr]]:
    for module in sorted(PACKAGE.rglob("*.py")):
        if "_proto" not in module.parts:
            for node in ast.walk(ast.parse(module.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield module.relative_to(PACKAGE), node


def pairs(literal: ast.JoinedStr, *, fields_first: bool) -> Iterator[tuple[str, str]]:
    """What stands beside each other: a field and the words behind it, or words and the field behind them."""
    kinds = (ast.FormattedValue, ast.Constant) if fields_first else (ast.Constant, ast.FormattedValue)
    for first, second in zip(literal.values, literal.values[1:], strict=False):
        if isinstance(first, kinds[0]) and isinstance(second, kinds[1]):
            yield text_of(first), text_of(second)


def text_of(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return ast.unparse(part.value)
    assert isinstance(part, ast.Constant)
    return str(part.value)


def numbers_before_plurals(literal: ast.JoinedStr) -> Iterator[tuple[str, str]]:
    for number, words in pairs(literal, fields_first=True):
        known = number.startswith(("counted(", "format_bytes(")) or number.isupper()
        known = known or re.search(r"name|text|verb", number) is not None
        known = known or number in NEVER_ONE | NO_NUMBERS or ABOVE_A_LIMIT.search(number) is not None
        if BEFORE_A_PLURAL.match(words) and not known:
            yield number, words
