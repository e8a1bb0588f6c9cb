"""The opening of each engine names every module of it, and no other."""

import re
from pathlib import Path
from types import ModuleType

from bayplan.engines import exact, kubelet


def modules(engine: ModuleType) -> set[str]:
    """Its files and folders, as the texts name them."""
    (folder,) = map(Path, engine.__path__)
    return {one.stem for one in folder.glob("*.py") if one.stem != "__init__"} | {
        f"{one.parent.name}/" for one in folder.glob("*/__init__.py")
    }


def test_exact_is_read_in_the_order_of_its_list() -> None:
    listed = re.findall(r"^(\w+)  ", str(exact.__doc__).partition("In the order of reading")[2], re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == modules(exact)


def test_kubelets_map_has_every_module_and_no_other() -> None:
    text = str(kubelet.__doc__).partition("Which file is which part of kubelet")[2]
    listed = re.findall(r"^(\w+)  ", text.partition("What has no counterpart")[0], re.MULTILINE)
    without_counterpart = re.findall(r"``(\w+)`` \(", text.partition("What has no counterpart")[2])
    assert sorted({*listed, *without_counterpart} - {"here"}) == sorted(modules(kubelet))
    assert len(listed) == len(set(listed))


def test_every_module_that_kubelets_map_names_exists() -> None:
    named = re.findall(r"``(\w+)``", str(kubelet.__doc__))
    assert named
    assert set(named) - modules(kubelet) == set()
