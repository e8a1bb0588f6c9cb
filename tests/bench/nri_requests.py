"""What requests of a runtime wait for, and the daemon's start."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from plugins import NEWEST, SHARED, WHOLE, Kind, Plugin, both, build
from table import Row

WARM_UP = 30
CREATIONS = 300
SETTLE_S = 2.0
"""The daemon's start goes on for a while in the background: it listens for hotplug, for instance."""
PAGE_BYTES = 4096
FEW, MANY = 10, 1000
STARTS = 9
MANY_STARTS = 4

Pair = tuple[Plugin, Plugin]
"""The daemon, and the plugin that does nothing."""

Times = tuple[list[float], list[float]]
"""Milliseconds, by plugin."""


def creations(populations: Sequence[int]) -> Iterator[Row]:
    """Creations and stops beside so many containers in the shared pool."""
    for population in populations:
        beside = f"beside {population}"
        with tempfile.TemporaryDirectory() as scratch, both(build(NEWEST), Path(scratch)) as pair:
            for plugin in pair:
                plugin.start()
            for number in range(population):
                pair[0].run(SHARED[number % len(SHARED)], f"beside-{number}")
            time.sleep(SETTLE_S)
            small = "shared CPUs", 3.0, SHARED
            wide = "2 whole CPUs", 5.0 if population <= FEW else 10.0, (WHOLE,)
            for name, most, kinds in (small, wide):
                created, noted, stopped = _in_turns(pair, name.replace(" ", "-"), kinds)
                yield Row(f"create, {name}, {beside}", *created, most)
                yield Row(f"PostCreateContainer, {name}, {beside}", noted)
                yield Row(f"stop, {name}, {beside}", *stopped, most)
            resident_mib = ([one.resident_mib()] for one in pair)
            yield Row(f"resident, {beside}", *resident_mib, 45.0, "MiB", as_ratio=False)


def flushes(repeat: int = CREATIONS) -> Iterator[Row]:
    """The disk's own part: each commit flushes once a log that it overwrites."""
    times_ms = []
    with tempfile.TemporaryFile() as file:
        os.write(file.fileno(), bytes(repeat * PAGE_BYTES))
        os.fsync(file.fileno())
        for number in range(repeat):
            os.pwrite(file.fileno(), os.urandom(PAGE_BYTES), number * PAGE_BYTES)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - begun) * 1000)
    yield Row("one flush of the disk", times_ms)


def _in_turns(pair: Pair, name: str, kinds: Sequence[Kind]) -> tuple[Times, list[float], Times]:
    """Milliseconds of creations, of the events after them, which only the daemon is sent, and of stops."""
    created: Times = ([], [])
    noted: list[float] = []
    stopped: Times = ([], [])
    for number in range(WARM_UP + CREATIONS):
        kind, one = kinds[number % len(kinds)], f"{name}-{number}"
        for plugin, creations, stops in zip(pair, created, stopped, strict=True):
            creations.append(plugin.create(kind, one))
            if plugin is pair[0]:
                noted.append(plugin.note_creation(kind, one))
            stops.append(plugin.stop(kind, one))
    for times in (*created, noted, *stopped):
        del times[:WARM_UP]
    return created, noted, stopped


def starts(populations: Sequence[int] = ()) -> Iterator[Row]:
    """Starts, the first one with an empty state directory, beside so many large containers, few and many."""
    for population in sorted({FEW, MANY, *populations}):
        repeat = STARTS if population == FEW else MANY_STARTS
        flags = ("-pods", str(population), "-containers", str(population), "-padding", "10000")
        begun: list[list[float]] = [[], []]
        listed: list[list[float]] = [[], []]
        with tempfile.TemporaryDirectory() as scratch, both(build(NEWEST), Path(scratch), *flags) as pair:
            for _ in range(repeat):
                for index, plugin in enumerate(pair):
                    start_ms, synchronize_ms = plugin.start()
                    begun[index].append(start_ms)
                    listed[index].append(synchronize_ms)
                    plugin.end()
        most_ms = 400.0 if population == FEW else None
        yield Row(f"start until registered, beside {population}", *begun, most_ms, as_ratio=False)
        yield Row(f"Synchronize, {population} containers of 10 kB", *listed, 3.0)
