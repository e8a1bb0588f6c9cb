"""Shadow mode, whatever happens on the node: no file of the kernel changes, every answer is empty, and the
promises that would have been made hold among each other."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.host.shadow_mode import NOTHING_APPLIED, shadow_mode
from bayplan.nri.translate import Operation
from bayplan.nri.wire import Code, TtrpcResponse
from bayplan.oci.protocol import Answer, Status
from support.interleaving.schedule import play
from support.interleaving.simulated_host import InvariantError, SimulatedHost

BATCH = 20
ANSWERED = Answer(Status.OK)


class ShadowHost(SimulatedHost):
    """Remembers each file of the kernel as kernel and runtime left it, and compares."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.answers = 0
        self.told: list[object] = []
        """What the daemon said to a runtime."""
        self._untouched: dict[str, dict[str, bytes]] = {}

    def _ask(self, operation: Operation, answered: Callable[[TtrpcResponse | None], None]) -> None:
        def noted(response: TtrpcResponse | None) -> None:
            if response is not None:
                self.answers += 1
                if response.code is not Code.OK or response.payload:
                    self.told.append((operation.event, response))
            answered(response)

        super()._ask(operation, noted)

    async def hook(self, resources: dict[str, object]) -> Answer:
        answer = await super().hook(resources)
        if answer != ANSWERED:
            self.told.append(answer)
        return answer

    def step(self, name: str) -> None:
        super().step(name)
        self.compare()

    def compare(self) -> None:
        """Nothing was said, and nothing changed."""
        if self.told:
            raise InvariantError(f"shadow mode said {self.told}")
        created = {key for key, one in self.runtime.containers.items() if not one.has_process}
        for container_id in self.alive - created:
            path = self.path(container_id)
            files = {one.name: one.read_bytes() for one in self.kernel.directory(path).iterdir()}
            for pid in files["cgroup.procs"].decode().split():
                files[pid] = (self.kernel.root / "proc" / pid / "oom_score_adj").read_bytes()
            config = self.kernel.bundle(container_id) / "config.json"
            if config.exists():
                files[config.name] = config.read_bytes()
            pristine = self._untouched.setdefault(container_id, files)
            if files != pristine:
                raise InvariantError(f"{container_id} has {files}, and the runtime left {pristine}")
            if (files["cpuset.cpus"], files["cpuset.mems"]) != (b"0-7", b"0-1"):
                raise InvariantError(f"{container_id} was made with {files}")

    def check_agreement(self) -> None:
        """Who would not be refused is recorded, and nobody else. A container of the hook that could not be
        decided about starts all the same, as with the hook's own --on-failure=allow."""
        self.check()
        self.compare()
        ledger, refused = self.daemon.controller.state.ledger, self.daemon.controller.state.lives.refused
        recorded = ledger.entries.keys()
        if (
            recorded & refused
            or recorded - self.alive
            or self.alive - recorded - refused - self.hooked.keys()
        ):
            raise InvariantError(f"ledger {sorted(recorded)}, alive {self.alive}, refused {refused}")
        if self.disk.entries.keys() - {one.container_id for one in ledger.retained.values()} != set(
            ledger.entries
        ):
            raise InvariantError(f"disk {sorted(self.disk.entries)}, ledger {sorted(ledger.entries)}")
        if self.runtime.refused:
            raise InvariantError(f"{self.runtime.refused} were refused")


@pytest.mark.parametrize("first", range(0, 60, BATCH))
def test_nothing_is_changed_whatever_happens(first: int, caplog: pytest.LogCaptureFixture) -> None:
    hosts: list[ShadowHost] = []

    def made(directory: Path) -> ShadowHost:
        hosts.append(ShadowHost(directory))
        return hosts[-1]

    with shadow_mode():
        for seed in range(first, first + BATCH):
            assert play(seed, made)
    # Nobody even tried.
    assert not [one for one in caplog.records if NOTHING_APPLIED in str(vars(one))]
    assert sum(one.answers for one in hosts) > 10 * BATCH
    refusals = [one for one in caplog.records if "would be refused" in one.getMessage()]
    assert refusals


def test_the_same_schedules_change_files_without_shadow_mode() -> None:
    """What the test above looks at is where changes land."""
    with pytest.raises(InvariantError, match=r"shadow mode said|and the runtime left|was made with"):
        play(0, ShadowHost)
