"""Resource claims that dra-driver-cpu has prepared become the daemon's own: their containers keep the CPUs
that they have, and kubelet has them released as any other claim.

Two records say what was prepared. kubelet's ``dra_manager_state`` has each claim with its pod and the CDI
devices that it hands to the runtime; the driver's CDI spec has the CPUs, in a variable that names the claim:
the driver itself believes a container's variable only where its spec says the same. Invariant: a claim is
adopted whole, on the CPUs of its spec, which nobody else has; or it is left out, with the reason. Pure.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.interface import EXACT, Engine
from bayplan.errors import ConfigError, ParseError, Problem
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.claims import (
    CPU_DRIVER,
    CPU_DRIVER_VARIABLE,
    AdoptedClaim,
    AllocatedDevice,
    ClaimShare,
    HeldClaim,
    PreparedDevice,
    ResourceClaim,
    claim_key,
    is_request,
    is_uid,
)
from bayplan.model.decision import Decision, Outcome, Placement, Reason
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.workload import Container, Pod
from bayplan.placement.foreign_cpusets import TAKEN_OVER, sharing
from bayplan.placement.resource_claims import MOST_CLAIMS, claims_text, request_of
from bayplan.printable import pattern
from bayplan.quantity import counted
from bayplan.sets import CpuSet, cpus_text

CHECKPOINT: Final = "dra_manager_state"
"""kubelet's record of the claims that it has had prepared, in its directory."""
KIND: Final = "DRACheckpoint"
CDI_KIND: Final = "dra.k8s.io/cpu"
"""The kind of the driver's CDI devices, one for each claim."""

_FILE: Final = pattern(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,200}\.json")
_NO_REQUEST: Final = "cpus"
_MOST_DEVICES: Final = 32
T = TypeVar("T")


class _KubeletsDevice(Struct, frozen=True, rename="pascal"):
    pool_name: str = ""
    device_name: str = ""
    request_names: tuple[str, ...] | None = None
    share_id: str | None = msgspec.field(default=None, name="ShareID")
    cdi_device_ids: tuple[str, ...] | None = msgspec.field(default=None, name="CDIDeviceIDs")


class _DriverState(Struct, frozen=True, rename="pascal"):
    devices: tuple[_KubeletsDevice, ...] | None = None


class _ClaimState(Struct, frozen=True, rename="pascal"):
    claim_name: str
    namespace: str
    claim_uid: str = msgspec.field(name="ClaimUID")
    pod_uids: dict[str, Any] | None = msgspec.field(default=None, name="PodUIDs")
    driver_state: dict[str, _DriverState] | None = None


class _State(Struct, frozen=True, rename="pascal"):
    kind: str = msgspec.field(name="kind")
    claim_info_state_list: tuple[_ClaimState, ...] | None = None


class _Checkpoint(Struct, frozen=True, rename="pascal"):
    data: str
    checksum: int


class _Edits(Struct, frozen=True):
    env: tuple[str, ...] | None = None


class _Device(Struct, frozen=True, rename="camel"):
    name: str
    container_edits: _Edits = _Edits()


class _Spec(Struct, frozen=True):
    kind: str
    devices: tuple[_Device, ...] = ()


class Prepared(Struct, frozen=True):
    """A claim that the driver has prepared, as kubelet has it; its ``claim`` has no devices yet."""

    claim: ResourceClaim
    devices: tuple[PreparedDevice, ...]


class LeftOut(Struct, frozen=True):
    """A claim, NAMESPACE/NAME, that is not adopted, and why."""

    name: str
    uid: str
    problem: str


class Adoption(Struct, frozen=True):
    """The *ledger* with the claims that are ``adopted``. ``users`` are the ids of the containers that are now
    on CPUs of these, ``sharing`` of those that the driver kept on its shared CPUs, which are on ours."""

    ledger: Ledger
    adopted: tuple[HeldClaim, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    users: tuple[str, ...] = ()
    sharing: tuple[str, ...] = ()


def read_checkpoint(text: str) -> tuple[Prepared, ...]:
    """The claims of kubelet's *text* of which `CPU_DRIVER` has prepared devices, by name.

    Raises:
        ConfigError: it is no such file, or damaged.
    """
    checkpoint = _read(CHECKPOINT, text, _Checkpoint, "kubelet's Data and Checksum")
    checksum = zlib.crc32(checkpoint.data.encode())
    if checksum != checkpoint.checksum:
        found = Problem("Checksum", str(checkpoint.checksum), f"{checksum}, that of Data")
        raise ConfigError(CHECKPOINT, (found,))
    state = _read(f"{CHECKPOINT}: Data", checkpoint.data, _State, f"kubelet's {KIND}")
    if state.kind != KIND:
        raise ConfigError(f"{CHECKPOINT}: Data", (Problem("kind", state.kind, KIND),))
    prepared = []
    for claim_info in state.claim_info_state_list or ():
        of_driver = (claim_info.driver_state or {}).get(CPU_DRIVER)
        if of_driver is not None and of_driver.devices:
            found_devices = (
                PreparedDevice(
                    device.pool_name,
                    device.device_name,
                    device.request_names or (),
                    device.cdi_device_ids or (),
                    device.share_id,
                )
                for device in of_driver.devices
            )
            # Once more for each start of a kubelet v1.36, where one is enough (kubernetes#140471).
            devices = tuple(dict.fromkeys(found_devices))
            pods = tuple(sorted(claim_info.pod_uids or ()))
            claim = ResourceClaim(claim_info.namespace, claim_info.claim_name, claim_info.claim_uid, pods)
            prepared.append(Prepared(claim, devices))
    return tuple(sorted(prepared, key=lambda one: (one.claim.namespace, one.claim.name, one.claim.uid)))


def adopt_claims(
    basis: Basis,
    engine: Engine,
    prepared: Sequence[Prepared],
    specs: Mapping[str, str],
    running: Mapping[str, tuple[Pod, Container]],
) -> Adoption:
    """What becomes of the ledger when the claims *prepared* are taken over. *specs* are the texts of the
    driver's CDI specs by the names of their files, *running* the containers that run, by their ids. What was
    adopted before stays."""
    held_by_key, left = _described(basis, engine, prepared, _Files(specs))
    # What their own containers have by now keeps none of these CPUs from them.
    free = basis.with_ledger(_with_users(basis.ledger, held_by_key, running)[0])
    for key in sorted(held_by_key.keys() - basis.ledger.retained.keys()):
        held = held_by_key[key]
        if problem := _contended(free, held):
            del held_by_key[key]
            left.append(_left_out(held.claim, problem))
        else:
            free = free.with_ledger(free.ledger.with_entry(_entry_of(held)))
    ledger, users = _with_users(basis.ledger, held_by_key, running)
    for key, held in held_by_key.items():
        if key not in ledger.retained:
            ledger = ledger.with_entry(_entry_of(held))
    members = tuple(_sharing(basis.with_ledger(ledger))) if held_by_key else ()
    for entry in members:
        ledger = ledger.with_entry(entry)
    ids = tuple(sorted(entry.container_id for entry in members))
    left.sort(key=lambda one: (one.name, one.uid))
    return Adoption(ledger, tuple(held_by_key.values()), tuple(left), users, ids)


def _described(
    basis: Basis, engine: Engine, prepared: Sequence[Prepared], files: "_Files"
) -> tuple[dict[str, HeldClaim], list[LeftOut]]:
    """What the claims *prepared* hold by their keys, whoever has their CPUs; and those of which that is not
    known, or that cannot be held."""
    held_by_key, left = dict[str, HeldClaim](), list[LeftOut]()
    for claim in prepared:
        before = basis.ledger.resource_claims.get(claim_key(claim.claim.uid))
        try:
            held = before if before is not None and before.adopted else _held(basis.machine, claim, files)
            problem = _why_not(basis, engine, held, before)
        except ParseError as error:
            left.append(_left_out(claim.claim, str(error)))
            continue
        if problem:
            left.append(_left_out(claim.claim, problem))
        else:
            held_by_key[held.claim.key] = held
    return held_by_key, left


def _left_out(claim: ResourceClaim, problem: str) -> LeftOut:
    return LeftOut(f"{claim.namespace}/{claim.name}", claim.uid, problem)


class _Files:
    """The CDI specs that were given: which file has a CDI device, and the variables of that."""

    def __init__(self, specs: Mapping[str, str]) -> None:
        self._texts = specs
        self._of: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._problems: list[str] = []
        for name, text in sorted(specs.items()):
            if _FILE.fullmatch(name) is None:
                self._problems.append(str(Problem("CDI spec", name, "the name of a JSON file")))
                continue
            try:
                spec = _read(name, text, _Spec, "a CDI spec")
            except ConfigError as error:
                self._problems.append(error.on_one_line())
                continue
            for device in spec.devices:
                self._of[f"{spec.kind}={device.name}"] = name, device.container_edits.env or ()

    def of(self, devices: Sequence[str]) -> dict[str, str]:
        """The texts of the files that have some of the CDI *devices*, by name."""
        names = {self._of[device][0] for device in devices if device in self._of}
        return {name: self._texts[name] for name in sorted(names)}

    def cpus(self, uid: str) -> CpuSet:
        """The CPUs that the claim *uid* was given; raises ParseError if that is not known."""
        device = f"{CDI_KIND}=claim-{uid}"
        if device not in self._of:
            unread = "".join(f"; {problem}" for problem in self._problems)
            raise ParseError("CDI specs", f"none with the device {device}{unread}", "the driver's spec of it")
        name, variables = self._of[device]
        begin = f"{CPU_DRIVER_VARIABLE}{uid}="
        values = [one.removeprefix(begin) for one in variables if one.startswith(begin)]
        if len(values) != 1:
            raise ParseError(f"CDI spec {name}", counted(len(values), "variable"), f"one {begin}CPUS")
        cpus = CpuSet.parse(values[0])
        if not cpus:
            raise ParseError(f"CDI spec {name}", f"{begin}{values[0]}", "at least one CPU")
        return cpus


def _held(machine: Machine, prepared: Prepared, files: _Files) -> HeldClaim:
    """What the claim *prepared* holds: a device for each NUMA node of its CPUs."""
    claim = prepared.claim
    if not is_uid(claim.uid):
        raise ParseError("claim's uid", claim.uid, "the uid of an object")
    cpus = files.cpus(claim.uid)
    if absent := cpus - machine.online_cpus:
        raise ParseError(
            "CPUs of the claim", cpus_text(cpus), f"none but online ones: {cpus_text(absent)} not"
        )
    names = [name.partition("/")[0] for device in prepared.devices for name in device.requests]
    request = next(filter(is_request, names), _NO_REQUEST)
    rows = [(node.id, here) for node in machine.nodes if (here := node.cpus & cpus)]
    devices = tuple(AllocatedDevice(request, node, {}, len(here)) for node, here in rows)
    specs = files.of([name for device in prepared.devices for name in device.cdi_devices])
    adopted = AdoptedClaim(CPU_DRIVER, prepared.devices, specs)
    return HeldClaim(replace(claim, devices=devices), tuple(here for _, here in rows), adopted)


def _why_not(basis: Basis, engine: Engine, held: HeldClaim, before: HeldClaim | None) -> str:
    """What rules out that *held* is adopted whoever has its CPUs; empty for nothing."""
    claim = held.claim
    if engine.name != EXACT:
        return f"engine: found {engine.name}, expected {EXACT}, which alone keeps promises to claims"
    if before is not None and before.adopted is None:
        return "what bayplan.dev allocates is held for it already, and a claim is held once"
    if len(claim.pod_uids) != 1:
        return f"kubelet has it for {counted(len(claim.pod_uids), 'pod')}, expected one"
    if len(claim.devices) > _MOST_DEVICES:
        return f"its CPUs are on {len(claim.devices)} NUMA nodes, expected {_MOST_DEVICES} at most"
    if len(basis.ledger.resource_claims) >= MOST_CLAIMS:
        return f"{MOST_CLAIMS} claims are held already"
    return ""


def _contended(basis: Basis, held: HeldClaim) -> str:
    """Why the CPUs of *held* cannot be its own alone; empty if they can."""
    cpus = held.cpus_of()
    if reserved := cpus & Allocatable(basis.machine, basis.policy).reserved_cpus:
        return (
            f"it has {cpus_text(reserved)}, which is reserved here; reservedSystemCPUs as the driver has them"
        )
    lacking = cpus - basis.exclusive_candidates()
    if not lacking:
        return ""
    others = {
        entry.decision.request.name
        for entry in basis.ledger.holders
        for own in [entry.decision.request.pinned_cpus or CpuSet()]
        if not lacking.isdisjoint(entry.decision.placement.own_cpus | own)
    }
    whose = f"which {', '.join(sorted(others))} has" if others else "which cannot become exclusive here"
    return f"it has {cpus_text(lacking)}, {whose}"


def _entry_of(held: HeldClaim) -> Entry:
    claim, cpus = held.claim, held.cpus_of()
    text = (
        f"resource claim {claim.namespace}/{claim.name}: {cpus_text(cpus)}, as {CPU_DRIVER} has prepared it"
    )
    decision = Decision(
        request_of(claim), Outcome.ADOPTED, Placement(exclusive_cpus=cpus), (Reason(TAKEN_OVER, text),)
    )
    return Entry(decision, ended=True, resource_claim=held)


def _with_users(
    ledger: Ledger, claims: Mapping[str, HeldClaim], running: Mapping[str, tuple[Pod, Container]]
) -> tuple[Ledger, tuple[str, ...]]:
    """*ledger* whose containers that run on the CPUs of *claims* do so by these, and their ids. One that has
    other CPUs stays as it is."""
    users = list[str]()
    for key, (pod, container) in sorted(running.items()):
        entry = ledger.entries.get(key)
        uids = tuple(each[:-1] for each in container.resource_claims if each.endswith("/"))
        its = [one for uid in uids if (one := claims.get(claim_key(uid))) and pod.uid in one.claim.pod_uids]
        if entry is None or not its or len(its) < len(uids):
            continue
        cpus = CpuSet(cpu for one in its for cpu in one.cpus_of())
        if taken := _on_claimed_cpus(entry, its, cpus):
            ledger = ledger.with_entry(taken)
            users.append(key)
    return ledger, tuple(users)


def _on_claimed_cpus(entry: Entry, claims: Sequence[HeldClaim], cpus: CpuSet) -> Entry | None:
    """*entry* of a container that has *claims*, whose CPUs are *cpus*; None if it has others."""
    request, placement = entry.decision.request, entry.decision.placement
    if request.claimed is not None or request.opted_out:
        return None
    if cpus != (request.pinned_cpus or placement.exclusive_cpus):
        return None
    share = ClaimShare(tuple(one.claim.uid for one in claims), cpus=cpus)
    request = replace(
        request, pinned_cpus=None, pinned_by_update=False, exclusive_cpus=0, cpus=None, claimed=share
    )
    placement = replace(placement, exclusive_cpus=CpuSet(), claimed_cpus=cpus)
    of = claims_text(one.claim for one in claims)
    text = f"by {of}, as {CPU_DRIVER} has prepared: {cpus_text(cpus)}"
    decision = Decision(request, Outcome.ADOPTED, placement, (Reason(TAKEN_OVER, text),))
    return replace(entry, decision=decision, notified_cpus=cpus)


def _sharing(basis: Basis) -> Iterator[Entry]:
    """The containers that the driver keeps on its shared CPUs; it sets these for each container without a
    claim. They are all CPUs that no container has to itself, with or without reserved ones. What the driver
    left of an older pool counts as the choice of somebody else."""
    ledger, reserved = basis.ledger, Allocatable(basis.machine, basis.policy).reserved_cpus
    least, own = basis.shared_cpus - reserved, ledger.exclusive_cpus
    return sharing(ledger, lambda cpus: least <= cpus and cpus.isdisjoint(own))


def _read(source: str, text: str, shape: type[T], expected: str) -> T:
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(source, (Problem("content", str(error), expected),)) from error
