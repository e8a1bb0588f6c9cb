"""Resource claims on machines of tests, and a daemon's part that holds them, which can be killed at each
step."""

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from bayplan.control.resource_claims import ResourceClaims
from bayplan.host.devices import ClaimSpecs
from bayplan.model.claims import AllocatedDevice, ResourceClaim, claims_in
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.workload import Container, Pod
from bayplan.quantity import MIB
from support.controllers import controlled, here

UID = "0b1c2d3e-0000-4000-8000-000000000001"


def claim(
    *devices: AllocatedDevice,
    uid: str = UID,
    pod: str = "web",
    name: str = "memory",
    namespace: str = "default",
) -> ResourceClaim:
    """A claim of the pod whose uid is *pod*."""
    return ResourceClaim(namespace, name, uid, (pod,), devices)


def device(
    node: int, memory_mib: int = 0, cpus: int = 0, request: str = "near", **hugepages: int
) -> AllocatedDevice:
    """What is allocated on *node*; *hugepages* as ``hugepages_2Mi`` in MiB."""
    amounts = {
        MEMORY: memory_mib * MIB,
        **{key.replace("_", "-"): size * MIB for key, size in hugepages.items()},
    }
    return AllocatedDevice(request, node, {key: amount for key, amount in amounts.items() if amount}, cpus)


WIDE: Final = claim(device(0, 64, 2), device(1, 32, request="far"))


def having(
    container: Container, *claims: ResourceClaim, requests: tuple[str, ...] | None = None
) -> Container:
    """*container* with all requests of *claims*, or with some."""
    wanted = tuple(
        f"{one.uid}/{name}" for one in claims for name in one.requests if requests is None or name in requests
    )
    return replace(container, resource_claims=wanted)


def draw_claim(draw: random.Random, machine: Machine, number: int) -> ResourceClaim:
    """A claim of one to three devices, mostly small."""
    nodes = draw.sample([node.id for node in machine.nodes], draw.randint(1, min(3, len(machine.nodes))))
    devices = [
        device(node, draw.choice([0, 1, 4, 16, 64]), draw.choice([0, 0, 1, 2]), draw.choice(["a", "b"]))
        for node in nodes
    ]
    return claim(*devices, uid=f"uid-{number}", pod=f"pod-{number}")


def owner(uid: str) -> Pod:
    """The pod that a claim is reserved for."""
    return Pod(f"{uid}-sandbox", uid, "default", uid, {}, {}, f"/kubepods/besteffort/pod{uid}")


def environment(specs: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The requests of claims that a container with the CDI devices *names* is told of, by the files in
    *specs*."""
    found: dict[str, list[str]] = {}
    for path in sorted(specs.glob("*.json")):
        spec = json.loads(path.read_bytes())
        for one in spec["devices"]:
            found[f"{spec['kind']}={one['name']}"] = one["containerEdits"]["env"]
    return claims_in(variable for name in names for variable in found[name])


class Killed:
    """Kills the process at the *step*-th thing that it does to a file of *directory*, before it is done."""

    EVENTS: Final = frozenset(
        {"open", "os.rename", "os.remove", "os.chmod", "os.mkdir", "os.listdir", "os.scandir"}
    )

    def __init__(self, directory: Path, step: int) -> None:
        self._below, self._step = str(directory), step

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in self.EVENTS and str(arguments[0]).startswith(self._below):
            self._step -= 1
            if self._step == 0:
                os.kill(os.getpid(), signal.SIGKILL)


async def _main(state: Path, specs: Path, verb: str, step: int) -> None:
    async with controlled(state) as node:
        claims = ResourceClaims(node.controller.state, node.controller.placements, ClaimSpecs(specs), here)
        sys.addaudithook(Killed(specs, step))
        if verb == "prepare":
            await claims.prepare(WIDE)
        else:
            await claims.release(UID)


if __name__ == "__main__":
    _, state, specs, verb, step = sys.argv
    asyncio.run(_main(Path(state), Path(specs), verb, int(step)))
