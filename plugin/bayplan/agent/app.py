"""The agent's parts, connected: each is a coroutine that runs until it is cancelled."""

import asyncio

from bayplan.agent.daemon_link import DaemonLink
from bayplan.agent.mirror import Mirror
from bayplan.agent.settings import AgentSettings


async def serve(settings: AgentSettings) -> None:
    """Run all parts until cancelled, or until one of them fails."""
    mirror = Mirror()
    link = DaemonLink(settings.daemon_socket, mirror)
    async with asyncio.TaskGroup() as parts:
        parts.create_task(link.run())
