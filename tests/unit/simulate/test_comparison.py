"""The simulator from files to tables: topologies, traces, engines, and everything that can be wrong in them."""

# ruff: noqa: E501 - tables are as wide as they are

import io
import json
import sys
from pathlib import Path

import pytest

from bayplan.cli.bayplan import main
from bayplan.errors import ConfigError
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.simulate.comparison import simulate
from bayplan.simulate.topology_sources import read_topology
from bayplan.simulate.trace_file import Departure, Resize, read_trace
from support.machines import machine
from support.sysfs import SysfsTree

Capture = pytest.CaptureFixture[str]

MACHINE = """\
threadsPerCore = 2
distances = { socket = 12, remote = 12 }

[[nodes]]
count = 2
cpus = 8
memory = "16Gi"
hugepages = { 2Mi = "1Gi" }

[[nodes]]
id = 8
memory = "32Gi"
tier = 1
distances = { "0" = 40, "1" = 40, "8" = 10 }
"""
TRACE = """\
# Sizes, a manifest, a departure, a resize.
{"arrive": "a", "memory": "10Gi", "cpus": 2}
{"arrive": "prod/b", "memory": "9Gi", "cpus": "500m", "hugepages": {"2Mi": "64Mi"}}

{"arrive": "c", "memory": "40Gi", "cpus": "500m"}
{"depart": "a"}
{"arrive": {"metadata": {"name": "d"}, "spec": {"containers": [{"name": "x"}]}}}
{"resize": "prod/b", "memory": "20Gi"}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    topology, trace = tmp_path / "machine.toml", tmp_path / "trace.jsonl"
    topology.write_text(MACHINE)
    trace.write_text(TRACE)
    return topology, trace


def test_a_description_without_distances_has_those_that_a_kernel_shows_by_default(tmp_path: Path) -> None:
    described = tmp_path / "machine.yaml"
    described.write_text("nodes: [{count: 2, cpus: 4, memory: 4Gi}, {cpus: 4, memory: 4Gi, devices: 2}]")
    found = read_topology(described)
    assert [dict(node.distances) for node in found.nodes][1] == {0: 20, 1: 10, 2: 20}
    assert [node.devices for node in found.nodes] == [0, 0, 2]


def test_a_description_is_the_machine_that_it_says(files: tuple[Path, Path]) -> None:
    found = read_topology(files[0])
    assert found.node_ids == NodeSet([0, 1, 8])
    assert found.online_cpus == CpuSet(range(16))
    assert found.node_by_id[1].cpus == CpuSet(range(8, 16))
    assert found.node_by_id[0].hugepages_bytes == {2 * MIB: GIB}
    assert (found.distance(0, 1), found.distance(1, 8), found.distance(8, 0)) == (12, 40, 40)
    assert [cpu.core_id for cpu in found.cpus[:4]] == [0, 0, 2, 2]
    assert [node.tier for node in found.nodes] == [0, 0, 1]
    assert found.ordinary_nodes == NodeSet([0, 1])


def test_the_same_machine_from_yaml_json_a_sysfs_tree_and_its_recording(
    tmp_path: Path, capsys: Capture
) -> None:
    plain = machine(2, cpus_per_node=2, memory_bytes=GIB)
    nodes = [{"cpus": 2, "memory": "1Gi", "socket": 0}, {"cpus": "2-3", "memory": GIB, "socket": 1}]
    (tmp_path / "m.json").write_text(json.dumps({"nodes": nodes}))
    (tmp_path / "m.yaml").write_text("nodes:\n- {count: 2, cpus: 2, memory: 1Gi}\n")
    root = SysfsTree(plain).write(tmp_path / "root")
    assert main(["record-topology", "--root", str(root)]) == 0
    (tmp_path / "m.txt").write_text(capsys.readouterr().out)
    for name in ("m.json", "m.yaml", "root", "m.txt"):
        found = read_topology(tmp_path / name)
        assert found.cpus == plain.cpus
        assert [node.capacity_bytes() for node in found.nodes] == [
            node.capacity_bytes() for node in plain.nodes
        ]
        assert found.distance(0, 1) == plain.distance(0, 1)


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("nodes = []", "nodes", "a list"),
        ("nodes = " + "[" * 5000, "the file", "TOML"),
        ("nods = 1\n[[nodes]]\nmemory = '1Gi'", "nods", "nodes"),
        ("[[nodes]]\ncpus = 1", "nodes[0].memory", "an amount such as 64Gi"),
        ("[[nodes]]\nmemory = 'much'", "nodes[0].memory", "an amount such as 64Gi"),
        ("[[nodes]]\nmemory = 1\ncpus = 'x'", "nodes[0].cpus", "a CPU list such as 0-7"),
        ("[[nodes]]\nmemory = 1\nweight = 1", "nodes[0].weight", "one of"),
        ("[[nodes]]\nmemory = 1\nid = 4000", "nodes[0].id", "a whole number from 0 to 1023"),
        ("[[nodes]]\nmemory = 1\ncpus = '0'\n[[nodes]]\nmemory = 1\ncpus = '0'", "nodes", "each CPU once"),
        ("[[nodes]]\nid = 1\nmemory = 1\n[[nodes]]\nid = 1\nmemory = 1", "nodes", "each id once"),
        ("[[nodes]]\nmemory = 1\nhugepages = {2Mi = '2Mi'}", "nodes", "less"),
        ("nodes = [", "the file", "TOML"),
    ],
)
def test_a_wrong_topology_is_named_by_its_path(tmp_path: Path, text: str, path: str, expected: str) -> None:
    file = tmp_path / "m.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_topology(file)
    problem = caught.value.problems[0]
    assert problem.path == path
    assert expected in problem.expected


def test_a_recording_that_is_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("hello\n")
    with pytest.raises(ConfigError, match="none of the forms"):
        read_topology(tmp_path / "m.txt")
    with pytest.raises(ConfigError, match="No such file"):
        read_topology(tmp_path / "absent.toml")


def test_a_trace_has_pods_by_size_and_by_manifest(files: tuple[Path, Path]) -> None:
    events = read_trace(files[1], machine(2))
    assert [event.name for event in events] == [
        "default/a", "prod/b", "default/c", "default/a", "default/d", "prod/b/main",
    ]  # fmt: skip
    assert isinstance(events[3], Departure)
    assert isinstance(events[5], Resize)
    assert events[5].change.memory_limit_bytes == 20 * GIB


@pytest.mark.parametrize(
    ("line", "path", "expected"),
    [
        ("{", "line 1", "a JSON object"),
        ("[" * 5000, "line 1", "a JSON object"),
        ('{"arrive": "a", "depart": "a"}', "line 1", "one of arrive, depart, resize"),
        ('{"arrive": "a", "memori": 1}', "line 1.memori", "memory"),
        (
            '{"arrive": "a", "memory": "x"}',
            "line 1: spec.containers[0].resources.requests.memory",
            "quantity",
        ),
        ('{"arrive": {"metadata": {"name": "p"}}}', "line 1: spec", "a table"),
        ('{"arrive": "a", "qos": "Best"}', "line 1: qos", "Guaranteed, Burstable or BestEffort"),
        ('{"resize": "a", "memory": "x"}', "line 1", "quantity"),
        ('{"depart": 3}', "line 1", "the name of a pod"),
    ],
)
def test_a_wrong_trace_is_named_by_its_line(tmp_path: Path, line: str, path: str, expected: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(f"{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_trace(file, machine(2))
    assert caught.value.problems[0].path == path
    assert expected in caught.value.problems[0].expected


def test_engines_side_by_side(files: tuple[Path, Path], capsys: Capture) -> None:
    words = ["--engine", "kubelet", "--set", "topologyManagerPolicy=single-numa-node", "--steps"]
    assert main(["simulate", "--topology", str(files[0]), "--trace", str(files[1]), *words]) == 0
    table, label, steps, *_ = capsys.readouterr().out.split("\n\n")
    assert label == "kubelet, single-numa-node:\n".rstrip("\n")
    heading, *results = table.splitlines()
    assert heading.split() == ["kubelet,", "single-numa-node"]
    assert [line.split()[-1] for line in results] == [
        "3", "1", "0", "0", "19.00Gi", "1.00", "0", "20.90Gi", "14.95Gi", "0.00",
    ]  # fmt: skip
    rows = [line.split(maxsplit=3) for line in steps.splitlines()[1:]]
    assert [row[:3] for row in rows] == [
        ["1", "arrive", "default/a/main"],
        ["2", "arrive", "prod/b/main"],
        ["3", "arrive", "default/c/main"],
        ["4", "depart", "default/a"],
        ["5", "arrive", "default/d/x"],
        ["6", "resize", "prod/b/main"],
    ]
    assert rows[2][3].startswith("refused: ")
    assert rows[5][3].startswith("refused: Resize is infeasible")


def test_a_run_has_every_decision_in_its_json(files: tuple[Path, Path], tmp_path: Path) -> None:
    config = tmp_path / "bayplan.toml"
    config.write_text(
        'topologyManagerPolicy = "restricted"\nreservedMemory = [{numaNode = 0, limits = {memory = "2Gi"}}]\n'
    )
    said = simulate(files[0], files[1], ["kubelet"], [config], {"kubeReserved": ["memory=1948Mi"]})
    (run,) = said["runs"]
    assert run["policy"] == "restricted"
    assert run["atEnd"]["allocatableBytes"] == 28 * GIB
    assert run["accepted"] + run["refused"] == 4
    assert [step["outcome"] for step in run["steps"]] == [
        "placed",
        "placed",
        "refused",
        "done",
        "placed",
        "refused",
    ]


def test_wrong_keys_are_named(files: tuple[Path, Path], capsys: Capture) -> None:
    base = ["simulate", "--topology", str(files[0]), "--trace", str(files[1])]
    assert main([*base, "--set", "nokey=1"]) == 2
    assert "--set.nokey: " in capsys.readouterr().err
    assert main([*base, "--set", "nokey"]) == 2
    assert "'nokey'" in capsys.readouterr().err
    assert main([*base, "--engine", "best"]) == 2
    assert "--engine: found 'best'" in capsys.readouterr().err


def test_steps_say_who_went_back_and_who_is_promised_more(tmp_path: Path, capsys: Capture) -> None:
    topology, trace = tmp_path / "machine.toml", tmp_path / "trace.jsonl"
    topology.write_text('[[nodes]]\ncount = 2\ncpus = 4\nmemory = "10Gi"\n')
    events: list[dict[str, str]] = [
        {"arrive": "a", "memory": "4Gi", "cpus": "500m"},
        {"arrive": "b", "memory": "4Gi", "cpus": "500m"},
        {"resize": "a", "memory": "7Gi"},
        {"arrive": "c", "memory": "12Gi", "cpus": "500m"},
        {"depart": "b"},
    ]
    trace.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    words = ["simulate", "--topology", str(topology), "--trace", str(trace), "--steps"]
    assert main([*words, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["runs"][0]["steps"]
    assert steps[2]["containers"][0]["mems"] == "0-1"
    assert [step["returned"] for step in steps[:4]] == [[], [], [], []]
    assert steps[4]["returned"] == [{"name": "default/a/main", "before": "0-1", "after": "0"}]
    assert steps[4]["promised"] == ["default/c/main"]
    assert main(words) == 0
    rows = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row and row[0] == "5"] == [
        ["5", "depart", "default/b", "done"],
        ["5", "return", "default/a/main", "back from node 0-1 to node 0"],
        ["5", "promise", "default/c/main", "is promised what it lacked"],
    ]


def test_a_strategy_is_played_as_configured(files: tuple[Path, Path]) -> None:
    files[1].write_text(
        "".join(f'{{"arrive": "{name}", "memory": "1Gi", "cpus": 1}}\n' for name in ("first", "second"))
    )
    runs = {
        strategy: simulate(files[0], files[1], ["exact"], [], {"placementStrategy": [strategy]})["runs"][0]
        for strategy in ("pack", "spread")
    }
    assert {strategy: run["strategy"] for strategy, run in runs.items()} == {
        "pack": "pack",
        "spread": "spread",
    }
    assert runs["pack"]["accepted"] == runs["spread"]["accepted"]
    chosen = [[one["mems"] for step in run["steps"] for one in step["containers"]] for run in runs.values()]
    assert chosen[0] != chosen[1]


# --- kubelet's file, options of one engine, standard input, CPUs ---


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def two_nodes(tmp_path: Path) -> Path:
    return written(tmp_path / "two.yaml", "nodes: [{count: 2, cpus: 8, memory: 16Gi}]")


def pods(tmp_path: Path, *sizes: tuple[str, str]) -> Path:
    events = [{"arrive": name, "memory": memory, "cpus": 4} for name, memory in sizes]
    return written(tmp_path / "pods.jsonl", "".join(f"{json.dumps(event)}\n" for event in events))


def test_kubelets_file_is_the_kubelet_that_is_simulated(tmp_path: Path) -> None:
    """Managers that it does not name are off, and nothing is added to what it says."""
    trace = pods(tmp_path, ("a", "11Gi"), ("b", "11Gi"), ("c", "8Gi"))
    head = (
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "kubeReserved: {cpu: 70m, memory: 442Mi}\n"
    )
    config = written(tmp_path / "kubelet.yaml", head)
    (run,) = simulate(two_nodes(tmp_path), trace, ["kubelet"], [config])["runs"]
    assert (run["policy"], run["accepted"], run["refused"]) == ("none", 3, 0)
    assert len(run["remarks"]) == 1
    (run,) = simulate(two_nodes(tmp_path), trace, ["kubelet"])["runs"]
    assert (run["accepted"], run["refused"]) == (2, 1)
    config.write_text(head + "memoryManagerPolicy: Static\n")
    with pytest.raises(ConfigError, match="reservedMemory"):
        simulate(two_nodes(tmp_path), trace, ["kubelet"], [config])


def test_options_of_one_engine_can_be_given_where_two_are_compared(tmp_path: Path, capsys: Capture) -> None:
    trace = pods(tmp_path, ("a", "1Gi"))
    config = written(tmp_path / "ours.yaml", "cpuManagerPolicyOptions: {strict-cpu-reservation: true}")
    base = ["simulate", "--topology", str(two_nodes(tmp_path)), "--trace", str(trace), "--json"]
    both = [*base, "--engine", "exact", "--engine", "kubelet", "--config", str(config)]
    options = ["--set", "topologyManagerPolicyOptions=max-allowable-numa-nodes=9"]
    assert main([*both, *options, "--set", "kubelet:topologyManagerPolicy=restricted"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["policy"] for run in runs] == ["best-effort", "restricted"]
    (exclusive,) = [one for one in runs[1]["atEnd"]["cpus"] if one["containers"] == ["default/a/main"]]
    assert exclusive["cpus"] == "1-4"
    assert main([*base, "--engine", "exact", *options]) == 2
    assert "topologyManagerPolicyOptions" in capsys.readouterr().err
    assert main([*both, "--set", "best:engine=exact"]) == 2
    assert "'best'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "trace",
    [
        '# a comment\n{"arrive": "a", "memory": "1Gi", "cpus": 1}\n{"depart": "a"}\n',
        "- {arrive: a, memory: 1Gi, cpus: 1}\n- depart: a\n",
        '[{"arrive": "a", "memory": "1Gi", "cpus": 1},\n {"depart": "a"}]',
    ],
)
def test_a_trace_can_come_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(trace.encode())))
    view = simulate(two_nodes(tmp_path), Path("-"))
    assert [step["event"] for step in view["runs"][0]["steps"]] == ["arrive", "depart"]


@pytest.mark.parametrize("named", ["machine.toml", "two.yaml", "two.json", "recorded.txt"])
def test_a_machine_can_come_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    recorded = Path(__file__).parents[2] / "data" / "machines"
    contents = {
        "machine.toml": MACHINE,
        "two.yaml": two_nodes(tmp_path).read_text(),
        "two.json": '{"nodes": [{"count": 2, "cpus": 8, "memory": "16Gi"}]}',
        "recorded.txt": min(recorded.glob("*.txt")).read_text(),
    }
    path = written(tmp_path / named, contents[named])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(contents[named].encode())))
    assert read_topology(Path("-")) == read_topology(path)


def test_standard_input_is_for_one_of_them(capsys: Capture) -> None:
    assert main(["simulate", "--topology", "-", "--trace", "-"]) == 2
    assert "--topology and --trace" in capsys.readouterr().err


def test_who_runs_on_which_cpus_is_shown(tmp_path: Path, capsys: Capture) -> None:
    trace = written(
        tmp_path / "pods.yaml",
        "- {arrive: own, memory: 1Gi, cpus: 2}\n- {arrive: a, qos: BestEffort}\n- {arrive: b, memory: 1Gi}\n",
    )
    words = ["simulate", "--topology", str(two_nodes(tmp_path)), "--trace", str(trace)]
    (run,) = simulate(two_nodes(tmp_path), trace, ["exact"])["runs"]
    assert run["atEnd"]["cpus"] == [
        {"cpus": "0,3-15", "containers": ["default/a/main", "default/b/main"]},
        {"cpus": "1-2", "containers": ["default/own/main"]},
    ]
    assert main(words) == 0
    assert "0,3-15" not in capsys.readouterr().out
    assert main([*words, "--steps"]) == 0
    assert "0,3-15" in capsys.readouterr().out
