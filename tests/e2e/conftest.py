"""Fixtures of the scenarios: nodes that are booted once per topology, and logs kept when a scenario fails."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from testbed.crio import CrioNode  # noqa: E402 - the path comes first
from testbed.errors import GuestError  # noqa: E402
from testbed.node import Node  # noqa: E402
from testbed.scenario import Wanted  # noqa: E402
from testbed.topology import TWO_NODES  # noqa: E402

ARTIFACTS = HERE / "artifacts"
SCENARIO_LIMIT_S = 1200
# They take minutes to build and to run: they are asked for by name (`make kubelet`, `make crio`).
BY_NAME_ONLY = frozenset({"test_real_kubelet.py", "test_crio.py", "test_crio_faults.py"})


class Nodes:
    """The booted node: one at a time, since scenarios are sorted by topology."""

    def __init__(self) -> None:
        self.current: Node | None = None

    def get(self, wanted: Wanted, versions: frozenset[str]) -> Node:
        node = self.current
        if node is None or not _fits(node, wanted) or not node.guest.alive():
            self.shut_down()
            node = self.current = Node(wanted.topology, *sorted(versions), systemd=wanted.systemd)
        return node

    def shut_down(self) -> None:
        if self.current is not None:
            self.current.shut_down()
            self.current = None


def _fits(node: Node, wanted: Wanted) -> bool:
    same_machine = (node.topology, node.systemd) == (wanted.topology, wanted.systemd)
    return same_machine and (wanted.version is None or wanted.version in node.versions)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    pool = Nodes()
    yield pool
    pool.shut_down()


@pytest.fixture
def node(request: pytest.FixtureRequest, nodes: Nodes) -> Node:
    """A clean node as `@on(...)` wants it: containerd serves, no pods, bayplan is down and has no state."""
    wanted: Wanted = request.param
    all_wanted = [other for item in request.session.items if (other := _wanted(item)) is not None]
    versions = frozenset(
        other.version
        for other in [*all_wanted, wanted]
        if (other.topology, other.systemd) == (wanted.topology, wanted.systemd) and other.version is not None
    )
    booted = nodes.get(wanted, versions)
    booted.prepare(wanted.version)
    return booted


@pytest.fixture(scope="session")
def crio_machine() -> Iterator[CrioNode]:
    booted = CrioNode(TWO_NODES)
    yield booted
    booted.shut_down()


@pytest.fixture
def crio_node(crio_machine: CrioNode) -> CrioNode:
    """A clean node with CRI-O, which is down, and so is bayplan."""
    crio_machine.prepare()
    return crio_machine


def _wanted(item: pytest.Item) -> Wanted | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("node") if callspec is not None else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    name = collection_path.name
    asked = any(name in argument for argument in config.args)
    return True if name in BY_NAME_ONLY and not asked else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every scenario, before `-m` selects by marks."""
    if HERE not in item.path.parents:
        return
    item.add_marker(pytest.mark.e2e)
    if item.get_closest_marker("timeout") is None:
        # Building and booting have limits of their own.
        item.add_marker(pytest.mark.timeout(SCENARIO_LIMIT_S, func_only=True))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All scenarios of a topology run after each other, and of these all of a containerd version."""
    ours = [item for item in items if HERE in item.path.parents]
    order = {id(item): place for place, item in enumerate(items)}

    def key(item: pytest.Item) -> tuple[object, ...]:
        wanted = _wanted(item)
        if wanted is None:
            return (0, False, "", "", order[id(item)])
        return (1, wanted.systemd, wanted.topology.name, wanted.version or "", order[id(item)])

    others = [item for item in items if HERE not in item.path.parents]
    items[:] = others + sorted(ours, key=key)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if not report.failed or HERE not in item.path.parents:
        return
    directory = ARTIFACTS / re.sub(r"[^\w.-]+", "_", f"{item.path.stem}-{item.name}")
    saved: list[Path] = []
    node = getattr(item, "funcargs", {}).get("node")
    if isinstance(node, Node):
        saved = node.save_logs(directory)
    elif (
        call.excinfo is not None and isinstance(call.excinfo.value, GuestError) and call.excinfo.value.console
    ):
        directory.mkdir(parents=True, exist_ok=True)
        saved = [directory / "console.log"]
        saved[0].write_text(call.excinfo.value.console)
    if saved:
        report.sections.append(("left behind", "\n".join(str(path) for path in saved)))
