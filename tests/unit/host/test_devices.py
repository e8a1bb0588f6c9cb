"""Devices and their NUMA nodes, on a machine whose sysfs is laid out as the kernel does it."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.errors import HostError
from bayplan.host.devices import DeviceTree, HostDevices
from bayplan.host.sysfs import read_machine
from bayplan.model.decision import DeviceHint, Interval, QosClass, QosSource, Request
from bayplan.model.memory_kinds import device_nodes
from bayplan.model.workload import Container, DeviceNode, DeviceType, Mount
from bayplan.sets import NodeSet
from support.machines import machine
from support.sysfs import SysfsTree

BLOCK, CHAR = DeviceType.BLOCK, DeviceType.CHARACTER
NVME = "pci0000:80/0000:80:01.0/0000:81:00.0"
GPU = "pci0000:40/0000:40:01.0/0000:41:00.0"
NIC = "pci0000:c0/0000:c1:00.0"
OLD = "pci0000:00/0000:00:1f.2"
INFORMATION = "Model: \t\t some GPU\nBus Location: \t 0000:41:00.0\nDevice Minor: \t 3\n"


@pytest.fixture
def tree():
    """NVMe on node 2, a GPU on node 1, a NIC on node 3, a controller of unknown place."""
    made = SysfsTree(machine(4))
    made.add_device(NVME, node=2, bus="pci")
    made.add_device(f"{NVME}/nvme/nvme0/nvme0n1", numbers="block/259:0")
    made.add_device(f"{NVME}/nvme/nvme0/nvme0n1/nvme0n1p2", numbers="block/259:2")
    made.files[f"sys/devices/{NVME}/nvme/nvme0/nvme0n1/nvme0n1p2/partition"] = "2\n"
    made.add_device(GPU, node=1, bus="pci")
    made.add_device(f"{GPU}/drm/card0", numbers="char/226:0")
    made.add_device(f"{GPU}/drm/renderD128", numbers="char/226:128")
    made.add_device(NIC, node=3, bus="pci")
    made.add_device(f"{NIC}/virtio3", bus="virtio")
    made.add_device(OLD, node=-1)
    made.add_device(f"{OLD}/ata1/host0/target0:0:0/0:0:0:0/block/sda", numbers="block/8:0")
    made.add_device("virtual/mem/null", numbers="char/1:3")
    made.add_device("virtual/mem/zero", numbers="char/1:5")
    return made


@pytest.fixture
def look(tree, tmp_path):
    """Write the tree, then look for something in it."""

    def at(kind, major, minor):
        return str(DeviceTree(str(written())).of_numbers(kind, major, minor).nodes)

    def written():
        if not (tmp_path / "sys").exists():
            tree.write(tmp_path)
        return tmp_path

    at.root = written
    return at


def container(**fields) -> Container:
    return Container("c", "p", **fields)


def nodes_of(findings) -> dict[str, str]:
    assert findings.problems == ()
    return {hint.device: str(hint.nodes) for hint in findings.hints}


class TestNumbers:
    def test_the_first_numa_node_above_counts(self, look):
        assert look(BLOCK, 259, 0) == "2"
        assert look(CHAR, 226, 128) == "1"

    def test_a_partition_is_where_its_disk_is(self, look):
        assert look(BLOCK, 259, 2) == "2"

    def test_minus_one_virtual_and_unknown_devices_have_no_node(self, look):
        assert [look(BLOCK, 8, 0), look(CHAR, 1, 3), look(CHAR, 8, 0), look(BLOCK, 99, 0)] == [""] * 4

    def test_a_vfio_group_is_where_its_devices_are(self, look, tree):
        tree.add_device("virtual/vfio/42", numbers="char/511:0")
        tree.links["sys/kernel/iommu_groups/42/devices/0000:41:00.0"] = f"sys/devices/{GPU}"
        tree.links["sys/kernel/iommu_groups/42/devices/0000:41:00.1"] = f"sys/devices/{GPU}"
        tree.add_device("virtual/vfio/noiommu-7", numbers="char/511:1")
        tree.links["sys/kernel/iommu_groups/7/devices/0000:c1:00.0"] = f"sys/devices/{NIC}"
        tree.add_device("virtual/vfio/8", numbers="char/511:2")
        tree.add_device("virtual/misc/vfio", numbers="char/10:196")
        found = [look(CHAR, 511, minor) for minor in range(3)]
        assert (found, look(CHAR, 10, 196)) == (["1", "3", ""], "")

    def test_a_vfio_device_of_its_own(self, look, tree):
        tree.add_device(f"{GPU}/vfio-dev/vfio0", numbers="char/510:0")
        assert look(CHAR, 510, 0) == "1"

    def test_mapped_disks_are_where_the_disks_below_are(self, look, tree):
        disk = f"sys/devices/{NVME}/nvme/nvme0/nvme0n1"
        tree.add_device(f"{GPU}/virtio9/block/vdb", numbers="block/253:16")
        tree.add_device("virtual/block/dm-0", numbers="block/254:0")
        tree.links["sys/devices/virtual/block/dm-0/slaves/nvme0n1"] = disk
        tree.add_device("virtual/block/dm-1", numbers="block/254:1")
        tree.links["sys/devices/virtual/block/dm-1/slaves/dm-0"] = "sys/devices/virtual/block/dm-0"
        tree.links["sys/devices/virtual/block/dm-1/slaves/vdb"] = f"sys/devices/{GPU}/virtio9/block/vdb"
        tree.add_device("virtual/block/md0/md0p1", numbers="block/259:9")
        tree.files["sys/devices/virtual/block/md0/md0p1/partition"] = "1\n"
        tree.links["sys/devices/virtual/block/md0/slaves/nvme0n1"] = disk
        assert [look(BLOCK, 254, 0), look(BLOCK, 254, 1), look(BLOCK, 259, 9)] == ["2", "1-2", "2"]

    def test_disks_that_stand_upon_each_other_end_the_search(self, look, tree):
        for one, other in ((0, 1), (1, 0)):
            tree.add_device(f"virtual/block/dm-{one}", numbers=f"block/254:{one}")
            tree.links[f"sys/devices/virtual/block/dm-{one}/slaves/dm-{other}"] = (
                f"sys/devices/virtual/block/dm-{other}"
            )
        assert look(BLOCK, 254, 0) == ""

    def test_an_nvme_disk_with_several_paths_is_where_its_controllers_are(self, look, tree):
        subsystem = "virtual/nvme-subsystem/nvme-subsys0"
        tree.add_device(f"{subsystem}/nvme0n1/nvme0n1p1", numbers="block/259:30")
        for number, home in ((0, NVME), (1, NIC)):
            tree.add_device(f"{home}/nvme/nvme{number}")
            tree.links[f"sys/devices/{subsystem}/nvme{number}"] = f"sys/devices/{home}/nvme/nvme{number}"
        assert look(BLOCK, 259, 30) == "2-3"

    def test_nvidia_tells_in_proc(self, look, tree):
        tree.files["proc/driver/nvidia/gpus/0000:41:00.0/information"] = INFORMATION
        assert [look(CHAR, 195, 3), look(CHAR, 195, 0), look(CHAR, 195, 255)] == ["1", "", ""]

    def test_garbage_is_an_error_with_the_path(self, look, tree):
        tree.files[f"sys/devices/{GPU}/numa_node"] = "-7\n"
        with pytest.raises(HostError) as caught:
            look(CHAR, 226, 0)
        assert caught.value.subject.endswith(f"{GPU}/numa_node")
        assert "'-7'" in caught.value.problem


def test_the_parent_of_an_interface(look):
    devices = HostDevices(look.root())
    expected = DeviceHint("net/eth0", NodeSet([3]), names=("net/eth0", "0000:c1:00.0"), kind="net")
    assert devices.hint_of_parent("net/eth0", "net", "virtio", "virtio3") == expected
    assert devices.hint_of_parent("net/eth0", "net", "pci", "0000:99:00.0") is None


class TestContainers:
    def test_each_device_gives_one_hint(self, look):
        found = HostDevices(look.root()).find(
            container(
                devices=(
                    DeviceNode("/dev/disk", BLOCK, 259, 2),
                    DeviceNode("/dev/null", CHAR, 1, 3),
                    DeviceNode("/dev/disk-again", BLOCK, 259, 2),
                    DeviceNode("/dev/dri/card0", CHAR, 226, 0),
                )
            )
        )
        assert found.hints == (
            DeviceHint("/dev/disk", NodeSet([2]), names=("/dev/disk", "0000:81:00.0"), kind="b 259"),
            DeviceHint(
                "/dev/dri/card0", NodeSet([1]), names=("/dev/dri/card0", "0000:41:00.0"), kind="c 226"
            ),
        )

    def test_the_container_of_a_gpu_may_use_the_gpus_memory(self, look, tree):
        tree.files["proc/driver/nvidia/gpus/0000:41:00.0/information"] = INFORMATION
        tree.files["proc/driver/nvidia/gpus/0000:41:00.0/numa_status"] = "Node:      3\nStatus:    online\n"
        tree.files["sys/devices/system/node/node3/cpulist"] = "\n"
        root = look.root()
        hints = HostDevices(root).find(container(devices=(DeviceNode("/dev/nvidia3", CHAR, 195, 3),))).hints
        assert hints == (
            DeviceHint("/dev/nvidia3", NodeSet([1]), names=("/dev/nvidia3", "0000:41:00.0"), kind="c 195"),
        )
        request = Request("c", "p", "c", QosClass.BEST_EFFORT, QosSource.INFERRED, Interval(0, 0, ""))
        hardware = read_machine(root)
        assert hardware.ordinary_nodes == NodeSet([0, 1, 2])
        assert device_nodes(hardware, replace(request, hints=hints)) == NodeSet([3])
        assert device_nodes(hardware, request) == NodeSet()

    def test_what_fails_is_a_problem_and_the_others_count(self, look, tree):
        tree.files[f"sys/devices/{GPU}/numa_node"] = "x\n"
        devices = (DeviceNode("/dev/gpu", CHAR, 226, 0), DeviceNode("/dev/disk", BLOCK, 259, 0))
        found = HostDevices(look.root()).find(container(devices=devices))
        assert [hint.device for hint in found.hints] == ["/dev/disk"]
        assert len(found.problems) == 1
        assert found.problems[0].startswith("/dev/gpu: ")


class TestMounts:
    @pytest.fixture
    def dev(self, look, tree):
        """/dev with nodes that stand for a GPU (1:3, which is null's) and a disk (1:5, zero's)."""
        tree.links["sys/dev/char/1:3"] = f"sys/devices/{GPU}/drm/card0"
        tree.links["sys/dev/char/1:5"] = f"sys/devices/{NVME}"
        root = look.root()
        (root / "dev/dri/by-path").mkdir(parents=True)
        (root / "dev/dri/card0").symlink_to("/dev/null")
        (root / "dev/empty").mkdir()
        (root / "dev/disk").symlink_to("/dev/zero")
        (root / "dev/plain").write_text("")
        return lambda *sources: nodes_of(
            HostDevices(root).find(container(device_mounts=tuple(map(Mount, sources))))
        )

    def test_a_device_node_and_a_directory_of_some(self, dev):
        assert dev("/dev/disk") == {"/dev/disk": "2"}
        assert dev("/dev/dri/") == {"/dev/dri/": "1"}
        assert dev("/dev/dri/../disk") == {"/dev/dri/../disk": "2"}

    def test_a_directory_of_devices_on_several_nodes_is_one_device(self, dev, tmp_path):
        (tmp_path / "dev/dri/card1").symlink_to("/dev/zero")
        assert dev("/dev/dri") == {"/dev/dri": "1-2"}
        (hint,) = HostDevices(tmp_path).find(container(device_mounts=(Mount("/dev/dri"),))).hints
        assert hint.names == ("/dev/dri", "0000:41:00.0", "0000:81:00.0")

    def test_nothing_else_below_dev_says_anything(self, dev):
        assert dev("/dev", "/dev/", "/dev/empty", "/dev/plain", "/dev/plain/x", "/dev/missing") == {}

    def test_another_file_system_below_dev_is_not_looked_into(self, dev, tmp_path):
        (tmp_path / "dev/shm").symlink_to("/dev")
        assert Path("/dev").stat().st_dev != tmp_path.stat().st_dev
        assert dev("/dev/shm") == {}

    def test_directories_of_sysfs(self, dev):
        assert dev("/sys/bus/pci/devices/0000:c1:00.0") == {"/sys/bus/pci/devices/0000:c1:00.0": "3"}
        assert dev(f"/sys/devices/{GPU}/drm/card0") == {f"/sys/devices/{GPU}/drm/card0": "1"}
        assert dev("/sys/", "/sys/bus/pci", "/sys/devices", "/sys/devices/system/node/node1", "/sys/x") == {}


class TestCdi:
    @pytest.fixture
    def specs(self, look, tree):
        tree.links["sys/dev/char/1:3"] = f"sys/devices/{NIC}"
        root = look.root()
        nodes = [{"path": "/dev/gpu0", "type": "c", "major": 226, "minor": 0}, {"path": "/dev/gpuctl"}]
        spec = {
            "cdiVersion": "0.6.0",
            "kind": "vendor.com/gpu",
            "devices": [{"name": "0", "containerEdits": {"deviceNodes": nodes, "env": ["A=B"]}}],
            "containerEdits": {"mounts": []},
        }
        write(root, "etc/cdi/vendor.json", json.dumps(spec))
        write(
            root,
            "var/run/cdi/nic.yaml",
            "cdiVersion: 0.5.0\nkind: vendor.com/nic\ndevices:\n- name: a\n  containerEdits:\n"
            "    deviceNodes:\n    - path: /dev/inside\n      hostPath: /dev/outside\n",
        )
        write(root, "dev/x", "")
        (root / "dev/outside").symlink_to("/dev/null")
        return HostDevices(root)

    def test_names_lead_to_device_nodes_by_numbers_or_by_path(self, specs):
        found = specs.find(container(cdi_devices=("vendor.com/gpu=0", "vendor.com/nic=a")))
        assert nodes_of(found) == {"vendor.com/gpu=0": "1", "vendor.com/nic=a": "3"}
        assert [hint.kind for hint in found.hints] == ["vendor.com/gpu", "vendor.com/nic"]

    def test_device_nodes_that_a_name_stands_for_are_not_counted_again(self, specs):
        found = specs.find(
            container(
                cdi_devices=("vendor.com/gpu=0",),
                devices=(DeviceNode("/dev/gpu0", CHAR, 226, 0), DeviceNode("/dev/disk", BLOCK, 259, 0)),
            )
        )
        assert nodes_of(found) == {"vendor.com/gpu=0": "1", "/dev/disk": "2"}

    def test_files_that_changed_appeared_or_went_are_noticed(self, specs, tmp_path):
        asked = container(cdi_devices=("vendor.com/gpu=0",))
        assert nodes_of(specs.find(asked)) == {"vendor.com/gpu=0": "1"}
        override = "kind: vendor.com/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n    - "
        write(tmp_path, "var/run/cdi/a.yaml", override + "{path: /d, type: b, major: 259, minor: 0}\n")
        assert nodes_of(specs.find(asked)) == {"vendor.com/gpu=0": "2"}
        write(tmp_path, "var/run/cdi/a.yaml", override + "{path: /d, type: b, major: 259, minor: 99}\n")
        assert nodes_of(specs.find(asked)) == {}
        (tmp_path / "var/run/cdi/a.yaml").unlink()
        (tmp_path / "etc/cdi/vendor.json").unlink()
        assert specs.find(asked).hints == ()

    @pytest.mark.parametrize(
        ("written", "name"),
        [("0", "0"), ("'0'", "0"), ("1.0", "1"), ("0.5", "0.5"), ("on", "true"), ("gpu-0", "gpu-0")],
    )
    @pytest.mark.parametrize("file", ["a.yaml", "a.json"])
    def test_a_spec_is_read_as_cdi_clients_read_it(self, specs, tmp_path, file, written, name):
        device = f"kind: a.b/c\ndevices:\n- name: {written}\n  containerEdits: {{deviceNodes: [{{path: /d, "
        others = "- name: empty\n  containerEdits:\n- name: bare\n"
        write(tmp_path, f"etc/cdi/{file}", f"{device}type: c, major: 226, minor: 0}}]}}\n{others}")
        names = f"a.b/c={name}", "a.b/c=empty", "a.b/c=bare"
        found = specs.find(container(cdi_devices=names))
        assert (nodes_of(found), found.problems) == ({f"a.b/c={name}": "1"}, ())

    def test_a_name_without_a_spec_is_a_problem_that_names_unreadable_files(self, specs, tmp_path):
        write(tmp_path, "etc/cdi/broken.yaml", "kind: [")
        write(tmp_path, "etc/cdi/odd.json", '{"kind": 7}')
        write(tmp_path, "etc/cdi/notes.txt", "kind: x")
        (problem,) = specs.find(container(cdi_devices=("vendor.com/gpu=9",))).problems
        assert problem.startswith("vendor.com/gpu=9: /etc/cdi and /var/run/cdi: ")
        assert "broken.yaml" in problem
        assert "odd.json" in problem
        assert "notes.txt" not in problem

    def test_no_directories_at_all(self, tmp_path):
        (problem,) = HostDevices(tmp_path).find(container(cdi_devices=("a.b/c=d",))).problems
        assert problem.startswith("a.b/c=d: ")


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
