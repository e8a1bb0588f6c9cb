"""What dra-driver-cpu has left of two claims (tests/data/dra_driver_cpu), and the pods that have them."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bayplan.model.claims import claims_in
from bayplan.model.decision import QosClass
from bayplan.model.workload import Container, ContainerState, Pod
from bayplan.placement.claim_adoption import CHECKPOINT
from bayplan.sets import CpuSet
from support.machines import container, pod

FILES: Final = Path(__file__).parents[1] / "data" / "dra_driver_cpu"
STATE: Final = (FILES / CHECKPOINT).read_text()
SPECS: Final = {path.name: path.read_text() for path in sorted((FILES / "cdi").iterdir())}
WEB_UID: Final = "5c2a7c3e-0b1d-4c8f-9a54-6f1f6a0a0001"
SOLVER_UID: Final = "5c2a7c3e-0b1d-4c8f-9a54-6f1f6a0a0002"
WEB_CPUS: Final = CpuSet.parse("2-3")
SOLVER_CPUS: Final = CpuSet.parse("1,5-6")
WEB: Final = pod("web", QosClass.GUARANTEED)
SOLVER: Final = pod("solver", QosClass.BEST_EFFORT)
OTHER: Final = pod("other", QosClass.BURSTABLE)
SHARED: Final = CpuSet.parse("0,4,7")
"""What the driver leaves for everybody else."""


def environment(uid: str, cpus: CpuSet) -> tuple[str, ...]:
    """What the driver's CDI spec says to a container."""
    return (f"DRA_CPUSET_{uid}={cpus}",)


def running(
    owner: Pod,
    container_id: str,
    cpus: CpuSet,
    *uids: str,
    memory_bytes: int | None = None,
    milli_cpus: int | None = None,
) -> Container:
    """A container of *owner* on *cpus*, which has the claims *uids*."""
    one = container(container_id, owner, memory_bytes=memory_bytes, milli_cpus=milli_cpus)
    told = tuple(token for uid in uids for token in claims_in(environment(uid, cpus)))
    return replace(
        one,
        resources=replace(one.resources, cpuset_cpus=cpus),
        resource_claims=told,
        state=ContainerState.RUNNING,
    )


def listed() -> tuple[list[Pod], list[Container]]:
    """What runs on the node: a container of each claim, and one on the shared CPUs. The first replicates its
    claim in its requests, as the driver's documents say."""
    containers = [
        running(WEB, "web", WEB_CPUS, WEB_UID, memory_bytes=1 << 20, milli_cpus=2000),
        running(SOLVER, "solver", SOLVER_CPUS, SOLVER_UID),
        running(OTHER, "other", SHARED),
    ]
    return [WEB, SOLVER, OTHER], containers


def state_with(change: Callable[[list[dict[str, Any]]], None]) -> str:
    """kubelet's file after *change* of its claims, with the right checksum."""
    content = json.loads(json.loads(STATE)["Data"])
    change(content["ClaimInfoStateList"])
    text = json.dumps(content)
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())})
