"""Which CPUs of those that may be taken are the best ones: one order, and the choice that is first by it.

The order, the most important first, smaller is better:

1. *broken* cores: whole ones, all of whose CPUs are free, of which a part is taken;
2. *split* cores: those of which a part is taken, so that others run on the rest;
3. L3 caches, then clusters, dies, NUMA nodes and sockets that have CPUs of the choice;
4. the distance to where the CPUs should be;
5. what L3 caches lose of becoming whole again, where whole ones are kept (`Occupation`);
6. what stays: the whole cores left in each cache, the largest number compared first, in the same way in
   each cluster, and the CPUs left on each node;
7. the CPU ids, the lowest compared first.

What must be kept is part of every choice. With `Rules.spread` the CPUs beyond the first of each core come
instead of 1 and 2.

Each criterion is a sum over disjoint groups of CPUs: also the sixth, because a number of whole cores counts
as a power of a base that is larger than the number of groups, and the last one, because a CPU counts as a
power of two. So what a choice costs is one integer (`_Fields`), and of each group only the best choice of
each number of CPUs counts: whatever contains another one gets better by an exchange within the group.
Invariant: unless ``proven`` is False there is no better choice. Steps are counted, not measured; where they
end, whole cores are taken cache by cache in the order of the ids.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.machine import Cpu, Machine

MAX_STEPS: Final = 40_000
"""Two partial choices compared are a step, of 0.2 to 0.3 microseconds."""

_STEPS_OF_A_COUNT: Final = 8
"""What it takes to choose a number of CPUs of cores that are alike."""
_LASTS: Final = 4200
_ANOTHER: Final = 500
_BEGUN: Final = 1000
_LEFT_OVER: Final = 600
_MAX_REMEMBERED: Final = 4096
"""The cores of so many states of caches and clusters are kept, and so many fits."""
_DISTANCE_BITS: Final = 40
_LOST_BITS: Final = 32

_Key = TypeVar("_Key", bound=Hashable)

_FitKey = tuple[int, int, "Rules", tuple[Sequence[int], int] | None]
"""What CPUs there are, how many of them are wanted, and who has some at the caches."""

Table = dict[int, int]
"""The best choice, as its costs, for each number of CPUs within some group."""


class Rules(Struct, frozen=True):
    """What of the order counts: ``caches``: L3 caches do. ``spread``: one CPU of each core comes first."""

    caches: bool = True
    spread: bool = False


class Occupation(Struct, frozen=True):
    """How many containers have CPUs at each L3 cache, by the cache's mask. ``possible`` are the CPUs that one
    can have to itself: a cache with others, such as reserved ones, never becomes whole."""

    holders: Mapping[int, int]
    possible: int

    def at(self, cpus: int) -> Sequence[int]:
        """How many at each cache with some of *cpus*."""
        return tuple([count for cache, count in self.holders.items() if cache & cpus])

    def lost_by(self, free: int, taken: int) -> int:
        """What caches lose of becoming whole again, a number to compare, where one more container has *taken*
        of the *free* CPUs."""
        lost = 0
        for cache in self.holders:
            if cache & taken:
                begun, rest = self.lost_at(cache, free)
                lost += begun + (rest if cache & free & ~taken else 0)
        return lost

    def lost_at(self, cache: int, free: int) -> tuple[int, int]:
        """What *cache* loses where one more container has some of its *free* CPUs, and what beside it where
        some of these stay free.

        If containers end independently, each as likely as any other, a cache with n of them is empty after
        1 + 1/2 + ... + 1/n of what each lasts on average; one more adds 1/(n + 1). The rest is measured
        (tests/bench/cpu_fit.py): each cache where it has CPUs costs an eighth of that, one that nobody had a
        quarter, and free CPUs that stay, for others that keep it from becoming whole, a seventh.
        """
        count = self.holders.get(cache)
        if count is None or cache & ~self.possible:
            return 0, 0
        return _LASTS // (1 + count) + _ANOTHER + (_BEGUN if cache & free == cache else 0), _LEFT_OVER


class WantedCpus(Struct, frozen=True):
    """What is to be chosen: *count* CPUs of ``available``, all of ``kept`` among them, which is a part of it.

    ``free`` are the CPUs that nobody else has, by which a core is whole; sets of CPUs are bitmasks.
    ``distances`` are from each node to where the CPUs should be; nodes that it lacks are at 0. With an
    ``occupation`` whole L3 caches are kept.
    """

    count: int
    available: int
    free: int
    kept: int = 0
    distances: Mapping[int, int] = MappingProxyType({})
    rules: Rules = Rules()
    occupation: Occupation | None = None


class Choice(Struct, frozen=True):
    """The chosen CPUs as a bitmask. ``proven``: no other choice is better."""

    cpus: int
    proven: bool = True


class Fit(Struct, frozen=True):
    """What a choice costs at best: the whole cores that it breaks, the cores that it splits, and at how many
    L3 caches it has CPUs at least. ``opened``: how many of these caches have nobody's CPUs yet, and will have
    some that are free. ``lost``: what caches lose by it, where whole ones are kept; 0 where not."""

    broken: int
    split: int
    caches: int
    opened: int = 0
    lost: int = 0


class _Group(Struct, frozen=True):
    """CPUs that share something, outermost first: a socket, a node, a die, a cache, a cluster. ``unit`` is
    what it costs to have CPUs of it. ``node`` is its id where the group is (a part of) a NUMA node. The
    innermost ones have ``cores``."""

    mask: int
    unit: int
    children: tuple["_Group", ...] = ()
    cores: tuple[int, ...] = ()
    node: int | None = None
    is_cell: bool = False
    is_cluster: bool = False


class _Fields:
    """Where in an integer each criterion is. The CPU ids come last, with a minus: among costs that are alike
    in all else the lowest ids make the smallest integer."""

    __slots__ = (
        "broken",
        "caches",
        "cell_bits",
        "cell_pieces",
        "cluster_bits",
        "cluster_pieces",
        "counts",
        "distance",
        "every_id",
        "ids",
        "lost",
        "node_bits",
        "node_pieces",
        "of_kind",
        "split",
        "touched",
        "width",
    )

    def __init__(self, machine: Machine, cells: int, clusters: int, nodes: int, most_cores: int) -> None:
        count, self.ids = len(machine.cpus), 1 + max([cpu.id for cpu in machine.cpus], default=0)
        self.width = count.bit_length() + 1
        self.cell_bits, self.cluster_bits = cells.bit_length() + 1, clusters.bit_length() + 1
        self.node_bits = nodes.bit_length() + 1
        position = self.ids
        self.node_pieces = position
        position += self.node_bits * (count + 2)
        self.cluster_pieces = position
        position += self.cluster_bits * (most_cores + 2)
        self.cell_pieces = position
        position += self.cell_bits * (most_cores + 2)
        self.touched = position
        position += self.width
        self.lost = position
        position += _LOST_BITS
        self.distance = position
        position += _DISTANCE_BITS
        self.of_kind = {}
        for kind in ("socket", "node", "die", "cluster", "cache"):
            self.of_kind[kind] = position
            position += self.width
        self.caches = self.of_kind["cache"]
        self.split = position
        self.broken = position + self.width
        self.counts, self.every_id = (1 << self.width) - 1, (1 << self.ids) - 1

    def count_in(self, cost: int, position: int) -> int:
        """The criterion at *position* of *cost*."""
        return cost + self.every_id >> position & self.counts

    def value(self, cpus: int) -> int:
        """What *cpus* count as: the lower an id the more."""
        return int(f"{cpus:0{self.ids}b}"[::-1], 2)

    def cpus_of(self, cost: int) -> int:
        """The CPUs that *cost* is of."""
        return self.value(-cost & self.every_id)


class CpuLayout:
    """The CPUs of a machine by what they share; worked out once. See `choose`."""

    def __init__(self, machine: Machine) -> None:
        cpus = [cpu for cpu in machine.cpus if cpu.online]
        online = _nested(cpus)
        self.cores = _masks(online, lambda cpu: cpu.core_id)
        self.size_of_core = {core: core.bit_count() for core in self.cores}
        self.node_masks = {
            node: mask for node, mask in _by_key(online, lambda cpu: cpu.node_id).items() if node is not None
        }
        self.sockets = _masks(online, lambda cpu: cpu.socket_id)
        levels = _levels(online)
        clusters = _clusters(online, levels[-1][1] if levels else [], self.cores)
        cells = _innermost(online, levels)
        most_cores = max([len(_within(self.cores, cell)) for cell in cells], default=0)
        self.fields = _Fields(machine, len(cells), len(clusters), len(self.node_masks), most_cores)
        self.value_of_core = {core: self.fields.value(core) for core in self.cores}
        every = sum(1 << cpu.id for cpu in online)
        self.groups = self._built(every, levels, clusters)
        self.caches = [mask for kinds, masks in levels if "cache" in kinds for mask in masks]
        self.leaves = tuple(_leaves(self.groups))
        self.cache_of = {
            leaf.mask: index
            for index, cache in enumerate(self.caches)
            for leaf in self.leaves
            if leaf.mask & cache
        }
        self.uniform_size = next(iter(self.size_of_core.values()), 1)
        if any(size != self.uniform_size for size in self.size_of_core.values()):
            self.uniform_size = 0
        # Whether nodes have several L3 caches.
        self.has_caches_within_nodes = len(self.caches) > len(self.node_masks)
        self._caches_within_cores = _caches_within_cores(cpus, self.cores)
        self.has_caches_within_cores = bool(self._caches_within_cores)
        self._sizes_of_caches = {cache.bit_count() for cache in self.caches}
        # Whether it matters which CPUs of a node are taken: a core or a node has several of what a choice is
        # compared by.
        self.differs = self.uniform_size != 1 or self.has_caches_within_nodes
        self.fits: dict[_FitKey, Fit] = {}
        self._cores_in: dict[tuple[int, int, int, int, bool], _Cores] = {}

    def in_whole_cores(self, count: int, within: int = -1) -> int:
        """The least number of CPUs from *count* on that some of the cores *within* these CPUs have together;
        *count* where all of them have fewer."""
        if self.uniform_size:
            return -(-count // self.uniform_size) * self.uniform_size
        sizes = Counter(size for core, size in self.size_of_core.items() if core & within == core)
        reachable = _sums(sizes, 0, sum(self.size_of_core.values())) >> count
        return count + max(0, (reachable & -reachable).bit_length() - 1)

    def of_core(self, cpus: int, count: int, kept: int = 0) -> int:
        """*count* of *cpus*, which are of one core: the lowest. Where it has several L3 caches, those of
        caches with *kept* CPUs first, and of as few others as can be."""
        caches = self._caches_within_cores.get(cpus & -cpus)
        if caches is None:
            return first_of(cpus, count)
        chosen = 0
        for begun in (True, False):
            rooms = [cache & cpus for cache in caches if cache & cpus and bool(cache & kept) is begun]
            # What has enough alone ends it, the smallest such; else the largest come first.
            rooms.sort(key=lambda room: (-room.bit_count(), room & -room))
            while rooms and chosen.bit_count() < count:
                left = count - chosen.bit_count()
                enough = [room for room in rooms if room.bit_count() >= left]
                room = min(enough, key=lambda room: (room.bit_count(), room & -room)) if enough else rooms[0]
                rooms.remove(room)
                chosen |= first_of(room, left)
        return chosen

    def in_whole_caches(self, count: int) -> bool:
        """Whether *count* CPUs are those of whole L3 caches, all of which have as many."""
        return len(self._sizes_of_caches) == 1 and count % min(self._sizes_of_caches) == 0

    def whole_cores(self, cpus: int) -> int:
        """The CPUs of those cores that lie within *cpus*."""
        return sum([core for core in self.cores if core & cpus == core])

    def in_sockets_of(self, cpus: int) -> int:
        """All CPUs of the sockets that have some of *cpus*."""
        return sum([socket for socket in self.sockets if socket & cpus])

    def _built(self, within: int, levels: Sequence["_Level"], clusters: Sequence[int]) -> tuple[_Group, ...]:
        """The groups of *within*, by the outermost of *levels*."""
        kinds, masks = levels[0]
        unit = sum(1 << self.fields.of_kind[kind] for kind in kinds)
        groups = []
        for mask in filter(None, [one & within for one in masks]):
            node = None
            if "node" in kinds:
                node = next((node for node, cpus in self.node_masks.items() if cpus & mask), None)
            if len(levels) > 1:
                children = self._built(mask, levels[1:], clusters)
                groups.append(_Group(mask, unit, children, node=node))
                continue
            parts = _within(clusters, mask)
            children = tuple(
                _Group(
                    part,
                    1 << self.fields.of_kind["cluster"],
                    cores=tuple(_within(self.cores, part)),
                    is_cluster=True,
                )
                for part in parts
            )
            cores = () if children else tuple(_within(self.cores, mask))
            groups.append(_Group(mask, unit, children, cores, node, is_cell=True))
        return tuple(groups)

    def cores_in(self, group: _Group, wanted: WantedCpus) -> "_Cores":
        """The cores of *group* with CPUs of *wanted*."""
        mask = group.mask
        key = mask, wanted.available & mask, wanted.free & mask, wanted.kept & mask, wanted.rules.spread
        found = self._cores_in.get(key)
        if found is None:
            if len(self._cores_in) >= _MAX_REMEMBERED:
                self._cores_in.clear()
            found = self._cores_in[key] = _Cores.of(self, group.cores, wanted)
        return found


_Level = tuple[tuple[str, ...], list[int]]
"""What its groups are, and their CPUs."""


class _Class(Struct, frozen=True):
    """Cores that are alike: each has ``size`` CPUs, of which ``parts`` has the ``each`` that can be taken of
    one, and is ``whole`` or not. ``prefixes`` sums up what the first cores count as, in the order of their
    lowest ids."""

    size: int
    whole: bool
    each: int
    parts: tuple[int, ...]
    prefixes: tuple[int, ...]


class _Cores(Struct, frozen=True):
    """The cores of one cache or cluster: ``classes``, and by themselves the tables of cores of which a part
    is ``kept``. ``room`` is how many CPUs there are beside the kept ones, ``wholes`` the number of whole
    cores. ``partial``: a whole core can only be had in part."""

    classes: tuple[_Class, ...]
    kept: tuple[Table, ...]
    room: int
    wholes: int
    partial: bool

    @classmethod
    def of(cls, layout: CpuLayout, cores: Iterable[int], wanted: WantedCpus) -> "_Cores":
        """Those of *cores* that *wanted* may take."""
        alike: dict[tuple[int, bool, int], list[int]] = {}
        kept, room, wholes, partial = [], 0, 0, False
        for core in cores:
            part, whole = core & wanted.available, core & wanted.free == core
            wholes += whole
            if not part:
                continue
            size, most = layout.size_of_core[core], part.bit_count()
            if core & wanted.kept:
                kept.append(_kept_core(layout, core, wanted, whole=whole))
                room += most - (core & wanted.kept).bit_count()
                continue
            room += most
            partial |= whole and most < size
            alike.setdefault((size, whole, most), []).append(part)
        classes = []
        for (size, whole, most), parts in alike.items():
            ordered = tuple([part for _, part in sorted([(part & -part, part) for part in parts])])
            values = [layout.value_of_core.get(part) or layout.fields.value(part) for part in ordered]
            classes.append(_Class(size, whole, most, ordered, tuple(accumulate(values, initial=0))))
        return cls(tuple(classes), tuple(kept), room, wholes, partial)

    def room_for(self, split: int) -> int:
        """How many CPUs can be taken of whole cores and of *split* others."""
        found = 0
        for one in self.classes:
            found += one.each * (len(one.parts) if one.whole else min(split, len(one.parts)))
        return found


def choose(layout: CpuLayout, wanted: WantedCpus, max_steps: int = MAX_STEPS) -> Choice:
    """The best choice. *wanted* must have as many CPUs available as it asks for."""
    return _Choosing(layout, wanted, max_steps).choice()


def fit(
    layout: CpuLayout, available: int, count: int, rules: Rules, occupation: Occupation | None = None
) -> Fit:
    """What the best choice of *count* CPUs of *available* costs, without the choice; there are as many. With
    an *occupation* also what L3 caches lose by that choice."""
    known = layout.fits
    key: _FitKey = available, count, rules, None
    if occupation is not None:
        key = available, count, rules, (occupation.at(available), occupation.possible)
    found = known.get(key)
    if found is None:
        if len(known) >= _MAX_REMEMBERED:
            known.clear()
        wanted = WantedCpus(count, available, available, rules=rules, occupation=occupation)
        found = _fit(layout, wanted)
        if occupation is not None:
            cpus = choose(layout, wanted).cpus
            found = replace(found, lost=occupation.lost_by(available, cpus))
        known[key] = found
    return found


def _fit(layout: CpuLayout, wanted: WantedCpus) -> Fit:
    in_caches = [
        (layout.cache_of[leaf.mask], layout.cores_in(leaf, wanted))
        for leaf in layout.leaves
        if leaf.mask & wanted.available
    ]
    broken, split = 0, 0
    if not wanted.rules.spread:
        classes = [one for _, cores in in_caches for one in cores.classes]
        broken, split = _fewest_split(classes, wanted.count, layout.uniform_size)
    if not wanted.rules.caches:
        return Fit(broken, split, 0)
    rooms: dict[int, int] = {}
    for cache, cores in in_caches:
        rooms[cache] = rooms.get(cache, 0) + cores.room_for(split - broken)
    caches = _as_many_as(sorted(rooms.values(), reverse=True), wanted.count)
    whole = [layout.caches[cache] & wanted.free == layout.caches[cache] for cache in rooms]
    idle = sorted([room for room, is_whole in zip(rooms.values(), whole, strict=True) if is_whole])
    used = sorted([room for room, is_whole in zip(rooms.values(), whole, strict=True) if not is_whole])
    for begun in range(max(0, caches - len(used)), min(caches, len(idle)) + 1):
        largest = idle[len(idle) - begun :]
        others = used[len(used) - caches + begun :]
        if sum(largest) + sum(others) < wanted.count:
            continue
        filled = sum([through <= wanted.count for through in accumulate(largest)])
        return Fit(broken, split, caches, begun - filled)
    return Fit(broken, split, caches)


def _as_many_as(rooms: Iterable[int], count: int) -> int:
    """How many of *rooms*, in their order, it takes to have *count*."""
    taken, left = 0, count
    for room in rooms:
        if left <= 0:
            break
        taken, left = taken + 1, left - room
    return taken


def _fewest_split(cores: Iterable[_Class], count: int, uniform_size: int) -> tuple[int, int]:
    """How many whole cores are broken, and how many cores split, by *count* CPUs of *cores* at best."""
    pieces: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for one in cores:
        if one.whole:
            sizes[one.size] += len(one.parts)
        else:
            pieces[one.each] += len(one.parts)
    broken_room = sum(size * number for size, number in pieces.items())
    taken = _sums(sizes, uniform_size, count).bit_length() - 1
    if count - taken <= broken_room:
        return 0, _fewest_pieces(pieces, count - taken)
    size = max(size for size, number in sizes.items() if number and size > 1)
    fewer = sizes - Counter({size: 1})
    taken = _sums(fewer, uniform_size, count - 1).bit_length() - 1
    return 1, 1 + _fewest_pieces(pieces, max(0, count - taken - size + 1))


def _sums(sizes: Mapping[int, int], uniform_size: int, most: int) -> int:
    """Which numbers of CPUs up to *most* whole cores have together, as a bitmask."""
    if uniform_size:
        return 1 << uniform_size * min(sizes.get(uniform_size, 0), most // uniform_size)
    found, limit = 1, (2 << most) - 1
    for size, number in sizes.items():
        step, left = 1, number
        while left > 0:
            part = min(step, left)
            found |= found << size * part
            found &= limit
            left, step = left - part, step * 2
    return found


def _fewest_pieces(pieces: Mapping[int, int], count: int) -> int:
    """How many cores that are not whole it takes to have *count* CPUs of them."""
    found = 0
    for size in sorted(pieces, reverse=True):
        taken = min(pieces[size], -(-max(0, count) // size))
        found, count = found + taken, count - taken * size
    return found


class _Choosing:
    """One choice: what is looked for, and the steps that are left."""

    def __init__(self, layout: CpuLayout, wanted: WantedCpus, max_steps: int) -> None:
        self.layout, self.wanted, self.fields = layout, wanted, layout.fields
        self.need = wanted.count - wanted.kept.bit_count()
        self.steps = max_steps
        self.most_broken = self.most_split = self.fields.counts

    def choice(self) -> Choice:
        wanted, fields = self.wanted, self.fields
        if self.need <= 0:
            return Choice(wanted.kept)
        groups = [group for group in self.layout.groups if group.mask & wanted.available]
        leaves = [
            self.layout.cores_in(leaf, wanted) for leaf in self.layout.leaves if leaf.mask & wanted.available
        ]
        simple = not wanted.kept and not any(cores.partial for cores in leaves)
        if simple and not wanted.rules.spread:
            classes = [one for cores in leaves for one in cores.classes]
            self.most_broken, self.most_split = _fewest_split(classes, self.need, self.layout.uniform_size)
        cost = None
        if simple:
            cost = self._within_a_cache(groups)
        if cost is None:
            cost = self._together(groups, self.need, only=True).get(self.need)
        if cost is None or self.steps < 0:
            return Choice(self._in_order(), proven=False)
        return Choice(wanted.kept | fields.cpus_of(cost))

    def _within_a_cache(self, groups: Sequence[_Group]) -> int | None:
        """The best choice within one cache; None if there is none that splits as few cores as can be, or
        caches don't count."""
        if not self.wanted.rules.caches or self.wanted.rules.spread:
            return None
        found = None
        for path in self._paths(groups, ()):
            cache = path[-1]
            if (cache.mask & self.wanted.available).bit_count() < self.need:
                continue
            table = self._table(cache, self.need, only=True)
            for group in reversed(path[:-1]):
                table = self._finished(group, table)
            cost = table.get(self.need)
            if cost is not None and (found is None or cost < found):
                found = cost
        return found

    def _paths(
        self, groups: Iterable[_Group], outer: tuple[_Group, ...], *, cells: bool = False
    ) -> Iterator[tuple[_Group, ...]]:
        """The caches that have available CPUs, each behind all that it is in; the *cells* instead."""
        for group in groups:
            if not group.mask & self.wanted.available:
                continue
            if group.is_cell if cells else self.fields.count_in(group.unit, self.fields.caches):
                yield (*outer, group)
            else:
                yield from self._paths(group.children, (*outer, group), cells=cells)

    def _together(self, groups: Iterable[_Group], most: int, *, only: bool = False) -> Table:
        """The best choices of up to *most* CPUs of *groups*; of exactly so many if *only*."""
        tables = [
            self._table(group, most)
            for group in groups
            if group.mask & (self.wanted.available | self.wanted.kept)
        ]
        return self._merged(tables, most, only=only)

    def _merged(self, tables: Sequence[Table], most: int, *, only: bool = False) -> Table:
        """The best choices of what *tables* have, each of up to *most* CPUs."""
        if not tables:
            return {0: 0}
        # The smallest ones first, so that the large ones are gone through least.
        ordered = sorted(tables, key=len)
        found = ordered[0]
        for index, table in enumerate(ordered[1:], 2):
            found = self._sum(found, table, most, only=only and index == len(ordered))
        return found

    def _sum(self, one: Table, other: Table, most: int, *, only: bool) -> Table:
        sums: Table = {}
        if only:
            pairs = [
                (count, cost, other[most - count]) for count, cost in one.items() if most - count in other
            ]
            self.steps -= len(one)
            best = min([cost + rest for _, cost, rest in pairs], default=None)
            return {} if best is None else self._limited({most: best})
        self.steps -= len(one) * len(other)
        if self.steps < 0:
            return {}
        get = sums.get
        for count, cost in one.items():
            for more, rest in other.items():
                total = count + more
                if total <= most:
                    summed = cost + rest
                    known = get(total)
                    if known is None or summed < known:
                        sums[total] = summed
        return self._limited(sums)

    def _limited(self, table: Table) -> Table:
        """Of *table* what can be a part of the best choice: by as many broken and split cores as it has."""
        fields, most_broken, most_split = self.fields, self.most_broken, self.most_split
        return {
            count: cost
            for count, cost in table.items()
            if fields.count_in(cost, fields.broken) <= most_broken
            and fields.count_in(cost, fields.split) <= most_split
        }

    def _table(self, group: _Group, most: int, *, only: bool = False) -> Table:
        """The best choices of up to *most* CPUs of *group*, with all that the group costs itself."""
        if group.children:
            return self._finished(group, self._together(group.children, most, only=only))
        cores = self.layout.cores_in(group, self.wanted)
        if self.steps < 0:
            return {}
        tables = [self._of_class(one, most) for one in cores.classes]
        self.steps -= _STEPS_OF_A_COUNT * sum(map(len, tables))
        return self._finished(group, self._merged([*cores.kept, *tables], most, only=only))

    def _finished(self, group: _Group, table: Table) -> Table:
        """*table* of what is in *group*, with what the group adds."""
        fields, wanted = self.fields, self.wanted
        unit, free = group.unit, group.mask & wanted.free
        if not wanted.rules.caches:
            unit &= ~(1 << fields.caches)
        begun = bool(group.mask & wanted.kept)
        lost, lost_by_rest, rest = self._lost(group, begun=begun)
        distance, node_left, node_all = 0, 0, 0
        if group.node is not None:
            distance = wanted.distances.get(group.node, 0)
            node_left = free.bit_count() - (group.mask & wanted.kept).bit_count()
            node_all = 1 << fields.node_bits * max(0, node_left)
        wholes = self._wholes(group) if group.is_cell or group.is_cluster else 0
        costs = {}
        for count, inner in table.items():
            cost = inner
            if count or begun:
                cost += unit
                cost += distance * count << fields.distance
                cost += lost + (lost_by_rest if count < rest else 0) << fields.lost
            if node_all and count:
                left = 1 << fields.node_bits * max(0, node_left - count)
                cost += node_all - left << fields.node_pieces
            if wholes:
                touched = fields.count_in(inner, fields.touched)
                if group.is_cluster:
                    size, position = fields.cluster_bits, fields.cluster_pieces
                else:
                    size, position = fields.cell_bits, fields.cell_pieces
                    cost -= touched << fields.touched
                cost += (1 << size * wholes) - (1 << size * (wholes - touched)) << position
            costs[count] = cost
        return costs

    def _lost(self, group: _Group, *, begun: bool) -> tuple[int, int, int]:
        """What *group* loses of becoming whole again as an L3 cache by CPUs of the choice, and what by its
        free CPUs beside the kept ones, the third number, where some of these stay. A cache that is *begun*
        has the container already."""
        wanted = self.wanted
        if wanted.occupation is None or not self.fields.count_in(group.unit, self.fields.caches):
            return 0, 0, 0
        lost, by_rest = wanted.occupation.lost_at(group.mask, wanted.free)
        return 0 if begun else lost, by_rest, (group.mask & wanted.free & ~wanted.kept).bit_count()

    def _wholes(self, group: _Group) -> int:
        """How many whole cores *group* has."""
        return sum([self.layout.cores_in(leaf, self.wanted).wholes for leaf in group.children or (group,)])

    def _of_class(self, cores: _Class, most: int) -> Table:
        """The best choices of up to *most* CPUs of cores that are alike."""
        fields = self.fields
        each, number = cores.each, len(cores.parts)
        most = min(most, each * number)
        if self.wanted.rules.spread:
            return self._spread(cores, most)
        split, touched = 1 << fields.split, int(cores.whole) << fields.touched
        broken = split + (int(cores.whole) << fields.broken)
        table: Table = {0: 0}
        if cores.whole and each == cores.size:
            rests = range(each) if self.most_broken and self.most_split else range(1)
            # The number of whole cores is given by the number of CPUs where nothing else can be added.
            for rest in rests:
                cost_of_rest, least = broken if rest else 0, 0
                for count in range(rest, most + 1, each):
                    used = count // each + bool(rest)
                    value = cores.prefixes[used]
                    if rest:
                        part = cores.parts[used - 1]
                        dropped = fields.value(part ^ self.layout.of_core(part, rest))
                        least = min(least or dropped, dropped)
                        value -= least
                    table[count] = used * touched + cost_of_rest - value
            return table
        for count in range(1, min(most, each * self.most_split) + 1):
            used = -(-count // each)
            value = cores.prefixes[used]
            if count < used * each:
                value = self._lowest(cores.parts[:used], count)
            table[count] = used * (broken + touched) - value
        return table

    def _lowest(self, parts: Sequence[int], count: int) -> int:
        """What the lowest *count* CPUs of *parts* count as, more than all but one of these have."""
        if self.layout.has_caches_within_cores:
            whole = sum(parts[:-1])
            return self.fields.value(whole | self.layout.of_core(parts[-1], count - whole.bit_count()))
        return self.fields.value(first_of(sum(parts), count))

    def _spread(self, cores: _Class, most: int) -> Table:
        """`_of_class` where one CPU of each core comes first."""
        fields, table = self.fields, {0: 0}
        touched = int(cores.whole) << fields.touched
        firsts = [part & -part for part in cores.parts]
        rest = sum(cores.parts) & ~sum(firsts)
        for count in range(1, most + 1):
            used = min(count, len(firsts))
            chosen = sum(firsts[:used]) | first_of(rest, count - used)
            table[count] = (count - used << fields.broken) + used * touched - fields.value(chosen)
        return table

    def _in_order(self) -> int:
        """As many CPUs as are needed without a proof: what is kept, then the nearest caches one by one, of
        each the whole cores, and last what is left of cores, in the order of the ids."""
        wanted, layout, taken, need = self.wanted, self.layout, self.wanted.kept, self.need

        def distance(cell: _Group) -> int:
            near = [node for node, cpus in layout.node_masks.items() if cpus & cell.mask]
            return min([wanted.distances.get(node, 0) for node in near], default=0)

        cells = sorted([path[-1] for path in self._paths(layout.groups, (), cells=True)], key=distance)
        for whole_only in (True, False):
            for cell in cells:
                for core in _within(layout.cores, cell.mask):
                    part = core & wanted.available & ~taken
                    if whole_only and (part != core or part.bit_count() > need):
                        continue
                    part = layout.of_core(part, min(need, part.bit_count()))
                    taken |= part
                    need -= part.bit_count()
        return taken


def _leaves(groups: Iterable[_Group]) -> Iterator[_Group]:
    for group in groups:
        if group.children:
            yield from _leaves(group.children)
        else:
            yield group


def _kept_core(layout: CpuLayout, core: int, wanted: WantedCpus, *, whole: bool) -> Table:
    """The best choices of CPUs of *core* beside the kept ones."""
    fields, table = layout.fields, {}
    part, kept = core & wanted.available & ~wanted.kept, core & wanted.kept
    size, had = layout.size_of_core[core], kept.bit_count()
    for count in range(part.bit_count() + 1):
        cost = int(whole) << fields.touched
        if wanted.rules.spread:
            cost += had + count - 1 << fields.broken
        elif had + count < size:
            cost += (1 << fields.split) + (int(whole) << fields.broken)
        table[count] = cost - fields.value(layout.of_core(part, count, kept))
    return table


def first_of(cpus: int, count: int) -> int:
    """The lowest *count* of *cpus*."""
    found = 0
    for _ in range(min(count, cpus.bit_count())):
        low = cpus & -cpus
        found |= low
        cpus ^= low
    return found


def _caches_within_cores(cpus: Sequence[Cpu], cores: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """The L3 caches of each core that has several, by each of its CPUs, all as masks."""
    by_cache = _by_key(cpus, lambda cpu: cpu.l3_cache_id)
    by_cache.pop(None, 0)
    found = {}
    for core in cores:
        caches = tuple(_within(by_cache.values(), core))
        if len(caches) > 1:
            found.update({1 << cpu.id: caches for cpu in cpus if core >> cpu.id & 1})
    return found


def _by_key(cpus: Iterable[Cpu], key: Callable[[Cpu], _Key]) -> dict[_Key, int]:
    found: dict[_Key, int] = {}
    for cpu in cpus:
        found[key(cpu)] = found.get(key(cpu), 0) | 1 << cpu.id
    return found


def _masks(cpus: Iterable[Cpu], key: Callable[[Cpu], object]) -> list[int]:
    """The CPUs by *key*, those with the lowest id first."""
    return sorted(_by_key(cpus, key).values(), key=lambda mask: mask & -mask)


def _nested(cpus: Sequence[Cpu]) -> list[Cpu]:
    """*cpus* of cores that lie within one group of each kind.

    A core ends where its node or socket ends, as for the kernel, which takes threads on several nodes for no
    siblings (a virtual machine can be told so). Caches, clusters and dies that a core has several of are one:
    each half of a core of POWER10 has an L3 cache, which counts where a part of the core is taken
    (`CpuLayout.of_core`).
    """
    cores: dict[tuple[int, int | None, int], int] = {}
    for cpu in cpus:
        cores.setdefault((cpu.core_id, cpu.node_id, cpu.socket_id), cpu.id)
    found = [replace(cpu, core_id=cores[cpu.core_id, cpu.node_id, cpu.socket_id]) for cpu in cpus]
    caches = _by_core((cpu.core_id, cpu.l3_cache_id) for cpu in found)
    clusters = _by_core((cpu.core_id, cpu.cluster_id) for cpu in found)
    dies = _by_core((cpu.core_id, cpu.die_id) for cpu in found)
    return [
        replace(
            cpu,
            l3_cache_id=caches.get(cpu.core_id),
            cluster_id=clusters.get(cpu.core_id),
            die_id=dies.get(cpu.core_id),
        )
        for cpu in found
    ]


def _by_core(pairs: Iterable[tuple[int, int | None]]) -> dict[int, int]:
    """The group of each core, of *pairs* of cores and groups of theirs; those that a core has several of are
    one, which goes by the least of them. Cores without any are left out."""
    groups_of: dict[int, set[int]] = {}
    for core, group in pairs:
        if group is not None:
            groups_of.setdefault(core, set()).add(group)
    least = {group: group for groups in groups_of.values() for group in groups}
    for groups in groups_of.values():
        joined = {least[group] for group in groups}
        if len(joined) > 1:
            least = {group: min(joined) if one in joined else one for group, one in least.items()}
    return {core: least[min(groups)] for core, groups in groups_of.items()}


def _within(masks: Iterable[int], outer: int) -> list[int]:
    """What of *masks* is within *outer*."""
    return [mask & outer for mask in masks if mask & outer]


def _levels(cpus: Sequence[Cpu]) -> list[_Level]:
    """What groups of CPUs there are, the outermost first: the fewer the further out. Groups that are the same
    are one level. Where the kernel does not say which L3 cache or die a CPU has, its socket counts."""
    kinds: dict[str, Callable[[Cpu], object]] = {
        "socket": lambda cpu: cpu.socket_id,
        "node": lambda cpu: cpu.node_id,
        "die": lambda cpu: ("socket", cpu.socket_id) if cpu.die_id is None else cpu.die_id,
        "cache": lambda cpu: ("socket", cpu.socket_id) if cpu.l3_cache_id is None else cpu.l3_cache_id,
    }
    found: list[tuple[list[str], list[int]]] = []
    for kind, key in kinds.items():
        masks = _masks(cpus, key)
        same = next((names for names, others in found if others == masks), None)
        if same is None:
            found.append(([kind], masks))
        else:
            same.append(kind)
    found.sort(key=lambda level: len(level[1]))
    return [(tuple(names), masks) for names, masks in found]


def _innermost(cpus: Sequence[Cpu], levels: Sequence[_Level]) -> list[int]:
    """The groups of the last level, as they lie within all others."""
    found = [sum(1 << cpu.id for cpu in cpus)]
    for _, masks in levels:
        found = [part for mask in found for part in _within(masks, mask)]
    return found


def _clusters(cpus: Sequence[Cpu], cells: Sequence[int], cores: Sequence[int]) -> list[int]:
    """The clusters, if they are more than cores and less than caches."""
    masks = _masks(cpus, lambda cpu: ("core", cpu.core_id) if cpu.cluster_id is None else cpu.cluster_id)
    return [] if masks in (list(cells), list(cores)) else masks
