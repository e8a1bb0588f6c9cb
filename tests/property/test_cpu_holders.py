"""What is shown of exclusive CPUs is true: alone only where no other pod's cpuset has the CPU, whatever was
decided, chosen by somebody, or found in the kernel. All that shows it says the same."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from bayplan.admin.questions import explanation_view
from bayplan.drawing.maps import cores
from bayplan.model.decision import Decision, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.sets import CpuSet
from bayplan.views.metrics import metrics_view
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import nodes_view, status_view
from support.snapshots import BURSTABLE, make_snapshot

CPUS = list(range(8))
SETS = st.sets(st.sampled_from(CPUS), min_size=1).map(CpuSet)


class Drawn(Struct, frozen=True):
    """A container: the CPUs of its own, those that somebody chose for it, and what the kernel was found to
    have."""

    key: str
    own: CpuSet = CpuSet()
    pinned: CpuSet | None = None
    opted_out: bool = False
    kernel: CpuSet | None = None

    @property
    def decision(self) -> Decision:
        request = replace(
            BURSTABLE.request,
            container_id=self.key,
            pod_id=f"pod-{self.key}",
            name=f"default/{self.key}/main",
            pinned_cpus=self.pinned,
            opted_out=self.opted_out,
        )
        return replace(BURSTABLE, request=request, placement=Placement(exclusive_cpus=self.own))

    def cpuset(self, shared: CpuSet) -> CpuSet:
        """What it may run on, as far as that is known, and what is its own."""
        if self.kernel is not None:
            return self.kernel | self.own
        if self.pinned is not None:
            return self.pinned
        return CpuSet(CPUS) if self.opted_out else self.own or shared


@st.composite
def containers(draw: st.DrawFn) -> list[Drawn]:
    # CPU 0 stays in the shared pool.
    free, drawn = draw(st.permutations(CPUS[1:])), []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["own", "own", "shared", "pinned", "opted out"]))
        count = draw(st.integers(1, 3)) if kind == "own" and len(free) > 3 else 0
        own, free = CpuSet(free[:count]), free[count:]
        pinned = draw(SETS) if kind == "pinned" else None
        kernel = draw(st.none() | SETS)
        drawn.append(Drawn(f"c{number}", own, pinned, kind == "opted out", kernel))
    return drawn


@given(containers())
def test_alone_is_said_only_of_cpus_that_no_other_cpuset_has(drawn: list[Drawn]) -> None:
    ledger = Ledger.of([Entry(one.decision) for one in drawn])
    kernel = {one.key: one.kernel for one in drawn if one.kernel is not None}
    snapshot = replace(make_snapshot(), ledger=ledger, kernel_cpus=kernel)
    shared = ledger.shared_cpus(snapshot.machine)
    holders = {cpu: [one.key for one in drawn if cpu in one.cpuset(shared)] for cpu in ledger.exclusive_cpus}
    alone = CpuSet(cpu for cpu, keys in holders.items() if len(keys) == 1)
    shown = {one["id"]: one for one in status_view(snapshot)["containers"]}
    for one in drawn:
        others = {key for cpu in one.own for key in holders[cpu]} - {one.key}
        names = sorted(f"default/{key}/main" for key in others)
        (explained,) = explanation_view(snapshot, one.key, ())["containers"]
        assert shown[one.key]["cpusAlsoOf"] == explained["placement"]["cpusAlsoOf"] == names
    nodes = nodes_view(snapshot)["nodes"]
    for node in nodes:
        cpus = {key: CpuSet.parse(node["cpus"][key]) for key in ("all", "exclusive", "contested", "shared")}
        assert cpus["exclusive"] == cpus["all"] & alone
        assert cpus["contested"] == (cpus["all"] & ledger.exclusive_cpus) - alone
        assert cpus["exclusive"] | cpus["contested"] | cpus["shared"] == cpus["all"]
        assert pictured_alone(node) == cpus["exclusive"]
    assert counted(snapshot, "exclusive") == len(alone)
    assert counted(snapshot, "contested") == len(ledger.exclusive_cpus - alone)


def pictured_alone(node: dict[str, object]) -> CpuSet:
    """The CPUs of which the picture says that they are somebody's only."""
    names = [f"default/c{number}/main" for number in range(5)]
    _, picture = cores(node, 0.0, 400.0, 8.0, dict.fromkeys(names, "of0"))
    titles = [part.partition("<")[0] for part in picture.split("<title>")[1:]]
    return CpuSet(int(one.split()[1][:-1]) for one in titles if "only" in one.split())


def counted(snapshot: Snapshot, state: str) -> int:
    """The metric, of all nodes."""
    lines = str(metrics_view(snapshot)["text"]).splitlines()
    found = [one for one in lines if one.startswith("bayplan_node_cpus{") and f'state="{state}"' in one]
    return sum(int(one.rpartition(" ")[2]) for one in found)
