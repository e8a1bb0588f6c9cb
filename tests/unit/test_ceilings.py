"""What bayplan weighs: the way of a creation, modules loaded, bytes resident. Counts, on no clock.

Each ceiling is what was measured, and a little. Who needs more raises it, here or in docs/performance.md, and
says why in the commit; who needs less lowers it.
"""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bayplan.quantity import MIB

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs/performance.md"
MAY_GROW = 1.05
MAY_SHRINK = 0.9
"""How far from the page's counts a creation may be, until somebody writes down the new ones."""
MODULES = {"bayplan.daemon.baypland": 191, "bayplan.agent.bayplan_agent": 85, "bayplan.cli.bayplan": 25}
"""Modules of the package that a program loads at its start."""
ALL_MODULES = {"bayplan.daemon.baypland": 409, "bayplan.agent.bayplan_agent": 440, "bayplan.cli.bayplan": 150}
"""Of others' too."""
RESIDENT_MIB = {"bayplan.daemon.baypland": 36, "bayplan.agent.bayplan_agent": 38, "bayplan.cli.bayplan": 14}
"""Anonymous memory once they are loaded: another Python, or other versions of protobuf and grpc, may take a
third more."""
PACKAGE = PROJECT / "plugin/bayplan"
MOST_MODULES = 244
SMALL_LINES = 90
MOST_SMALL = 5
"""A module is a thought: what has fewer lines belongs to a neighbour, unless it stands for itself."""
LOADED = """
import sys, {module}
getattr({module}, "load", tuple)()
print(len(sys.modules))
print(*(name for name in sys.modules if name.partition(".")[0] == "bayplan"))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon:")))
"""


def in_a_process(*arguments: str) -> str:
    """What a Python of its own prints."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "tests")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def loaded(module: str) -> tuple[set[str], int, int]:
    """The modules of the package that *module* loads, how many there are with others, and the anonymous
    memory of its process in bytes."""
    every, names, kib = in_a_process("-c", LOADED.format(module=module)).splitlines()
    return set(names.split()), int(every), int(kib) << 10


def counts(text: str, row: str) -> dict[str, tuple[int, int]]:
    """Calls, and changes of module between them, by the class of the container."""
    return {
        name.strip(): (int(calls), int(changes))
        for name, calls, changes in re.findall(row, text, re.MULTILINE)
    }


def test_the_way_of_a_creation_is_as_long_as_the_page_says() -> None:
    counted = counts(in_a_process(str(PROJECT / "tests/bench/hops.py")), r"^(\S.*?)  +(\d+) +(\d+) +\d+$")
    said = counts(PAGE.read_text(), r"^\| (Guaranteed.*?|Burstable) \| (\d+) / (\d+) \|$")
    assert counted.keys() == said.keys()
    otherwise = {
        name: (counted[name], said[name])
        for name in said
        for now, then in zip(counted[name], said[name], strict=True)
        if not then * MAY_SHRINK <= now <= then * MAY_GROW
    }
    assert otherwise == {}


@pytest.mark.parametrize("module", MODULES)
def test_a_start_loads_no_more_and_holds_no_more(module: str) -> None:
    names, every, resident_bytes = loaded(module)
    assert len(names) <= MODULES[module]
    assert every <= ALL_MODULES[module]
    assert resident_bytes <= RESIDENT_MIB[module] * MIB


COMPILED = """
import re, sys
compiled, before = [], re.compile
def counted(expression, flags=0):
    compiled.append((sys._getframe(1).f_globals["__name__"], expression))
    return before(expression, flags)
re.compile = counted
import {module}
getattr({module}, "load", tuple)()
print([one for one in compiled if one[0].partition(".")[0] == "bayplan"])
"""


@pytest.mark.parametrize("module", MODULES)
def test_a_start_compiles_no_pattern(module: str) -> None:
    assert in_a_process("-c", COMPILED.format(module=module)) == "[]\n"


@pytest.mark.parametrize("module", MODULES)
def test_an_engine_is_loaded_where_it_is_chosen(module: str) -> None:
    names, *_ = loaded(module)
    assert [name for name in names if name.startswith("bayplan.engines.kubelet")] == []


def test_what_the_engine_kubelet_keeps_for_pods_is_shown_without_the_rest_of_it() -> None:
    names, *_ = loaded("bayplan.engines.kubelet.booking")
    of_engine = {name for name in names if name.startswith("bayplan.engines.kubelet")}
    assert of_engine == {"bayplan.engines.kubelet", "bayplan.engines.kubelet.booking"}


def test_the_engine_kubelet_is_loaded_once_it_is_chosen() -> None:
    chosen = (
        "import sys; from bayplan.config.kubelet_rules import engine_of; "
        "from bayplan.config.settings import Settings; "
        "print(engine_of(Settings(engine='kubelet')).name, 'bayplan.engines.kubelet' in sys.modules)"
    )
    assert in_a_process("-c", chosen).split() == ["kubelet", "True"]


def sources() -> dict[Path, str]:
    """The modules of the package and their text, but for what is generated and what only makes a package."""
    return {
        path: path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py" and "_proto" not in path.parts
    }


def test_there_are_no_more_modules_and_no_more_small_ones() -> None:
    lines = {path: text.count("\n") for path, text in sources().items()}
    assert len(lines) <= MOST_MODULES
    small = sorted(str(path.relative_to(PACKAGE)) for path, count in lines.items() if count < SMALL_LINES)
    assert len(small) <= MOST_SMALL, small


def test_a_public_class_has_its_name_alone() -> None:
    names = Counter(
        statement.name
        for text in sources().values()
        for statement in ast.parse(text).body
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
