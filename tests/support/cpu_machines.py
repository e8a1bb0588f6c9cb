"""Small machines with every level that CPUs share something on, drawn at random."""

from hypothesis import strategies as st

from bayplan.model.machine import Cpu, Machine, Node
from bayplan.quantity import GIB
from bayplan.sets import CpuSet

MOST_CPUS = 12


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Sockets with nodes with dies with caches with clusters with cores, or nodes within a cache, or above
    sockets; threads that are neighbours, or come after all cores, or anyhow."""
    small = st.sampled_from([1, 1, 2])
    sockets, nodes, dies, caches = draw(small), draw(small), draw(st.sampled_from([1, 1, 1, 2])), draw(small)
    clusters = draw(small)
    threads = draw(st.sampled_from([1, 2, 2, 2, 4]))
    outer = sockets * nodes * dies * caches * clusters
    cores = draw(st.integers(1, max(1, MOST_CPUS // (outer * threads))))
    mixed = draw(st.booleans()) and threads > 1
    places = [
        (socket, node, die, cache, cluster)
        for socket in range(sockets)
        for node in range(nodes)
        for die in range(dies)
        for cache in range(caches)
        for cluster in range(clusters)
        for _ in range(cores)
    ]
    members = [
        (core, thread)
        for core in range(len(places))
        for thread in range(1 if mixed and core % 2 else threads)
    ][: MOST_CPUS + 2]
    numbering = draw(st.sampled_from(["neighbours", "siblings later", "anyhow"]))
    if numbering == "siblings later":
        members.sort(key=lambda member: (member[1], member[0]))
    if numbering == "anyhow":
        members = draw(st.permutations(members))
    number = {member: index for index, member in enumerate(members)}
    first: dict[tuple[object, ...], int] = {}
    for (core, _), cpu in number.items():
        for depth in range(1, 6):
            key = places[core][:depth]
            first[key] = min(first.get(key, cpu), cpu)
        first["core", core] = min(first.get(("core", core), cpu), cpu)
    layout = draw(
        st.sampled_from(["nested", "nested", "nested", "cache of a socket", "no caches", "one node"])
    )
    shows_dies, shows_clusters = draw(st.booleans()), draw(st.booleans())
    cpus = []
    for (core, _), cpu in number.items():
        place = places[core]
        node = place[0] * nodes + place[1]
        cache: int | None = first[place[:4]]
        die: int | None = first[place[:3]] if shows_dies else None
        if layout == "cache of a socket":
            cache = first[place[:1]]
        if layout == "no caches":
            cache = None
        if layout == "one node":
            node = 0
        cluster = first[place[:5]] if shows_clusters else None
        core_id = first["core", core]
        cpus.append(Cpu(cpu, core_id, place[0], node, cache, cluster_id=cluster, die_id=die))
    nodes_of = {cpu.node_id: [one.id for one in cpus if one.node_id == cpu.node_id] for cpu in cpus}
    every = [Node(node or 0, CpuSet(members), GIB) for node, members in sorted(nodes_of.items())]
    return Machine(tuple(every), tuple(cpus))
