"""Where bayplan-agent starts: flags, logs, then its tasks until a signal ends them."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from bayplan import __version__, logs
from bayplan.agent.app import serve
from bayplan.agent.cluster.api import Api
from bayplan.agent.cluster.kubeconfig import api_server
from bayplan.agent.cluster.publisher import remove_topology
from bayplan.agent.command_line import AgentSettings, parse
from bayplan.errors import EXIT_FAILURE, BayplanError
from bayplan.standard_streams import make_writable

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run bayplan-agent with *argv*; its exit status."""
    make_writable()
    settings = parse(argv)
    handler = logs.start(settings.log_level, settings.log_format)
    try:
        return asyncio.run(
            _remove_topology(settings) if settings.remove_topology else _until_signalled(settings)
        )
    except BayplanError as error:
        logger.critical("%s", error)
        return error.exit_code
    except Exception:
        logger.critical("this is a defect of bayplan; please report it", exc_info=True)
        return EXIT_FAILURE
    finally:
        handler.close()


async def _remove_topology(settings: AgentSettings) -> int:
    assert settings.kubeconfig is not None
    removed = await remove_topology(Api(api_server(settings.kubeconfig)), settings.node_name)
    logger.info(
        "the node's room is not published any more" if removed else "the node's room was not published"
    )
    return 0


async def _until_signalled(settings: AgentSettings) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    logger.info("started", extra={"version": __version__, "pid": os.getpid()})
    serving = asyncio.create_task(serve(settings))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    for task in (serving, stopping):
        task.cancel()
    await asyncio.gather(serving, stopping, return_exceptions=True)
    logger.info("stopping")
    return 0


if __name__ == "__main__":
    sys.exit(main())
