"""podman on a node with systemd: what containers really get by the hook, precreate and the wrapper."""

import json
import threading
import time
from collections.abc import Iterator

import pytest
from testbed.agreement import assert_agreement, differences
from testbed.bayplan import DAEMON, FILLER, STATE_DIRECTORY
from testbed.channel import LIMIT_S
from testbed.errors import CommandError
from testbed.forms import FORMS, PROJECT
from testbed.killing import Killer
from testbed.node import Node
from testbed.podman import DRIVERS, RUNTIMES, Asked, Engine
from testbed.pods import MIB
from testbed.scenario import on_systemd
from testbed.topology import TWO_NODES

RECORDER = "#!/bin/sh\ncat >>/run/recorder/states\necho >>/run/recorder/states\n"
# Emulated, a decision takes ten times as long.
PATIENT = ("--oci-deadline", "20s")
AGENT = "bayplan-agent"
UNITS = ("bayplan", AGENT)
UNIT_DIRECTORY = "/run/systemd/system"
KILLINGS = 10
EVERYWHERE = (frozenset({0, 1}), frozenset({0, 1, 2, 3}))


@pytest.mark.matrix
@on_systemd(TWO_NODES)
def test_the_bed_runs_hooks_with_both_runtimes_and_both_cgroup_drivers(node: Node) -> None:
    hook = {
        "version": "1.0.0",
        "hook": {"path": "/run/recorder/recorder", "args": ["recorder"], "timeout": 10},
        "when": {"always": True},
        "stages": ["createRuntime", "poststop"],
    }
    node.guest.write("/run/recorder/recorder", RECORDER, mode=0o755)
    node.guest.write("/run/recorder/hooks.d/recorder.json", json.dumps(hook))
    for runtime in RUNTIMES:
        for driver in DRIVERS:
            engine = Engine(runtime, driver, "/run/recorder/hooks.d")
            asked = Asked(f"{runtime}-{driver}", memory="200m", cpus=0.5).touching("20Mi")
            created = node.podman.create(engine, asked)
            assert node.podman.state(created) == "initialized"
            view = node.view(created)
            assert view.memory_max_bytes == 200 * MIB
            assert view.cgroup.endswith(".scope/container") is ((runtime, driver) == ("crun", "systemd"))
            node.podman.start(created)
            node.podman.await_log(asked.name, "touched")
            node.podman.remove(created)
            states = node.guest.read("/run/recorder/states").split("\n")
            told = [json.loads(line) for line in states if created in line]
            assert [(state["status"] == "stopped", state.get("pid", 0) > 1) for state in told] == [
                (False, True),
                (True, False),
            ]


@pytest.mark.matrix
@on_systemd(TWO_NODES)
@pytest.mark.parametrize("form", FORMS)
def test_a_container_is_in_its_place_before_it_starts_and_after(node: Node, form: str) -> None:
    node.forms.install()
    node.bayplan.start(*PATIENT)
    for runtime, driver in (("runc", "systemd"), ("crun", "systemd"), ("runc", "cgroupfs")):
        engine = node.forms.engine(form, runtime, driver)
        asked = Asked(f"{runtime}-{driver}", memory="300m", cpus=1).touching("100Mi")
        created = node.podman.create(engine, asked)
        before = node.view(created).placement
        (home,) = before.mems
        assert before.cpus < set(TWO_NODES.cpus_of(home))
        assert before[2:] == (-997, 300 * MIB, True)
        node.podman.start(created)
        node.podman.await_log(asked.name, "touched")
        view = node.view(created)
        assert view.placement == before
        assert set(view.anon_bytes()) == {home}
        assert_agreement(node, [created])
        node.podman.remove(created)
        node.bayplan.await_known([])


@pytest.mark.matrix
@on_systemd(TWO_NODES)
@pytest.mark.parametrize("form", FORMS)
def test_what_systemd_and_the_runtime_undo_is_restored(node: Node, form: str) -> None:
    node.forms.install()
    node.bayplan.start("--log-level", "debug", *PATIENT)
    for runtime in RUNTIMES:
        running = node.podman.run(
            node.forms.engine(form, runtime), Asked(f"{form}-{runtime}", memory="300m", cpus=1)
        )
        if form == "hook":
            # Only from then on systemd has it right.
            node.bayplan.await_runtime_updated(running)
        placed = node.view(running).placement
        scope = node.view(running).cgroup.removesuffix("/container").rsplit("/", 1)[1]
        node.guest.run("systemctl", "daemon-reload")
        assert node.view(running).placement == placed, f"{runtime}: daemon-reload"
        node.guest.run("systemctl", "set-property", "--runtime", scope, "CPUWeight=50", "AllowedCPUs=0-3")
        await_placement(node, running)
        node.podman.update(running, "--cpu-shares=512")
        await_placement(node, running)
        assert node.view(running).placement == placed
        node.podman.remove(running)


@pytest.mark.matrix
@on_systemd(TWO_NODES)
@pytest.mark.parametrize(
    ("form", "runtime"),
    [("hook", "runc"), ("precreate", "crun"), ("wrapper", "runc")],
)
def test_a_daemon_that_is_gone_or_slow(node: Node, form: str, runtime: str) -> None:
    asked = Asked(f"{form}-gone", memory="300m", cpus=1)

    # Gone, and let through: as podman makes it without us. Refused: nothing of it exists.
    node.forms.install(timeout_s=2, on_failure="allow")
    unplaced = node.podman.run(node.forms.engine(form, runtime), asked)
    assert node.view(unplaced).placement[:2] == EVERYWHERE
    node.podman.remove(unplaced)
    node.forms.install(timeout_s=2, on_failure="refuse")
    complaints = node.forms.complaints("/run/bayplan/oci.sock (")
    node.podman.refused(node.forms.engine(form, runtime), asked)
    assert node.forms.complaints("/run/bayplan/oci.sock (") > complaints
    node.podman.remove_everything()

    # Slower than is waited for: refused. Slow by 5 s, with time to wait: placed, only later.
    node.bayplan.start(*PATIENT)
    node.bayplan.pause()
    complaints = node.forms.complaints("did not answer within 2 s")
    node.podman.refused(node.forms.engine(form, runtime), asked)
    assert node.forms.complaints("did not answer within 2 s") > complaints
    node.podman.remove_everything()
    node.forms.install()
    awake = threading.Timer(5, node.bayplan.resume)
    started = time.monotonic()
    awake.start()
    placed = node.podman.run(node.forms.engine(form, runtime), asked)
    awake.join()
    assert time.monotonic() - started >= 5
    assert len(node.view(placed).placement.mems) == 1
    await_placement(node, placed)


@pytest.mark.matrix
@on_systemd(TWO_NODES)
def test_what_podman_chooses_by_cgroup_conf_stays(node: Node) -> None:
    """The kernel is asked what it took: keys of unified are written after the fields."""
    node.forms.install()
    node.bayplan.start(*PATIENT)
    chosen = ("cpuset.cpus=3", "cpuset.mems=1", "memory.max=200M", "memory.min=100000")
    for form in FORMS:
        for runtime in RUNTIMES:
            more = tuple(f"--cgroup-conf={one}" for one in chosen)
            asked = Asked(f"{form}-{runtime}", memory="300m", cpus=1, more=more)
            made = node.podman.run(node.forms.engine(form, runtime, "cgroupfs"), asked)
            view = node.view(made)
            assert (view.cpus_allowed, view.mems_allowed) == ({3}, {1}), asked.name
            assert view.memory_max_bytes == 200 * MIB
            entry = node.bayplan.decided(made)
            assert (entry["cpusPinnedByOthers"], entry["memsPinnedByOthers"]) == (True, True)
            assert entry["qosClass"] == "Burstable"
            node.podman.remove(made)
            node.bayplan.await_known([])


@pytest.mark.matrix
@on_systemd(TWO_NODES)
def test_a_refused_placement_leaves_nothing_behind(node: Node) -> None:
    node.forms.install()
    # Less than half of the machine, and more than one node has for containers.
    reserved = ("--reserved-memory", "0:memory=500Mi;1:memory=500Mi")
    node.bayplan.start("--topology-manager-policy", "single-numa-node", *reserved, *PATIENT)
    before = cgroups(node)
    complaints = node.forms.complaints("TopologyAffinityError")
    # Of a container with a terminal conmon says nothing to podman.
    for form, words in (*((form, ()) for form in FORMS), ("hook", ("--tty",))):
        for runtime in RUNTIMES:
            asked = Asked(f"{form}-{runtime}-too-wide", memory="600m", cpus=0.5, more=words)
            said = node.podman.refused(node.forms.engine(form, runtime), asked)
            complaints += 1
            assert node.forms.complaints("TopologyAffinityError") == complaints
            assert "TopologyAffinityError" in said
            assert "asks for 600Mi on one node under single-numa-node" in said
            node.podman.remove_everything()
            node.bayplan.await_known([])
            assert cgroups(node) == before


@pytest.fixture
def small_disk(node: Node) -> Iterator[None]:
    """The state directory is a file system of 16 MiB."""
    node.guest.run("mkdir", "-p", STATE_DIRECTORY)
    node.guest.run("mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", STATE_DIRECTORY)
    yield
    node.podman.remove_everything()
    node.bayplan.kill()
    node.guest.run("umount", "--lazy", STATE_DIRECTORY)


@pytest.mark.matrix
@on_systemd(TWO_NODES)
@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_costs_no_decision(node: Node) -> None:
    node.bayplan.start(*PATIENT)
    node.forms.install(on_failure="refuse")
    node.guest.run("sh", "-c", f"cat /dev/zero >{FILLER}", check=False)
    kept: list[str] = []
    for form in FORMS:
        # The database's log has room of its own, set aside when there was some.
        asked = Asked(f"{form}-full", memory="100m", cpus=0.5)
        kept.append(node.podman.run(node.forms.engine(form), asked))
        assert_agreement(node, kept)
    node.bayplan.kill()
    node.bayplan.empty_disk()
    node.bayplan.start_again()
    assert_agreement(node, kept)

    # Started on it, the daemon goes on with all that is recorded, and says what is in the way.
    node.bayplan.stop()
    node.guest.run("sh", "-c", f"cat /dev/zero >{FILLER}", check=False)
    for mode, code in (("rw", "ENOSPC"), ("ro", "EROFS")):
        node.guest.run("mount", "-o", f"remount,{mode}", STATE_DIRECTORY)
        node.bayplan.start_again()
        assert_agreement(node, kept)
        said = f"state store {STATE_DIRECTORY}: "
        assert any(one.startswith(said) and f"({code})" in one for one in node.bayplan.status()["problems"])
        node.bayplan.stop()
        assert "Traceback" not in node.bayplan.log()
    node.guest.run("mount", "-o", "remount,rw", STATE_DIRECTORY)
    node.bayplan.empty_disk()
    node.bayplan.start_again()
    assert_agreement(node, kept)


@pytest.mark.matrix
@on_systemd(TWO_NODES)
@pytest.mark.usefixtures("small_disk")
def test_a_decision_that_cannot_be_recorded_is_none(node: Node) -> None:
    node.bayplan.start(*PATIENT)
    node.forms.install(on_failure="refuse")
    stays, goes = (
        node.podman.run(node.forms.engine("hook"), Asked(name, memory="100m", cpus=1))
        for name in ("stays", "goes")
    )
    before, placed = cgroups(node), node.view(stays).placement
    node.bayplan.fill_disk()
    for form in FORMS:
        complaints = node.forms.complaints("disk is full (SQLITE_FULL)")
        node.podman.refused(node.forms.engine(form), Asked(f"{form}-unrecorded", memory="100m", cpus=1))
        assert node.forms.complaints("disk is full (SQLITE_FULL)") == complaints + 1
        assert_agreement(node, [stays, goes])
    assert any("is full" in one for one in node.bayplan.status()["problems"])
    assert cgroups(node) == before
    # Let through as configured, it is nobody's.
    node.forms.install(on_failure="allow")
    unplaced = node.podman.run(node.forms.engine("hook"), Asked("allowed", memory="100m", cpus=1))
    # It may have been found already, and taken off the CPUs of the others.
    assert node.view(unplaced).mems_allowed == EVERYWHERE[0]
    node.podman.remove(unplaced)
    # What ends is released at once; that is recorded when there is room.
    node.podman.remove(goes)
    node.bayplan.await_known([stays])
    assert node.view(stays).placement == placed

    node.bayplan.empty_disk()
    later = node.podman.run(node.forms.engine("hook"), Asked("later", memory="100m", cpus=1))
    assert_agreement(node, [stays, later])
    assert node.bayplan.status()["problems"] == []
    node.bayplan.kill()
    node.bayplan.start_again()
    assert_agreement(node, [stays, later])


@pytest.mark.matrix
@on_systemd(TWO_NODES)
def test_cpus_that_a_person_sets_are_named_and_put_back_and_kept_where_that_is_said(node: Node) -> None:
    node.forms.install()
    node.bayplan.start(*PATIENT)
    engine = node.forms.engine("hook", "crun")
    ours = node.podman.run(engine, Asked("ours", memory="100m", cpus=1))
    annotations = {"bayplan.dev/opt-out": "true"}
    theirs = node.podman.run(engine, Asked("theirs", memory="100m", cpus=1, annotations=annotations))
    placed, position = node.view(ours).placement, node.bayplan.log_position()
    for one in (ours, theirs):
        node.podman.update(one, "--cpuset-cpus=2-3")
        assert node.view(one).cpus_allowed == {2, 3}
    said = node.bayplan.await_log("bayplan.dev/opt-out=true", since=position)
    assert f"/{ours}: cpus is 2-3, decided was {min(placed.cpus)}" in said
    assert f"/{theirs}: cpus" not in said
    await_placement(node, ours)
    assert node.view(ours).placement == placed
    assert node.view(theirs).cpus_allowed == {2, 3}


@pytest.fixture
def units(node: Node) -> Iterator[None]:
    """The shipped units: the daemon's with more patience and a log of its own, the agent's as it is."""
    shipped = PROJECT / "packaging/systemd"
    for name in UNITS:
        node.guest.write(f"{UNIT_DIRECTORY}/{name}.service", (shipped / f"{name}.service").read_bytes())
    start = f"[Service]\nExecStart=\nExecStart={DAEMON} {' '.join(PATIENT)}\nRestart=no\n"
    node.guest.write(
        f"{UNIT_DIRECTORY}/bayplan.service.d/testbed.conf", f"{start}StandardError=file:/run/unit.log\n"
    )
    node.guest.write("/run/sysusers.d/bayplan-agent.conf", (shipped / "bayplan-agent.conf").read_bytes())
    node.guest.run("sh", "-c", "systemd-sysusers && systemctl daemon-reload")
    yield
    node.guest.run("systemctl", "stop", *UNITS)
    node.guest.run("sh", "-c", f"cd {UNIT_DIRECTORY} && rm -r bayplan*.service* && systemctl daemon-reload")


@pytest.mark.usefixtures("units")
@on_systemd(TWO_NODES)
def test_the_shipped_units_let_daemon_and_agent_do_all_of_it(node: Node) -> None:
    node.forms.install()
    node.guest.run("systemctl", "start", *UNITS)
    for form in FORMS:
        made = node.podman.run(node.forms.engine(form), Asked(form, memory="300m", cpus=1))
        assert len(node.view(made).mems_allowed) == 1
        node.podman.update(made, "--cpu-shares=512")
        await_placement(node, made)
        assert_agreement(node, [made])
        node.podman.remove(made)
        node.bayplan.await_known([])
    node.guest.run("systemctl", "reload", "bayplan.service")
    node.guest.await_text("/run/unit.log", "settings taken over")

    assert asked_of_agent(node, "readyz") == "ok\n"
    placed = 'bayplan_decisions_total{outcome="placed"}'
    assert f"{placed} {len(FORMS)}.0" in asked_of_agent(node, "metrics")
    pid = node.guest.run("systemctl", "show", "--value", "-p", "MainPID", AGENT).stdout.strip()
    status = dict(line.split(":\t", 1) for line in node.guest.read(f"/proc/{pid}/status").splitlines())
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {"0" * 16}
    assert "0" not in status["Uid"].split()
    node.guest.run("systemctl", "kill", "-s", "KILL", AGENT)
    node.guest.run(
        "sh", "-c", f"until [ $(systemctl show --value -p NRestarts {AGENT}) = 1 ]; do sleep 0.2; done"
    )
    assert asked_of_agent(node, "readyz") == "ok\n"


def asked_of_agent(node: Node, path: str) -> str:
    """What the agent answers with status 200, once it does."""
    url = f"http://127.0.0.1:9476/{path}"
    ask = f"import urllib.request; print(urllib.request.urlopen('{url}').read().decode(), end='')"
    wait = f'until python3 -c "{ask}" 2>/dev/null; do sleep 0.5; done'
    return node.guest.run("sh", "-c", wait, limit_s=LIMIT_S).stdout


@pytest.mark.matrix
@on_systemd(TWO_NODES)
def test_killed_hooks_and_a_restarted_daemon_leave_ledger_and_kernel_agreed(node: Node) -> None:
    node.forms.install()
    node.bayplan.start(*PATIENT)
    killer = Killer(node.guest)
    survivors: dict[str, str] = {}
    for number in range(KILLINGS):
        # The first one dies before it has asked, whatever the machine does beside.
        killer.strike(2 * killer.whole_s * number / KILLINGS)
        engine = node.forms.engine("hook", RUNTIMES[number % 2], "systemd")
        asked = Asked(f"killed-{number}", memory="60m", cpus=0.5)
        try:
            made = node.podman.create(engine, asked)
        except CommandError:
            continue
        node.podman.start(made)
        survivors[made] = asked.name
    killer.spare()
    assert len(survivors) < KILLINGS
    # Nobody told the daemon about those that died: it finds out by itself.
    node.bayplan.await_known(set(survivors))
    for one in survivors:
        await_placement(node, one)

    exclusive = node.podman.run(node.forms.engine("wrapper", "crun"), Asked("keeps", memory="200m", cpus=1))
    placed = {one: node.view(one).placement for one in (*survivors, exclusive)}
    node.bayplan.kill()
    node.bayplan.start_again()
    assert_agreement(node, placed)
    assert {one: node.view(one).placement for one in placed} == placed
    other = node.podman.run(node.forms.engine("hook", "crun"), Asked("later", memory="200m", cpus=1))
    assert node.view(other).cpus_allowed.isdisjoint(placed[exclusive].cpus)
    # What ended while the daemon was away is released when it comes back; what came meanwhile, with a hook
    # that let it through or with none, is found; what was started again is back in its place.
    node.bayplan.kill()
    node.podman.remove(exclusive)
    through = node.podman.run(node.forms.engine("hook", "crun"), Asked("through", memory="100m", cpus=1))
    unasked = node.podman.run(Engine("runc", "cgroupfs"), Asked("unasked", memory="100m"))
    placement = node.view(other).placement
    node.podman.stop(other)
    node.podman.start(other)
    for one in (through, unasked, other):
        assert node.view(one).placement[:2] == EVERYWHERE
    node.bayplan.start_again()
    node.bayplan.await_known({*survivors, other, through, unasked})
    assert {one["id"] for one in node.bayplan.status()["unmanaged"]} == {through, unasked}
    await_placement(node, other)
    assert node.view(other).placement == placement
    for one in (through, unasked):
        await_off(node, one, placement.cpus)
    node.podman.remove(through, unasked)
    node.bayplan.await_known({*survivors, other})


def await_placement(node: Node, container_id: str) -> None:
    """Wait until the kernel has the container as decided; bayplan looks every few seconds."""
    deadline = time.monotonic() + LIMIT_S
    every_node = node.kernel.nodes_online()
    while True:
        entry = node.bayplan.decided(container_id)
        assert entry is not None
        found = differences(entry, node.view(container_id), every_node)
        if not found:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def await_off(node: Node, container_id: str, cpus: frozenset[int]) -> None:
    """Wait until the kernel has the container on other CPUs."""
    deadline = time.monotonic() + LIMIT_S
    while found := node.view(container_id).cpus_allowed & cpus:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def cgroups(node: Node) -> set[str]:
    """The cgroups in which podman makes containers."""
    return set(node.guest.run("find", "/sys/fs/cgroup", "-name", "libpod-*", "-type", "d").stdout.split())
