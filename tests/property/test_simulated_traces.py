"""Random traces with resizes through `bayplan simulate --json --steps`, held against a model that knows only
what its steps say: CPUs with two owners, reserved ones, CPUs apart from memory without a word, refusals.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bayplan.cli.bayplan import main
from bayplan.model.policy import TopologyPolicy
from bayplan.sets import CpuSet, NodeSet

NODES, CPUS_PER_NODE, EVENTS = 4, 6, 120
STRICT = (TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED)


def draw_trace(draw: random.Random) -> list[dict[str, object]]:
    """Pods with CPUs of their own come, grow, shrink and go."""
    events: list[dict[str, object]] = []
    alive: list[str] = []
    for number in range(EVENTS):
        kind = draw.choices(["arrive", "depart", "resize"], [3, 1, 4])[0]
        sizes = {"memory": f"{draw.choice([100, 500, 2000, 5000, 9000])}Mi", "cpus": draw.randint(1, 5)}
        if kind == "arrive" or not alive:
            alive.append(f"p{number}")
            events.append({"arrive": alive[-1], **sizes})
        elif kind == "depart":
            events.append({"depart": alive.pop(draw.randrange(len(alive)))})
        else:
            parts = draw.choice([["memory"], ["cpus"], ["memory", "cpus"]])
            events.append({"resize": draw.choice(alive), **{part: sizes[part] for part in parts}})
    return events


class Model:
    """Who has which CPUs and nodes, as far as the steps say."""

    def __init__(self, policy: TopologyPolicy) -> None:
        self.policy = policy
        self.cpus: dict[str, CpuSet] = {}
        self.mems: dict[str, NodeSet | None] = {}
        self.told_apart: set[str] = set()

    def follow(self, step: dict[str, Any]) -> None:
        if step["event"] == "depart":
            for name in [one for one in self.cpus if one.startswith(f"{step['name']}/")]:
                del self.cpus[name], self.mems[name]
        for one in step["containers"]:
            assert one["outcome"] != "refused" or self.policy in STRICT, one
            if one["outcome"] == "refused":
                continue
            name, mems = one["name"], one["mems"]
            self.cpus[name] = CpuSet.parse(one["exclusiveCpus"])
            self.mems[name] = None if mems is None else NodeSet.parse(mems)
            self.told_apart.discard(name)
            if one["outcome"] == "degraded":
                self.told_apart.add(name)
            for move in one["moved"]:
                self._move(move)
        for move in step["returned"]:
            self._move(move)
        self._check(step)

    def _move(self, move: dict[str, str]) -> None:
        mems = self.mems[move["name"]]
        assert mems is None or mems == NodeSet.parse(move["before"]), move
        self.mems[move["name"]] = NodeSet.parse(move["after"])

    def _check(self, step: dict[str, Any]) -> None:
        owners: dict[int, str] = {}
        for name, cpus in self.cpus.items():
            for cpu in cpus:
                assert cpu != 0, f"{name} has the reserved CPU: {step}"
                assert owners.setdefault(cpu, name) == name, f"CPU {cpu}: {step}"
            mems = self.mems[name]
            if self.policy is TopologyPolicy.NONE or mems is None or name in self.told_apart:
                continue
            assert {cpu // CPUS_PER_NODE for cpu in cpus} <= set(mems), f"{name}: {step}"


@pytest.mark.parametrize("policy", list(TopologyPolicy))
@pytest.mark.parametrize("seed", range(3))
def test_cpus_stay_with_memory_and_only_strict_policies_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: TopologyPolicy, seed: int
) -> None:
    topology, trace = tmp_path / "machine.toml", tmp_path / "trace.jsonl"
    topology.write_text(f'[[nodes]]\ncount = {NODES}\ncpus = {CPUS_PER_NODE}\nmemory = "10Gi"\n')
    events = draw_trace(random.Random(seed))
    trace.write_text("\n".join(map(json.dumps, events)) + "\n")
    words = ["--topology", str(topology), "--trace", str(trace), "--json", "--steps"]
    assert main(["simulate", *words, "--set", f"topologyManagerPolicy={policy.value}"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    model = Model(policy)
    for step in run["steps"]:
        model.follow(step)
    assert run["resized"]
    assert bool(run["resizesRefused"]) == (policy in STRICT)
