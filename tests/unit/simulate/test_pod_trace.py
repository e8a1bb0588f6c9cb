"""Traces of clusters: what columns become, what is refused, and how a trace is cut to a cluster."""

# ruff: noqa: E501 - lines of public traces are as long as they are

from pathlib import Path

import pytest

from bayplan.errors import ConfigError
from bayplan.model.decision import QosClass
from bayplan.quantity import GIB, MIB
from bayplan.simulate.pod_trace import FORMATS, TimedPod, peak, read_pod_trace, scaled

GPU_2023 = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,12000,16384,1,1000,,LS,Running,0,100,20
b,500,1024,0,0,,BE,Running,10,,
"""
GPU_2025 = """instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time
i0,HN,app_0,12,12,1,1,25,25,120.0,120.0,640.0,800.0,8,,,
i1,CN,app_1,64,128,0,0,1,1,320.0,320.0,640.0,800.0,-1,30,40,50
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "trace.csv"
    path.write_text(text)
    return path


def test_the_public_formats(tmp_path: Path) -> None:
    first, second = read_pod_trace(write(tmp_path, GPU_2023), "alibaba-gpu-2023")
    assert (first.milli_cpus, first.memory_bytes, first.resources) == (12000, 16384 * MIB, {"gpu": 1})
    # It runs from when it was scheduled, not from when it came.
    assert (first.arrives_s, first.lasts_s, first.qos) == (0, 80, QosClass.GUARANTEED)
    assert (second.lasts_s, second.qos, second.resources) == (None, QosClass.BURSTABLE, {})
    first, second = read_pod_trace(write(tmp_path, GPU_2025), "alibaba-gpu-2025")
    assert (first.milli_cpus, first.memory_bytes, first.most_per_node) == (12000, 120 * GIB, 8)
    assert (first.arrives_s, first.lasts_s, first.qos) == (0, None, QosClass.GUARANTEED)
    assert (second.lasts_s, second.most_per_node, second.qos) == (10, 0, QosClass.BURSTABLE)


def test_columns_are_named_and_scaled(tmp_path: Path) -> None:
    path = write(tmp_path, "who,c,m,from_ms,g\nx,250,2,1500,3\n")
    columns = ["name=who", "cpus=c:milli", "memory=m:Gi", "arrives=from_ms:ms", "resource.gpu=g"]
    (pod,) = read_pod_trace(path, "", columns)
    assert (pod.name, pod.milli_cpus, pod.memory_bytes) == ("x", 250, 2 * GIB)
    assert (pod.arrives_s, pod.resources) == (1.5, {"gpu": 3})


def test_a_file_without_names_has_numbered_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a,s,d,0,2,Interactive,4,32\nb,s,d,1,3,Interactive,8,56\n")
    columns = ["name=#1", "cpus=#7", "memory=#8:Gi", "starts=#4:h", "ends=#5:h"]
    first, second = read_pod_trace(path, "", columns)
    assert (first.name, first.milli_cpus, first.memory_bytes, first.lasts_s) == ("a", 4000, 32 * GIB, 7200)
    assert (second.name, second.milli_cpus, second.lasts_s) == ("b", 8000, 7200)
    with pytest.raises(ConfigError, match="#9"):
        read_pod_trace(path, "", ["cpus=#9", "memory=#8"])


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (
            "; MaxNodes: 256\n; UnixStartTime: 0\n  1  50 -1 600  16 -1\n10 5170 -1 2   1 -1\n",
            ["name=#1", "arrives=#2", "lasts=#4", "cpus=#5"],
        ),
        ("a b\t1\t50\t600\t16\nLM\t10\t5170\t2\t1\n", ["name=#2", "arrives=#3", "lasts=#4", "cpus=#5"]),
        ("id;from;for;cores\n1;50;600;16\n\n10;5170;2;1\n", ["name=id", "arrives=from", "lasts=for", "cpus=cores"]),
        ("id from  for cores\n 1  50  600 16\n10 5170  2  1 \n", ["name=id", "arrives=from", "lasts=for", "cpus=cores"]),
    ],
    ids=["standard workload format", "tabs", "semicolons", "blanks"],
)  # fmt: skip
def test_fields_are_separated_by_what_the_first_line_has(
    tmp_path: Path, text: str, columns: list[str]
) -> None:
    first, second = read_pod_trace(write(tmp_path, text), "", [*columns, "memory==2:Gi"])
    assert (first.name, first.arrives_s, first.lasts_s, first.milli_cpus) == ("1", 50, 600, 16_000)
    assert (second.name, second.arrives_s, second.lasts_s, second.milli_cpus) == ("10", 5170, 2, 1000)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("alibaba-gpu-2023", []), ("", ["cpus=cpu_milli", "memory=memory_mib", "arrives=sumbit_time"])],
)
def test_a_named_column_that_is_not_there_is_an_error(tmp_path: Path, name: str, columns: list[str]) -> None:
    """Some of openb's lists have no times, and every pod would arrive at once and stay."""
    path = write(tmp_path, "name,cpu_milli,memory_mib,num_gpu\nx,1,1,0\n")
    with pytest.raises(ConfigError, match=r"creation_time|sumbit_time"):
        read_pod_trace(path, name, columns)


def test_a_line_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "; remark\n\n1 1\n\n2 x\n")
    with pytest.raises(ConfigError, match="line 5"):
        read_pod_trace(path, "", ["name=#1", "cpus=#2", "memory==1:Gi", "arrives==0"])


def test_dates_constants_and_rows_of_several_pods(tmp_path: Path) -> None:
    """As job logs of GPU clusters have them: dates, no memory, and amounts of all nodes of a job together."""
    text = (
        "job_id,node_num,gpu_num,cpu_num,submit_time,duration\n"
        "a,1,8,128,2023-03-01 00:18:22+08:00,117\n"
        "b,2,16,97,2023-02-28 16:18:32,60\n"
    )
    columns = ["name=job_id", "pods=node_num:total", "cpus=cpu_num", "resource.gpu=gpu_num"]
    columns += ["memory==4:Gi", "arrives=submit_time:date", "lasts=duration"]
    pods = read_pod_trace(write(tmp_path, text), columns=columns)
    assert [(pod.name, pod.arrives_s, pod.milli_cpus) for pod in pods] == [
        ("a", 0, 128_000), ("b.1", 10, 48_500), ("b.2", 10, 48_500),
    ]  # fmt: skip
    assert [pod.resources["gpu"] for pod in pods] == [8, 8, 8]
    assert {pod.memory_bytes for pod in pods} == {4 * GIB, 2 * GIB}
    columns[1] = "pods=node_num:each"
    assert read_pod_trace(write(tmp_path, text), columns=columns)[-1].resources["gpu"] == 16


def test_fields_of_objects_are_named_with_a_dot(tmp_path: Path) -> None:
    path = write(tmp_path, '{"time": "1500000", "request": {"cpus": 0.25, "memory": 0.5}}\n')
    columns = ["cpus=request.cpus", "memory=request.memory:Gi", "arrives=time:us"]
    (pod,) = read_pod_trace(path, "", columns)
    assert (pod.milli_cpus, pod.memory_bytes, pod.arrives_s) == (250, GIB // 2, 1.5)


def test_json_lines_and_names_that_are_missing(tmp_path: Path) -> None:
    path = write(
        tmp_path, '{"cpus": 2, "memory": 1024, "lasts": 5}\n\n{"cpus": 0.5, "memory": 1, "arrives": 3}\n'
    )
    first, second = read_pod_trace(path)
    assert (first.name, first.milli_cpus, first.lasts_s) == ("line-1", 2000, 5)
    assert (second.name, second.milli_cpus, second.arrives_s) == ("line-3", 500, 3)


@pytest.mark.parametrize(
    ("text", "columns", "where"),
    [
        ("cpus,memory\n1,-5\n", [], "line 2: memory"),
        ("cpus,memory\n1,many\n", [], "line 2: memory"),
        ("cpus,memory\n1,NaN\n", [], "line 2: memory"),
        ("cpus\n1\n", [], "the first line"),
        ("name,cpus,memory\na,1,1\na,1,1\n", [], "name"),
        ("cpus,memory,qos\n1,1,Best\n", [], "line 2: qos"),
        ("cpus,memory\n1,1,1\n", [], "line 2"),
        ("cpus,memory\n", [], "the file"),
        ("cpus,memory\n1,1\n", ["cpu=c"], "--column"),
        ("cpus,memory\n1,1\n", ["cpus=c:weeks"], "--column cpus"),
        ("cpus,memory\n1,1\n", ["resource.=c"], "--column"),
        ("{not json\n", [], "line 1"),
        ("cpus,memory,at\n1,1,tomorrow\n", ["arrives=at:date"], "line 2: at"),
        ("cpus,memory,n\n1,1,0\n", ["pods=n"], "line 2: pods"),
        ("cpus,memory,n\n1,1,1.5\n", ["pods=n:total"], "line 2: pods"),
        ("cpus,memory\n1,1\n", ["memory=="], "--column"),
        ("cpus,memory\n1,1\n", ["memory==many"], "line 2: memory"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, columns: list[str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_pod_trace(write(tmp_path, text), "", columns)
    assert [problem.path for problem in caught.value.problems] == [where]


def test_an_unknown_format_and_a_wrong_column_in_every_row(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_pod_trace(write(tmp_path, GPU_2023), "alibaba")
    rows = "cpus,memory\n" + "x,1\n" * 500
    with pytest.raises(ConfigError) as caught:
        read_pod_trace(write(tmp_path, rows))
    assert len(caught.value.problems) == 20
    assert set(FORMATS) == {"alibaba-gpu-2023", "alibaba-gpu-2025"}


def test_a_trace_is_cut_or_repeated_to_a_part_of_the_cluster() -> None:
    pods = [TimedPod(f"p{number}", float(number), 1000, GIB, 2000.0) for number in range(6000)]
    assert peak(pods) == (2_000_000, 2000 * GIB)
    for milli in (1_000_000, 6_000_000):
        chosen = scaled(pods, milli, 10**15, 0.8, seed=1)
        assert 0.7 < peak(chosen)[0] / milli < 0.9
        assert len({pod.name for pod in chosen}) == len(chosen)
        assert chosen == scaled(pods, milli, 10**15, 0.8, seed=1) != scaled(pods, milli, 10**15, 0.8, seed=2)
