"""A hundred agents at a real API server: how they come, and how they come back to one that was killed."""

import asyncio
import time
from pathlib import Path

import pytest
from testbed import kubernetes

from bayplan.agent.cluster.api import AGAIN_S
from support.agent_fleet import counted, first_by_node, fleet, most_in_a_second
from support.cluster_agents import TOPOLOGIES
from support.control_plane import ControlPlane

pytestmark = [pytest.mark.cluster, pytest.mark.matrix, pytest.mark.xdist_group("control-plane")]

AGENTS = 100


async def test_a_hundred_agents_do_not_meet_an_api_server_that_was_killed_in_one_second(
    tmp_path: Path, control_plane: ControlPlane
) -> None:
    crd = kubernetes.topology_crd()
    control_plane.define(crd)
    control_plane.wait_for(TOPOLOGIES, bool)
    async with fleet(control_plane, tmp_path, AGENTS, beside=1) as agents:
        await agents.published()
        while len(agents.watching()) < AGENTS:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(1)
        started = counted(agents.asked())
        killed_s = time.time()
        control_plane.kill_api_server()
        await asyncio.to_thread(control_plane.start_api_server)
        while len(agents.watching(killed_s)) < AGENTS:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(1)
        back = [one for one in agents.asked() if one.at_s >= killed_s]
    control_plane.remove_definition(crd)
    # A machine without time to spare makes some wait in vain, and ask again.
    assert started[("list", "pods")] <= 2 * AGENTS
    moments_s = first_by_node(back)
    assert len(moments_s) == AGENTS
    # Three in a second, at random; all at once would be a hundred.
    assert most_in_a_second(moments_s) <= AGENTS / 4
    assert max(moments_s) - min(moments_s) >= AGAIN_S / 2
