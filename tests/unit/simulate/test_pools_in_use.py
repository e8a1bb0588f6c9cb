"""What others use pools of CPUs for, by their documentation and reports, said in the configuration: each
comes to the CPUs that they describe. Played by `bayplan simulate` on 16 CPUs of two nodes, CPU 0 reserved.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bayplan.sets import CpuSet
from bayplan.simulate.comparison import simulate

MACHINE = 'nodes = [{ count = 2, cpus = 8, memory = "16Gi" }]\n'


def arrival(name: str, namespace: str = "apps", cpu: str | None = None, **labels: str) -> dict[str, Any]:
    """A pod of one container, Burstable if it requests CPU."""
    requests = {} if cpu is None else {"resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"arrive": {"metadata": metadata, "spec": {"containers": [{"name": "main", **requests}]}}}


def played(tmp_path: Path, config: str, *events: dict[str, Any]) -> dict[str, CpuSet]:
    """The CPUs of each pod at the end."""
    for name, text in (("machine.toml", MACHINE), ("bayplan.toml", config)):
        (tmp_path / name).write_text(text)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    view = simulate(tmp_path / "machine.toml", trace, ["exact"], [tmp_path / "bayplan.toml"], {}, {})
    (run,) = view["runs"]
    return {
        name.split("/")[1]: CpuSet.parse(group["cpus"])
        for group in run["atEnd"]["cpus"]
        for name in group["containers"]
    }


QUAD = 'cpuRules = [{ cpus = "pool=quad" }]\ncpuPools = { quad = { maximum = 4 } }\n'
SERVICES = """
cpuRules = [
    { namespaces = ["kube-system", "monitoring"], cpus = "pool=system" },
    { labels = { app = "inference" }, cpus = "exclusive" },
]
cpuPools = { system = { minimum = 2, maximum = 4 } }
"""


def test_all_pods_in_one_pool_of_up_to_four(tmp_path: Path) -> None:
    """The example of nri-plugins' balloons: one type for every namespace, with maxCPUs: 4."""
    found = played(tmp_path, QUAD, *(arrival(name, cpu="1500m") for name in "abc"))
    assert len(set(found.values())) == 1
    assert len(found["a"]) == 4


def test_a_pool_with_containers_that_request_nothing_is_not_empty(tmp_path: Path) -> None:
    """cri-resource-manager's pull request 907: such a balloon's cpuset became empty and pinned nobody."""
    found = played(tmp_path, QUAD, arrival("a"), arrival("b"))
    assert found["a"] == found["b"]
    assert len(found["a"]) == 1


def test_system_pods_share_a_pool_that_grows_with_them(tmp_path: Path) -> None:
    """nri-plugins' issue 248: the balloon of the system's namespaces did not grow with their requests."""
    few = played(tmp_path, SERVICES, arrival("dns", "kube-system", "100m"))
    assert len(few["dns"]) == 2
    more = played(
        tmp_path,
        SERVICES,
        arrival("dns", "kube-system", "100m"),
        arrival("metrics", "monitoring", "2700m"),
        arrival("web", cpu="1"),
    )
    assert more["dns"] == more["metrics"]
    assert len(more["dns"]) == 3
    assert more["web"].isdisjoint(more["dns"])


def test_a_container_of_its_own_for_each_of_some_and_the_rest_shares(tmp_path: Path) -> None:
    """Guides for inference servers: balloons with preferNewBalloons for the servers, matched by a label, and
    everybody else in the default one."""
    found = played(
        tmp_path,
        SERVICES,
        arrival("tgi", cpu="4", app="inference"),
        arrival("tei", cpu="2", app="inference"),
        arrival("web"),
        arrival("batch"),
    )
    assert (len(found["tgi"]), len(found["tei"])) == (4, 2)
    assert found["web"] == found["batch"]
    assert found["web"].isdisjoint(found["tgi"] | found["tei"])
    assert found["tgi"].isdisjoint(found["tei"])


def test_idle_cpus_are_for_those_who_request_nothing(tmp_path: Path) -> None:
    """nri-plugins' issue 385: BestEffort containers piled up in one balloon while CPUs were idle."""
    found = played(tmp_path, SERVICES, arrival("dns", "kube-system", "1"), arrival("a"), arrival("b"))
    assert found["a"] == CpuSet(range(16)) - found["dns"]


@pytest.mark.parametrize("gone", ["a", "b"])
def test_a_pool_deflates_when_a_member_leaves(tmp_path: Path, gone: str) -> None:
    events = (arrival("a", cpu="2"), arrival("b", cpu="2"), {"depart": f"apps/{gone}"})
    (left,) = played(tmp_path, QUAD, *events).values()
    assert len(left) == 2
