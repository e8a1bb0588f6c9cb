"""What the daemon shows of itself, as plain values ready for JSON.

Pure functions of a Snapshot. The shapes are public (``apiVersion``): fields are added, never renamed. Amounts
are bytes as integers, sets are text in the kernel's list format, and null means "not known" or "not bound".
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bayplan.admin_protocol import API_VERSION
from bayplan.engines.exact.witness import Spread, by_node, witness
from bayplan.engines.interface import EngineKind
from bayplan.model.basis import Allocatable
from bayplan.model.claims import DRIVER
from bayplan.model.decision import QosSource
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY, Cpu, Machine, Node, hugepages
from bayplan.model.memory_kinds import tier_ranks
from bayplan.model.pod_as_a_whole import held_cpus, is_member
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.adjustment import cpus_for
from bayplan.placement.foreign_cpusets import CpuHolders
from bayplan.placement.page_placement import LivePages
from bayplan.placement.resource_claims import users_of
from bayplan.quantity import MIB, US_PER_S
from bayplan.sets import CpuSet, NodeSet
from bayplan.views.node_room import CpuOwners, free_bytes_by_node
from bayplan.views.snapshot import MemoryReservation, RuntimeState, Snapshot

View = dict[str, Any]

Spreads = Mapping[str, Spread]
"""The witness: what each container has on each node, by its id."""


def ping_view(snapshot: Snapshot) -> View:
    """That the daemon answers, which one it is, and which runtime asks it."""
    return _document("Pong", daemon=_daemon(snapshot), runtime=_runtime(snapshot.runtime))


def spreads_of(snapshot: Snapshot) -> Spreads:
    """The witness of the snapshot: milliseconds where there are many nodes and containers."""
    return witness(snapshot.basis)


def cpu_holders(snapshot: Snapshot) -> CpuHolders:
    """The containers whose cpusets have exclusive CPUs, by CPU."""
    shared = snapshot.ledger.shared_cpus(snapshot.machine, snapshot.policy.withheld_cpus)
    return CpuHolders(snapshot.ledger, shared, snapshot.kernel_cpus)


def status_view(snapshot: Snapshot, spreads: Spreads | None = None) -> View:
    """Every container with its decision, and how the daemon and the runtime are. *spreads* are those of
    *snapshot*, where they are known already."""
    shared = snapshot.ledger.shared_cpus(snapshot.machine, snapshot.policy.withheld_cpus)
    spreads = spreads_of(snapshot) if spreads is None else spreads
    entries = sorted(
        snapshot.ledger.entries.values(), key=lambda one: (one.decision.request.name, one.container_id)
    )
    holders = cpu_holders(snapshot)
    return _document(
        "Status",
        daemon=_daemon(snapshot),
        runtime=_runtime(snapshot.runtime),
        policy=_policy(snapshot.policy),
        kubelet={"version": str(snapshot.policy.kubelet_rules), "knownBy": snapshot.kubelet_known_by or None},
        sharedCpus=str(shared),
        cpuPools=_cpu_pools(snapshot),
        unmatchedCpuRules=list(snapshot.unmatched_cpu_rules),
        containers=[
            _container(entry, shared, snapshot, spreads[entry.container_id], holders) for entry in entries
        ],
        unmanaged=[{"id": one.container_id, "name": one.name} for one in snapshot.unmanaged],
        drift=[
            {"id": one.container_id, "name": one.name, "difference": one.difference} for one in snapshot.drift
        ],
        keptForPods=_kept_for_pods(snapshot),
        resourceClaims=_resource_claims(snapshot),
        problems=list(snapshot.problems),
        counters=dict(sorted(snapshot.counters.items())),
    )


def nodes_view(snapshot: Snapshot, spreads: Spreads | None = None) -> View:
    """Every NUMA node: what it has, keeps, promised and has left, and who is there. *spreads* as for
    `status_view`."""
    machine = snapshot.machine
    allocatable, ranks = Allocatable(machine, snapshot.policy).bytes_by_node, tier_ranks(machine)
    spreads = spreads_of(snapshot) if spreads is None else spreads
    claims = snapshot.ledger.resource_claims.values()
    booked = by_node([*spreads.values(), *(one.by_node() for one in claims)])
    free = free_bytes_by_node(snapshot.basis)
    holders, owners = cpu_holders(snapshot), CpuOwners(snapshot.basis)
    return _document(
        "Nodes",
        daemon=_daemon(snapshot),
        nodes=[
            _node(
                *(node, allocatable[node.id], booked.get(node.id, {}), free[node.id]),
                *(spreads, holders, owners, snapshot),
            )
            | {"kind": _kind(node, machine, ranks)}
            for node in machine.nodes
        ],
        cpuPools=_cpu_pools(snapshot),
        keptForPods=_kept_for_pods(snapshot),
        resourceClaims=_resource_claims(snapshot),
    )


def _cpu_pools(snapshot: Snapshot) -> list[View]:
    """The named pools: those of the configuration, and those that still have members."""
    ledger, configured = snapshot.ledger, snapshot.policy.cpu_pools
    views = []
    for name in sorted(configured.keys() | ledger.pool_ids.keys()):
        members = [entry.decision.request for entry in ledger.members(name)]
        pool = configured.get(name)
        views.append(
            {
                "name": name,
                "cpus": str(ledger.pool_cpus(name)),
                "minimum": None if pool is None else pool.minimum,
                "maximum": None if pool is None else pool.maximum,
                "cpuKind": None if pool is None else pool.cpu_kind or None,
                "requestedMilli": sum(one.requested_milli for one in members),
                "containers": sorted(one.name for one in members),
            }
        )
    return views


def _resource_claims(snapshot: Snapshot) -> list[View]:
    """The resource claims that are held, each with what it has by device, and the containers that have it."""
    ledger = snapshot.ledger
    views = []
    for held in ledger.resource_claims.values():
        claim = held.claim
        views.append(
            {
                "name": f"{claim.namespace}/{claim.name}",
                "uid": claim.uid,
                "driver": DRIVER if held.adopted is None else held.adopted.driver,
                "podUids": list(claim.pod_uids),
                "nodes": str(NodeSet(device.node for device in claim.devices)),
                "bytes": claim.amounts_bytes,
                "cpus": str(held.cpus_of()),
                "devices": [
                    {
                        "request": device.request,
                        "node": device.node,
                        "bytes": dict(device.amounts_bytes),
                        "cpus": str(cpus),
                    }
                    for device, cpus in zip(claim.devices, held.cpus, strict=True)
                ],
                "containers": sorted(one.decision.request.name for one in users_of(ledger, claim.uid)),
            }
        )
    return sorted(views, key=lambda one: (one["name"], one["uid"]))


def _kept_for_pods(snapshot: Snapshot) -> list[View]:
    """The room that is kept for containers which pods are still to get, or to get again."""
    ledger = snapshot.ledger
    entries = (*ledger.entries.values(), *ledger.retained.values())
    if EngineKind.of(snapshot.engine).is_kubelets:
        from bayplan.engines.kubelet.booking import kept_for_pods  # noqa: PLC0415 - of that engine alone

        kept = [(rest.pod_id, rest.nodes, rest.need, rest.cpus) for rest in kept_for_pods(entries) if rest]
    else:
        kept = [
            (pod_id, held.promise.nodes, held.promise.amounts_bytes, held_cpus(held))
            for pod_id, held in [
                (pod_id, last.decision.placement)
                for pod_id, last in sorted(ledger.retained.items())
                if is_member(last.decision.request)
            ]
        ]
    requests = (entry.decision.request for entry in entries)
    names = {request.pod_id: request.name.rpartition("/")[0] for request in requests}
    return [
        {
            "podId": pod_id,
            "name": names[pod_id],
            "nodes": str(nodes),
            "bytes": dict(sorted(amounts_bytes.items())),
            "cpus": str(cpus),
        }
        for pod_id, nodes, amounts_bytes, cpus in kept
    ]


def _document(kind: str, **content: Any) -> View:
    return {"apiVersion": API_VERSION, "kind": kind, **content}


def _daemon(snapshot: Snapshot) -> View:
    return {
        "version": snapshot.version,
        "pid": snapshot.pid,
        "engine": snapshot.engine,
        "startedAt": timestamp(snapshot.started_us),
        "placementDirectory": snapshot.placement_directory,
        "uptimeSeconds": (snapshot.taken_us - snapshot.started_us) // US_PER_S,
    }


def _runtime(runtime: RuntimeState | None) -> View:
    if runtime is None:
        return {"connected": False}
    return {
        "connected": True,
        "name": runtime.name,
        "version": runtime.version,
        "nriVersion": runtime.nri_version,
        "capabilities": dict(sorted(runtime.capabilities.items())),
    }


def _policy(policy: PlacementPolicy) -> View:
    qos = policy.memory_qos
    return {
        "topologyManagerPolicy": policy.topology.value,
        "placementStrategy": policy.strategy.value,
        "keepWhole": policy.keep_whole.value,
        "reservedMemoryBytes": {str(node): dict(row) for node, row in sorted(policy.reserved_bytes.items())},
        "reservedCpus": str(policy.reserved_cpus),
        "hugepagePools": bool(policy.hugepage_pools),
        "whenDown": "refuse" if policy.refuse_undecided else "pass",
        "memoryQoS": None
        if qos is None
        else {
            "memoryThrottlingFactor": qos.throttling_factor,
            "memoryReservationPolicy": qos.reservation.value,
        },
        "singleProcessOOMKill": policy.single_process_oom_kill,
        "defaultMemoryLimitBytes": dict(policy.default_memory_limit_bytes),
    }


def _container(entry: Entry, shared: CpuSet, snapshot: Snapshot, spread: Spread, holders: CpuHolders) -> View:
    decision = entry.decision
    request, placement = decision.request, decision.placement
    cpus = cpus_for(decision, shared)
    if request.pinned_cpus is not None:
        cpus = snapshot.kernel_cpus.get(entry.container_id, request.pinned_cpus)
    mems = placement.mems if request.pinned_mems is None else request.pinned_mems
    wanted_score = snapshot.oom_score_adj.get(entry.container_id)
    return {
        "id": entry.container_id,
        "podId": request.pod_id,
        "name": request.name,
        "qosClass": request.qos.value,
        "qosSource": request.qos_source.value,
        "qosInferred": request.qos_source is QosSource.INFERRED,
        "outcome": decision.outcome.value,
        "origin": entry.origin.name,
        "mems": None if mems is None else str(mems),
        "memsPinnedByOthers": request.pinned_mems is not None,
        "cpus": None if cpus is None else str(cpus),
        "cpusExclusive": bool(placement.own_cpus),
        "exclusiveCpus": str(placement.own_cpus & cpus) if cpus else "",
        "cpuPartition": "isolated" if entry.container_id in snapshot.partitions else None,
        "cpuPartitionWanted": "isolated" if request.partition else None,
        "irqs": "away" if request.irqs_away and placement.exclusive_cpus else None,
        "cpuPool": request.pool if placement.pool_cpus else None,
        "cpusAlsoOf": holders.others(entry),
        "cpusPinnedByOthers": request.pinned_cpus is not None,
        "cpuMilli": request.cpu_milli,
        "memory": {
            "requestLowBytes": request.memory.low_bytes,
            "requestUsualLowBytes": request.memory.likely_low_bytes,
            "requestHighBytes": request.memory.high_bytes,
            "requestExact": request.memory.exact,
            "requestSource": request.memory.source,
            "limitBytes": request.memory_limit_bytes,
        },
        "hugepagesBytes": dict(request.hugepages_bytes),
        "bookedBytes": {str(node): dict(row) for node, row in sorted(spread.items())},
        "shortBytes": dict(placement.promise.short_bytes),
        "deviceHints": [{"device": hint.device, "nodes": str(hint.nodes)} for hint in request.hints],
        "placementFile": request.placement_file,
        "oomScoreAdj": snapshot.kernel_oom_score_adj.get(entry.container_id, wanted_score),
        "oomScoreAdjWanted": wanted_score,
        "reasons": [{"code": reason.code, "text": reason.text} for reason in decision.reasons],
    }


def _node(
    node: Node,
    allocatable: Mapping[str, int],
    booked: Mapping[str, int],
    free: Mapping[str, int],
    spreads: Spreads,
    holders: CpuHolders,
    owners: CpuOwners,
    snapshot: Snapshot,
) -> View:
    machine, ledger = snapshot.machine, snapshot.ledger
    capacity = node.capacity_bytes()
    cpus = [machine.cpu_by_id[one] for one in node.cpus if one in machine.cpu_by_id]
    cores, caches = _cores(cpus), _l3_caches(cpus)
    parts = {core: owners.parts(core) for core in cores}
    pools = {
        hugepages(size): {"minimumBytes": one.minimum_bytes, "maximumBytes": one.maximum_bytes}
        for size, one in snapshot.policy.hugepage_pools.get(node.id, {}).items()
    }
    return {
        "id": node.id,
        "memTotalBytes": node.memory_bytes,
        "reservation": _reservation(node, snapshot),
        "live": _live(node, snapshot.live),
        "resources": {
            resource: {
                "totalBytes": total,
                "reservedBytes": total - allocatable[resource],
                "allocatableBytes": allocatable[resource],
                "bookedBytes": booked.get(resource, 0),
                "freeBytes": max(0, allocatable[resource] - booked.get(resource, 0)),
                "safeBytes": _safe_bytes(node, resource, free, snapshot),
            }
            | pools.get(resource, {})
            for resource, total in sorted(capacity.items(), key=lambda item: (item[0] != MEMORY, item[0]))
        },
        "cpus": {
            "all": str(node.cpus),
            "sockets": sorted({cpu.socket_id for cpu in cpus}),
            "l3Caches": [str(cache) for cache in caches],
            "l3CacheUse": [owners.cache(cache, cores) for cache in caches],
            "cores": [str(core) for core in cores],
            "wholeCores": sum(map(owners.is_whole, cores)),
            "brokenCores": [
                {"cpus": str(core), "parts": of_core} for core, of_core in parts.items() if len(of_core) > 1
            ],
            "exclusive": str(node.cpus & holders.alone),
            "contested": str(node.cpus & holders.contested),
            "shared": str(node.cpus & ledger.shared_cpus(machine, snapshot.policy.withheld_cpus)),
            "reserved": str(node.cpus & Allocatable(machine, snapshot.policy).reserved_cpus),
            "isolated": str(node.cpus & machine.isolated),
            "nohzFull": str(node.cpus & machine.nohz_full),
            "pools": {
                name: str(node.cpus & cpus)
                for name, cpus in ledger.cpus_of_pools.items()
                if not node.cpus.isdisjoint(cpus)
            },
            "kinds": {
                kind: str(node.cpus & of_kind)
                for kind, of_kind in machine.cpus_by_kind.items()
                if not node.cpus.isdisjoint(of_kind)
            },
        },
        "distances": {str(other.id): machine.distance(node.id, other.id) for other in machine.nodes},
        "containers": [
            {
                "id": entry.container_id,
                "name": entry.decision.request.name,
                "bookedBytes": dict(spreads[entry.container_id].get(node.id, {})),
                "heldBytes": _held_bytes(entry.container_id, node, snapshot.live),
                "exclusiveCpus": str(node.cpus & entry.decision.placement.own_cpus),
                "cpuPool": entry.decision.request.pool if entry.decision.placement.pool_cpus else None,
                "devices": [hint.device for hint in entry.decision.request.hints if node.id in hint.nodes],
            }
            for entry in sorted(
                ledger.entries.values(), key=lambda one: (one.decision.request.name, one.container_id)
            )
            if _is_bound_to(entry, node, spreads[entry.container_id])
            or _held_bytes(entry.container_id, node, snapshot.live)
        ],
    }


def _cores(cpus: Sequence[Cpu]) -> list[CpuSet]:
    """The CPUs of each core that are online, by the core's first one."""
    return _groups((cpu.core_id, cpu.id) for cpu in cpus if cpu.online)


def _l3_caches(cpus: Sequence[Cpu]) -> list[CpuSet]:
    """The CPUs behind each L3 cache, as far as the kernel says which they are."""
    return _groups((cpu.l3_cache_id, cpu.id) for cpu in cpus if cpu.l3_cache_id is not None)


def _groups(pairs: Iterable[tuple[int, int]]) -> list[CpuSet]:
    found: dict[int, list[int]] = {}
    for key, cpu in pairs:
        found.setdefault(key, []).append(cpu)
    return [CpuSet(ids) for _, ids in sorted(found.items())]


def _safe_bytes(node: Node, resource: str, free: Mapping[str, int], snapshot: Snapshot) -> int:
    """What a container can ask for on the node alone and still fits if the reservation rises meanwhile: of
    memory whole MiB, so that it can be written into a manifest as it is shown."""
    free_bytes = free.get(resource, 0)
    if resource != MEMORY:
        return free_bytes
    margin_bytes = snapshot.reservations.get(node.id, MemoryReservation()).margin_bytes
    return max(0, free_bytes - margin_bytes) // MIB * MIB


def _kind(node: Node, machine: Machine, ranks: Mapping[str, int]) -> View:
    """What kind of memory the node has. Latencies and bandwidths are the firmware's ratings."""
    rated = node.performance
    ratings = {
        "readLatencyNs": rated.read_latency_ns,
        "writeLatencyNs": rated.write_latency_ns,
        "readBandwidthMiBPerSecond": rated.read_bandwidth_mib_s,
        "writeBandwidthMiBPerSecond": rated.write_bandwidth_mib_s,
    }
    return {
        "ordinary": node.id in machine.ordinary_nodes,
        "tier": node.tier,
        "tierNames": [name for name, rank in ranks.items() if rank == node.tier],
        "owner": node.owner or None,
        "initiators": str(node.initiators),
        "rated": {name: value or None for name, value in ratings.items()},
    }


def _reservation(node: Node, snapshot: Snapshot) -> View:
    """How it is known what the node keeps of its memory."""
    kept_bytes = snapshot.policy.reserved_bytes.get(node.id, {}).get(MEMORY, 0)
    known = snapshot.reservations.get(node.id, MemoryReservation(kept_bytes))
    return {
        "source": "measured" if kept_bytes > known.configured_bytes else "configured",
        "configuredBytes": known.configured_bytes,
        "heldOutsideBytes": known.held_bytes,
        "measuredAt": None if known.measured_us is None else timestamp(known.measured_us),
    }


def _live(node: Node, live: LivePages | None) -> View | None:
    """The memory of the node as it was seen last. What is used is held by containers that stay there, by
    containers that may lie elsewhere, or outside of containers."""
    if live is None or node.id not in live.nodes:
        return None
    seen, containers = live.nodes[node.id], live.containers.values()
    held_bytes = sum(one.held_bytes.get(node.id, 0) for one in containers)
    movable_bytes = sum(one.movable_bytes.get(node.id, 0) for one in containers if len(one.nodes) > 1)
    return {
        "measuredAt": timestamp(live.measured_us),
        "freeBytes": seen.free_bytes,
        "reclaimableBytes": seen.reclaimable_bytes,
        "outstandingBytes": live.plan.expected_bytes.get(node.id, 0),
        "usedByOwnersBytes": held_bytes - movable_bytes,
        "movableBytes": movable_bytes,
        "heldOutsideBytes": max(0, seen.used_bytes - held_bytes),
        "belowLowWatermark": seen.low,
    }


def _held_bytes(container_id: str, node: Node, live: LivePages | None) -> int | None:
    """What the container holds on the node, as it was seen last."""
    one = None if live is None else live.containers.get(container_id)
    return None if one is None else one.held_bytes.get(node.id, 0)


def _is_bound_to(entry: Entry, node: Node, spread: Spread) -> bool:
    """Whether the container is bound to some nodes, this one among them, is promised memory or has CPUs
    there."""
    placement = entry.decision.placement
    mems = (
        placement.mems if entry.decision.request.pinned_mems is None else entry.decision.request.pinned_mems
    )
    return (
        (mems is not None and node.id in mems)
        or any(spread.get(node.id, {}).values())
        or not placement.apart_cpus.isdisjoint(node.cpus)
    )


def timestamp(moment_us: int) -> str:
    """A moment in microseconds since the epoch as ISO 8601 in UTC, to the second."""
    return (
        datetime.fromtimestamp(moment_us / US_PER_S, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    )
