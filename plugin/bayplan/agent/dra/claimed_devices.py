"""The devices of other drivers that pods have through claims, told to the daemon with where they are: so
memory and CPUs are near a GPU or a NIC that was claimed, although nobody claimed these.

A pod says which claims its containers have, the claim what was allocated to it, and its driver's slice where
that is: by Kubernetes' own attributes ``numaNode``, ``pciBusID`` and ``pcieRoot`` (domain
``resource.kubernetes.io``), or by one of its own that is named so. What is told is of a pod as a whole, and
replaces what was told before; all of it is told again to a daemon that started anew.
"""

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct, field

from bayplan.agent.cluster.api import Api, ApiError, Object
from bayplan.agent.dra.driver import ClaimObject, claim_path
from bayplan.agent.dra.slices import COLLECTION
from bayplan.agent.mirror import DaemonLink
from bayplan.agent_protocol import CLAIMED_DEVICES
from bayplan.backoff import Backoff
from bayplan.errors import BayplanError, UnavailableError
from bayplan.logs import Condition
from bayplan.model.claims import DRIVER, ClaimedDevice
from bayplan.quantity import whole_number

logger = logging.getLogger(__name__)

STANDARD: Final = "resource.kubernetes.io"
_NUMA_NODE: Final = ("numanode", "numanodeid", "numa", "numainfo")
_ADDRESS: Final = ("pcibusid", "pciaddress", "pciaddr")
_ROOT: Final = ("pcieroot", "pciroot")
"""The attributes that say where a device is: Kubernetes' own, and what drivers call the same in their domain
(dra.net, dra.cpu, gpu.amd.com, gpu.intel.com, spyre.ibm.com), in any case and with or without underscores."""
_ENDED: Final = ("Succeeded", "Failed")
"""Phases of a pod whose claims are given back, and deleted if they were made for it; it may stay for days."""
MOST_PODS: Final = 1024


class _Ref(Struct, frozen=True):
    name: str
    request: str = ""


class _Resources(Struct, frozen=True):
    claims: tuple[_Ref, ...] = ()


class _Container(Struct, frozen=True):
    name: str
    resources: _Resources = _Resources()


class _PodClaim(Struct, frozen=True, rename="camel"):
    name: str
    resource_claim_name: str | None = None


class _Mapped(Struct, frozen=True, rename="camel"):
    container_name: str
    request_name: str = ""


class _Extended(Struct, frozen=True, rename="camel"):
    resource_claim_name: str = ""
    request_mappings: tuple[_Mapped, ...] = ()


class _Metadata(Struct, frozen=True):
    uid: str
    namespace: str = ""


class _Spec(Struct, frozen=True, rename="camel"):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    resource_claims: tuple[_PodClaim, ...] = ()


class _Status(Struct, frozen=True, rename="camel"):
    phase: str = ""
    resource_claim_statuses: tuple[_PodClaim, ...] | None = None
    extended_resource_claim_status: _Extended | None = None


class _Pod(Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Device(Struct, frozen=True):
    name: str
    attributes: dict[str, dict[str, Any]] | None = None


class _Pool(Struct, frozen=True):
    name: str
    generation: int = 0


class _SliceSpec(Struct, frozen=True):
    driver: str
    pool: _Pool
    devices: tuple[_Device, ...] | None = None


class _Slice(Struct, frozen=True):
    spec: _SliceSpec


class _Slices(Struct, frozen=True):
    items: tuple[_Slice, ...] = ()


class WantedClaims(Struct, frozen=True):
    """What the containers of a pod have of claims: container, the claim's name, and one request of it, or all
    where that is empty."""

    namespace: str
    uid: str
    rows: tuple[tuple[str, str, str], ...] = field(default=())


def wanted_of(pod: Object) -> WantedClaims | None:
    """What *pod*, as the API server has it, says of claims; None if it has none, or they are not made yet, or
    its containers have ended."""
    described = msgspec.convert(pod, _Pod)
    spec, status = described.spec, described.status
    if status.phase in _ENDED:
        return None
    names = {each.name: each.resource_claim_name for each in spec.resource_claims}
    names |= {each.name: each.resource_claim_name for each in status.resource_claim_statuses or ()}
    rows = [
        (container.name, claim, ref.request)
        for container in (*spec.init_containers, *spec.containers)
        for ref in container.resources.claims
        if (claim := names.get(ref.name))
    ]
    extended = status.extended_resource_claim_status
    if extended is not None:
        rows += [
            (each.container_name, extended.resource_claim_name, each.request_name)
            for each in extended.request_mappings
        ]
    return WantedClaims(described.metadata.namespace, described.metadata.uid, tuple(rows)) if rows else None


def place_of(name: str, driver: str, attributes: Mapping[str, Mapping[str, Any]]) -> ClaimedDevice | None:
    """Where a device is by its *attributes*; None if they do not say. Kubernetes' own names go first, and of
    a list the first node is the device's own."""
    found: dict[str, Mapping[str, Any]] = {}
    for key, value in sorted(attributes.items(), key=lambda one: not one[0].startswith(f"{STANDARD}/")):
        found.setdefault(key.rpartition("/")[2].replace("_", "").lower(), value)
    node = next((number for key in _NUMA_NODE if (number := _number(found.get(key, {}))) is not None), None)
    address, root = (
        next((text for key in names if (text := _text(found.get(key, {})))), "")
        for names in (_ADDRESS, _ROOT)
    )
    if node is None and not address and not root:
        return None
    return ClaimedDevice(f"{driver}/{name}", node, address, root)


def _text(value: Mapping[str, Any]) -> str:
    text = value.get("string")
    if text is None and (several := value.get("strings")):
        text = several[0]
    return text if isinstance(text, str) else ""


def _number(value: Mapping[str, Any]) -> int | None:
    number = value.get("int")
    if number is None and (several := value.get("ints")):
        number = several[0]
    if number is None:
        number = whole_number(_text(value))
    return number if isinstance(number, int) and number >= 0 else None


class ClaimedDevices:
    """Tells the daemon behind *link* of the devices that the pods of the node *node_name* have."""

    def __init__(self, api: Api, link: DaemonLink, node_name: str, backoff: Backoff | None = None) -> None:
        self._api = api
        self._link = link
        self._query = urlencode({"fieldSelector": f"spec.nodeName={node_name}"})
        self._pods: dict[str, WantedClaims] = {}
        self._due: dict[str, None] = {}
        self._is_due = asyncio.Event()
        self._failed: set[str] = set()
        self._again: asyncio.TimerHandle | None = None
        """Runs when the pods that could not be told completely are tried again."""
        self._places: dict[tuple[str, str, str], ClaimedDevice | None] = {}
        """By driver, pool and name."""
        self._condition = Condition(
            "the devices of pods' claims are not known", "the devices of pods' claims are known again"
        )
        self._backoff = backoff or Backoff(random.random, first_s=0.5, limit_s=10.0)
        link.connected.add(self._tell_all)

    def know(self, pod: Object) -> None:
        """*pod* is on this node, as the API server has it now."""
        try:
            wanted = wanted_of(pod)
        except msgspec.ValidationError as error:
            logger.warning("a pod's claims cannot be read", extra={"problem": str(error)})
            return
        if wanted is None:
            self.forget(pod["metadata"]["uid"])
            return
        if self._pods.get(wanted.uid) == wanted or len(self._pods) >= MOST_PODS:
            return
        self._pods[wanted.uid] = wanted
        self._make_due(wanted.uid)

    def keep(self, uids: Collection[str]) -> None:
        """All pods but those with these uids are gone."""
        for uid in self._pods.keys() - uids:
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """The pod with that uid is gone."""
        self._pods.pop(uid, None)
        self._due.pop(uid, None)

    async def run(self) -> None:
        """Tell until cancelled. A pod that comes meanwhile is told before those that are tried again later:
        its containers are created now."""
        loop = asyncio.get_running_loop()
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            while self._due:
                uid = next(iter(self._due))
                del self._due[uid]
                if not await self._tell(self._pods[uid]):
                    self._failed.add(uid)
            if self._failed and self._again is None:
                self._again = loop.call_later(self._backoff.next_s(), self._try_again)
            elif not self._failed:
                self._backoff.reset()

    def _try_again(self) -> None:
        self._again, failed = None, self._failed
        self._failed = set()
        for uid in failed & self._pods.keys():
            self._make_due(uid)

    def _make_due(self, uid: str) -> None:
        self._due[uid] = None
        self._is_due.set()

    def _tell_all(self) -> None:
        for uid in self._pods:
            self._make_due(uid)

    async def _tell(self, pod: WantedClaims) -> bool:
        """Tell the daemon of *pod*; whether all of it is known, and the daemon was told, or cannot be
        told."""
        try:
            containers = await self._devices_of(pod)
        except (ApiError, UnavailableError, msgspec.ValidationError) as error:
            self._condition.holds(str(error))
            return False
        self._condition.over()
        if containers is None:
            return False
        said = {name: [msgspec.to_builtins(one) for one in row.values()] for name, row in containers.items()}
        try:
            await self._link.ask(CLAIMED_DEVICES, uid=pod.uid, containers=said)
        except BayplanError as error:
            # A daemon that comes back is told all; another version cannot be told.
            logger.debug("the daemon is not told of claimed devices", extra={"problem": str(error)})
        return True

    async def _devices_of(self, pod: WantedClaims) -> dict[str, dict[str, ClaimedDevice]] | None:
        """By container and name; None while a claim is not allocated."""
        containers: dict[str, dict[str, ClaimedDevice]] = {}
        for claim_name in dict.fromkeys(claim for _, claim, _ in pod.rows):
            claim = await self._api.get(claim_path(pod.namespace, claim_name), ClaimObject)
            if claim.status.allocation is None:
                return None
            for result in claim.status.allocation.devices.results:
                if result.driver == DRIVER:
                    continue
                place = await self._place(result.driver, result.pool, result.device)
                if place is None:
                    continue
                for container, name, request in pod.rows:
                    if name == claim_name and request in ("", result.request.partition("/")[0]):
                        containers.setdefault(container, {})[place.name] = place
        return containers

    async def _place(self, driver: str, pool: str, device: str) -> ClaimedDevice | None:
        key = driver, pool, device
        if key not in self._places:
            listed = await self._api.get(f"{COLLECTION}?{self._query}", _Slices)
            newest: dict[tuple[str, str], int] = {}
            for one in (each.spec for each in listed.items):
                pair = one.driver, one.pool.name
                newest[pair] = max(newest.get(pair, 0), one.pool.generation)
            self._places = {
                (one.driver, one.pool.name, each.name): place_of(each.name, one.driver, each.attributes or {})
                for one in (each.spec for each in listed.items)
                if one.driver != DRIVER and one.pool.generation == newest[one.driver, one.pool.name]
                for each in one.devices or ()
            }
        # Of a slice that is of no node, or not there any more, nothing is known.
        return self._places.get(key)
