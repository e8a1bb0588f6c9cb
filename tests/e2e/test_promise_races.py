"""What is promised is touched at once, with the kernel's own settings, while others' pages are in the way."""

import pytest
from testbed.crowded_nodes import put
from testbed.memory_load import install, kills
from testbed.node import Node
from testbed.podman import Asked
from testbed.promise_races import (
    RACES,
    RELIEVE,
    TOPOLOGY,
    Raced,
    await_that,
    bound,
    in_the_way,
    start_all,
)
from testbed.scenario import on, on_systemd
from testbed.topology import TWO_NODES

PODMAN_SLICE = "machine.slice"

pytestmark = pytest.mark.timeout(1200, method="signal", func_only=True)


def keeps_promises(found: Raced) -> None:
    assert found.killed_within_claims == [], found
    assert found.unfinished == [], found


@pytest.mark.matrix
@on(TOPOLOGY, "2.3")
def test_nobody_is_killed_where_nine_tenths_are_promised(node: Node) -> None:
    found = RACES["nine tenths promised"](node, RELIEVE)
    keeps_promises(found)
    assert found.counted["relieved_bytes"] > 0, found


@pytest.mark.matrix
@on(TOPOLOGY, "2.3")
@pytest.mark.parametrize("name", [name for name in RACES if name != "nine tenths promised"])
def test_nobody_is_killed_within_its_claim(node: Node, name: str) -> None:
    keeps_promises(RACES[name](node, RELIEVE))


@pytest.mark.matrix
@on(TOPOLOGY, "2.3")
def test_nobody_stays_slowed_down_whichever_way_the_daemon_ends(node: Node) -> None:
    owners = in_the_way(node, "8Mi")
    before = len(kills(node))
    start_all(node, owners)
    await_that(lambda: bool(bound(node)))
    node.bayplan.kill()
    assert bound(node)
    # It slows down whom it has to, and nobody whom it does not know.
    node.bayplan.start("--memory-pressure", "observe")
    assert not bound(node)
    node.bayplan.stop()
    node.bayplan.start("--memory-pressure", "relieve", "--page-move-rate", "8Mi")
    await_that(lambda: bool(bound(node)))
    node.bayplan.stop()
    assert not bound(node)
    assert not [one for one in kills(node)[before:] if not one.of_a_claim]


@pytest.mark.matrix
@on_systemd(TWO_NODES)
@pytest.mark.parametrize("form", ["hook", "wrapper"])
def test_who_came_without_nri_waits_too(node: Node, form: str) -> None:
    node.forms.install()
    install(node)
    slowly = ("--memory-pressure", "relieve", "--page-move-rate", "8Mi", "--oci-deadline", "20s")
    node.bayplan.start(*slowly, "--measured-reservation", "true")
    engine = node.forms.engine(form, "crun")
    batch = node.podman.run(engine, Asked("batch").touching("650Mi"))
    node.podman.await_log("batch", "touched")
    put(node, [(batch, 0)])
    required = {"bayplan.dev/required-nodes": "0"}
    owner = Asked("owner", memory="600m", cpus=0.5, annotations=required).touching("500Mi")
    made = node.podman.create(engine, owner)
    node.podman.start(made)
    await_that(lambda: bool(bound(node, PODMAN_SLICE)))
    # systemd sets what its unit has; it waits on all the same.
    node.guest.run("systemctl", "daemon-reload")
    await_that(lambda: bool(bound(node, PODMAN_SLICE)))
    node.bayplan.kill()
    assert bound(node, PODMAN_SLICE)
    node.bayplan.start_again()
    node.podman.await_log("owner", "touched", limit_s=240)
    assert kills(node) == []
    await_that(lambda: not bound(node, PODMAN_SLICE))
    assert node.view(made).mems_allowed == {0}
    counters = node.bayplan.status()["counters"]
    assert counters["slowed_down"] >= 1, counters
