"""docs/machines.md: as the code makes it now, of every file."""

import re
from pathlib import Path

import pytest

from bayplan.simulate.comparison import empty_machine
from reference.machines import FILES, ORDER, PAGE, answers, described, machine_pages

TREE = Path(__file__).parents[3]
PAGES = machine_pages()


@pytest.mark.parametrize("path", PAGES)
def test_what_is_in_the_tree_is_what_the_code_makes(path: str) -> None:
    assert (TREE / path).read_text() == PAGES[path], "run `make reference`"


def test_every_file_is_on_the_page_and_there_are_no_other_pictures() -> None:
    assert sorted(ORDER) == sorted(path.stem for path in FILES.glob("*.yaml"))
    shown = re.findall(r"\]\((machines/.*?\.svg)\)", PAGES[PAGE])
    assert shown == [f"machines/{name}.svg" for name in ORDER]
    assert sorted(path.name for path in (TREE / "docs/machines").iterdir()) == sorted(
        f"{name}.svg" for name in ORDER
    )


@pytest.mark.parametrize("name", ORDER)
def test_a_file_names_its_source_and_is_short(name: str) -> None:
    one = described(name)
    assert one.title
    assert one.facts
    assert len(one.source) > len("Source: ")
    lines = (FILES / f"{name}.yaml").read_text().splitlines()
    assert len([line for line in lines if not line.startswith("#")]) <= 12


@pytest.mark.parametrize("name", ORDER)
def test_all_cpus_but_those_that_stay_shared_can_be_had(name: str) -> None:
    path = FILES / f"{name}.yaml"
    machine, _, _ = empty_machine(path)
    first, *_, last = answers(path, machine)
    assert first[0] == "1 CPU"
    assert last[0] == f"all, {len(machine.online_cpus) - 1} CPUs"
