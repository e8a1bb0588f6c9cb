"""cpu_manager_state: written and read, and every way in which a file cannot be used."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.kubelet.cpu_checkpoint import decode_checkpoint, format_checkpoint, parse_cpus
from bayplan.engines.kubelet.cpu_state import CpuState, CpuStateError
from bayplan.sets import CpuSet
from support.kubelet_start import restore_checkpoint

STATE = CpuState(
    shared=CpuSet.parse("0-3"),
    assignments={"pod-b": {"c<1>": CpuSet([4]), "a": CpuSet()}, "pod-a": {}},
)

cpu_sets = st.sets(st.integers(0, 200)).map(CpuSet)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(cpu_sets, st.dictionaries(names, st.dictionaries(names, cpu_sets, max_size=3), max_size=3))
def test_what_is_written_is_read_back(shared, assignments):
    state = CpuState(shared, assignments)

    assert restore_checkpoint(format_checkpoint(state, "static"), "static") == state


def test_text_is_what_go_writes():
    text = format_checkpoint(STATE, "static")

    assert text.startswith(
        '{"policyName":"static","defaultCpuSet":"0-3",'
        '"entries":{"pod-a":{},"pod-b":{"a":"","c\\u003c1\\u003e":"4"}},"checksum":'
    )


@pytest.mark.parametrize(
    ("shared", "entries", "checksum"),
    [
        # From KEP-4540, guides and reports: what kubelets of 1.14 to 1.34 wrote on machines of others.
        ("0-79", "", 1241370203),
        ("2-15,17-31,34-47,49-63", "", 4141502832),
        ("1,3-15,17,19-31", "", 1902567528),
        (
            "0-1,6-13,18-23",
            (
                '"entries":{"28c11c89-3493-4972-bb67-7090b9d75e0d":'
                '{"mytestclient":"2-3,14-15","mytestclient2":"4-5,16-17"}},'
            ),
            1684933537,
        ),
        (
            "0,2-95,97-191",
            (
                '"entries":{"823ca0b5-ed9e-421a-bfca-76fa078f3195":{"ubuntu-netutils":"96"},'
                '"b8292fdc-57b1-4bc4-937b-34cd3dd1bcb8":{"ubuntu-netutils":"1"}},'
            ),
            4076905443,
        ),
    ],
)
def test_files_of_other_peoples_nodes_are_intact(shared, entries, checksum):
    text = f'{{"policyName":"static","defaultCpuSet":"{shared}",{entries}"checksum":{checksum}}}'

    assert str(restore_checkpoint(text, "static").shared) == shared
    with pytest.raises(CpuStateError, match="checkpoint is corrupted"):
        restore_checkpoint(text.replace(f"{checksum}}}", "1}"), "static")


def test_no_file_is_an_empty_state():
    assert restore_checkpoint(None, "static") == CpuState()


def test_budgets_need_the_gate():
    state = CpuState(CpuSet([0]), {"pod": {"c": CpuSet([1])}}, budgets={"pod": CpuSet([1, 2])})
    text = format_checkpoint(state, "static", pod_level_managers=True)

    assert restore_checkpoint(text, "static", pod_level_managers=True) == state
    with pytest.raises(CpuStateError, match="checkpoint is corrupted"):
        restore_checkpoint(text, "static")


def test_older_version_is_read_with_the_gate():
    assert restore_checkpoint(format_checkpoint(STATE, "static"), "static", pod_level_managers=True) == STATE


@pytest.mark.parametrize("checksum", ['"checksum":0', '"checksum":null'])
def test_a_file_without_checksum_is_taken_up_to_version_2(checksum):
    text = '{"PolicyName":"static","defaultCPUSet":"0-3","entries":null,' + checksum + "}"

    assert restore_checkpoint(text, "static") == CpuState(CpuSet.parse("0-3"))


def test_version_1_finds_its_containers_by_id():
    text = '{"policyName":"static","defaultCpuSet":"0","entries":{"id":"1"}}'

    state = restore_checkpoint(text, "static", container_refs={"id": ("pod", "c")})

    assert state.assignments == {"pod": {"c": CpuSet([1])}}
    with pytest.raises(CpuStateError, match="containerID 'id' not found in initial containers list"):
        restore_checkpoint(text, "static")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "unexpected end of JSON input"),
        ('{"policyName":"sta', "unexpected end of JSON input"),
        ("{]", "invalid character ']' at offset 1"),
        ("[]", "cannot unmarshal array"),
        ("null", "cannot unmarshal null"),
        ('{"policyName":1}', "cannot unmarshal number into field policyName of type string"),
        ('{"policyName":"static","checksum":-1}', "cannot unmarshal number into field checksum"),
        ('{"policyName":"static","checksum":true}', "cannot unmarshal bool into field checksum"),
        ('{"policyName":"static","entries":[]}', "cannot unmarshal array into field entries of type map"),
        ('{"policyName":"static","entries":{},"checksum":7}', "checkpoint is corrupted"),
        ('{"policyName":"none"}', 'configured policy "static" differs from state checkpoint policy "none"'),
        (
            '{"policyName":"static","defaultCpuSet":"1.3"}',
            'could not parse default cpu set "1.3": strconv.Atoi: parsing "1.3": invalid syntax',
        ),
        (
            '{"policyName":"static","entries":{"p":{"c":"2-1"}}}',
            'could not parse cpuset "2-1" for container "c" in pod "p": invalid range "2-1" (2 > 1)',
        ),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_what_to_do(text, problem):
    with pytest.raises(CpuStateError) as raised:
        restore_checkpoint(text, "static", path="/var/lib/kubelet/cpu_manager_state")

    message = str(raised.value)
    assert message.startswith("could not restore state from checkpoint: ")
    assert problem in message
    assert message.endswith(
        ", please drain this node and delete the CPU manager checkpoint file "
        '"/var/lib/kubelet/cpu_manager_state" before restarting Kubelet'
    )


def test_null_and_empty_are_hashed_differently():
    written = {"policyName": "static", "defaultCpuSet": "0"}
    dumps = [
        decode_checkpoint(json.dumps({**written, **more}), 3).dump()
        for more in (
            {"entries": None, "podEntries": None},
            {"entries": {"p": None}, "podEntries": {"p": {}}},
            {"podEntries": {"p": {"cpuSet": "1"}}},
        )
    ]

    head = "(*state.CPUManagerCheckpoint){PolicyName:(string)static DefaultCPUSet:(string)0 "
    entries, pods = "Entries:(map[string]map[string]string)", "PodEntries:(state.PodCPUAssignments)"
    own = "map[p:{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})%s}}]"
    tail = " Checksum:(checksum.Checksum)0}"
    assert dumps == [
        f"{head}{entries}<nil> {pods}<nil>{tail}",
        f"{head}{entries}map[p:<nil>] {pods}{own % '<nil>'}{tail}",
        f"{head}{entries}map[] {pods}{own % 'map[1:{}]'}{tail}",
    ]


@pytest.mark.parametrize(
    ("text", "cpus"), [("", ""), ("3", "3"), ("0-2,5", "0-2,5"), ("+1,01", "1"), ("1-1", "1")]
)
def test_lists_as_go_reads_them(text, cpus):
    assert parse_cpus(text) == CpuSet.parse(cpus)


@pytest.mark.parametrize("text", ["a", "1,", "-1", "1-2-3", "99999999999999999999", "0-999999", "1--2"])
def test_lists_that_are_refused(text):
    with pytest.raises(CpuStateError):
        parse_cpus(text)
