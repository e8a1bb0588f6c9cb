"""podman on a node with systemd: what its containers really get, by each way into bayplan."""

import json

from testbed.node import Node
from testbed.podman import DRIVERS, RUNTIMES, Asked, Engine
from testbed.pods import MIB
from testbed.scenario import on_systemd
from testbed.topology import TWO_NODES

RECORDER = "#!/bin/sh\ncat >>/run/recorder/states\necho >>/run/recorder/states\n"


@on_systemd(TWO_NODES)
def test_the_bed_runs_hooks_with_both_runtimes_and_both_cgroup_drivers(node: Node) -> None:
    hook = {
        "version": "1.0.0",
        "hook": {"path": "/run/recorder/recorder", "args": ["recorder"], "timeout": 10},
        "when": {"always": True},
        "stages": ["createRuntime", "poststop"],
    }
    node.guest.write("/run/recorder/recorder", RECORDER, mode=0o755)
    node.guest.write("/run/recorder/hooks.d/recorder.json", json.dumps(hook))
    for runtime in RUNTIMES:
        for driver in DRIVERS:
            engine = Engine(runtime, driver, "/run/recorder/hooks.d")
            created = node.podman.create(
                engine, Asked(f"{runtime}-{driver}", memory="200m", cpus=0.5).touching("20Mi")
            )
            assert node.podman.state(created) == "initialized"
            view = node.view(created)
            assert view.memory_max_bytes == 200 * MIB
            assert view.cgroup.endswith(".scope/container") is ((runtime, driver) == ("crun", "systemd"))
            node.podman.start(created)
            node.podman.await_log(f"{runtime}-{driver}", "touched")
            node.podman.remove(created)
            states = node.guest.read("/run/recorder/states").split("\n")
            told = [json.loads(line) for line in states if created in line]
            assert [(state["status"] == "stopped", state.get("pid", 0) > 1) for state in told] == [
                (False, True),
                (True, False),
            ]
