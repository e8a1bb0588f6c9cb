"""Containers are given back by the running daemon, or by its state directory; again, if somebody died in
between."""

from pathlib import Path

import pytest

from bayplan.admin.release import KernelSettings, release_recorded, releasing
from bayplan.cli.bayplan import main
from bayplan.errors import ConfigError, UnavailableError
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, Layout
from bayplan.host.memory_statistics import FRACTION
from bayplan.host.reclaim import SYSCTL, CpuListLimit
from bayplan.model.decision import QosClass
from bayplan.model.policy import PlacementPolicy
from bayplan.model.resources import Resources
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from bayplan.state import Store
from bayplan.state.directory import DirectoryLock
from support.controllers import Controlled, controlled, here
from support.machines import container, pod
from support.snapshots import make_snapshot

FIRST, SECOND, FREE = "a" * 64, "b" * 64, "c" * 64
OWNER, OTHERS = pod("g", QosClass.GUARANTEED), pod("b", QosClass.BEST_EFFORT)
OPTED_OUT = pod("free", QosClass.BEST_EFFORT, {"bayplan.dev/opt-out": "true"})
POSSIBLE = {"cpu": "0-7\n", "node": "0-3\n"}
FILES = {"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n", "cgroup.procs": ""}


@pytest.fixture
def hierarchy(tmp_path: Path) -> Hierarchy:
    """The first container is in a scope of systemd, with a monitor beside it; the second has ended."""
    base = tmp_path / "cgroup"
    for name in (f"kubepods.slice/crio-conmon-{FIRST}.scope", f"kubepods.slice/crio-{FIRST}.scope", FREE):
        (base / name).mkdir(parents=True)
        for file, text in FILES.items():
            (base / name / file).write_text(text)
    for kind, ids in POSSIBLE.items():
        (tmp_path / "sys/devices/system" / kind).mkdir(parents=True)
        (tmp_path / "sys/devices/system" / kind / "possible").write_text(ids)
    mounts = dict.fromkeys((CPUSET, MEMORY), str(base))
    return Hierarchy(Layout.UNIFIED, mounts, {"": "/system.slice/bayplan.service"}, tmp_path)


def cpuset(hierarchy: Hierarchy, name: str) -> tuple[str, str]:
    directory = Path(hierarchy.mounts[CPUSET]) / name
    return (directory / "cpuset.cpus").read_text(), (directory / "cpuset.mems").read_text()


async def place(one: Controlled) -> None:
    await one.controller.create_container(
        OWNER, container(FIRST, OWNER, memory_bytes=100 * MIB, milli_cpus=2000)
    )
    await one.controller.create_container(OTHERS, container(SECOND, OTHERS))
    await one.controller.create_container(OPTED_OUT, container(FREE, OPTED_OUT))


CONTAINER, MONITOR = f"kubepods.slice/crio-{FIRST}.scope", f"kubepods.slice/crio-conmon-{FIRST}.scope"
INHERITED, AS_WRITTEN = (POSSIBLE["cpu"], POSSIBLE["node"]), ("0-1\n", "0\n")


def assert_given_back(one: Controlled) -> None:
    ledger = one.controller.state.ledger
    assert set(ledger.entries) == {FIRST, SECOND, FREE}
    assert ledger.exclusive_cpus == CpuSet()
    assert all(
        expected.cpus is None and expected.mems is None for expected in one.controller.state.expectations()
    )
    assert [reason.code for reason in ledger.entries[FIRST].decision.reasons].count("released") == 1
    claim = ledger.entries[FIRST].decision.placement.claim
    assert claim is not None
    assert claim.amounts_bytes == {"memory": 100 * MIB}


async def test_the_running_daemon_gives_back_and_goes_on_with_new_containers(
    tmp_path: Path, hierarchy: Hierarchy
) -> None:
    async with controlled(tmp_path / "state", PlacementPolicy()) as one:
        await place(one)
        before = one.controller.state.ledger
        settings = KernelSettings.recorded(hierarchy, tmp_path / "state")
        followed = list[CpuSet]()

        async def follow_ledger() -> None:
            # Before the cgroups: no cpuset gets a CPU of a partition.
            assert cpuset(hierarchy, CONTAINER) == AS_WRITTEN
            followed.append(one.controller.state.ledger.exclusive_cpus)

        release = releasing(one.controller.state, settings, hierarchy, here, follow_ledger)
        planned = await release(make_snapshot(), {"dryRun": True})
        assert [each["id"] for each in planned["containers"]] == [SECOND, FIRST]
        assert one.controller.state.ledger is before
        assert cpuset(hierarchy, CONTAINER) == AS_WRITTEN
        assert (await release(make_snapshot(), {}))["dryRun"]  # Nothing happens unless it is said.
        done = await release(make_snapshot(), {"dryRun": False})
        assert {each["id"]: each["outcome"] for each in done["containers"]} == {
            SECOND: "gone",
            FIRST: "given back",
        }
        assert followed == [CpuSet()]
        assert cpuset(hierarchy, CONTAINER) == INHERITED
        assert cpuset(hierarchy, MONITOR) == cpuset(hierarchy, FREE) == AS_WRITTEN
        assert_given_back(one)
        later = container("later", OWNER, memory_bytes=100 * MIB, milli_cpus=2000)
        adjustment, updates = await one.controller.create_container(OWNER, later)
        assert adjustment.cpuset_cpus == CpuSet([1, 2])
        assert list(updates) == []
        # A runtime that repeats its own record with a resize narrows the container again.
        await one.controller.update_container(
            OWNER,
            container(FIRST, OWNER, memory_bytes=100 * MIB, milli_cpus=2000),
            Resources(memory_limit_bytes=150 * MIB),
        )
        planned = await release(make_snapshot(), {})
        assert FIRST in [each["id"] for each in planned["containers"]]
    async with controlled(tmp_path / "state", PlacementPolicy()) as again:
        assert again.controller.state.ledger.exclusive_cpus == CpuSet([1, 2])
        assert again.controller.state.ledger.entries[FIRST].decision.request.opted_out


async def test_the_state_directory_is_enough_and_a_second_time_does_the_same(
    tmp_path: Path, hierarchy: Hierarchy
) -> None:
    async with controlled(tmp_path / "state", PlacementPolicy()) as one:
        await place(one)
    state = tmp_path / "state"
    assert release_recorded(state, hierarchy, dry_run=True)["containers"][1]["outcome"] is None
    assert cpuset(hierarchy, CONTAINER) == AS_WRITTEN
    for _ in range(2):
        assert release_recorded(state, hierarchy, dry_run=False)["health"] == "ok"
        assert cpuset(hierarchy, CONTAINER) == INHERITED
        # As if it had died between the record and the cgroups.
        (Path(hierarchy.mounts[CPUSET]) / CONTAINER / "cpuset.cpus").write_text("0-1\n")
    async with controlled(tmp_path / "state", PlacementPolicy()) as one:
        assert_given_back(one)


def test_a_sysctl_is_set_back_where_no_daemon_runs(tmp_path: Path, hierarchy: Hierarchy) -> None:
    sysctl, state = hierarchy.root / FRACTION, tmp_path / "state"
    sysctl.parent.mkdir(parents=True)
    sysctl.write_text("0\n")
    Store.open(state).close()
    CpuListLimit(state, hierarchy.root).apply(64)
    assert release_recorded(state, hierarchy, dry_run=True)["sysctls"] == {SYSCTL: 0}
    assert sysctl.read_text().strip() == "64"
    assert release_recorded(state, hierarchy, dry_run=False)["sysctls"] == {SYSCTL: 0}
    assert sysctl.read_text().strip() == "0"
    assert release_recorded(state, hierarchy, dry_run=False)["sysctls"] == {}


def test_partitions_and_interrupts_are_as_before_where_no_daemon_runs(
    tmp_path: Path, hierarchy: Hierarchy
) -> None:
    state, cgroup = tmp_path / "state", Path(hierarchy.mounts[CPUSET])
    Store.open(state).close()
    irq = hierarchy.root / "proc/irq/4/smp_affinity_list"
    irq.parent.mkdir(parents=True)
    files = {
        irq: "0-7",
        cgroup / "kubepods.slice/cpuset.cpus.exclusive": "",
        cgroup / CONTAINER / "cpuset.cpus.exclusive": "",
        cgroup / CONTAINER / "cpuset.cpus.partition": "member",
    }
    for path, text in files.items():
        path.write_text(f"{text}\n")
    settings = KernelSettings.recorded(hierarchy, state)
    settings.partitions.take(str(cgroup / CONTAINER), CpuSet([2, 3]))
    settings.irqs.keep_away(CpuSet([2, 3]), CpuSet(range(8)))
    assert {path.read_text().strip() for path in files} == {"0-1,4-7", "2-3", "isolated"}
    for dry_run in (True, False):
        said = release_recorded(state, hierarchy, dry_run=dry_run)
        assert said["partitions"] == [str(cgroup / CONTAINER)]
        assert said["irqs"] == {"4/smp_affinity_list": "0-7"}
    assert {path: path.read_text().strip() for path in files} == files
    said = release_recorded(state, hierarchy, dry_run=False)
    assert (said["partitions"], said["irqs"]) == ([], {})


async def test_what_the_kernel_refuses_is_told(tmp_path: Path, hierarchy: Hierarchy) -> None:
    async with controlled(tmp_path / "state", PlacementPolicy()) as one:
        await place(one)
    (Path(hierarchy.mounts[CPUSET]) / CONTAINER / "cpuset.mems").unlink()
    said = release_recorded(tmp_path / "state", hierarchy, dry_run=False)
    assert said["health"] == "error"
    assert "cpuset.mems: " in said["containers"][1]["outcome"]


def test_a_daemon_that_runs_after_all_is_not_worked_around(tmp_path: Path, hierarchy: Hierarchy) -> None:
    Store.open(tmp_path / "state").close()
    with DirectoryLock(tmp_path / "state"), pytest.raises(UnavailableError) as raised:
        release_recorded(tmp_path / "state", hierarchy, dry_run=False)
    assert raised.value.subject == str(tmp_path / "state")


def test_without_a_daemon_and_records_there_is_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--admin-socket", str(tmp_path / "none.sock"), "--state-directory", str(tmp_path / "state")]
    assert main(["release", "--yes", *words]) == 0
    assert capsys.readouterr().out == "No container is managed.\n"
    assert not (tmp_path / "state").exists()


async def test_the_command_shows_before_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with controlled(tmp_path / "state", PlacementPolicy()) as one:
        await place(one)
    words = ["--admin-socket", str(tmp_path / "none.sock"), "--state-directory", str(tmp_path / "state")]
    for dry in (["--dry-run"], []):
        assert main(["release", *dry, *words]) == 0
        printed = capsys.readouterr().out
        assert "CPUs and nodes  not done" in printed
        assert "Nothing was changed. bayplan release --yes does it." in printed
    with pytest.raises(SystemExit) as ended:
        main(["release", "--dry-run", "--yes", *words])
    assert ended.value.code == ConfigError.exit_code
