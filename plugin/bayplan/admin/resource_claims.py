"""What an agent asks for resource claims, as a DRA driver: to hold one, and to hold it no longer.

These change promises, and so are asked at the agent socket alone. What an agent says of a claim is checked
here: it is decided about like everything that comes from outside.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from bayplan.admin_protocol import API_VERSION
from bayplan.agent_protocol import CLAIMED_DEVICES, PREPARE_CLAIM, UNPREPARE_CLAIM
from bayplan.control.resource_claims import ResourceClaims
from bayplan.errors import ConfigError, Problem
from bayplan.model.machine import MEMORY
from bayplan.model.pod_facts import MAX_CONTAINERS, Name
from bayplan.model.resource_claim import ClaimedDevice, HeldClaim, ResourceClaim, cdi_name, is_request, is_uid
from bayplan.quantity import UNLIMITED_BYTES
from bayplan.views.decision_view import View

MOST_DEVICES: Final = 32
"""Of a claim: Kubernetes allocates no more."""
MOST_PODS: Final = 256
"""That a claim may be reserved for."""
_MOST_NAME: Final = 253
_MOST_CPUS: Final = 1 << 16

Answering = Callable[[Mapping[str, object]], Awaitable[View]]
KnowClaimed = Callable[[str, Mapping[str, tuple[ClaimedDevice, ...]]], None]


class _DevicesOfPod(Struct, frozen=True):
    uid: Name
    containers: Annotated[
        dict[Name, Annotated[tuple[ClaimedDevice, ...], Meta(max_length=MOST_DEVICES)]],
        Meta(max_length=MAX_CONTAINERS),
    ]


def claiming(claims: ResourceClaims, know: KnowClaimed) -> dict[str, Answering]:
    """The questions ``prepare-claim``, whose ``claim`` has the fields of `ResourceClaim`, and
    ``unprepare-claim`` with a ``uid``. The first answers with the CDI device of each request. And
    ``claimed-devices``: *know* hears what the ``containers`` of the pod with a ``uid`` have of other drivers,
    each a list of `ClaimedDevice`."""

    async def prepare(request: Mapping[str, object]) -> View:
        return _prepared(await claims.prepare(_claim(request.get("claim"))))

    async def unprepare(request: Mapping[str, object]) -> View:
        uid = request.get("uid")
        if not isinstance(uid, str) or not is_uid(uid):
            raise ConfigError(UNPREPARE_CLAIM, (Problem("uid", repr(uid), "the uid of a claim"),))
        return _document("UnpreparedClaim", uid=uid, wasHeld=await claims.release(uid))

    async def devices(request: Mapping[str, object]) -> View:
        pod = _devices_of_pod(request)
        know(pod.uid, pod.containers)
        return _document("ClaimedDevices", uid=pod.uid)

    return {PREPARE_CLAIM: prepare, UNPREPARE_CLAIM: unprepare, CLAIMED_DEVICES: devices}


def _devices_of_pod(request: Mapping[str, object]) -> _DevicesOfPod:
    try:
        return msgspec.convert(request, _DevicesOfPod)
    except msgspec.ValidationError as error:
        raise ConfigError(CLAIMED_DEVICES, (Problem("request", str(error), "uid and containers"),)) from error


def _document(kind: str, **content: Any) -> View:
    return {"apiVersion": API_VERSION, "kind": kind, **content}


def _prepared(held: HeldClaim) -> View:
    claim = held.claim
    return _document(
        "PreparedClaim",
        uid=claim.uid,
        cdiDevices={request: cdi_name(claim.uid, request) for request in claim.requests},
        cpus=[str(cpus) for cpus in held.cpus],
    )


def _claim(given: object) -> ResourceClaim:
    """The claim that an agent describes.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    try:
        claim = msgspec.convert(given, ResourceClaim)
    except msgspec.ValidationError as error:
        raise ConfigError(PREPARE_CLAIM, (Problem("claim", str(error), "a claim's fields"),)) from error
    problems = [
        Problem(f"claim.{name}", found, expected)
        for name, found, expected, good in (
            ("uid", claim.uid, "the uid of a claim", is_uid(claim.uid)),
            ("namespace", claim.namespace, "a name", 0 < len(claim.namespace) <= _MOST_NAME),
            ("name", claim.name, "a name", 0 < len(claim.name) <= _MOST_NAME),
            (
                "devices",
                str(len(claim.devices)),
                f"1 to {MOST_DEVICES}",
                0 < len(claim.devices) <= MOST_DEVICES,
            ),
            ("pod_uids", str(len(claim.pod_uids)), f"at most {MOST_PODS}", len(claim.pod_uids) <= MOST_PODS),
        )
        if not good
    ]
    for number, device in enumerate(claim.devices[:MOST_DEVICES]):
        path = f"claim.devices[{number}]"
        if not is_request(device.request):
            problems.append(Problem(f"{path}.request", device.request, "the name of a request"))
        if not 0 <= device.cpus < _MOST_CPUS:
            problems.append(Problem(f"{path}.cpus", str(device.cpus), "a number of CPUs"))
        for resource, amount in device.amounts_bytes.items():
            known = resource == MEMORY or resource.startswith("hugepages-")
            if not known or not 0 <= amount < UNLIMITED_BYTES:
                expected = "bytes of memory or hugepages-SIZE"
                problems.append(Problem(f"{path}.amounts_bytes", f"{resource} {amount}", expected))
    if problems:
        raise ConfigError(PREPARE_CLAIM, tuple(problems))
    return claim
