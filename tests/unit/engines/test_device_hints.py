"""Device hints: what annotations say, which hints count, and how they are explained."""

import pytest
from msgspec.structs import replace

from bayplan.engines.device_hints import (
    Findings,
    device_reasons,
    effective_hints,
    hints_text,
    looks_at_devices,
)
from bayplan.errors import ConfigError
from bayplan.model.decision import (
    Decision,
    DeviceHint,
    Interval,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.machine import Machine, Node
from bayplan.model.wishes import Wishes, read_wishes
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import machine

DISK = DeviceHint("/dev/vdb", NodeSet([1]))
NIC = DeviceHint("net/eth0", NodeSet([0]))
GPU = DeviceHint("vendor.com/gpu=0", NodeSet([0, 1]))
ONLINE = machine(4)


def wishes(**keys: str) -> Wishes:
    return read_wishes({f"bayplan.dev/{key.replace('_', '-')}": text for key, text in keys.items()}, "main")


def test_annotations_add_ignore_and_replace() -> None:
    assert wishes(add_device_hints=" fpga = 2 ;vendor.com/gpu=0=0-1") == Wishes(
        added_hints=(DeviceHint("fpga", NodeSet([2])), GPU)
    )
    assert wishes(ignore_device_hints="all").ignored_hints == {"all"}
    assert wishes(ignore_device_hints="/dev/vdb; net/eth0").ignored_hints == {"/dev/vdb", "net/eth0"}
    assert wishes(replace_device_hints="gpu=0,2").replaced_hints == (DeviceHint("gpu", NodeSet([0, 2])),)


def test_a_containers_own_key_wins_over_the_pods() -> None:
    annotations = {
        "bayplan.dev/add-device-hints": "a=1",
        "main.bayplan.dev/add-device-hints": "b=2",
        "side.bayplan.dev/ignore-device-hints": "all",
    }
    assert read_wishes(annotations, "main") == Wishes(added_hints=(DeviceHint("b", NodeSet([2])),))


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("add-device-hints", "gpu", "DEVICE=NODES"),
        ("add-device-hints", "", "DEVICE=NODES"),
        ("add-device-hints", "=1", "DEVICE=NODES"),
        ("add-device-hints", "gpu=", "DEVICE=NODES"),
        ("add-device-hints", "gpu=x", "DEVICE=NODES"),
        ("add-device-hints", "gpu=3-1", "DEVICE=NODES"),
        ("add-device-hints", "gpu=1; gpu=2", "DEVICE=NODES"),
        ("replace-device-hints", "gpu=1;", "DEVICE=NODES"),
        ("ignore-device-hints", "", "names of devices"),
        ("ignore-device-hints", "all; /dev/vdb", "names of devices"),
        ("ignore-devices", "all", "bayplan.dev/ignore-device-hints"),
    ],
)
def test_wrong_annotations_are_clear_errors(key: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_wishes({f"bayplan.dev/{key}": text}, "main")
    (problem,) = caught.value.problems
    assert problem.path == f"annotation bayplan.dev/{key}"
    assert expected in problem.expected


def test_nodes_that_the_machine_lacks_are_problems() -> None:
    asked = {"bayplan.dev/add-device-hints": "a=1; b=3-4", "bayplan.dev/replace-device-hints": "c=2"}
    with pytest.raises(ConfigError) as caught:
        read_wishes(asked, "main", machine(4))
    (problem,) = caught.value.problems
    assert (problem.path, problem.found) == ("annotation bayplan.dev/add-device-hints", "'a=1; b=3-4'")


def test_found_and_added_hints_count_and_the_rest_is_said() -> None:
    offline = DeviceHint("/dev/old", NodeSet([9]))
    findings = Findings((DISK, NIC, offline), ("/dev/odd: cannot be read",))
    hints, notes = effective_hints(
        findings, wishes(add_device_hints="fpga=2", ignore_device_hints="net/eth0"), ONLINE
    )
    assert hints == (DISK, DeviceHint("fpga", NodeSet([2])))
    assert [(note.code, note.text) for note in notes] == [
        ("no-device-hint", "/dev/odd: cannot be read"),
        ("no-device-hint", "/dev/old is on node 9, which is not online"),
        ("device-hints-ignored", "ignored by annotation: net/eth0 on node 0"),
    ]


def test_what_an_annotation_says_about_a_device_counts() -> None:
    hints, notes = effective_hints(Findings((DISK, NIC)), wishes(add_device_hints="/dev/vdb=3"), ONLINE)
    assert (hints, notes) == ((NIC, DeviceHint("/dev/vdb", NodeSet([3]))), ())


def test_of_many_devices_the_first_ones_are_named() -> None:
    many = [DeviceHint(f"d{number}", NodeSet([0])) for number in range(20)]
    assert hints_text(many) == "d0, d1, d2, d3, d4, d5, d6, d7 and 12 more on node 0"


def test_hints_keep_to_the_nodes_that_are_online() -> None:
    hints, notes = effective_hints(Findings((DeviceHint("a", NodeSet([1, 9])),)), Wishes(), ONLINE)
    assert (hints, notes) == ((DeviceHint("a", NodeSet([1])),), ())


def test_what_points_to_the_memory_of_a_device_points_to_the_nearest_cpus() -> None:
    """As a GPU of a GB200 does, where its driver says so (kubernetes-sigs/dra-driver-nvidia-gpu#1242)."""
    found = Findings((DeviceHint("gpu.nvidia.com/gpu-1", NodeSet([3]), required=True),))
    said = wishes(replace_device_hints="gpu=3; both=1,3")
    cpus_at = {0: {2: 80, 3: 120}, 1: {2: 120, 3: 80}}
    with_cpus = [replace(ONLINE.node_by_id[node], distances=row) for node, row in cpus_at.items()]
    memory = [Node(node, CpuSet(), GIB, owner="0009:01:00.0") for node in (2, 3)]
    for initiators in (NodeSet(), NodeSet([1])):
        grace = Machine((*with_cpus, memory[0], replace(memory[1], initiators=initiators)), ONLINE.cpus)
        assert [hint.nodes for hint in effective_hints(found, Wishes(), grace)[0]] == [NodeSet([1])]
        assert [hint.nodes for hint in effective_hints(Findings(), said, grace)[0]] == [NodeSet([1])] * 2


def test_nobody_looks_at_devices_that_do_not_count() -> None:
    assert looks_at_devices(Wishes())
    assert looks_at_devices(wishes(ignore_device_hints="/dev/vdb", add_device_hints="a=1"))
    everything = wishes(ignore_device_hints="all", add_device_hints="fpga=2")
    assert not looks_at_devices(everything)
    assert effective_hints(Findings(), everything, ONLINE)[0] == (DeviceHint("fpga", NodeSet([2])),)
    assert not looks_at_devices(wishes(opt_out="true"))
    replaced = wishes(replace_device_hints="gpu=1")
    assert not looks_at_devices(replaced)
    assert effective_hints(Findings(), replaced, ONLINE)[0] == (DeviceHint("gpu", NodeSet([1])),)


def test_a_decision_names_devices_and_those_that_are_elsewhere() -> None:
    request = Request(
        "c",
        "p",
        "ns/p/c",
        QosClass.GUARANTEED,
        QosSource.INFERRED,
        Interval(0, 0, "limit"),
        hints=(DISK, NIC, GPU),
    )
    decision = Decision(request, Outcome.PLACED, Placement(NodeSet([1])))
    assert [(one.code, one.text) for one in device_reasons(decision)] == [
        (
            "device-hints",
            "its devices: /dev/vdb on node 1; net/eth0 on node 0; vendor.com/gpu=0 on nodes 0-1",
        ),
        ("devices-elsewhere", "not on node 1: net/eth0 on node 0"),
    ]
