"""The programs of docs/placement-file.md read files as they are made, and the page shows such a file."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bayplan.host.placement_files import FILE, PlacementDirectory
from bayplan.placement.placement_file import body_of, document, with_generation
from bayplan.sets import CpuSet
from support.console_blocks import PROJECT, fenced
from support.placements import MACHINE, entry

PROGRAMS = {
    block.said: block.text for block in fenced(PROJECT / "docs/placement-file.md") if block.word == "file"
}
SHARED = CpuSet([0, 1])
PLAIN = "cpus 2-3,6, nodes 2\n"


@pytest.fixture
def directory(tmp_path: Path) -> PlacementDirectory:
    """Where the file of the container ``c`` is, and the page's programs beside."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    found = PlacementDirectory(tmp_path / "placements")
    found.write("c", with_generation(body_of(MACHINE, SHARED, entry()), 3))
    return found


def output(directory: PlacementDirectory, *command: str) -> str:
    """What a program prints that is started beside its source."""
    file = f"{directory.source('c')}/{FILE}"
    beside = Path(directory.source("c")).parents[1]
    done = subprocess.run([*command, file], cwd=beside, check=True, capture_output=True, text=True)
    return done.stdout


def needs(program: str) -> pytest.MarkDecorator:
    """For what this machine may lack."""
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} here")


def test_shell_and_python_read_it(directory: PlacementDirectory) -> None:
    assert output(directory, "sh", "cpus.sh") == PLAIN
    assert output(directory, "python3", "cpus.py") == "node 2: cpus [2, 3, 6]\n"
    assert output(directory, "sh", "eal.sh") == "dpdk-testpmd -l 2-3,6 --no-pci -- --auto-start\n"


@needs("jq")
def test_jq_reads_it(directory: PlacementDirectory) -> None:
    assert output(directory, "sh", "bound.sh") == "numactl -C 2-3,6 -m 2 server\n"


@needs("java")
def test_java_reads_it(directory: PlacementDirectory) -> None:
    assert output(directory, "java", "-XX:TieredStopAtLevel=1", "Cpus.java") == PLAIN


@pytest.mark.matrix
@needs("go")
def test_go_reads_it(directory: PlacementDirectory) -> None:
    cpus = "".join(f"cpu{cpu} is on node 2\n" for cpu in (2, 3, 6))
    assert output(directory, "go", "run", "cpus.go") == PLAIN + cpus


@needs("inotifywait")
def test_a_shell_follows_it(directory: PlacementDirectory) -> None:
    """It is written until the one that watches has begun to, and says so."""
    source = Path(directory.source("c"))
    with subprocess.Popen(
        ["sh", "follow.sh", str(source / FILE)],
        cwd=source.parents[1], stdout=subprocess.PIPE, start_new_session=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        os.set_blocking(program.stdout.fileno(), False)
        generation, seen = 3, b""
        while not seen.endswith(b"\n"):
            generation += 1
            directory.write("c", with_generation(body_of(MACHINE, SHARED, entry()), generation))
            seen += program.stdout.read() or b""
        os.killpg(program.pid, 15)
    assert 3 < int(seen.split()[1]) <= generation


def test_the_page_shows_a_file_as_it_is_made() -> None:
    shown, made = json.loads(PROGRAMS["placement.json"]), document(MACHINE, SHARED, entry())

    def shape(value: object) -> object:
        if isinstance(value, dict):
            return {key: shape(one) for key, one in value.items()}
        if isinstance(value, list):
            return [shape(one) for one in value[:1]]
        return type(value)

    assert shape(shown) == shape(made)
    indented = json.dumps(shown, indent=1) + "\n"
    assert PROGRAMS["placement.json"] == indented
    made["metadata"]["generation"] = 0
    assert body_of(MACHINE, SHARED, entry()).decode() == json.dumps(made, indent=1) + "\n"
