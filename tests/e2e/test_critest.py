"""cri-tools' validation suite without bayplan, beside it over NRI, and by hook and wrapper: the same tests
pass.

It knows nothing of bayplan. What it creates is placed beside a pod with a CPU of its own, and what it looks
at of a container is to be as without.
"""

import re
from collections.abc import Collection, Iterator, Mapping

import pytest
from testbed.containerd import NRI_SOCKET
from testbed.crictl import SOCKET, Running
from testbed.critest import CONTAINERD_SETTINGS, Critest, Outcome
from testbed.node import Node
from testbed.pods import guaranteed
from testbed.topology import TWO_NODES

# The suite itself waits for no answer longer than a minute; under emulation it asks for a long time.
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(3600, method="signal", func_only=True)]

CONTAINERD = "2.4"
WAYS = ("nri", "hook", "wrapper")
# What a test's name is to match and not to match: about a third of the time each.
PARTS = {
    "security": ("Security Context", ()),
    "nri": ("NRI", ()),
    "others": ("", ("Security Context", "NRI")),
}
# A runtime without NRI has none of its tests.
CASES = [(part, way) for part in PARTS for way in WAYS if part != "nri" or way == "nri"]
PATIENT = ("--oci-deadline", "20s")


class Bed:
    """A node with the suite, and what became of its tests without bayplan, by part."""

    def __init__(self) -> None:
        self.node = Node(TWO_NODES, CONTAINERD, systemd=True)
        self.suite = Critest(self.node.guest)
        self._alone: dict[str, dict[str, Outcome]] = {}

    def alone(self, part: str) -> dict[str, Outcome]:
        """What becomes of a part's tests without bayplan."""
        if part not in self._alone:
            self._start("nri")
            self._launch_owner()
            self._alone[part] = self._run(part, "nri")
        return self._alone[part]

    def beside(self, part: str, way: str) -> dict[str, Outcome]:
        """What becomes of them beside bayplan, which afterwards has nothing but the owner, where it was.

        The suite waits as long as on real machines: what passed without bayplan and not here runs once more,
        alone."""
        self._start(way)
        node = self.node
        node.bayplan.start(*PATIENT)
        if way == "nri":
            node.bayplan.await_synchronized()
        owner = self._launch_owner(handler=_handler(way))
        before = node.view(owner).placement
        assert len(before.cpus) == 1
        found = self._run(part, way)
        if missing := passed(self.alone(part)) - passed(found):
            found |= self._run(part, way, only=missing)
        assert node.view(owner).placement == before
        node.bayplan.await_known([owner.container_id])
        return found

    def _start(self, way: str) -> None:
        node = self.node
        node.prepare()
        self.suite.prepare()
        if way in ("hook", "wrapper"):
            node.forms.install()
            handlers = [node.forms.handler(way, name=way)]
        else:
            handlers = []
        node.containerd.end()
        node.containerd.start(nri=way == "nri", settings=CONTAINERD_SETTINGS, handlers=handlers)

    def _launch_owner(self, *, handler: str = "") -> Running:
        return self.node.launch(guaranteed("owner", 1, "100Mi"), handler=handler)

    def _run(self, part: str, way: str, *, only: Collection[str] = ()) -> dict[str, Outcome]:
        focus, skip = PARTS[part]
        if only:
            # To Go a space is nothing to escape.
            focus = "|".join(sorted(re.escape(name).replace("\\ ", " ") for name in only))
        return self.suite.run(
            SOCKET,
            focus=focus,
            skip=skip,
            nri_socket=NRI_SOCKET if way == "nri" else "",
            handler=_handler(way),
        )


def _handler(way: str) -> str:
    return way if way in ("hook", "wrapper") else ""


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    made = Bed()
    yield made
    made.node.shut_down()


@pytest.mark.parametrize(("part", "way"), CASES)
def test_the_same_tests_pass(bed: Bed, part: str, way: str) -> None:
    alone, beside = bed.alone(part), bed.beside(part, way)
    for name, found in alone.items():
        print(f"{found.state:8} {beside[name].state:8} {name}: {(beside[name].why or found.why)[:200]}")
    assert len(passed(alone)) > len(alone) / 2
    assert passed(alone) <= passed(beside)


def passed(outcomes: Mapping[str, Outcome]) -> set[str]:
    return {name for name, found in outcomes.items() if found.state == "passed"}
