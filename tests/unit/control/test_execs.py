"""What the wrapper finds of processes that enter containers later follows the ledger."""

from pathlib import Path

from msgspec.structs import replace

from bayplan.control.container_files import Execs
from bayplan.daemon.shadow import ShadowExecs
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, ExecCpus, Outcome, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.sets import CpuSet
from support.controllers import here
from support.machines import container, machine, pod

MACHINE = machine(2)


def entry(name: str, cpus: list[int], wish: ExecCpus | None) -> Entry:
    asked = pod(name)
    request = replace(derive_request(asked, container(name, asked), MACHINE), exec_cpus=wish)
    return Entry(Decision(request, Outcome.PLACED, Placement(exclusive_cpus=CpuSet(cpus))))


class Node:
    """The directory beside the socket, and a ledger."""

    def __init__(self, root: Path) -> None:
        self.socket, self.ledger = root / "oci.sock", Ledger()
        self.execs = self.started()

    def started(self) -> Execs:
        return Execs(self.socket, here, self.basis)

    def basis(self) -> Basis:
        return Basis(MACHINE, PlacementPolicy(), self.ledger)

    def files(self) -> dict[str, str]:
        found = sorted(self.socket.with_name("oci.sock.execs").glob("*"))
        return {path.name: path.read_text().strip() for path in found}


async def test_they_follow_the_ledger(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.execs.update()
    assert node.files() == {}
    for one in (entry("first", [2, 3], ExecCpus.FIRST), entry("plain", [4], None)):
        node.ledger = node.ledger.with_entry(one)
    await node.execs.update()
    assert node.files() == {"first": "0-2,4-7"}
    node.ledger = node.ledger.with_entry(entry("first", [5, 6], ExecCpus.FIRST))
    await ShadowExecs(node.socket, here, node.basis).update()
    assert node.files() == {"first": "0-2,4-7"}
    await node.execs.update()
    assert node.files() == {"first": "0-5,7"}
    # Whoever comes after a daemon that was killed forgets those that ended meanwhile.
    node.ledger = Ledger()
    await node.started().update()
    assert node.files() == {}


async def test_a_directory_that_cannot_be_made_is_tried_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ledger = node.ledger.with_entry(entry("first", [2, 3], ExecCpus.FIRST))
    place = tmp_path / "oci.sock.execs"
    place.write_text("")
    await node.execs.update()
    place.unlink()
    await node.execs.update()
    assert node.files() == {"first": "0-2,4-7"}
