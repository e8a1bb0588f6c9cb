"""The state file: what is written can be read, what is damaged is refused, in kubelet's words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.kubelet.memory_checkpoint import (
    CheckpointError,
    checkpoint_of,
    checksum,
    dump,
    format_checkpoint,
    parse_checkpoint,
    state_of,
)
from bayplan.engines.kubelet.memory_state import (
    Block,
    MemoryState,
    MemoryStateError,
    MemoryTable,
    NumaNodeState,
    empty_nodes,
)
from bayplan.engines.kubelet.state_files import start
from bayplan.errors import ParseError
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.machine import Machine, Node
from bayplan.sets import CpuSet, NodeSet
from support.kubelet_start import restored

PATH = "/var/lib/kubelet/memory_manager_state"
PLAIN, WHOLE = FeatureGates(), FeatureGates(pod_level_resource_managers=True)

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
sizes = st.integers(0, (1 << 64) - 1)
node_sets = st.sets(st.integers(0, 100), max_size=4).map(NodeSet)
blocks = st.lists(st.builds(Block, node_sets, names, sizes), max_size=3).map(tuple)
tables = st.builds(MemoryTable, sizes, sizes, sizes, sizes, sizes)
states = st.builds(
    MemoryState,
    nodes=st.dictionaries(
        st.integers(0, 100),
        st.builds(NumaNodeState, st.dictionaries(names, tables, max_size=3), st.integers(0, 9), node_sets),
        max_size=4,
    ),
    assignments=st.dictionaries(names, st.dictionaries(names, blocks, max_size=3), max_size=3),
    pod_blocks=st.dictionaries(names, blocks, max_size=2),
)


@given(states)
def test_what_is_written_can_be_read(state):
    text = format_checkpoint(checkpoint_of("Static", state), 2)
    assert restored(text, PATH, "Static", WHOLE) == state


@given(states)
def test_version_1_knows_no_pods_as_a_whole(state):
    text = format_checkpoint(checkpoint_of("Static", state), 1)
    expected = MemoryState(state.nodes, state.assignments)
    assert restored(text, PATH, "Static", PLAIN) == expected
    assert restored(text, PATH, "Static", WHOLE) == expected


@given(states)
def test_keys_are_in_kubelets_order(state):
    content = json.loads(format_checkpoint(checkpoint_of("Static", state), 2))
    assert [*content] == [
        key for key in ("policyName", "machineState", "entries", "podEntries", "checksum") if key in content
    ]
    assert [*content["machineState"]] == sorted(content["machineState"])


def test_nodes_are_hashed_by_number_but_written_by_name():
    state = MemoryState(empty_nodes(Machine(tuple(Node(each, CpuSet(), 8) for each in (10, 2)), ()), {}))
    checkpoint = checkpoint_of("Static", state)
    assert format_checkpoint(checkpoint, 1).index('"10":') < format_checkpoint(checkpoint, 1).index('"2":')
    assert dump(checkpoint, 1).index(" 10:<*>") > dump(checkpoint, 1).index("map[2:<*>")


def test_escapes_as_go_does():
    text = format_checkpoint(checkpoint_of("a<b>&\N{LINE SEPARATOR}é", MemoryState()), 1)
    assert text.startswith('{"policyName":"a\\u003cb\\u003e\\u0026\\u2028é","machineState":{},')


def test_absent_null_and_empty_differ_in_the_checksum_only():
    variants = [
        f'{{"policyName":"Static","machineState":{{{each}}}}}'
        for each in (
            '"0":{"cells":[]}',
            '"0":{"cells":null}',
            '"0":{}',
            '"0":{"memoryMap":{},"cells":[]}',
        )
    ]
    checkpoints = [parse_checkpoint(each) for each in variants]
    assert len({checksum(each, 1) for each in checkpoints}) == 3
    assert len({str(state_of(each)) for each in checkpoints}) == 1
    assert dump(checkpoints[1], 1) == (
        "(*state.MemoryManagerCheckpoint){PolicyName:(string)Static MachineState:(state.NUMANodeMap)"
        "map[0:<*>{NumberOfAssignments:(int)0 MemoryMap:(map[v1.ResourceName]*state.MemoryTable)<nil> "
        "Cells:([]int)<nil>}] Entries:(state.ContainerMemoryAssignments)map[] Checksum:(checksum.Checksum)0}"
    )


def test_null_entries_are_nil_and_unknown_keys_are_ignored():
    found = parse_checkpoint(
        '{"policyname":"Static","entries":null,"new":1,"podEntries":{"p":{"memoryBlocks":[{"affinity":[1]}]}}}'
    )
    assert found.policy_name == "Static"
    assert " Entries:(state.ContainerMemoryAssignments)<nil> PodEntries:(state.PodMemoryAssignments)" in dump(
        found, 2
    )
    assert dump(found, 2).count("[{NUMAAffinity:([]int)<nil> Type:(v1.ResourceName) Size:(uint64)0}]") == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '{"policyName":1}',
        '{"machineState":[]}',
        '{"machineState":{"x":{}}}',
        '{"machineState":{"-1":{}}}',
        '{"machineState":{"0":null}}',
        '{"machineState":{"0":{"cells":1}}}',
        '{"machineState":{"0":{"numberOfAssignments":1.5}}}',
        '{"machineState":{"0":{"memoryMap":{"memory":{"total":-1}}}}}',
        '{"machineState":{"0":{"memoryMap":{"memory":{"total":18446744073709551616}}}}}',
        '{"entries":{"p":{"c":[{"size":true}]}}}',
        '{"entries":{"p":{"c":{}}}}',
        '{"podEntries":{"p":[]}}',
        '{"checksum":-1}',
        "[" * 100_000,
    ],
)
def test_garbage_is_a_parse_error_and_nothing_else(text):
    with pytest.raises(ParseError):
        parse_checkpoint(text)
    with pytest.raises(CheckpointError) as raised:
        restored(text, PATH, "Static", PLAIN)
    assert PATH in str(raised.value)


@given(st.text() | st.binary().map(lambda some: some.decode("latin-1")))
def test_no_random_text_is_a_state_file(text):
    with pytest.raises(CheckpointError, match="please drain this node and delete"):
        restored(text, PATH, "Static", WHOLE)


@pytest.mark.parametrize(
    "text", ["", "{", '{"policyName', '{"checksum":', '{"entries":{"p":nu', '{"entries":{}  ']
)
def test_a_truncated_file_is_named_as_go_does(text):
    with pytest.raises(CheckpointError, match="unexpected end"):
        restored(text, PATH, "Static", PLAIN)


def test_broken_json_is_not_a_truncated_file():
    with pytest.raises(CheckpointError, match="Expecting ',' delimiter"):
        restored('{"entries":{}x}', PATH, "Static", PLAIN)


def test_absurd_node_ids_are_refused():
    text = '{"policyName":"Static","machineState":{"0":{"cells":[1000000000000]}}}'
    with pytest.raises(CheckpointError, match="NUMA node ids from 0 to"):
        restored(text, PATH, "Static", PLAIN)


def test_a_wrong_checksum_is_corruption_and_none_is_not():
    state = MemoryState(assignments={"p": {"c": (Block(NodeSet([0]), "memory", 1),)}})
    good = format_checkpoint(checkpoint_of("Static", state), 1)
    content = json.loads(good)
    for wrong, gates in ((content["checksum"] + 1, PLAIN), (1, WHOLE)):
        with pytest.raises(CheckpointError) as raised:
            restored(json.dumps(content | {"checksum": wrong}), PATH, "Static", gates)
        assert str(raised.value) == (
            "could not restore state from checkpoint: checkpoint is corrupted, please drain this node and "
            f'delete the memory manager checkpoint file "{PATH}" before restarting Kubelet'
        )
    del content["checksum"]
    assert restored(json.dumps(content), PATH, "Static", PLAIN) == state


def test_another_policys_file_is_refused():
    text = format_checkpoint(checkpoint_of("Static", MemoryState()), 1)
    with pytest.raises(CheckpointError) as raised:
        restored(text, PATH, "None", PLAIN)
    assert raised.value.problem == (
        '[memorymanager] configured policy "None" differs from state checkpoint policy "Static"'
    )


def test_a_file_of_version_2_needs_the_gate():
    state = MemoryState(pod_blocks={"p": (Block(NodeSet([0]), "memory", 1),)})
    text = format_checkpoint(checkpoint_of("Static", state), 2)
    assert restored(text, PATH, "Static", WHOLE) == state
    with pytest.raises(CheckpointError, match="checkpoint is corrupted"):
        restored(text, PATH, "Static", PLAIN)


def test_no_file_is_an_empty_state():
    assert restored(None, PATH, "Static", PLAIN) == MemoryState()


MACHINE = Machine((Node(0, CpuSet(), 100), Node(1, CpuSet(), 100)), ())
RESERVED = {0: {"memory": 10}}


@pytest.mark.parametrize(
    ("assignments", "problem"),
    [
        (
            {"p": {"c": (Block(NodeSet([7]), "memory", 1),)}},
            "[memorymanager] (pod: p, container: c) the memory assignment uses the NUMA that does not exist",
        ),
        (
            {"p": {"c": (Block(NodeSet([0]), "hugepages-2Mi", 1),)}},
            (
                "[memorymanager] (pod: p, container: c) the memory assignment uses memory resource "
                "that does not exist"
            ),
        ),
        (
            {"p": {"c": (Block(NodeSet([0]), "memory", 1),)}},
            "[memorymanager] the expected machine state is different from the real one",
        ),
    ],
)
def test_a_state_of_another_machine_is_refused(assignments, problem):
    state = MemoryState(empty_nodes(MACHINE, RESERVED), assignments)
    with pytest.raises(MemoryStateError) as raised:
        start(MemoryManagerPolicy.STATIC, MACHINE, RESERVED, PLAIN, state)
    assert str(raised.value) == problem


def test_a_changed_reservation_is_refused():
    state = MemoryState(empty_nodes(MACHINE, RESERVED))
    assert start(MemoryManagerPolicy.STATIC, MACHINE, RESERVED, PLAIN, state).state == state
    with pytest.raises(MemoryStateError, match="machine state"):
        start(MemoryManagerPolicy.STATIC, MACHINE, {0: {"memory": 11}}, PLAIN, state)
