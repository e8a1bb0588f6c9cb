"""Fixtures of the scenarios: nodes that many of them share, and logs kept when a scenario fails."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
# For Helm.
sys.path.append(str(HERE.parent / "interop"))

from testbed.crio import CrioNode  # noqa: E402 - the path comes first
from testbed.errors import GuestError, TestBedError  # noqa: E402 - found only once the path is set
from testbed.namespaces import NodeInNamespaces  # noqa: E402 - found only once the path is set
from testbed.node import Node  # noqa: E402 - found only once the path is set
from testbed.scenario import Wanted  # noqa: E402 - found only once the path is set
from testbed.topology import THIS_MACHINE, TWO_NODES  # noqa: E402 - found only once the path is set

ARTIFACTS = HERE / "artifacts"
FAILED = pytest.StashKey[bool]()
SCENARIO_LIMIT_S = 1200
# How much longer than others the scenarios of a machine take: systemd is slow, and pages are moved slowly.
WEIGHTS = {"two-nodes-systemd": 3, "two-nodes-systemd-2.4": 3, "crio-systemd": 4, "split-sockets-2.3": 4}
# They take minutes to build and to run: they are asked for by name (`make kubelet`, `make critest`).
BY_NAME_ONLY = frozenset(
    f"test_{name}.py"
    for name in (
        "agent",
        "cluster",
        "cluster_scheduling",
        "critest",
        "chart_in_cluster",
        "cold_boot",
        "real_kubelet",
        "kubelet_eviction",
        "crio",
        "crio_faults",
    )
)


def node_for(wanted: Wanted) -> Node:
    """A new one."""
    if wanted.topology is THIS_MACHINE:
        return NodeInNamespaces(wanted.version or "")
    return Node(wanted.topology, wanted.version, systemd=wanted.systemd)


class Nodes:
    """The node in use: one at a time, since scenarios are sorted by what they want."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._wanted: Wanted | None = None

    def clean(self, wanted: Wanted) -> Node:
        """A clean node: the one in use where it fits and can be cleaned, else one that is restored."""
        if self._node is not None and wanted == self._wanted:
            try:
                self._node.prepare()
            except TestBedError:
                self.forget()
            else:
                return self._node
        self.forget()
        self._wanted, self._node = wanted, node_for(wanted)
        return self._node

    def forget(self) -> None:
        """The next scenario gets a restored node."""
        if self._node is not None:
            self._node.shut_down()
            self._node = None


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    pool = Nodes()
    yield pool
    pool.forget()


@pytest.fixture
def node(request: pytest.FixtureRequest, nodes: Nodes) -> Iterator[Node]:
    """A clean node as `@on(...)` wants it: containerd serves, no pods, bayplan is down and has no state."""
    yield nodes.clean(request.param)
    if request.node.stash.get(FAILED, False):
        nodes.forget()


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


def _machine(item: pytest.Item) -> str:
    """The name of the machine that a scenario wants; what has one of its own is known by its file."""
    if "crio_machine" in getattr(item, "fixturenames", ()):
        return "crio-systemd"
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "bed" in callspec.params:
        return f"{item.path.stem}-{callspec.params['bed']}"
    wanted = callspec.params.get("node") if callspec is not None else None
    return str(wanted or item.path.stem)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    name = collection_path.name
    asked = any(name in argument for argument in config.args)
    return True if name in BY_NAME_ONLY and not asked else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every scenario, before `-m` selects by marks; all that want the same machine go to one worker."""
    if HERE not in item.path.parents:
        return
    item.add_marker(pytest.mark.e2e)
    item.add_marker(pytest.mark.xdist_group(_machine(item)))
    if item.get_closest_marker("timeout") is None:
        # Building and booting have limits of their own, and the worker has the machine.
        item.add_marker(pytest.mark.timeout(SCENARIO_LIMIT_S, method="signal", func_only=True))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All scenarios that want the same machine run after each other, the machine with most work first: what
    starts last decides for how long only one worker is busy."""
    ours = [item for item in items if HERE in item.path.parents]
    others = [item for item in items if HERE not in item.path.parents]
    wanted = {item: _machine(item) for item in ours}
    count = Counter(wanted.values())
    work = {name: number * WEIGHTS.get(name, 1) for name, number in count.items()}
    items[:] = sorted(ours, key=lambda item: (-work[wanted[item]], wanted[item])) + others


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if not report.failed or HERE not in item.path.parents:
        return
    item.stash[FAILED] = True
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
