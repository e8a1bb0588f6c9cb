"""When the kernel is compared with the ledger: every ten seconds, and at once when somebody asks for it.

Containers that run without a record, and those that ended without a report, are looked for at the same times.
How it is compared is in `bayplan.control.verify`.
"""

import asyncio
import logging
from collections import Counter
from typing import Final

from bayplan.control.ended_containers import EndedContainers
from bayplan.control.verify import Verifier
from bayplan.errors import BayplanError
from bayplan.oci.unmanaged_containers import UnmanagedContainers

logger = logging.getLogger(__name__)

VERIFY_INTERVAL_S: Final = 10.0
"""kubelet's cpuManagerReconcilePeriod."""


class Verification:
    """See the module. It is asked for by setting *due*; drift is counted in *counters*."""

    def __init__(
        self,
        verifier: Verifier,
        due: asyncio.Event,
        ended: EndedContainers,
        unmanaged: UnmanagedContainers,
        counters: Counter[str],
    ) -> None:
        self._verifier = verifier
        self._due = due
        self._ended = ended
        self._unmanaged = unmanaged
        self._counters = counters

    async def follow(self) -> None:
        """Compare whenever that is due, until cancelled."""
        while True:
            asked = await self._next()
            try:
                drift = await self._verifier.verify(at_once=asked)
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("the kernel could not be compared with the ledger")
                continue
            self._counters["drifted"] += len(drift)
            self._counters["repairs_failed"] = self._verifier.failed
            await self._find_unreported()

    async def _next(self) -> bool:
        """Wait until the next comparison is due; whether it was asked for."""
        try:
            async with asyncio.timeout(VERIFY_INTERVAL_S):
                await self._due.wait()
        except TimeoutError:
            return False
        self._due.clear()
        return True

    async def _find_unreported(self) -> None:
        try:
            await self._ended.release_ended()
            await self._unmanaged.enter_found()
        except BayplanError as error:
            logger.debug("running containers are still not recorded", extra={"problem": str(error)})
        except Exception:
            logger.exception("ended and unmanaged containers could not be looked for")
