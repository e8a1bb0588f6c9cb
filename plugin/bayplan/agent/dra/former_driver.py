"""Answers kubelet in the place of dra-driver-cpu for as long as the daemon holds claims that this one has
prepared (`bayplan import-state --only claims`).

A pod does not end before kubelet has had its claims released by the driver that prepared them; and after a
reboot it asks that driver again before it creates the pod's containers. So a socket with the other driver's
name is there while there is such a claim, and no longer. The answer is the one that kubelet had before. New
claims of that driver are not taken: its ResourceSlices, which kubelet would leave there for a driver that is
registered, are deleted, and what was allocated by them is refused with the reason.
"""

import asyncio
import logging
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from bayplan._proto.dra import api_pb2 as pb
from bayplan.agent.cluster.api import Api, ApiError
from bayplan.agent.dra.driver import ClaimDriver, ClaimError, DraService
from bayplan.agent.dra.slices import COLLECTION
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.agent_protocol import PREPARE_CLAIM
from bayplan.errors import BayplanError
from bayplan.logs import Condition
from bayplan.model.claims import CPU_DRIVER, HeldClaim, claim_key

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 300.0
"""Between two looks whether somebody publishes slices of that driver again."""
NOT_ADOPTED: Final = (
    f"{CPU_DRIVER} has not prepared it before bayplan took the node over, and its CPUs are not given out any "
    "more: delete the pod"
)

_FIELDS: Final = {"driver": CPU_DRIVER}


class _Metadata(Struct, frozen=True):
    name: str


class _Spec(Struct, frozen=True):
    driver: str = ""


class _Slice(Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()


class _Slices(Struct, frozen=True):
    items: tuple[_Slice, ...] = ()


class FormerDriver:
    """Serves kubelet as `CPU_DRIVER` on the node *node_name*, below the directories *plugins* and *registry*;
    *driver* releases claims."""

    def __init__(
        self,
        api: Api,
        link: DaemonLink,
        mirror: Mirror,
        driver: ClaimDriver,
        node_name: str,
        sockets: tuple[Path, Path],
        look_interval_s: float = LOOK_INTERVAL_S,
    ) -> None:
        self._api = api
        self._link = link
        self._mirror = mirror
        self._driver = driver
        self._service = DraService(*sockets, node_name, self, mirror, name=CPU_DRIVER)
        self._selector = urlencode({"fieldSelector": f"spec.nodeName={node_name},spec.driver={CPU_DRIVER}"})
        self._look_interval_s = look_interval_s
        self._condition = Condition(
            f"nobody answers kubelet for {CPU_DRIVER}, whose claims are held",
            f"kubelet has answers for {CPU_DRIVER} again",
        )

    async def prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        """As of `Claims`: the answer that the other driver gave."""
        held = (self._held() or {}).get(claim_key(claim.uid))
        if held is None or held.adopted is None:
            raise ClaimError(claim.namespace, claim.name, self._why_not())
        # The daemon sees that the CDI specs are there.
        await self._link.ask(PREPARE_CLAIM, claim=msgspec.to_builtins(held.claim))
        answer = pb.NodePrepareResourceResponse()
        for device in held.adopted.devices:
            answer.devices.add(
                request_names=device.requests,
                pool_name=device.pool,
                device_name=device.device,
                cdi_device_ids=device.cdi_devices,
                share_id=device.share_id,
            )
        return answer

    async def unprepare(self, claim: pb.Claim) -> str:
        """As of `Claims`, as for claims of this driver."""
        return await self._driver.unprepare(claim)

    async def run(self) -> None:
        """Serve whenever there is something to serve, until cancelled."""
        serves = False
        try:
            while True:
                seen, held = self._mirror.revision, self._held()
                if held is not None and bool(held) != serves:
                    serves = await self._begun() if held else await self._ended()
                try:
                    async with asyncio.timeout(self._look_interval_s if held else None):
                        await self._mirror.wait_for_change(seen)
                except TimeoutError:
                    await self._delete_slices()
        finally:
            await self._service.close()

    def _held(self) -> Mapping[str, HeldClaim] | None:
        """The claims of that driver that the daemon holds; None while that is not known."""
        if self._mirror.snapshot is None:
            return None
        claims = self._mirror.snapshot.ledger.resource_claims
        return {key: one for key, one in claims.items() if one.adopted is not None}

    async def _begun(self) -> bool:
        """Whether kubelet finds a socket now."""
        try:
            await self._service.start()
        except BayplanError as error:
            self._condition.holds(error.on_one_line())
            return False
        self._condition.over()
        logger.info("serves kubelet as another driver, whose claims are held", extra=_FIELDS)
        await self._delete_slices()
        return True

    async def _ended(self) -> bool:
        # gRPC's own end of a server does not pass on that it is cancelled.
        await asyncio.shield(self._service.close())
        logger.info(
            "no claim of another driver is held any more: kubelet has no such driver now", extra=_FIELDS
        )
        return False

    async def _delete_slices(self) -> None:
        """Have nothing more allocated of what that driver has published."""
        try:
            listed = await self._api.get(f"{COLLECTION}?{self._selector}", _Slices)
            for one in listed.items:
                if one.spec.driver == CPU_DRIVER:
                    await self._delete_slice(one.metadata.name)
        except (BayplanError, msgspec.ValidationError) as error:
            problem = error.on_one_line() if isinstance(error, BayplanError) else str(error)
            fields = {**_FIELDS, "problem": problem}
            logger.warning("the ResourceSlices of another driver are not deleted", extra=fields)

    async def _delete_slice(self, name: str) -> None:
        try:
            await self._api.delete(f"{COLLECTION}/{name}")
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        logger.warning("a ResourceSlice of another driver is deleted", extra={**_FIELDS, "slice": name})

    def _why_not(self) -> str:
        return NOT_ADOPTED if self._mirror.connected else "baypland does not answer"
