"""Tiers, initiators and owners of memory: good, absent as on older kernels, and garbled."""

import logging

import pytest
from msgspec.structs import replace

from bayplan.errors import HostError
from bayplan.host.sysfs import GENERIC_INITIATOR, NVIDIA, TIERS, read_machine
from bayplan.model.machine import Machine, Performance
from bayplan.quantity import GIB
from bayplan.sets import NodeSet
from support.machines import machine
from support.sysfs import SYSTEM, SysfsTree

GPU = "0009:01:00.0"
FAST = Performance(90, 95, 400_000, 300_000)


def of_kinds(**kinds):
    """Two nodes with CPUs, nodes 4 and 9 without; *kinds* maps n4 and so on to fields of the node."""
    plain = machine(2, 2, GIB, cpu_less={4: GIB, 9: GIB})
    return Machine(tuple(replace(node, **kinds.get(f"n{node.id}", {})) for node in plain.nodes), plain.cpus)


TIERED = of_kinds(
    n0={"tier": 1, "initiators": NodeSet([0]), "performance": Performance(110, 110, 150_000, 150_000)},
    n1={"tier": 1, "initiators": NodeSet([1])},
    n4={"tier": 0, "initiators": NodeSet([0, 1]), "performance": FAST},
    n9={"tier": 2, "initiators": NodeSet([1])},
)
OWNED = of_kinds(n4={"owner": GPU}, n9={"owner": GENERIC_INITIATOR})


@pytest.mark.parametrize("wanted", [TIERED, OWNED, of_kinds()], ids=["tiered", "owned", "older kernel"])
def test_what_the_kernel_shows_is_read(tmp_path, wanted):
    assert read_machine(SysfsTree(wanted).write(tmp_path)) == wanted


def test_ordinary_memory_is_that_of_the_tier_with_cpus():
    assert TIERED.ordinary_nodes == NodeSet([0, 1])
    assert OWNED.ordinary_nodes == NodeSet([0, 1])


def test_only_the_order_of_the_tiers_counts(tmp_path):
    tree = SysfsTree(of_kinds())
    for number, members in ((961, "9"), (0, "4"), (17, "\n"), (23, "0-1")):
        tree.files[f"{TIERS}/memory_tier{number}/nodelist"] = f"{members}\n"
    tree.files[f"{TIERS}/power/control"] = "auto\n"
    found = read_machine(tree.write(tmp_path))
    assert {node.id: node.tier for node in found.nodes} == {0: 1, 1: 1, 4: 0, 9: 2}


def test_a_tier_that_is_all_a_devices_shifts_no_rank(tmp_path):
    tree = SysfsTree(of_kinds(n4={"owner": GPU}))
    for number, members in ((1, "4"), (4, "0-1"), (50, "9")):
        tree.files[f"{TIERS}/memory_tier{number}/nodelist"] = f"{members}\n"
    found = read_machine(tree.write(tmp_path))
    assert {node.id: node.tier for node in found.nodes} == {0: 0, 1: 0, 4: None, 9: 1}


def test_a_node_in_two_tiers_cannot_be(tmp_path):
    tree = SysfsTree(TIERED)
    tree.files[f"{TIERS}/memory_tier99/nodelist"] = "1\n"
    with pytest.raises(HostError, match=r"memory_tier99/nodelist.*node 1 is already in a faster tier"):
        read_machine(tree.write(tmp_path))


@pytest.mark.parametrize(
    "path",
    [
        f"{TIERS}/memory_tier4/nodelist",
        f"{SYSTEM}/node/has_generic_initiator",
        f"{NVIDIA}/{GPU}/numa_status",
    ],
)
def test_garbage_names_the_file(tmp_path, path):
    tree = SysfsTree(TIERED)
    tree.files |= SysfsTree(OWNED).files | tree.files
    tree.files[path] = "banana\n"
    with pytest.raises(HostError) as caught:
        read_machine(tree.write(tmp_path))
    assert caught.value.subject == str(tmp_path / path)
    assert "'banana'" in str(caught.value)


def test_a_rating_that_is_none_is_left_out_with_a_remark(tmp_path):
    tree = SysfsTree(TIERED)
    for name in ("read_bandwidth", "write_latency"):
        tree.files[f"{SYSTEM}/node/node4/access0/initiators/{name}"] = "banana\n"
    found = read_machine(tree.write(tmp_path))
    assert found.node_by_id[4].performance.read_bandwidth_mib_s == 0
    assert len(found.remarks) == 2


class TestInitiators:
    def test_cpus_come_first_where_a_device_reaches_its_own_memory_best(self, tmp_path):
        tree = SysfsTree(of_kinds())
        for below, node in (("access0", 4), ("access1", 0)):
            tree.files[f"{SYSTEM}/node/node4/{below}/initiators/node{node}/"] = ""
        tree.files[f"{SYSTEM}/node/node4/access1/initiators/read_latency"] = "300\n"
        found = read_machine(tree.write(tmp_path)).node_by_id[4]
        assert found.initiators == NodeSet([0])
        assert found.performance == Performance(read_latency_ns=300)

    def test_without_any_cpu_the_device_stays(self, tmp_path):
        tree = SysfsTree(of_kinds())
        tree.files[f"{SYSTEM}/node/node4/access0/initiators/node9/"] = ""
        assert read_machine(tree.write(tmp_path)).node_by_id[4].initiators == NodeSet([9])


class TestOwners:
    def test_an_initiator_with_cpus_owns_nothing(self, tmp_path):
        tree = SysfsTree(of_kinds())
        tree.files[f"{SYSTEM}/node/has_generic_initiator"] = "0-1,9\n"
        found = read_machine(tree.write(tmp_path))
        assert {node.id: node.owner for node in found.nodes} == {0: "", 1: "", 4: "", 9: GENERIC_INITIATOR}

    def test_the_driver_knows_better_than_the_firmware(self, tmp_path):
        tree = SysfsTree(OWNED)
        tree.files[f"{SYSTEM}/node/has_generic_initiator"] = "4,9\n"
        assert read_machine(tree.write(tmp_path)) == OWNED

    def test_a_gpu_without_memory_online_owns_nothing(self, tmp_path):
        tree = SysfsTree(of_kinds())
        tree.files[f"{NVIDIA}/{GPU}/numa_status"] = "Node:      -1\nStatus:    disabled\n"
        tree.files[f"{NVIDIA}/000a:01:00.0/information"] = "Model: any\n"
        assert read_machine(tree.write(tmp_path)) == of_kinds()

    def test_a_gpu_that_does_not_answer_is_logged(self, tmp_path, caplog):
        root = SysfsTree(OWNED).write(tmp_path)
        status = root / NVIDIA / GPU / "numa_status"
        status.unlink()
        status.mkdir()  # reading fails, but not because it is absent
        with caplog.at_level(logging.WARNING):
            found = read_machine(root)
        assert found.node_by_id[4].owner == ""
        assert GPU in caplog.records[0].problem
