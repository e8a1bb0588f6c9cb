"""Placement files by Kubernetes' own reader of device metadata (KEP-5304), which validates them."""

import json
import subprocess
from pathlib import Path

import pytest
from testbed.errors import TestBedError
from testbed.gobuild import compiled

from bayplan.placement.placement_file import body_of, with_generation
from bayplan.sets import CpuSet
from support.placements import MACHINE, entry

pytestmark = pytest.mark.interop

TYPE = {"apiVersion": "metadata.resource.k8s.io/{}", "kind": "DeviceMetadata"}


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_kubernetes_reads_and_validates_the_devices_of_a_placement_file(version: str) -> None:
    try:
        program = compiled(Path(__file__).parent / "allocator", "metadata", package="./metadata")
    except TestBedError as error:
        pytest.fail(str(error), pytrace=False)
    written = json.loads(with_generation(body_of(MACHINE, CpuSet([0, 1]), entry()), 3))
    # It takes no other types than its own.
    theirs = {**written, **{key: text.format(version) for key, text in TYPE.items()}}
    read = subprocess.run([program], input=json.dumps(theirs), capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
    assert json.loads(read.stdout) == {
        request["name"]: {device["name"]: device["attributes"] for device in request["devices"]}
        for request in written["requests"]
    }
