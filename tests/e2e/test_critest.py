"""cri-tools' validation suite without bayplan, beside it over NRI, and by hook and wrapper: the same tests
pass.

It knows nothing of bayplan. What it creates is placed beside a pod with a CPU of its own, and what it looks
at of a container is to be as without.
"""

import re
from collections.abc import Collection, Iterator, Mapping

import pytest
from testbed.containerd import NRI_SOCKET
from testbed.crictl import SOCKET as CONTAINERD_SOCKET
from testbed.crictl import Running
from testbed.crio import SOCKET as CRIO_SOCKET
from testbed.crio import WRAPPER_HANDLER, CrioNode, in_slice
from testbed.critest import CONTAINERD_SETTINGS, Critest, Outcome
from testbed.forms import HOOKS_DIR
from testbed.namespaces import NodeInNamespaces
from testbed.node import Node
from testbed.pods import guaranteed
from testbed.topology import TWO_NODES

# The suite itself waits for no answer longer than a minute; under emulation it asks for a long time.
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(3600, method="signal", func_only=True)]

CRIO = "crio"
# The newest one, and the long-term one.
CONTAINERD = ("2.4", "2.3")
NATIVE = {f"native-{version}": version for version in CONTAINERD}
"""Without a virtual machine: minutes instead of hours, with cgroup v1 and without negative oom_score_adj."""
WAYS = ("nri", "hook", "wrapper")
CONTAINERS = (
    "basic operations on container",
    "adding volume and device",
    "support log",
    "Multiple Containers",
)
# What a test's name is to match and not to match: some minutes each.
PARTS = {
    "namespaces": ("NamespaceOption|NoNewPrivs", ()),
    "users": ("bucket|SupplementalGroupsPolicy|UserNamespaces", ()),
    "seccomp": ("SeccompProfilePath", ()),
    "nri": ("NRI", ()),
    "containers": ("|".join(CONTAINERS), ()),
    "others": ("", ("Security Context", "NRI", *CONTAINERS)),
}
# A runtime without NRI has none of its tests. On CRI-O the others take hours.
CASES = [
    *(
        (one, part, way)
        for one in (*NATIVE, *CONTAINERD)
        for part in PARTS
        for way in WAYS
        if part != "nri" or way == "nri"
    ),
    (CRIO, "nri", "nri"),
    *((CRIO, part, way) for part in ("containers", "namespaces") for way in WAYS),
]
PATIENT = ("--oci-deadline", "20s")


class Bed:
    """A node with the suite, and what became of its tests without bayplan, by part."""

    def __init__(self, runtime: str) -> None:
        self.node = _node(runtime)
        self.suite = Critest(self.node.guest)
        self._alone: dict[str, dict[str, Outcome]] = {}

    def alone(self, part: str) -> dict[str, Outcome]:
        """What becomes of a part's tests without bayplan."""
        if part not in self._alone:
            self._start("nri")
            self._launch_owner()
            self._alone[part] = self._run(part, "nri", handler="")
        return self._alone[part]

    def beside(self, part: str, way: str) -> dict[str, Outcome]:
        """What becomes of them beside bayplan, which afterwards has nothing but the owner, where it was.

        The suite waits as long as on real machines: what passed without bayplan and not here runs once more,
        alone."""
        self._start(way)
        node = self.node
        restricted = ("--set-oom-score-adj", "false") if isinstance(node, NodeInNamespaces) else ()
        node.bayplan.start(*PATIENT, *restricted)
        if way == "nri":
            node.bayplan.await_synchronized()
        handler = self._handler(way)
        owner = self._launch_owner(handler=handler)
        before = self._allowed(owner)
        assert re.search(r"Cpus_allowed_list:\t[0-9]+\n", before)
        found = self._run(part, way, handler=handler)
        if missing := passed(self.alone(part)) - passed(found):
            found |= self._run(part, way, handler=handler, only=missing)
        assert self._allowed(owner) == before
        node.bayplan.await_known([owner.container_id])
        return found

    def _start(self, way: str) -> None:
        node = self.node
        node.prepare()
        self.suite.prepare()
        if isinstance(node, CrioNode):
            if way != "nri":
                node.install_forms()
            if way == "wrapper":
                node.guest.run("rm", "-r", HOOKS_DIR)
            node.crio.start(nri=way == "nri", wrapper=way == "wrapper")
            return
        handlers = []
        if way != "nri":
            node.forms.install()
            handlers = [node.forms.handler(way, name=way)]
        node.containerd.end()
        node.containerd.start(nri=way == "nri", settings=CONTAINERD_SETTINGS, handlers=handlers)

    def _launch_owner(self, *, handler: str = "") -> Running:
        pod = guaranteed("owner", 1, "100Mi")
        return self.node.launch(in_slice(pod) if isinstance(self.node, CrioNode) else pod, handler=handler)

    def _allowed(self, running: Running) -> str:
        """The lines of the kernel about CPUs and nodes that a container's process may use."""
        status = self.node.guest.read(f"/proc/{self.node.crictl.pid(running.container_id)}/status")
        return "".join(line for line in status.splitlines(keepends=True) if "_allowed_list" in line)

    def _handler(self, way: str) -> str:
        """CRI-O runs the hook with every runtime, and has the wrapper as one."""
        if isinstance(self.node, CrioNode):
            return WRAPPER_HANDLER if way == "wrapper" else ""
        return "" if way == "nri" else way

    def _run(self, part: str, way: str, *, handler: str, only: Collection[str] = ()) -> dict[str, Outcome]:
        focus, skip = PARTS[part]
        if only:
            # To Go a space is nothing to escape.
            focus = "|".join(sorted(re.escape(name).replace("\\ ", " ") for name in only))
        return self.suite.run(
            CRIO_SOCKET if isinstance(self.node, CrioNode) else CONTAINERD_SOCKET,
            focus=focus,
            skip=skip,
            nri_socket=NRI_SOCKET if way == "nri" else "",
            handler=handler,
        )


def _node(runtime: str) -> Node:
    if runtime in NATIVE:
        return NodeInNamespaces(NATIVE[runtime])
    return CrioNode(TWO_NODES) if runtime == CRIO else Node(TWO_NODES, runtime, systemd=True)


@pytest.fixture(scope="module")
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    made = Bed(request.param)
    yield made
    made.node.shut_down()


@pytest.mark.parametrize(("bed", "part", "way"), CASES, indirect=["bed"])
def test_the_same_tests_pass(bed: Bed, part: str, way: str) -> None:
    alone, beside = bed.alone(part), bed.beside(part, way)
    for name, found in alone.items():
        print(f"{found.state:8} {beside[name].state:8} {name}: {(beside[name].why or found.why)[:200]}")
    assert len(passed(alone)) > len(alone) / 2
    assert passed(alone) <= passed(beside)


def passed(outcomes: Mapping[str, Outcome]) -> set[str]:
    return {name for name, found in outcomes.items() if found.state == "passed"}
