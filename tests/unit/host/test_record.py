import io
import os
import subprocess
import sys

import pytest

from bayplan.errors import HostError, ParseError
from bayplan.host.record import main, record, unpack
from bayplan.host.sysfs import read_machine
from bayplan.quantity import GIB, MIB
from support.machines import machine
from support.sysfs import SYSTEM, SysfsTree

WANTED = machine(2, 12, GIB, cpu_less={8: GIB}, threads_per_core=2, hugepages_bytes={2 * MIB: 4 * MIB})


def test_a_recording_is_the_same_machine_again(tmp_path):
    original = SysfsTree(WANTED).write(tmp_path / "original")
    unpack(record(original), tmp_path / "again")
    assert read_machine(tmp_path / "again") == WANTED
    assert record(tmp_path / "again") == record(original)


def test_a_mask_is_recorded_beside_a_list_that_cannot_be(tmp_path):
    tree = SysfsTree(machine(1, 4))
    for cpu, text in ((0, ""), (1, "0-3"), (2, "0,x")):
        cache = f"{SYSTEM}/cpu/cpu{cpu}/cache/index3"
        tree.files[f"{cache}/shared_cpu_list"] = text
        tree.files[f"{cache}/shared_cpu_map"] = "f\n"
    root = tree.write(tmp_path / "root")
    listing = record(root)
    assert [f"cpu{cpu}/cache/index3/shared_cpu_map" in listing for cpu in range(4)] == [
        True,
        False,
        True,
        False,
    ]
    unpack(listing, tmp_path / "again")
    assert read_machine(tmp_path / "again") == read_machine(root)


def test_a_path_with_colons_comes_back(tmp_path):
    original = tmp_path / "original/proc/driver/nvidia/gpus/0009:01:00.0"
    original.mkdir(parents=True)
    (original / "numa_status").write_text("Node:      1\nStatus:    online\n")
    listing = record(tmp_path / "original")
    assert listing.startswith("proc/driver/nvidia/gpus/0009%3A01%3A00.0/numa_status:Node:      1\n")
    unpack(listing, tmp_path / "again")
    assert record(tmp_path / "again") == listing


def test_without_numa_the_files_that_stand_in_are_recorded_too(tmp_path):
    one = machine(1, 4, GIB, hugepages_bytes={2 * MIB: 4 * MIB})
    unpack(record(SysfsTree.without_numa(one).write(tmp_path / "original")), tmp_path / "again")
    assert read_machine(tmp_path / "again") == one


@pytest.mark.parametrize("directory", ["sys/devices/system/node/node0", "sys/kernel/mm"])
def test_huge_pages_beyond_the_pool_are_recorded_as_such(tmp_path, directory):
    path = f"{directory}/hugepages/hugepages-2048kB/surplus_hugepages"
    tree = SysfsTree(WANTED) if "node" in directory else SysfsTree.without_numa(machine(1, 4, GIB))
    tree.files[path] = "1\n"
    assert f"{path}:1\n" in record(tree.write(tmp_path))


def test_a_recording_is_in_the_order_of_the_numbers_and_keeps_empty_files(tmp_path):
    lines = record(SysfsTree(WANTED).write(tmp_path)).splitlines()
    cpus = [line for line in lines if line.endswith("/topology/physical_package_id:0")]
    assert [line.split("/")[4] for line in cpus] == [f"cpu{cpu}" for cpu in range(12)]
    assert "sys/devices/system/node/node8/cpulist:" in lines


def test_this_machine_records_itself(tmp_path):
    listing = record()
    unpack(listing, tmp_path)
    recorded, here = read_machine(tmp_path), read_machine()
    assert recorded.cpus == here.cpus
    assert recorded.node_ids == here.node_ids
    assert "serial" not in listing
    # A host may be called as a part of a path is, "node0" for one.
    assert os.uname().nodename not in {line.partition(":")[2] for line in listing.splitlines()}


def test_comments_and_empty_lines_are_passed_over(tmp_path):
    unpack("# a machine\n\nsys/x:1\nsys/x:2\nsys/dir/:\n", tmp_path)
    assert (tmp_path / "sys/x").read_text() == "1\n2\n"
    assert (tmp_path / "sys/dir").is_dir()


@pytest.mark.parametrize("line", ["/etc/passwd:x", "sys/../../etc/x:1", "no colon here"])
def test_a_listing_cannot_lead_out_of_its_directory(tmp_path, line):
    inside = tmp_path / "inside"
    with pytest.raises(ParseError):
        unpack(f"sys/x:1\n{line}\n", inside)
    assert not inside.exists()


def test_a_tree_that_cannot_be_written(tmp_path):
    (tmp_path / "sys").write_text("in the way")
    with pytest.raises(HostError, match="cannot hold the tree"):
        unpack("sys/x:1\n", tmp_path)


@pytest.mark.parametrize("line", ["sys/a\0b:1", "sys/a:\xe9", f"{'a' * 5000}:1"])
def test_what_no_tree_has_cannot_be_written(tmp_path, line):
    with pytest.raises(HostError, match="cannot hold the tree") as caught:
        unpack(line, tmp_path)
    assert len(str(caught.value)) < 1000


def test_the_command(tmp_path):
    root = SysfsTree(WANTED).write(tmp_path / "original")
    command = [sys.executable, "-W", "error", "-m", "bayplan.host.record"]
    listing = subprocess.run([*command, "--root", root], check=True, capture_output=True).stdout
    path = tmp_path / "machine.txt"
    path.write_bytes(listing)
    subprocess.run([*command, "--unpack", path, tmp_path / "again"], check=True)
    assert read_machine(tmp_path / "again") == WANTED


def test_the_command_says_what_is_wrong(tmp_path, monkeypatch):
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    assert main(["--unpack", str(tmp_path / "absent.txt"), str(tmp_path)]) == 1
    assert "absent.txt: " in errors.getvalue()
