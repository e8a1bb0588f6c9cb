"""Interrupts follow the ledger: away from the CPUs of those that ask for it, and as others chose else."""

import asyncio
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from bayplan.control.cpusets import IrqsAway
from bayplan.control.threads import Recurring
from bayplan.host.irq_affinity import RECORD, IrqAffinity
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, Outcome, Placement
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.model.workload import Container
from bayplan.sets import CpuSet
from support.controllers import here
from support.coroutines import PATIENCE_S
from support.machines import container, machine, pod

MACHINE = machine(2)


class Node:
    """Two interrupts, a state directory, and a ledger."""

    def __init__(self, root: Path) -> None:
        self.root, self.ledger = root, Ledger()
        for irq in ("4", "9"):
            (root / "proc/irq" / irq).mkdir(parents=True)
            self.set(irq, "0-7")
        self.away = IrqsAway(IrqAffinity(root, root), here, self.basis)

    def basis(self) -> Basis:
        return Basis(MACHINE, PlacementPolicy(), self.ledger)

    def set(self, irq: str, cpus: str) -> None:
        (self.root / "proc/irq" / irq / "smp_affinity_list").write_text(f"{cpus}\n")

    def shown(self) -> list[str]:
        return [
            (self.root / "proc/irq" / irq / "smp_affinity_list").read_text().strip() for irq in ("4", "9")
        ]

    def place(self, name: str, cpus: list[int], *, away: bool) -> None:
        asked = pod(name)
        one: Container = container(name, asked)
        request = replace(derive_request(asked, one, MACHINE), irqs_away=away)
        decision = Decision(request, Outcome.PLACED, Placement(exclusive_cpus=CpuSet(cpus)))
        self.ledger = self.ledger.with_entry(Entry(decision))


async def test_they_leave_for_as_long_as_somebody_asks(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.place("plain", [1], away=False)
    await node.away.update()
    assert node.shown() == ["0-7", "0-7"]
    node.place("quiet", [2, 3], away=True)
    node.place("other", [6], away=True)
    await node.away.update()
    assert node.shown() == ["0-1,4-5,7", "0-1,4-5,7"]
    node.ledger = node.ledger.without("quiet")
    await node.away.update()
    assert node.shown() == ["0-5,7", "0-5,7"]
    # The next daemon goes on with it.
    node.away = IrqsAway(IrqAffinity(tmp_path, tmp_path), here, node.basis)
    node.ledger = Ledger()
    await node.away.update()
    assert node.shown() == ["0-7", "0-7"]
    assert node.away.sentences() == []


async def test_a_change_is_followed_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    recurring = Recurring(node.away.update, 600)
    following = asyncio.create_task(recurring.follow())
    await asyncio.sleep(0)
    node.place("quiet", [2, 3], away=True)
    recurring.make_due()
    async with asyncio.timeout(PATIENCE_S):
        while node.shown() != ["0-1,4-7", "0-1,4-7"]:  # noqa: ASYNC110 - files tell nobody that they change
            await asyncio.sleep(0.01)
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following


async def test_what_stays_is_told(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.place("quiet", [2], away=True)
    (tmp_path / RECORD).mkdir()
    await node.away.update()
    assert (node.shown(), len(node.away.sentences())) == (["0-7", "0-7"], 1)
    (tmp_path / RECORD).rmdir()
    await node.away.update()
    assert (node.shown(), node.away.sentences()) == (["0-1,3-7", "0-1,3-7"], [])


async def test_an_interrupt_that_the_kernel_does_not_move_is_told_with_its_cpus(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.place("quiet", [2, 3], away=True)
    file = tmp_path / "proc/irq/9/smp_affinity_list"
    file.unlink()
    file.mkdir()  # It can neither be read nor written.
    (file.parent / "effective_affinity_list").write_text("3\n")
    await node.away.update()
    (sentence,) = node.away.sentences()
    assert ("9" in sentence, "CPU 3" in sentence) == (True, True)
    assert [(one.irq, one.cpus) for one in node.away.staying] == [(9, CpuSet([3]))]
