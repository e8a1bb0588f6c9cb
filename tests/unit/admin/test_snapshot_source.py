"""What the admin socket shows of the kernel beside the ledger."""

from pathlib import Path

from msgspec.structs import replace

from bayplan.admin.snapshot_source import kernel_oom_score_adj, snapshot_of
from bayplan.model.decision import QosClass
from bayplan.model.workload import ContainerState
from bayplan.quantity import GIB
from bayplan.views.status import status_view
from support.controllers import begun, controlled
from support.machines import container, pod
from support.oci_node import OciNode

OWNER = pod("g", QosClass.GUARANTEED)
ONE = container("abc", OWNER, memory_bytes=GIB // 2, milli_cpus=500)


def scores(one: object, node: OciNode) -> tuple[int | None, int | None]:
    controller = one.controller  # type: ignore[attr-defined]  # given as an object by the fixture
    shown = kernel_oom_score_adj(controller.state, node.root)
    (entry,) = status_view(snapshot_of(controller.state, 0, (), kernel_oom_score_adj=shown))["containers"]
    return entry["oomScoreAdj"], entry["oomScoreAdjWanted"]


async def test_oom_score_adj_is_shown_as_the_kernel_has_it_also_after_a_restart(tmp_path: Path) -> None:
    node = OciNode(tmp_path / "root")
    node.make_process(
        42, "/kubepods/podg/cri-containerd-abc.scope"
    )  # with 0: the kernel refused another value
    node.make_process(43, "/kubepods/podg/cri-containerd-def.scope")

    async with controlled(tmp_path / "state") as one:
        await begun(one.controller, OWNER, replace(ONE, pid=42))
        assert scores(one, node) == (0, -997)
    async with controlled(tmp_path / "state") as one:
        running = replace(ONE, state=ContainerState.RUNNING, pid=42)
        await one.controller.synchronize([OWNER], [running])
        assert scores(one, node)[0] == 0
        # Its id is another process's by now.
        await one.controller.synchronize([OWNER], [replace(running, pid=43)])
        assert scores(one, node) == (None, None)
