"""A sentence of the product is asserted in one test module, so that its wording can improve in one step.

All other tests go by codes, fields, keys, numbers and names. A sentence is four words in a row in one of the
product's literals. Where several modules of the product have the same words, as many test modules may.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = 4
WORDS_IN_A_ROW = re.compile(r"[A-Za-z][A-Za-z'-]*(?:,? [A-Za-z][A-Za-z'-]*)+")
EXCEPTIONS = {
    "no daemon answers at": "hook and wrapper are programs of their own, which say it in the same words"
}
KUBELETS = ROOT / "tests" / "support" / "kubelet_start.py"
"""Sentences of kubelet, which has them for both of its files."""
PATTERN_ESCAPE = re.compile(r"\\(?=\W)")


def sentences(module: Path) -> Iterator[str]:
    """The words in a row in the literals of *module*. SQL is none, nor is a docstring."""
    tree = ast.parse(module.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in bare:
            continue
        if node.value.startswith("SELECT "):
            continue
        for found in WORDS_IN_A_ROW.findall(PATTERN_ESCAPE.sub("", node.value)):
            words = found.replace(",", "").split()
            for first in range(len(words) - WORDS + 1):
                yield " ".join(words[first : first + WORDS])


def modules_by_sentence(modules: Iterable[Path]) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        for sentence in sentences(module):
            found[sentence].add(str(module.relative_to(ROOT)))
    return found


def test_a_sentence_is_asserted_in_one_place() -> None:
    package = (ROOT / "plugin" / "bayplan").rglob("*.py")
    product = modules_by_sentence(one for one in package if "_proto" not in one.parts)
    tests = modules_by_sentence((ROOT / "tests").rglob("test_*.py"))
    assert len(product) > 1000
    others = {*EXCEPTIONS, *sentences(KUBELETS)}
    repeated = {
        sentence: sorted(modules)
        for sentence, modules in tests.items()
        if len(modules) > len(product.get(sentence, modules)) and sentence not in others
    }
    assert not repeated


def test_what_a_sentence_is(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""It is a docstring."""\nX = f"node {1} has less, than before\\\\."\nY = "a few words"\n'
    )
    assert list(sentences(module)) == ["has less than before"]
