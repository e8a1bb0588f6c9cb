"""One machine in every form in which people have theirs, and texts that are cut off, quoted or mixed."""

import json
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.cli.bayplan import main
from bayplan.errors import BayplanError, ConfigError
from bayplan.host.record import record
from bayplan.model.machine import Machine
from bayplan.sets import CpuSet, NodeSet
from bayplan.simulate.machine_file import described_machine
from bayplan.simulate.topology_sources import import_topology, read_topology
from support.machines import machine
from support.sysfs import SYSTEM, SysfsTree
from support.topology_forms import lscpu_text, lstopo_xml, numactl_text, online_cpu

PLAIN = described_machine(
    {
        "threadsPerCore": 2,
        "siblings": "apart",
        "coresPerL3": 2,
        "nodesPerSocket": 2,
        "distances": {"socket": 12, "remote": 32},
        "nodes": [{"count": 4, "cpus": 8, "memory": "16Gi"}, {"id": 9, "memory": "32Gi"}],
    }
)


def read(directory: Path, text: str, name: str = "machine.txt") -> Machine:
    file = directory / name
    file.write_text(text)
    return read_topology(file)


def layout(found: Machine, *, caches: bool = True) -> object:
    """What numactl and lscpu, and lstopo, can say of a machine."""
    return (
        [(node.id, str(node.cpus), node.memory_bytes, found.distances_from(node)) for node in found.nodes],
        [online_cpu(cpu)[: 5 if caches else 1] for cpu in found.cpus if cpu.online],
    )


FORMS = {
    "numactl, lscpu -p": lambda one: numactl_text(one) + lscpu_text(one),
    "lscpu -p, numactl": lambda one: lscpu_text(one) + numactl_text(one),
    "lstopo 1": lambda one: lstopo_xml(one, 1),
    "lstopo 2": lambda one: lstopo_xml(one, 2),
}


@st.composite
def described(draw: st.DrawFn) -> Machine:
    threads, cores = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 6]))
    entry = {
        "count": draw(st.integers(1, 4)),
        "cpus": threads * cores,
        "memory": f"{draw(st.integers(1, 99))}Mi",
    }
    nodes: list[dict[str, object]] = [entry]
    if draw(st.booleans()):
        nodes.append({"id": draw(st.integers(20, 30)), "memory": "64Mi", "distances": {"0": 33}})
    document: dict[str, object] = {
        "threadsPerCore": threads,
        "siblings": draw(st.sampled_from(["adjacent", "apart"])),
        "coresPerL3": draw(st.sampled_from([0, 1, cores])),
        "nodesPerSocket": draw(st.integers(1, 2)),
        "distances": {"socket": draw(st.integers(10, 20)), "remote": draw(st.integers(10, 254))},
        "nodes": nodes,
    }
    return described_machine(document)


@pytest.mark.parametrize("form", FORMS)
@given(wanted=described())
def test_a_machine_is_the_same_in_every_form(form, wanted, tmp_path_factory):
    directory = tmp_path_factory.mktemp("form")
    assert layout(read(directory, FORMS[form](wanted))) == layout(wanted)


@given(wanted=described())
def test_a_grep_of_sysfs_is_the_same_machine(wanted, tmp_path_factory):
    directory = tmp_path_factory.mktemp("grep")
    listing = record(SysfsTree(wanted).write(directory / "root"))
    lines = [f"/{line.replace('%3A', ':')}" for line in listing.splitlines() if not line.endswith("/:")]
    noise = ["$ grep -rs . /sys/devices/system", "grep: /sys/x: Permission denied", "$ exit"]
    text = "\r\n".join([noise[0], *lines, *noise[1:]])
    assert layout(read(directory, text)) == layout(wanted)
    # `grep .` passes over files that are empty, as the list of a node without CPUs.
    text = "\n".join(line for line in lines if not line.endswith(":"))
    found = read(directory, text)
    assert layout(found) == layout(wanted)
    assert len(found.remarks) == sum(not node.cpus for node in wanted.nodes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "around",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: f"\ufeff{text}\n",
        lambda text: f"{text}\n\n",
    ],
)
def test_line_ends_do_not_matter(form, around, tmp_path):
    (tmp_path / "m.txt").write_text(around(FORMS[form](PLAIN)), encoding="utf-8", newline="")
    assert layout(read_topology(tmp_path / "m.txt")) == layout(PLAIN)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_what_powershell_writes_is_read(form, encoding, tmp_path):
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "m.txt").write_text(mark + FORMS[form](PLAIN), encoding=encoding)
    assert layout(read_topology(tmp_path / "m.txt")) == layout(PLAIN)


def test_a_utf_16_text_that_was_cut_off_is_named(tmp_path):
    (tmp_path / "m.txt").write_bytes(numactl_text(PLAIN).encode("utf-16")[:-1])
    with pytest.raises(ConfigError) as caught:
        read_topology(tmp_path / "m.txt")
    assert "is not UTF-16" in str(caught.value)


def test_prompts_and_quotes_do_not_matter(tmp_path):
    quoted = "".join(f"> {line}\n" for line in numactl_text(PLAIN).splitlines())
    text = f"Hello,\n\n[root@n1 ~]# numactl -H\n{quoted}\n```\n$ lscpu -p\n{lscpu_text(PLAIN)}```\nthanks\n"
    assert layout(read(tmp_path, text)) == layout(PLAIN)


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_was_cut_off_is_one_clear_error_or_the_same_machine(form, tmp_path):
    text = FORMS[form](PLAIN)
    for length in range(0, len(text) - 1, 37):
        try:
            found = read(tmp_path, text[:length])
        except ConfigError as error:
            assert error.problems  # noqa: PT017 - either is right
            continue
        if "lscpu" not in form:
            assert layout(found, caches=False) == layout(PLAIN, caches=False)


def test_numactl_alone_says_what_it_assumes(tmp_path):
    (tmp_path / "m").write_text(numactl_text(PLAIN))
    found, listing = import_topology(tmp_path / "m")
    assert layout(found.machine, caches=False) == layout(PLAIN, caches=False)
    # Every node has two runs of CPUs, so that they are taken as threads; a list that is one run says nothing.
    assert {cpu.id: cpu.core_id for cpu in found.machine.cpus} == {cpu.id: cpu.core_id for cpu in PLAIN.cpus}
    assert len(found.assumed) == 4
    assert found.machine.remarks
    assert listing == ""


OLD = """\
available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3
4 5
node 0 size: 0 MB
node 0 free: 0 MB
node 1 cpus:
node 1 size: 8191 MB
node 1 free: 5555 MB
"""


def test_an_old_numactl_without_distances_and_a_list_on_two_lines(tmp_path):
    found = read(tmp_path, OLD)
    assert found.node_by_id[0].cpus == CpuSet(range(6))
    assert found.memory_nodes == NodeSet([1])
    assert found.distance(0, 1) == 20
    assert any("distances" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("No NUMA available on this system\n", "the file"),
        (OLD.replace("(0-1)", "(0-3)"), "node cpus"),
        (OLD.replace("node 1 size", "node 1 siz"), "node 1 size"),
        (OLD.replace("8191 MB", "0 MB"), "node size"),
        (OLD + "node distances:\nnode   0   1\n  0:  10  20\n", "node distances"),
        (OLD + "node distances:\nnode   0   1\n  0:  10  20\n  1:  20\n", "node distances of node 1"),
        (OLD + "# CPU,Node\n0,1\n1,0\n2,0\n3,0\n4,0\n5,0\n", "CPU 0"),
        (OLD + "# CPU,Node\n0,0\n", "CPUs"),
        ("", "the file"),
        ("hello\n", "the file"),
        ("<html><body>404</body></html>", "the file"),
        ("<?xml version='1.0'?><html/>", "the file"),
        ("<?xml version='1.0'?><topology/>", "PU"),
        ("sys/devices/system/node/onl", "the file"),
        ("Architektur: x86_64\nCPU(s): 8\nListe der Online-CPU(s): 0-7\n", "the file"),
        ("node 0 cpus: 0 1 ... 7\nnode 0 size: 9 MB\n" + OLD[OLD.index("node 1") :], "node 0 cpus"),
        ('{"lscpu": [{"field": "Architektur:", "data": "x86_64"}]}', "lscpu"),
        ('{"cpus": [{"core": 1}]}', "cpus"),
        ('{"cpus": [{"cpu": 1}', "lscpu -J"),
        (OLD + OLD.replace("0 1 2 3", "0 1 2"), "node 0 cpus"),
        ("On-line CPU(s) list: 0-7\nNUMA node(s): 2\nNUMA node0 CPU(s): 0-3\n", "lscpu"),
        ("On-line CPU(s) list: 0-7\nNUMA node0 CPU(s): 0-x\n", "NUMA node0 CPU(s)"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(text, path, tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.problems[0].path == path


def test_a_good_recording_of_a_machine_that_cannot_be_is_not_told_to_be_none(tmp_path):
    listing = record(SysfsTree(machine(2, 2)).write(tmp_path / "root"))
    broken = listing.replace(
        f"{SYSTEM}/cpu/cpu1/topology/core_cpus_list:1", f"{SYSTEM}/cpu/cpu1/topology/core_cpus_list:0"
    )
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, broken)
    (problem,) = caught.value.problems
    assert problem.path == f"/{SYSTEM}/cpu/cpu1/topology/core_cpus_list"


NODE_FILES = {
    "node0/cpulist": "0-3",
    "node1/cpulist": "4-7",
    "node0/distance": "10 21",
    "node1/distance": "21 10",
}


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"/{SYSTEM}/node/{path}:{line}\n" for path, line in NODE_FILES.items()),
        "".join(f"/sys/bus/node/devices/{path}:{line}\n" for path, line in NODE_FILES.items()),
        "".join(f"==> /{SYSTEM}/node/{path} <==\n{line}\n\n" for path, line in NODE_FILES.items()),
    ],
    ids=["grep", "by the bus", "tail"],
)
def test_files_of_nodes_alone_list_their_cpus(text, tmp_path):
    found = read(tmp_path, text)
    assert [str(node.cpus) for node in found.nodes] == ["0-3", "4-7"]
    assert (found.distance(0, 1), found.distance(1, 1)) == (21, 10)
    assert groups_of(found, "socket_id") == ["0-3", "4-7"]
    assert len(groups_of(found, "core_id")) == 8
    assert len(found.remarks) == 2


def test_files_of_cpus_alone_by_the_node(tmp_path):
    lists = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    lines = (
        f"/{SYSTEM}/node/node0/cpu{cpu}/topology/thread_siblings_list:{text}\n" for cpu, text in lists.items()
    )
    found = read(tmp_path, "$ grep . /sys/devices/system/node/node0/cpu*/topology/*\n" + "".join(lines))
    assert groups_of(found, "core_id") == ["0,2", "1,3"]


def test_lscpu_alone_has_no_memory_and_says_so(tmp_path):
    found = read(tmp_path, lscpu_text(PLAIN))
    assert [node.cpus for node in found.nodes] == [node.cpus for node in PLAIN.nodes if node.cpus]
    assert found.nodes[0].memory_bytes == 8 * (4 << 30)
    assert len(found.remarks) == 2
    bare = "\n".join(line for line in lscpu_text(PLAIN).splitlines() if not line.startswith("#"))
    assert read(tmp_path, bare).cpus == found.cpus


def test_nodes_that_share_cpus_are_memory_near_the_first(tmp_path):
    text = numactl_text(machine(2, 4, distances={(0, 1): 10, (1, 0): 10})).replace(
        "node 1 cpus: 4 5 6 7", "node 1 cpus: 0 1 2 3"
    )
    found = read(tmp_path, text)
    assert [str(node.cpus) for node in found.nodes] == ["0-3", ""]
    assert found.ordinary_nodes == NodeSet([0, 1])


def test_numactl_before_2_0_prints_no_cpus_which_lscpu_has(tmp_path):
    text = "".join(f"{line}\n" for line in numactl_text(PLAIN).splitlines() if " cpus:" not in line)
    with pytest.raises(ConfigError):
        read(tmp_path, text)
    assert layout(read(tmp_path, text + lscpu_text(PLAIN))) == layout(PLAIN)


def test_comments_and_rows_without_colons(tmp_path):
    text = "".join(f"# {line}\n" for line in numactl_text(PLAIN).splitlines())
    assert layout(read(tmp_path, text), caches=False) == layout(PLAIN, caches=False)
    before, rows = numactl_text(PLAIN).split("distances:")
    text = f"{before}distances:{rows.replace(':', ' ')}"
    assert layout(read(tmp_path, text + lscpu_text(PLAIN))) == layout(PLAIN)


def test_ranges_and_other_units(tmp_path):
    text = "available: 2 nodes (0,8)\n\tnode 0 cpus: 0-3\n\tnode 0 size: 16GiB\n"
    text += "\tnode 8 cpus: 4-5,7\n\tnode 8 size: 1024 KB\nNo distance information available.\n"
    found = read(tmp_path, text)
    assert [(node.id, str(node.cpus), node.memory_bytes) for node in found.nodes] == [
        (0, "0-3", 16 << 30),
        (8, "4-5,7", 1 << 20),
    ]


TABLE = """\
CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE    MAXMHZ   MINMHZ
  0    0      0    0 0:0:0:0          yes 3600.0000 800.0000
  1    0      0    1 1:1:1:0          yes 3600.0000 800.0000
  2    1      1    2 2:2:2:1          yes 3600.0000 800.0000
  3    -      -    - -                 no         -        -
"""


def test_lscpu_as_a_table_and_as_json(tmp_path):
    found = read(tmp_path, TABLE)
    assert [online_cpu(cpu) for cpu in found.cpus if cpu.online] == [
        (0, 0, 0, 0, 0),
        (1, 1, 0, 0, 0),
        (2, 2, 1, 1, 2),
    ]
    assert not found.cpu_by_id[3].online
    keys, *rows = [line.split() for line in TABLE.splitlines()]
    values = [dict(zip(map(str.lower, keys), row, strict=True)) for row in rows]
    assert read(tmp_path, json.dumps({"cpus": values}, indent=3), "cpus.json").cpus == found.cpus


def test_the_words_of_another_language_in_a_table(tmp_path):
    text = TABLE.replace("yes", "да").replace("no ", "нет")
    found = read(tmp_path, text)
    assert str(found.online_cpus) == "0-2"
    assert found.cpus == read(tmp_path, TABLE).cpus


SUMMARY = {
    "CPU(s):": "8",
    "On-line CPU(s) list:": "0-7",
    "Thread(s) per core:": "2",
    "Core(s) per socket:": "2",
    "Socket(s):": "2",
    "L3 cache:": "32 MiB (2 instances)",
    "NUMA node(s):": "2",
    "NUMA node0 CPU(s):": "0,1,4,5",
    "NUMA node1 CPU(s):": "2,3,6,7",
}


@pytest.mark.parametrize("nested", [True, False])
def test_lscpu_as_a_summary(nested, tmp_path):
    entries = [{"field": key, "data": value} for key, value in SUMMARY.items()]
    document = {"lscpu": [{"field": "all", "data": None, "children": entries}] if nested else entries}
    found = read(tmp_path, json.dumps(document, indent=3), "lscpu.json")
    assert [online_cpu(cpu) for cpu in found.cpus][1:4] == [(1, 1, 0, 0, 0), (2, 2, 1, 1, 2), (3, 3, 1, 1, 2)]
    assert found.cpu_by_id[5].core_id == 1
    text = "".join(f"{key:25}{value}\n" for key, value in SUMMARY.items())
    assert read(tmp_path, text).cpus == found.cpus


def test_threads_of_a_summary_are_neighbours_where_the_nodes_say_so(tmp_path):
    nodes = {"NUMA node0 CPU(s):": "0-3", "NUMA node1 CPU(s):": "4-7", "NUMA node252 CPU(s):": ""}
    for more in (nodes, {"Architecture:": "ppc64le", "NUMA node0 CPU(s):": "0-7", "NUMA node1 CPU(s):": ""}):
        text = "".join(f"{key:25}{value}\n" for key, value in (SUMMARY | more).items())
        found = read(tmp_path, text)
        assert [cpu.core_id for cpu in found.cpus] == [0, 0, 2, 2, 4, 4, 6, 6]
        assert [cpu.socket_id for cpu in found.cpus] == [0] * 4 + [1] * 4


def groups_of(found: Machine, name: str) -> list[str]:
    """The CPUs of each core, socket or cache, those that are online."""
    ids = {getattr(cpu, name) for cpu in found.cpus if cpu.online} - {None}
    members = (CpuSet(cpu.id for cpu in found.cpus if getattr(cpu, name) == one) for one in ids)
    return [str(cpus) for cpus in sorted(members, key=min)]


LISTS = {"CPU(s):": "4", "On-line CPU(s) list:": "0-3", "Thread(s) per core:": "1", "Socket(s):": "-"}


def summary_of(fields: dict[str, str]) -> str:
    return "".join(f"{key:25}{value}\n" for key, value in fields.items())


def test_nodes_that_share_cpus_in_a_summary_of_lscpu(tmp_path):
    """As `numa=fake` has them; sockets are not counted on Arm without firmware tables of them."""
    nodes = {f"NUMA node{node} CPU(s):": "0-3" for node in range(4)}
    found = read(tmp_path, summary_of(LISTS | {"NUMA node(s):": "4"} | nodes))
    assert [(str(node.cpus), node.memory_bytes) for node in found.nodes] == [
        ("0-3", 4 << 30),
        *[("", 4 << 30)] * 3,
    ]
    assert {found.distance(0, node) for node in range(4)} == {10}
    assert found.ordinary_nodes == NodeSet(range(4))
    assert groups_of(found, "socket_id") == ["0-3"]


def test_the_lists_of_nodes_alone_and_nodes_without_cpus(tmp_path):
    """What is left after `lscpu | grep NUMA`."""
    lists = {"NUMA node(s):": "3", "NUMA node0 CPU(s):": "0-62:2", "NUMA node1 CPU(s):": "1-63:2"}
    found = read(tmp_path, summary_of(lists | {"NUMA node2 CPU(s):": ""}))
    assert [list(node.cpus) for node in found.nodes] == [list(range(0, 64, 2)), list(range(1, 64, 2))]
    assert any("node 2" in remark for remark in found.remarks)


def test_some_cores_have_two_threads(tmp_path):
    sums = {"On-line CPU(s) list:": "0-21", "Thread(s) per core:": "2", "Core(s) per socket:": "16"}
    found = read(tmp_path, summary_of(sums | {"Socket(s):": "1"}))
    assert groups_of(found, "core_id") == [
        *[f"{cpu}-{cpu + 1}" for cpu in range(0, 12, 2)],
        *[str(cpu) for cpu in range(12, 22)],
    ]


def rows_of(cores: list[str], caches: list[str]) -> str:
    head = "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3"
    pairs = enumerate(zip(cores, caches, strict=True))
    return "\n".join([head, *(f"{cpu},{core},0,0,,{cache}" for cpu, (core, cache) in pairs)]) + "\n"


@pytest.mark.parametrize(
    ("speeds", "told"),
    [
        (["5500.0000", "4600.0000"], True),
        (["5500,0000", "4600,0000"], True),
        # Some cores of one kind are a little faster.
        (["5800.0000", "5500.0000"], False),
        (["-", "-"], False),
        (["nan", "9" * 5000], False),
    ],
)
def test_cores_of_far_apart_frequencies_are_said_to_be_taken_for_one_kind(speeds, told, tmp_path):
    rows = [f"{cpu} 0 0 {cpu} {cpu}:{cpu}:{cpu}:0 yes {speeds[cpu // 2]}" for cpu in range(4)]
    text = "\n".join(["CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE MAXMHZ", *rows])
    remarks = read(tmp_path, text).remarks
    assert any("one kind of cores" in one and "4600 to 5500" in one for one in remarks) is told


def test_ids_of_cores_that_repeat_in_each_cluster(tmp_path):
    """lscpu 2.38 to 2.41 on Arm without firmware tables: no two of these CPUs have a cache in common."""
    own = [f"{cpu},{cpu},{cpu},{cpu // 6}" for cpu in range(12)]
    found = read(tmp_path, rows_of(["0", "1", "2", "3"] * 3, own))
    assert groups_of(found, "core_id") == [str(cpu) for cpu in range(12)]
    # Pairs may be threads of a virtual machine, and four CPUs with a cache in common those of POWER.
    assert groups_of(read(tmp_path, rows_of(["0", "0", "1", "1"], own[:4])), "core_id") == ["0-1", "2-3"]
    assert groups_of(read(tmp_path, rows_of(["0"] * 4, ["0,0,0,0"] * 4)), "core_id") == ["0-3"]
    # The summary beside it decides.
    one_thread = rows_of(["0", "0", "1", "1"], own[:4]) + "Thread(s) per core: 1\nOn-line CPU(s) list: 0-3\n"
    assert groups_of(read(tmp_path, one_thread), "core_id") == ["0", "1", "2", "3"]


def test_a_cpu_that_lacks_a_cache_has_a_shorter_row(tmp_path):
    rows = rows_of(["0", "1", "2"], ["0,0,0,0", "1,1,0,0", "2,0"])
    found = read(tmp_path, rows)
    assert groups_of(found, "core_id") == ["0", "1", "2"]
    assert groups_of(found, "l3_cache_id") == ["0-1"]
    online = rows.replace("L3\n", "L3,ONLINE\n").replace("0\n", "0,Y\n")
    assert read(tmp_path, online).cpus == found.cpus
    with pytest.raises(ConfigError):
        read(tmp_path, rows.replace("2,2,0,0,,2,0", "2,2,0"))


def test_a_dash_is_no_value_in_json_of_old_versions(tmp_path):
    rows = '{"cpu": 0, "node": 0, "socket": 0, "core": 0, "l1d:l1i:l2": "0:0:0", "online": true}'
    rows += ',\n{"cpu": 1, "node": -, "socket": -, "core": -, "l1d:l1i:l2": null, "online": false}'
    found = read(tmp_path, f'{{\n   "cpus": [\n{rows}\n]}}\n')
    assert (found.online_cpus, found.cpu_by_id[1].online) == (CpuSet([0]), False)


def test_two_runs_of_cpus_on_every_node_are_threads(tmp_path):
    text = "node 0 cpus: 0 1 2 3 8 9 10 11\nnode 0 size: 4000 MB\n"
    text += "node 1 cpus: 4 5 6 7 12 13 14 15\nnode 1 size: 4000 MB\n"
    assert groups_of(read(tmp_path, text), "core_id") == [f"{cpu},{cpu + 8}" for cpu in range(8)]
    # Neither every other CPU nor one run says anything of threads.
    for first, second in (("0 2 4 6", "1 3 5 7"), ("0 1 2 3", "4 5 6 7"), ("0 4", "1 5")):
        text = f"node 0 cpus: {first}\nnode 0 size: 9 MB\nnode 1 cpus: {second}\nnode 1 size: 9 MB\n"
        assert len(groups_of(read(tmp_path, text), "core_id")) == len(f"{first} {second}".split())


@pytest.mark.parametrize("width", [31, 60, 80])
def test_lines_that_a_terminal_has_broken(width, tmp_path):
    many = machine(
        24, 4, distances={(a, b): 10 if a == b else 20 + abs(a - b) for a in range(24) for b in range(24)}
    )
    broken = []
    for line in numactl_text(many).splitlines():
        *heads, last = textwrap.wrap(line, width, drop_whitespace=False) if line.strip() else [line]
        broken += [*heads, last]
    found = read(tmp_path, "\n".join(broken) + "\n")
    assert layout(found, caches=False) == layout(many, caches=False)


def test_what_people_write_around_an_output(tmp_path):
    plain = numactl_text(PLAIN)
    wanted = layout(PLAIN, caches=False)
    told = plain.replace("9: ", "9:  ").replace("\nnode 0 size", "  (four cores)\nnode 0 size", 1)
    lines = told.splitlines()
    lines[-1] += "  <- memory alone"
    forms = [
        "\n".join(lines),
        "".join(f"+ * {line}\n" for line in plain.splitlines()),
        "".join(f"<p>{line}<br/></p>\n\n" for line in plain.splitlines()),
    ]
    for text in forms:
        assert layout(read(tmp_path, text), caches=False) == wanted


def test_a_tree_without_memory_as_those_of_lscpu(tmp_path):
    tree = SysfsTree(machine(2, 2))
    for path in [path for path in tree.files if "meminfo" in path]:
        tree.remove(path)
    tree.remove(f"{SYSTEM}/node/online")
    found = read_topology(tree.write(tmp_path))
    assert [node.memory_bytes for node in found.nodes] == [8 << 30, 8 << 30]
    (remark,) = found.remarks
    assert remark.startswith("assumed ")


class TestLstopo:
    def test_memory_near_cpus_of_an_earlier_node_is_memory_alone(self, tmp_path):
        text = lstopo_xml(PLAIN, 2).replace(
            '<object type="NUMANode" os_index="9" gp_index="11" cpuset="0x00000000"',
            '<object type="NUMANode" os_index="9" gp_index="11" cpuset="0x000000ff" subtype="HBM"',
        )
        text = text.replace('os_index="0" gp_index="2"', 'os_index="0" gp_index="2" subtype="DRAM"')
        found = read(tmp_path, text, "machine.xml")
        assert found.node_by_id[9].cpus == CpuSet()
        assert found.node_by_id[9].initiators == NodeSet([0, 1])
        assert (found.node_by_id[9].tier, found.node_by_id[0].tier) == (0, 1)

    def test_memory_of_a_gpu_has_an_owner(self, tmp_path):
        text = lstopo_xml(PLAIN, 2).replace(
            'local_memory="34359738368">',
            'local_memory="34359738368" subtype="GPUMemory"><info name="PCIBusID" value="0009:01:00.0"/>',
        )
        assert read(tmp_path, text).node_by_id[9].owner == "0009:01:00.0"

    def test_kinds_of_cores(self, tmp_path):
        kinds = '<cpukind cpuset="0x0000ffff"/><cpukind cpuset="0xffff0000"/></topology>'
        found = read(tmp_path, lstopo_xml(PLAIN, 2).replace("</topology>", kinds))
        assert [cpu.kind for cpu in found.cpus] == ["efficiency"] * 16 + ["performance"] * 16

    def test_offline_cpus_and_no_memory(self, tmp_path):
        some = described_machine({"offline": "3", "nodes": [{"cpus": 4, "memory": 0}, {"memory": 0}]})
        found = read(tmp_path, lstopo_xml(some, 2))
        assert found.cpu_by_id[3].node_id == 0
        assert found.online_cpus == CpuSet(range(3))
        assert found.nodes[0].memory_bytes == 3 * (4 << 30)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ('cpuset="0x', 'cpuset="1x'),
            ('os_index="9"', 'os_index="9999999"'),
            ('os_index="9"', 'os_index="0"'),
            ('local_memory="', 'local_memory="x'),
        ],
    )
    def test_garbage_is_named(self, before, after, tmp_path):
        with pytest.raises(ConfigError):
            read(tmp_path, lstopo_xml(PLAIN, 2).replace(before, after))


@given(
    text=st.text(max_size=300)
    | st.lists(
        st.sampled_from(
            [
                *numactl_text(PLAIN).splitlines(),
                *lscpu_text(PLAIN).splitlines(),
                *TABLE.splitlines(),
                '{"cpus": [{"cpu": 1',
            ]
        )
    ).map("\n".join)
)
def test_any_text_is_a_machine_or_one_error(text, tmp_path_factory):
    directory = tmp_path_factory.mktemp("any")
    (directory / "m").write_text(text, encoding="utf-8")
    try:
        read_topology(directory / "m")
    except BayplanError as error:
        assert str(error)  # noqa: PT017 - either is right


class TestCommandLine:
    def test_a_recording_of_another_machine(self, tmp_path, capsys):
        (tmp_path / "a").write_text(numactl_text(PLAIN))
        (tmp_path / "b").write_text(lscpu_text(PLAIN))
        assert main(["record-topology", "--from", str(tmp_path / "a"), "--from", str(tmp_path / "b")]) == 0
        text = capsys.readouterr().out
        assert text.startswith("# assumed: ")
        assert layout(read(tmp_path, text)) == layout(PLAIN)
        assert main(["record-topology", "--from", str(tmp_path / "a"), "--output", "json"]) == 0
        text = capsys.readouterr().out
        assert json.loads(text)["assumed"]
        assert layout(read(tmp_path, text), caches=False) == layout(PLAIN, caches=False)

    @pytest.mark.parametrize("form", FORMS)
    def test_what_if_without_a_daemon(self, form, tmp_path, capsys):
        (tmp_path / "m").write_text(FORMS[form](PLAIN))
        arguments = ["what-if", "--topology", str(tmp_path / "m"), "--memory", "20Gi", "--cpus", "4"]
        assert main([*arguments, "--output", "json"]) == 0
        view = json.loads(capsys.readouterr().out)
        assert view["pods"][0]["containers"][0]["placement"]["mems"] == "0-1"
        assert main(arguments) == 0

    def test_configuration_needs_a_machine(self, tmp_path, capsys):
        assert main(["what-if", "--memory", "1Gi", "--config", str(tmp_path)]) == 2
        assert "--topology" in capsys.readouterr().err
