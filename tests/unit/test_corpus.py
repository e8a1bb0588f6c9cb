"""Every input of tests/data/corpus: what is good is taken, what is bad is refused by one error for people."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.config.sources import File, read_document
from bayplan.config.values import InvalidValueError
from bayplan.errors import BayplanError
from bayplan.nri.wire.connection import UndecodableError, request_from
from bayplan.oci.documents import parse_resources, parse_spec, parse_state
from bayplan.simulate.machine_file import described_machine, parse_document

CORPUS = Path(__file__).parents[1] / "data" / "corpus"
READERS: dict[str, Callable[[Path], object]] = {
    "configuration": lambda path: read_document(File(path)),
    "machine": lambda path: described_machine(parse_document(path.read_text(), path.suffix)),
    "nri-request": lambda path: request_from(1, bytearray(path.read_bytes())),
    "oci-resources": lambda path: parse_resources(path.read_bytes()),
    "oci-spec": lambda path: parse_spec(path.read_bytes(), "config.json"),
    "oci-state": lambda path: parse_state(path.read_bytes()),
}
REFUSALS = (BayplanError, InvalidValueError, UndecodableError)
FILES = sorted(path for path in CORPUS.glob("*/*/*") if path.is_file())


def test_every_reader_has_good_and_bad_inputs_and_every_input_a_reader() -> None:
    there = {path.relative_to(CORPUS).parts[:2] for path in FILES}
    assert there == {(reader, verdict) for reader in READERS for verdict in ("good", "bad")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_an_input_is_taken_or_refused(path: Path) -> None:
    reader, verdict, _ = path.relative_to(CORPUS).parts
    if verdict == "good":
        assert READERS[reader](path) is not None
        return
    with pytest.raises(REFUSALS) as refused:
        READERS[reader](path)
    said = str(refused.value)
    assert said
    assert len(said) < 2000
    assert said.isprintable() or "\n" in said
