"""`bayplan simulate` without its command line: one trace on one machine with one engine or several, compared.

Machine, trace and settings are read from files, the runs are plain values ready for JSON. Engines, policies
and the rules for reading settings are those of the daemon.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bayplan.admin_protocol import API_VERSION
from bayplan.config.kubelet_rules import engine_of
from bayplan.config.load import load_settings
from bayplan.config.reservations import remarks_here, reserved_bytes, resolve_policy
from bayplan.config.settings import Settings
from bayplan.errors import ConfigError, Problem
from bayplan.files import STANDARD_INPUT
from bayplan.model.decision import Move
from bayplan.model.machine import Machine
from bayplan.model.memory_kinds import with_owners
from bayplan.model.policy import PlacementPolicy
from bayplan.model.sentences import summary
from bayplan.simulate.simulation import Simulation, Step
from bayplan.simulate.topology_sources import read_topology
from bayplan.simulate.trace_file import Arrival, Departure, Event, read_trace

View = dict[str, Any]

_NOWHERE: Final = Path("/nonexistent")
"""A simulation reads no configuration that it was not given."""


def simulate(
    topology: Path,
    trace: Path,
    engines: Sequence[str] = (),
    configs: Sequence[Path] = (),
    keys: Mapping[str, Sequence[str]] | None = None,
    keys_of: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType({}),
) -> View:
    """Play *trace* on the machine of *topology*, once for each of *engines* (none: the configured one).

    *configs* and *keys* (texts of flags by key) are read as baypland reads them; *keys_of* has further keys
    for single engines. Where several engines are compared, the keys of kubelet's managers are for the engine
    `kubelet` alone.

    Raises:
        ConfigError: a file or a key is wrong, or the machine does not have what they name.
    """
    if str(topology) == str(trace) == STANDARD_INPUT:
        expected = "the standard input for one of them"
        raise ConfigError("command line", (Problem("--topology and --trace", "- for both", expected),))
    machine = read_topology(topology)
    all_settings = []
    for engine in engines or ("",):
        flags = {**(keys or {}), **keys_of.get(engine, {}), **({"engine": [engine]} if engine else {})}
        all_settings.append(settings_for(machine, configs, flags, several=len(engines) > 1))
    events = read_trace(trace, machine, all_settings[0].kubelet_rules)
    runs = [_run(machine, settings, events) for settings in all_settings]
    return {
        "apiVersion": API_VERSION,
        "kind": "Simulation",
        "machine": {
            "nodes": str(machine.node_ids),
            "cpus": str(machine.online_cpus),
            "memoryBytes": machine.memory_bytes,
        },
        "events": len(events),
        "runs": runs,
    }


def empty_machine(topology: Path, configs: Sequence[Path] = ()) -> tuple[Machine, PlacementPolicy, Settings]:
    """The machine of *topology* as a daemon with the files *configs* starts with.

    Raises:
        ConfigError, HostError: a file is wrong, or the machine does not have what it names.
    """
    described = read_topology(topology)
    settings = settings_for(described, configs, {}, several=False)
    machine = with_owners(described, settings.device_memory)
    return machine, resolve_policy(settings, machine), settings


def settings_for(
    machine: Machine, configs: Sequence[Path], flags: Mapping[str, Sequence[str]], *, several: bool
) -> Settings:
    """The settings. For kubelet's managers, which start with nothing unsaid, what is not given is what
    bayplan does by itself: the reservation spread over the nodes, and the lowest CPU reserved. With kubelet's
    own file that kubelet is meant, which has nothing but what it says."""
    settings = load_settings(configs, flags, _NOWHERE, for_several_engines=several)
    if not settings.engine_kind.is_kubelets or settings.of_kubelets_file:
        return settings
    complete = dict(flags)
    if settings.reserved_memory is None:
        spread = reserved_bytes(settings, machine)
        rows = (
            f"{node}:{','.join(f'{name}={amount}' for name, amount in row.items())}"
            for node, row in spread.items()
        )
        complete["reservedMemory"] = [";".join(rows)]
    if not settings.reserved_cpus and "cpu" not in {**settings.kube_reserved, **settings.system_reserved}:
        complete["reservedSystemCPUs"] = [str(next(iter(machine.online_cpus), 0))]
    return load_settings(configs, complete, _NOWHERE, for_several_engines=several)


def _run(described: Machine, settings: Settings, events: Sequence[Event]) -> View:
    machine = with_owners(described, settings.device_memory)
    policy = resolve_policy(settings, machine)
    simulation = Simulation(machine, policy, engine_of(settings))
    steps = [_step(number, step) for number, step in enumerate(simulation.play(events), 1)]
    quality, room = simulation.quality, simulation.room()
    return {
        "engine": settings.engine,
        "policy": policy.topology.value,
        "strategy": policy.strategy.value,
        "remarks": [
            *(*machine.remarks, *settings.notices, *remarks_here(settings, machine)),
            *simulation.unmatched_rules,
        ],
        "accepted": quality.accepted,
        "refused": quality.refused,
        "degraded": quality.degraded,
        "resized": quality.resized,
        "resizesRefused": quality.resizes_refused,
        "moves": quality.moves,
        "acceptedBytes": quality.accepted_bytes,
        "refusedBytes": quality.refused_bytes,
        "meanWidth": round(quality.mean_width, 3),
        "widths": {str(width): count for width, count in sorted(quality.widths.items())},
        "totalDistance": quality.distance,
        "peakPromisedBytes": quality.peak_promised_bytes,
        "atEnd": {
            "containers": simulation.running,
            "allocatableBytes": room.allocatable_bytes,
            "promisedBytes": room.promised_bytes,
            "freeBytes": room.free_bytes,
            "largestOnOneNodeBytes": room.largest_bytes,
            "fragmentation": round(room.fragmentation, 3),
            "cpus": [
                {"cpus": str(cpus), "containers": names} for cpus, names in simulation.sharing().items()
            ],
        },
        "steps": steps,
    }


def _step(number: int, step: Step) -> View:
    kind = (
        "arrive"
        if isinstance(step.event, Arrival)
        else "depart"
        if isinstance(step.event, Departure)
        else "resize"
    )
    outcome = "refused" if step.refused else "done" if kind == "depart" else "unchanged"
    if step.decisions and not step.refused:
        degraded = any(one.outcome.value == "degraded" for one in step.decisions)
        outcome = "degraded" if degraded else "placed"
    return {
        "step": number,
        "event": kind,
        "name": step.event.name,
        "outcome": outcome,
        "containers": [
            {
                "name": one.request.name,
                "outcome": one.outcome.value,
                "mems": None if one.placement.mems is None else str(one.placement.mems),
                "exclusiveCpus": str(one.placement.exclusive_cpus),
                "moves": [move.name for move in one.moves],
                "moved": [_move(move) for move in one.moves],
                "summary": summary(one),
            }
            for one in step.decisions
        ],
        "returned": [_move(move) for move in step.returned],
        "promised": list(step.promised),
    }


def _move(move: Move) -> View:
    return {"name": move.name, "before": str(move.before), "after": str(move.after)}
