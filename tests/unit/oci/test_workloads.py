"""What a spec says about devices and networks; the same values as over NRI."""

import json

import pytest

from bayplan.model.workload import DeviceNode, DeviceType, Mount
from bayplan.oci.documents import Spec, parse_spec
from bayplan.oci.workloads import container_from, pod_from


def spec(linux: dict | None = None, **fields) -> Spec:
    return parse_spec(json.dumps({"linux": linux or {}, **fields}).encode(), "config.json")


def test_devices_mounts_and_cdi_names():
    found = container_from(
        spec(
            {
                "devices": [
                    {"path": "/dev/vdb", "type": "b", "major": 254, "minor": 16, "fileMode": 432},
                    {"path": "/run/fifo", "type": "p"},
                ]
            },
            mounts=[
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/gpu", "type": "bind", "source": "/dev/dri", "options": ["rbind"]},
                {"destination": "/data", "type": "bind", "source": "/srv"},
                {"destination": "/tmp"},
            ],
            annotations={"cdi.k8s.io/x": "vendor.com/gpu=0"},
        ),
        "c",
    )
    assert found.devices == (DeviceNode("/dev/vdb", DeviceType.BLOCK, 254, 16),)
    assert found.device_mounts == (Mount("/dev/dri"),)
    assert found.cdi_devices == ("vendor.com/gpu=0",)


def test_a_privileged_container_shows_no_devices():
    rules = [{"allow": False, "access": "rwm"}, {"allow": True, "access": "rwm"}]
    devices = [{"path": "/dev/vdb", "type": "b", "major": 254, "minor": 16}]
    found = container_from(spec({"devices": devices, "resources": {"devices": rules}}), "c")
    assert found.devices == ()


@pytest.mark.parametrize(
    ("namespaces", "path"),
    [
        ([{"type": "network", "path": "/run/netns/n"}], "/run/netns/n"),
        ([{"type": "network"}], ""),
        ([{"type": "ipc", "path": "/x"}], ""),
        (None, ""),
    ],
)
def test_the_network_namespace(namespaces, path):
    assert pod_from(spec({"namespaces": namespaces}), "c", {}).network_namespace == path
