"""Every input of tests/data/corpus: what is good is taken, what is bad is refused by one error for people,
and what is nobody's form is taken or refused by every reader.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bayplan.agent.kubelet_pods import pods_of_json
from bayplan.agent_protocol import decode_from_agent, decode_from_daemon
from bayplan.config.sources import File, read_document
from bayplan.config.values import InvalidValueError
from bayplan.engines.kubelet import cpu_checkpoint, memory_checkpoint
from bayplan.errors import BayplanError
from bayplan.files import given_text
from bayplan.host.devices import CdiSpecs
from bayplan.nri.wire.connection import UndecodableError, request_from
from bayplan.oci.documents import parse_resources, parse_spec, parse_state
from bayplan.oci.protocol import parse_header
from bayplan.recording.replay import read_recording
from bayplan.simulate.machine_file import described_machine, parse_document
from bayplan.simulate.pod_trace import read_pod_trace
from bayplan.simulate.topology_sources import read_topology
from bayplan.simulate.trace_file import read_trace
from bayplan.state.record import decode_entry
from support.machines import machine

CORPUS = Path(__file__).parents[1] / "data" / "corpus"
MACHINE = machine(2, cpus_per_node=8)


def text(path: Path) -> str:
    """As the command line reads what it is given."""
    return given_text(path, "a text")


def memory_state(path: Path) -> object:
    """As the engine `kubelet` reads it at its start."""
    checkpoint = memory_checkpoint.read_checkpoint(text(path), path.name, pod_level_managers=True)
    return memory_checkpoint.state_of(checkpoint)


def cpu_state(path: Path) -> object:
    """As the engine `kubelet` reads it at its start."""
    checkpoint = cpu_checkpoint.read_checkpoint(text(path), {}, pod_level_managers=True)
    return cpu_checkpoint.state_of(checkpoint)


def cdi_device(path: Path) -> object:
    """As a container's device is looked for that a CDI spec names."""
    with TemporaryDirectory() as root:
        spec = Path(root, "etc/cdi/spec").with_suffix(path.suffix or ".json")
        spec.parent.mkdir(parents=True)
        spec.write_bytes(path.read_bytes())
        return CdiSpecs(root).device_nodes("vendor.com/device=0")


READERS: dict[str, Callable[[Path], object]] = {
    "agent-message": lambda path: decode_from_agent(path.read_bytes()),
    "cdi-spec": cdi_device,
    "configuration": lambda path: read_document(File(path)),
    "daemon-message": lambda path: decode_from_daemon(path.read_bytes()),
    "kubelet-cpu-state": cpu_state,
    "kubelet-memory-state": memory_state,
    "kubelet-pods": lambda path: pods_of_json(path.read_bytes()),
    "machine": lambda path: described_machine(parse_document(text(path), path.suffix)),
    "nri-request": lambda path: request_from(1, bytearray(path.read_bytes())),
    "oci-request": lambda path: parse_header(path.read_bytes()),
    "oci-resources": lambda path: parse_resources(path.read_bytes()),
    "oci-spec": lambda path: parse_spec(path.read_bytes(), "config.json"),
    "oci-state": lambda path: parse_state(path.read_bytes()),
    "pod-trace": read_pod_trace,
    "record": lambda path: decode_entry(path.read_bytes()),
    "recording": read_recording,
    "topology": read_topology,
    "trace": lambda path: read_trace(path, MACHINE),
}
REFUSALS = (BayplanError, InvalidValueError, UndecodableError)
FILES = sorted(path for path in CORPUS.glob("*/*/*") if path.is_file())
ANYBODYS = sorted(CORPUS.glob("any/*"))


def check_refusal(error: BaseException) -> None:
    """It is a sentence or a few that can be printed."""
    said = str(error)
    assert said
    assert len(said) < 2000
    assert said.isprintable() or "\n" in said


def test_every_reader_has_good_and_bad_inputs_and_every_input_a_reader() -> None:
    there = {path.relative_to(CORPUS).parts[:2] for path in FILES}
    assert there == {(reader, verdict) for reader in READERS for verdict in ("good", "bad")}
    assert ANYBODYS


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_an_input_is_taken_or_refused(path: Path) -> None:
    reader, verdict, _ = path.relative_to(CORPUS).parts
    if verdict == "good":
        assert READERS[reader](path) is not None
        return
    with pytest.raises(REFUSALS) as refused:
        READERS[reader](path)
    check_refusal(refused.value)


@pytest.mark.parametrize("path", ANYBODYS, ids=lambda path: path.name)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_is_ended_by_what_nobody_meant_for_it(reader: str, path: Path, tmp_path: Path) -> None:
    """Under each suffix that readers go by."""
    for suffix in (".json", ".yaml", ".toml", ""):
        given = tmp_path / f"input{suffix}"
        given.write_bytes(path.read_bytes())
        try:
            READERS[reader](given)
        except REFUSALS as error:
            check_refusal(error)
