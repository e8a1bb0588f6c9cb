"""Our .proto files: the NRI messages against those of the Go module, the code against its source."""

import subprocess
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from bayplan._proto.nri import api_pb2

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]


def facts(file: descriptor_pb2.FileDescriptorProto) -> set[tuple]:
    """Everything about a file that is visible on the wire or in code, and nothing else."""
    found: set[tuple] = set()

    def add_enum(enum: descriptor_pb2.EnumDescriptorProto, prefix: str) -> None:
        found.update(("enum", prefix + enum.name, value.name, value.number) for value in enum.value)

    def add_message(message: descriptor_pb2.DescriptorProto, prefix: str) -> None:
        name = prefix + message.name
        found.add(("message", name, message.options.map_entry))
        found.update(
            ("field", name, field.name, field.number, field.type, field.label, field.type_name)
            for field in message.field
        )
        for nested in message.nested_type:
            add_message(nested, name + ".")
        for enum in message.enum_type:
            add_enum(enum, name + ".")

    for message in file.message_type:
        add_message(message, "")
    for enum in file.enum_type:
        add_enum(enum, "")
    for service in file.service:
        found.update(
            ("method", service.name, method.name, method.input_type, method.output_type)
            for method in service.method
        )
    return found


@pytest.fixture
def theirs(adaptation):
    described = subprocess.run([adaptation, "-describe"], capture_output=True, check=True)
    return descriptor_pb2.FileDescriptorProto.FromString(described.stdout)


@pytest.fixture
def ours():
    file = descriptor_pb2.FileDescriptorProto()
    api_pb2.DESCRIPTOR.CopyToProto(file)
    return file


def test_we_know_what_every_version_knows(ours, theirs, nri_version):
    assert ours.package == theirs.package
    moved = {("enum", "Event", "LAST", 12)}  # one past the last event, and there are more now
    assert facts(theirs) - facts(ours) <= moved


def test_we_know_nothing_that_the_newest_version_does_not_know(ours, theirs, nri_version, newest):
    if nri_version == newest:
        assert facts(ours) == facts(theirs)
    else:
        assert len(facts(ours)) > len(facts(theirs))


def test_the_generated_code_is_that_of_its_source():
    check = subprocess.run(
        [ROOT / "proto" / "generate.sh", "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr
