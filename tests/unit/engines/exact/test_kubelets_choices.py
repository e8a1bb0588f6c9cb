"""The choice of CPUs held against what kubelet's own code answered: never worse by the order.

kubelet's answers are recorded (tests/data/vectors). Where its choice is as good in all but the ids, the lower
ids are ours; where another one is ours, it is better.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from bayplan.engines.exact.cpu_choice import CpuLayout, Rules, WantedCpus, choose
from bayplan.model.machine import Cpu, Machine
from bayplan.sets import CpuSet
from support import cpu_order
from support.layouts import machine_of

VECTORS = Path(__file__).parents[3] / "data" / "vectors"


def recorded_machines() -> dict[int, Machine]:
    found = {}
    for one in json.loads((VECTORS / "oracle_cpu_topologies.json").read_text()):
        rows = one["rows_cpu_core_numa_socket_uncore"]
        core, cache = ({row[at]: row[0] for row in reversed(rows)} for at in (1, 4))
        found[one["index"]] = machine_of(
            Cpu(row[0], core[row[1]], row[3], row[2], cache[row[4]]) for row in rows
        )
    return found


@pytest.mark.parametrize(
    ("answer", "rules"),
    [
        ("packed_uncore", Rules()),
        ("packed", Rules(caches=False)),
        ("spread", Rules(caches=False, spread=True)),
    ],
)
def test_no_answer_of_kubelet_is_better(answer: str, rules: Rules) -> None:
    machines = recorded_machines()
    layouts = {index: CpuLayout(machine) for index, machine in machines.items()}
    outcomes: Counter[str] = Counter()
    with (VECTORS / "oracle_take_by_topology.jsonl").open() as lines:
        for case in map(json.loads, lines):
            theirs, machine = case.get(answer), machines[case["topology"]]
            if not isinstance(theirs, str):
                continue
            available = CpuSet.parse(case["available"]).mask
            wanted = WantedCpus(case["num_cpus"], available, available, rules=rules)
            ours = choose(layouts[case["topology"]], wanted)
            assert ours.proven
            their_key = cpu_order.key(machine, wanted, frozenset(CpuSet.parse(theirs)))
            our_key = cpu_order.key(machine, wanted, frozenset(CpuSet.of_mask(ours.cpus)))
            assert our_key <= their_key, case
            same = "the same" if our_key == their_key else "lower ids"
            outcomes[same if our_key[:-1] == their_key[:-1] else "better"] += 1
    assert outcomes["the same"] > 100
    assert outcomes["better"]
