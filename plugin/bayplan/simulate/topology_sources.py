"""A machine from wherever people have it: a description, lstopo's XML, outputs of numactl and lscpu, files of
sysfs as text, an unpacked tree. What each form does not say is assumed, and each assumption is a sentence.

A form is told by the content, so that names of files do not matter; only YAML, TOML and JSON are told from
each other by their suffix. Nothing of the machine that this runs on is read.
"""

import json
import re
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bayplan.admin_protocol import API_VERSION
from bayplan.config.values import InvalidValueError, invalid
from bayplan.errors import ConfigError, HostError, ParseError, Problem
from bayplan.files import STANDARD_INPUT, given_text
from bayplan.host.record import COMMENT, listed, listing_of, record, unpack
from bayplan.host.sysfs import read_machine
from bayplan.host.topology_files import SYSTEM
from bayplan.model.machine import Machine, in_first_nodes
from bayplan.printable import pattern
from bayplan.quantity import KIB
from bayplan.sets import CpuSet
from bayplan.simulate.lstopo_xml import is_lstopo, machine_of_lstopo
from bayplan.simulate.machine_file import described_machine, parse_document
from bayplan.simulate.tool_outputs import (
    ASSUMED_BYTES_PER_CPU,
    Imported,
    assumed_memory,
    is_tool_output,
    machine_of_outputs,
)

_DESCRIPTIONS: Final = (".toml", ".yaml", ".yml")
_JSON: Final = ".json"
_LINE: Final = pattern(r"[\s>]*(?:\./|/)?((?:sys|proc)/(?:[^:\s]|:(?=[0-9a-fA-F]{2}[:.]))*):(.*)")
"""A line of `grep -r`, or of a recording. Colons in a path are those of PCI addresses."""
_HEADED: Final = pattern(r"==> /?((?:sys|proc)/\S+) <==")
"""What head and tail print above each of several files."""
_ALIASES: Final = (
    (re.compile(r"sys/bus/(node|cpu)/devices/"), rf"{SYSTEM}/\1/"),
    (re.compile(rf"{SYSTEM}/node/node\d{{1,5}}/(cpu\d{{1,5}}/)"), rf"{SYSTEM}/cpu/\1"),
)
"""Links of sysfs that lead to the same files."""
_BEGUN: Final = pattern(r"[\s>]*/?(?:sys|proc)/[^:\s]*$")
"""Such a line that was cut off."""
_CPU: Final = pattern(rf"{SYSTEM}/cpu/cpu(\d{{1,5}})/")
_NODE: Final = pattern(rf"{SYSTEM}/node/node(\d{{1,5}})/(.*)")
_EXPECTED: Final = (
    "a machine in TOML, YAML or JSON, a recording, lstopo's XML, the output of numactl -H or lscpu -p, or of "
    'grep -rs "" /sys/devices/system'
)


def read_topology(path: Path) -> Machine:
    """The machine that *path* describes, in any form; the remarks of it have what was assumed. ``-`` is the
    standard input.

    Raises:
        ConfigError: the file cannot be read, or is wrong.
        HostError: a directory is no tree of a machine.
    """
    found, _ = import_topology(path)
    return found.machine


def recorded_topology(root: Path = Path("/")) -> dict[str, Any]:
    """The recording of the machine below *root*, ready for JSON.

    Raises:
        HostError: it can't be read.
    """
    return _view(record(root), ())


def converted_topology(paths: list[Path]) -> dict[str, Any]:
    """The recording of the machine that *paths* describe, several being parts of one text, ready for JSON.

    Raises:
        ConfigError, HostError: as `read_topology`.
    """
    if len(paths) == 1:
        found, listing = import_topology(paths[0])
    else:
        name = " ".join(map(str, paths))
        found, listing = _of_text(name, "\n".join(_content(path) for path in paths), "")
    return _view(listing or listing_of(found.machine), found.assumed)


def import_topology(path: Path) -> tuple[Imported, str]:
    """The machine at *path*, with what was assumed, and its recording where it is files of the kernel.

    Raises:
        ConfigError, HostError: as `read_topology`.
    """
    if path.is_dir():
        listing = record(path)
        files = _files(str(path), listing)
        assumed = _complete(files)
        if assumed:
            return _of_files(str(path), files, assumed, str(path))
        return Imported(read_machine(path), ()), listing
    return _of_text(str(path), _content(path), path.suffix)


def _view(listing: str, assumed: tuple[str, ...]) -> dict[str, Any]:
    comments = "".join(f"{COMMENT} assumed: {one}\n" for one in assumed)
    return {
        "apiVersion": API_VERSION,
        "kind": "Topology",
        "listing": comments + listing,
        "assumed": list(assumed),
    }


def _content(path: Path) -> str:
    return given_text(path, "a topology, or a directory with a sysfs tree")


def _of_text(name: str, content: str, suffix: str) -> tuple[Imported, str]:
    """The machine of a text; *suffix* counts only for descriptions."""
    try:
        if suffix in _DESCRIPTIONS:
            return _described(content, suffix)
        if is_lstopo(content):
            return _remarked(machine_of_lstopo(content)), ""
        if any(_LINE.fullmatch(line) or _HEADED.fullmatch(line) for line in content.splitlines()):
            return _of_listing(name, content)
        if (recording := _listing_in(content)) is not None:
            return _of_listing(name, recording)
        if is_tool_output(content):
            return _remarked(machine_of_outputs(content)), ""
        return _described(content, suffix if suffix == _JSON else _language(name, content))
    except InvalidValueError as wrong:
        raise ConfigError(name, wrong.problems) from wrong


def _described(content: str, suffix: str) -> tuple[Imported, str]:
    return Imported(described_machine(parse_document(content, suffix)), ()), ""


def _listing_in(content: str) -> str | None:
    """The listing in what `bayplan record-topology --json` prints."""
    if not content.lstrip().startswith("{") or '"listing"' not in content:
        return None
    try:
        listing = json.loads(content).get("listing")
    except (ValueError, RecursionError, AttributeError):
        return None
    return listing if isinstance(listing, str) else None


def _language(name: str, content: str) -> str:
    """The suffix of a description without one: on the standard input, or in a file of another name.

    Raises:
        InvalidValueError: it is no description.
    """
    try:
        tomllib.loads(content)
    except (ValueError, RecursionError):
        if "nodes" in content and re.search(r"^\W*nodes\W*:", content, re.MULTILINE):
            return ".yaml"
    else:
        if content.strip():
            return ".toml"
    if name == STANDARD_INPUT and content.strip():
        return ".yaml"
    raise invalid("the file", "none of the forms that a machine has", _EXPECTED)


def _remarked(found: Imported) -> Imported:
    """With what was assumed as remarks of the machine."""
    remarks = (*found.machine.remarks, *(f"assumed {one}" for one in found.assumed))
    return found._replace(machine=replace(found.machine, remarks=remarks))


def _of_listing(name: str, content: str) -> tuple[Imported, str]:
    """The machine of files of the kernel, a line each."""
    files = _files(name, content)
    return _of_files(name, files, _complete(files), "")


def _of_files(name: str, files: dict[str, list[str]], assumed: list[str], root: str) -> tuple[Imported, str]:
    """The machine of *files* that are complete, *assumed* being what was added; those of a tree are below
    *root*."""
    with tempfile.TemporaryDirectory(prefix="bayplan-") as directory:
        try:
            unpack(
                "".join(f"{listed(path)}:{line}\n" for path, lines in files.items() for line in lines),
                Path(directory),
            )
            found = Imported(read_machine(Path(directory)), tuple(assumed))
            return _remarked(found), record(Path(directory))
        except ParseError as error:
            problem = Problem("the file", str(error).replace(directory, root), _EXPECTED)
            raise ConfigError(name, (problem,)) from error
        except HostError as error:
            if root:
                where = error.subject.replace(directory, root.rstrip("/"), 1)
                raise HostError(where, error.problem) from error
            path = error.subject.replace(directory, "", 1)
            problem = Problem(path, error.problem, "the files that decide, whole, as the kernel has them")
            raise ConfigError(name, (problem,)) from error


def _files(name: str, content: str) -> dict[str, list[str]]:
    """The lines of each file. What is around them (prompts, errors of grep) is passed over; a line that was
    cut off is not."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    headed = ""
    for line in content.splitlines():
        if (head := _HEADED.fullmatch(line)) or (headed and not line):
            headed = head[1] if head else ""
            continue
        match = _LINE.fullmatch(line.replace("%3A", ":") if "%3A" in line.partition(":")[0] else line)
        if match is not None and ".." not in match[1].split("/"):
            files[_named(match[1])].append(match[2])
        elif headed and ".." not in headed.split("/"):
            files[_named(headed)].append(line)
        elif match is not None or _BEGUN.fullmatch(line):
            problem = Problem("the file", repr(line), "lines of files below sys and proc, path:text")
            raise ConfigError(name, (problem,))
    return dict(files)


def _named(path: str) -> str:
    """*path* as the kernel has it first."""
    for alias, first in _ALIASES:
        path = alias.sub(first, path, count=1)
    return path


def _complete(files: dict[str, list[str]]) -> list[str]:
    """Add to *files* what people's ways of copying them leave out, and say what: files that are empty
    (`grep .` passes over them), and memory (lscpu needs none)."""
    assumed = []
    nodes: defaultdict[int, set[str]] = defaultdict(set)
    for path in files:
        if match := _NODE.fullmatch(path):
            nodes[int(match[1])].add(match[2])
    lists = {"cpulist", "cpumap"}
    empty = [node for node, names in nodes.items() if names.isdisjoint(lists)]
    if len(empty) < len(nodes):
        for node in empty:
            files[f"{SYSTEM}/node/node{node}/cpulist"] = [""]
            assumed.append(f"that node {node} has no CPUs, as its list of them is missing")
    assumed += _assume_cpus(files, nodes)
    if "proc/meminfo" not in files and not any("meminfo" in names for names in nodes.values()):
        assumed += _assume_memory(files, nodes)
    return assumed


def _assume_cpus(files: dict[str, list[str]], nodes: Iterable[int]) -> list[str]:
    """Where there are files of nodes alone: the CPUs that they list, of which nothing else is known."""
    cpus_of = in_first_nodes({node: _listed(files, node) for node in nodes})
    listed = CpuSet(cpu for cpus in cpus_of.values() for cpu in cpus)
    if not listed or any(map(_CPU.match, files)):
        return []
    files.setdefault(f"{SYSTEM}/cpu/online", [str(listed)])
    for node, cpus in cpus_of.items():
        for cpu in cpus:
            files[f"{SYSTEM}/cpu/cpu{cpu}/topology/physical_package_id"] = [str(node)]
    return ["a core for each CPU, and a socket for each node with CPUs, as there are no files of CPUs"]


def _assume_memory(files: dict[str, list[str]], nodes: dict[int, set[str]]) -> list[str]:
    present = {int(match[1]) for path in files if (match := _CPU.match(path))}
    if not present:
        return []
    for node in nodes:
        own = _listed(files, node)
        files[f"{SYSTEM}/node/node{node}/meminfo"] = [f"Node {node} MemTotal: {_kib(len(own))} kB"]
    files["proc/meminfo"] = [f"MemTotal: {_kib(len(present))} kB"]
    return [assumed_memory()]


def _listed(files: dict[str, list[str]], node: int) -> CpuSet:
    """The CPUs of a node's list, or of its mask where there is none; none where they are garbled, which is
    found when they are read as such."""
    directory = f"{SYSTEM}/node/node{node}"
    text = "".join(files.get(f"{directory}/cpulist", [])).partition("\0")[0]
    mask = "".join(files.get(f"{directory}/cpumap", [])).partition("\0")[0]
    try:
        return CpuSet.parse(text) if text.strip() or not mask else CpuSet.parse_mask(mask)
    except ParseError:
        return CpuSet()


def _kib(cpus: int) -> int:
    return cpus * ASSUMED_BYTES_PER_CPU // KIB
