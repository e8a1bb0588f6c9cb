"""Claims: what one promises on which nodes, and resource claims (Kubernetes' Dynamic Resource Allocation) as
holders in the ledger.

Invariant: the parts of a claim sum to it, to the byte. All that counts claims counts their parts.

The scheduler allocates to a resource claim so much of each of some NUMA nodes; here that is promised to the
claim, not to a container. Its entry is among those that the ledger retains for holders that have no container
(`Ledger.retained`), under a key that no pod has. The containers of its pod run on what it holds: what they
ask for themselves is promised beside it only as far as it is more. Invariant: what a claim holds is on the
nodes that were allocated to it, and stays so until it is released.

A claim may also be one that another driver has prepared before the node was taken over from it
(`AdoptedClaim`): it holds the CPUs that this driver gave to it, and ends as any other.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from bayplan.model.machine import MEMORY, hugepage_size_bytes
from bayplan.printable import pattern
from bayplan.sets import CpuSet, NodeSet

Amounts = Mapping[str, int]
"""Resource -> bytes."""
Parts = tuple[tuple[NodeSet, Amounts], ...]
"""Sets of nodes with what is promised on each as a whole, single nodes first."""

_NOTHING: Final[Amounts] = {}


def sum_of(rows: Iterable[Amounts]) -> dict[str, int]:
    """The sums of *rows* by resource."""
    total: dict[str, int] = {}
    for row in rows:
        for resource, amount in row.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def hugepages_of(amounts_bytes: Amounts) -> Amounts:
    """The huge pages of *amounts_bytes*."""
    return {resource: amount for resource, amount in amounts_bytes.items() if resource != MEMORY}


def by_page_size(amounts_bytes: Amounts) -> dict[int, int]:
    """The huge pages of *amounts_bytes* by their size."""
    return {hugepage_size_bytes(resource): amount for resource, amount in hugepages_of(amounts_bytes).items()}


def divided(nodes: NodeSet, amounts_bytes: Amounts, even_bytes: Amounts = _NOTHING) -> Parts:
    """*amounts_bytes* on *nodes*, of which *even_bytes* are to lie evenly on them.

    What does not divide is on the lowest nodes, a byte each.
    """
    if not even_bytes:
        return ((nodes, amounts_bytes),)
    count = len(nodes)
    each = tuple(
        (
            NodeSet([node]),
            {
                resource: amount // count + (number < amount % count)
                for resource, amount in even_bytes.items()
            },
        )
        for number, node in enumerate(nodes)
    )
    rest = {resource: amount - even_bytes.get(resource, 0) for resource, amount in amounts_bytes.items()}
    rest = {resource: amount for resource, amount in rest.items() if amount}
    return (*each, (nodes, rest)) if rest else each


def in_proportion(amounts_bytes: Amounts, shares: Mapping[int, int]) -> Parts:
    """*amounts_bytes* on nodes by themselves, by their *shares*: whole huge pages, memory to the byte."""
    rows: dict[int, dict[str, int]] = {node: {} for node in sorted(shares)}
    for resource, amount in amounts_bytes.items():
        unit = 1 if resource == MEMORY else hugepage_size_bytes(resource)
        for node, units in proportional(amount // unit, shares).items():
            rows[node][resource] = units * unit
        lowest = rows[min(rows)]
        lowest[resource] += amount % unit
    return tuple(
        (NodeSet([node]), {resource: amount for resource, amount in row.items() if amount})
        for node, row in rows.items()
    )


def proportional(count: int, shares: Mapping[int, int]) -> dict[int, int]:
    """*count* divided by *shares*, as near to them as whole numbers are: what is left of the division goes to
    those that lack most, of equal ones to the lowest."""
    whole = sum(shares.values())
    found = {node: count * part // whole for node, part in shares.items()}
    left = count - sum(found.values())
    for node in sorted(shares, key=lambda one: (-(count * shares[one] % whole), one))[:left]:
        found[node] += 1
    return found


DRIVER: Final = "bayplan.dev"
"""The name of our own driver of devices that are claimed."""
CDI_KIND: Final = "bayplan.dev/claim"
"""The kind of the CDI devices by which a runtime tells a container which claims it has."""
VARIABLE: Final = "BAYPLAN_CLAIM_"
"""The beginning of the name of the environment variable that tells a container of a claim; its value is
``uid/request``."""
CPU_DRIVER: Final = "dra.cpu"
"""The name of dra-driver-cpu, whose claims can be taken over."""
CPU_DRIVER_VARIABLE: Final = "DRA_CPUSET_"
"""What the name of its variable begins with: then come the claim's uid, ``=`` and the CPUs."""
BY_CLAIM: Final = "resource claim"
"""The source of what a claim asks for."""

_KEY: Final = "claim:"
_UID: Final = pattern(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_REQUEST: Final = pattern(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class AllocatedDevice(Struct, frozen=True):
    """What was allocated to a claim on the NUMA node ``node`` for its ``request``: bytes by resource, and a
    number of CPUs."""

    request: str
    node: int
    amounts_bytes: Mapping[str, int] = field(default_factory=dict)
    cpus: int = 0


class ResourceClaim(Struct, frozen=True):
    """A claim with its allocation, as the API server has it; ``pod_uids`` are the pods it is reserved for."""

    namespace: str
    name: str
    uid: str
    pod_uids: tuple[str, ...] = ()
    devices: tuple[AllocatedDevice, ...] = ()

    @property
    def key(self) -> str:
        """The id under which the ledger has it."""
        return claim_key(self.uid)

    @property
    def amounts_bytes(self) -> dict[str, int]:
        """What it asks for by resource."""
        return sum_of(device.amounts_bytes for device in self.devices)

    @property
    def parts(self) -> Parts:
        """What was allocated to it on each node."""
        nodes = sorted({device.node for device in self.devices})
        rows = {node: sum_of(one.amounts_bytes for one in self.devices if one.node == node) for node in nodes}
        return tuple((NodeSet([node]), row) for node, row in rows.items())

    @property
    def requests(self) -> tuple[str, ...]:
        """The names of its requests, each once, in the order of the allocation."""
        return tuple(dict.fromkeys(device.request for device in self.devices))


class PreparedDevice(Struct, frozen=True):
    """What a driver answered to kubelet of a device of a claim, as kubelet keeps it."""

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    share_id: str | None = None


class AdoptedClaim(Struct, frozen=True):
    """What another ``driver`` has left of a claim that it has prepared: its answer to kubelet, and its CDI
    specs by the names of their files. Both stay as they are for as long as the claim is held."""

    driver: str
    devices: tuple[PreparedDevice, ...] = ()
    specs: Mapping[str, str] = field(default_factory=dict)


class HeldClaim(Struct, frozen=True):
    """A claim with what it holds: ``cpus`` has those of each device, in their order. ``adopted``: another
    driver has prepared it."""

    claim: ResourceClaim
    cpus: tuple[CpuSet, ...] = ()
    adopted: AdoptedClaim | None = None

    def by_node(self, requests: Iterable[str] | None = None) -> dict[int, dict[str, int]]:
        """Bytes by node and resource, of some requests, or of all."""
        rows: dict[int, dict[str, int]] = {}
        for device, _ in self._of(requests):
            rows[device.node] = sum_of([rows.get(device.node, {}), device.amounts_bytes])
        found = {node: {name: amount for name, amount in row.items() if amount} for node, row in rows.items()}
        return {node: row for node, row in found.items() if row}

    def cpus_of(self, requests: Iterable[str] | None = None) -> CpuSet:
        """The CPUs of some requests, or of all."""
        found = CpuSet()
        for _, cpus in self._of(requests):
            found |= cpus
        return found

    def nodes_of(self, cpus: CpuSet) -> NodeSet:
        """The nodes on which some of *cpus* are its own; of CPUs that are offline the machine has no node."""
        both = zip(self.claim.devices, self.cpus, strict=True)
        return NodeSet(device.node for device, own in both if not own.isdisjoint(cpus))

    def _of(self, requests: Iterable[str] | None) -> list[tuple[AllocatedDevice, CpuSet]]:
        wanted = None if requests is None else set(requests)
        both = zip(self.claim.devices, self.cpus, strict=True)
        return [(device, cpus) for device, cpus in both if wanted is None or device.request in wanted]


class ClaimShare(Struct, frozen=True):
    """What a container has through the claims ``uids``, and is not promised again: ``amounts_bytes`` by
    resource on ``nodes``, and ``cpus``."""

    uids: tuple[str, ...]
    nodes: NodeSet = NodeSet()
    amounts_bytes: Mapping[str, int] = field(default_factory=dict)
    cpus: CpuSet = CpuSet()


class ClaimedDevice(Struct, frozen=True):
    """A device of another driver that a container has through a claim, as far as its driver says where it is:
    by the NUMA node, by its PCI address, or by the PCI root above it (``pci0000:3a``)."""

    name: str
    numa_node: int | None = None
    pci_address: str = ""
    pcie_root: str = ""


def claim_key(uid: str) -> str:
    """The id under which the ledger has the claim *uid*."""
    return f"{_KEY}{uid}"


def is_claim_key(container_id: str) -> bool:
    """Whether a decision was about a claim, and not about a container."""
    return container_id.startswith(_KEY)


def is_uid(text: str) -> bool:
    """Whether *text* can be a claim's uid: it is part of a file's name."""
    return _UID.fullmatch(text) is not None


def is_request(text: str) -> bool:
    """Whether *text* can be the name of a claim's request."""
    return _REQUEST.fullmatch(text) is not None


def cdi_name(uid: str, request: str) -> str:
    """The CDI device by which a runtime tells a container that it has a request of a claim. Its name begins
    with a letter, as CDI demanded before 0.5."""
    return f"{CDI_KIND}=claim-{uid}-{request}"


def variable_of(uid: str, request: str) -> tuple[str, str]:
    """Name and value of the variable that tells of a request of a claim."""
    name = f"{VARIABLE}{uid}_{request}".replace("-", "_")
    return name, f"{uid}/{request}"


def claims_in(environment: Iterable[str]) -> tuple[str, ...]:
    """The requests of claims, as ``uid/request``, that an *environment* of ``name=value`` tells of; for those
    that `CPU_DRIVER` prepares ``uid/``, as it gives a container all of a claim. Variables that only look so
    are left out."""
    found = []
    for one in environment:
        if one.startswith(VARIABLE):
            name, _, value = one.partition("=")
            uid, _, request = value.partition("/")
            if is_uid(uid) and is_request(request) and name == variable_of(uid, request)[0]:
                found.append(value)
        elif one.startswith(CPU_DRIVER_VARIABLE):
            uid = one.removeprefix(CPU_DRIVER_VARIABLE).partition("=")[0]
            if is_uid(uid):
                found.append(f"{uid}/")
    return tuple(dict.fromkeys(found))
