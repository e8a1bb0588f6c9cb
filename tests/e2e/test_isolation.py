"""Isolated partitions and interrupts in a real kernel: made before the first instruction, kept through
changes of siblings and kills, given back."""

import os
import re
from collections import Counter
from dataclasses import replace

import pytest
from testbed import gobuild
from testbed.channel import LIMIT_S
from testbed.containerd import Handler
from testbed.crictl import Running
from testbed.forms import WRAPPER
from testbed.kernel import parse_ids
from testbed.node import Node
from testbed.podman import Asked
from testbed.pods import Pod, best_effort, guaranteed
from testbed.scenario import on, on_systemd
from testbed.topology import THIS_MACHINE, TWO_NODES

from bayplan.sets import CpuSet

ASKED = {"bayplan.dev/cpu-partition": "isolated", "bayplan.dev/irqs": "away"}
CGROUPS = "/sys/fs/cgroup"
CPUSET_FILES = ("cpuset.cpus.exclusive", "cpuset.cpus.partition")
SHOWN = {**dict.fromkeys(CPUSET_FILES, ""), "cpuset.cpus.partition": "member"}
"""What they show where nobody has set them."""
ALL = frozenset(range(4))
EXECS = int(os.environ.get("EXECS", "1000"))
EMULATED_EXECS = 20
APART = {"bayplan.dev/cpus": "exclusive=1", "bayplan.dev/exec-cpus": "shared"}
SHOW_STATUS = ("/bin/cat", "/proc/self/status")
RUNC = "/usr/sbin/runc"
KEEP_TO_RESERVED = """
cd /sys/fs/cgroup/cpuset
mkdir -p reserved
echo 0 >reserved/cpuset.mems
echo 0 >reserved/cpuset.cpus
pid=$(pidof containerd)
echo $pid >reserved/cgroup.procs
grep -q '^Cpus_allowed_list:.0$' /proc/$pid/status
"""


def quiet(name: str, cpus: int = 1) -> Pod:
    return guaranteed(name, cpus, "100Mi", annotations=ASKED)


def apart(name: str, cpus: float, annotations: dict[str, str]) -> Pod:
    """Of kubelet's pods that with the oom_score_adj that needs no capability."""
    pod = guaranteed(name, cpus, "100Mi", annotations=annotations)
    return replace(pod, containers=tuple(replace(one, oom_score_adj=None) for one in pod.containers))


def install_runc(node: Node) -> None:
    """One that knows execCPUAffinity: Debian's is older."""
    node.guest.write(RUNC, (gobuild.runc() / "bin/runc").read_bytes(), mode=0o755)


def wrapped(node: Node, runtime: str) -> None:
    """Have a handler whose containers the wrapper gives to that runtime, and bayplan beside it."""
    install_runc(node)
    node.forms.install()
    node.forms.wrap(runtime)
    node.bayplan.start("--set-oom-score-adj", "false")
    node.bayplan.await_synchronized()
    since = node.bayplan.log_position()
    node.containerd.end()
    node.containerd.start(handlers=[Handler("wrapped", binary=WRAPPER)])
    node.bayplan.await_synchronized(since=since)


def begins(node: Node, running: Running, runtime: str, times: int) -> Counter[frozenset[int]]:
    """On which CPUs so many processes that enter a container may run at first."""
    if runtime == "crun":
        # What it adds to the document of each exec.
        await_(node, f"[ -e /run/bayplan/oci.sock.execs/{running.container_id} ]")
    said = (node.crictl.execute(running.container_id, *SHOW_STATUS).stdout for _ in range(times))
    return Counter(map(cpus_allowed, said))


def cpus_allowed(status: str) -> frozenset[int]:
    """By a process's /proc/PID/status."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    assert found is not None
    return parse_ids(found[1])


def cpuset_files(node: Node) -> dict[str, str]:
    """Those that show something, by path."""
    patterns = [f"{CGROUPS}{'/*' * depth}/{name}" for depth in range(1, 6) for name in CPUSET_FILES]
    found = node.guest.read_files(*patterns, pattern=True)
    texts = {path: text.strip() for path, text in found.items()}
    return {path: text for path, text in texts.items() if text != SHOWN[path.rpartition("/")[2]]}


def irq_files(node: Node) -> dict[str, str]:
    return node.guest.read_files(
        "/proc/irq/*/smp_affinity_list", "/proc/irq/default_smp_affinity", pattern=True
    )


def isolated(node: Node) -> frozenset[int]:
    """The CPUs on which the kernel balances no load."""
    return parse_ids(node.guest.read(f"{CGROUPS}/cpuset.cpus.isolated"))


def interrupted(node: Node) -> frozenset[int]:
    """The CPUs on which an interrupt may be handled that the kernel lets be moved: it takes what it has."""
    move = "a=$(cat $f); { echo $a >$f; } 2>/dev/null && echo $a"
    script = f"for f in /proc/irq/*/smp_affinity_list; do {move}; done; true"
    lists = node.guest.run("sh", "-c", script).stdout.split()
    assert lists
    return frozenset().union(*map(parse_ids, lists))


def await_(node: Node, condition: str) -> None:
    node.guest.run("timeout", str(LIMIT_S), "sh", "-c", f"until {condition}; do sleep 0.1; done")


def as_text(cpus: frozenset[int]) -> str:
    """In the kernel's list format."""
    return str(CpuSet(cpus))


def await_isolated(node: Node, cpus: str) -> None:
    await_(node, f'[ "$(cat {CGROUPS}/cpuset.cpus.isolated)" = "{cpus}" ]')


def state(node: Node, running: Running) -> str:
    return node.guest.read(f"{CGROUPS}{node.view(running).cgroup}/cpuset.cpus.partition").strip()


def survives_a_sibling(node: Node, first: Running, own: frozenset[int], both: frozenset[int]) -> None:
    """Somebody gives the CPUs of *first* to another cgroup of its pod: the kernel says so; it has them all
    the same."""
    pod = node.view(first).cgroup.rpartition("/")[0]
    sibling = f"{CGROUPS}{pod}/sibling"
    node.guest.run("mkdir", sibling)
    node.guest.write(f"{sibling}/cpuset.cpus", "0-3")
    await_isolated(node, as_text(both - own))
    assert node.view(first).cpus_allowed == own
    problems = []
    for _ in range(100):
        problems = [one for one in node.bayplan.status()["problems"] if "not exclusive" in one]
        if problems:
            break
        node.guest.run("sleep", "0.5")
    assert problems
    node.guest.run("rmdir", sibling)
    await_isolated(node, as_text(both))
    assert state(node, first) == "isolated"


def follows(node: Node) -> None:
    files, irqs = cpuset_files(node), irq_files(node)
    node.bayplan.start()
    node.bayplan.await_synchronized()
    assert (cpuset_files(node), irq_files(node)) == (files, irqs)

    first = node.launch(quiet("first"))
    own = node.view(first).cpus_allowed
    assert len(own) == 1
    assert (state(node, first), isolated(node)) == ("isolated", own)
    assert own.isdisjoint(interrupted(node))
    entry = node.bayplan.decided(first.container_id)
    assert (entry["cpuPartition"], entry["irqs"]) == ("isolated", "away")

    # Siblings come and go.
    second = node.launch(quiet("second"))
    other = node.launch(best_effort("other"))
    both = own | node.view(second).cpus_allowed
    assert (len(both), isolated(node)) == (2, both)
    assert node.view(other).cpus_allowed == ALL - both

    survives_a_sibling(node, first, own, both)

    # The daemon is killed; one container ends without it.
    node.bayplan.kill()
    node.crictl.stop(second.container_id)
    node.crictl.remove(second.container_id)
    since = node.bayplan.log_position()
    node.bayplan.start_again()
    node.bayplan.await_synchronized(since=since)
    await_isolated(node, as_text(own))
    assert state(node, first) == "isolated"

    # Given back: by the running daemon, and where none runs.
    answer = node.bayplan.ask("release")
    assert len(answer["partitions"]) == 1
    assert answer["irqs"]
    node.bayplan.ask("release", "--yes")
    assert isolated(node) == frozenset()
    assert (cpuset_files(node), irq_files(node)) == (files, irqs)
    assert node.view(first).cpus_allowed == ALL
    node.launch(quiet("third"))
    assert len(isolated(node)) == 1
    node.bayplan.stop()
    assert len(isolated(node)) == 1
    node.bayplan.ask_in_guest("release", "--yes")
    assert (cpuset_files(node), irq_files(node)) == (files, irqs)


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_cpus_are_isolated_for_as_long_as_a_container_has_them(node: Node) -> None:
    follows(node)


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_cpus_that_the_kernel_gives_to_nobody_are_given_to_nobody(node: Node) -> None:
    """A container ends while its partition is invalid and the daemon is down: Linux 6.12 keeps its CPU."""
    node.bayplan.start()
    node.bayplan.await_synchronized()
    first = node.launch(quiet("first"))
    lost = node.view(first).cpus_allowed
    pod = node.view(first).cgroup.rpartition("/")[0]
    node.bayplan.kill()
    node.guest.run("mkdir", f"{CGROUPS}{pod}/sibling")
    node.guest.write(f"{CGROUPS}{pod}/sibling/cpuset.cpus", "0-3")
    node.crictl.stop(first.container_id)
    node.crictl.remove(first.container_id)
    node.guest.run("rmdir", f"{CGROUPS}{pod}/sibling")
    assert isolated(node) == lost
    since = node.bayplan.log_position()
    node.bayplan.start_again()
    node.bayplan.await_synchronized(since=since)
    problems = node.bayplan.status()["problems"]
    assert [one for one in problems if "whose cgroup is gone" in one]
    assert parse_ids(node.bayplan.status()["sharedCpus"]) == ALL - lost
    # One CPU is reserved, one is lost: there are two for those that want their own, isolated or not.
    second, third = node.launch(quiet("second")), node.launch(guaranteed("third", 1, "100Mi"))
    own = [node.view(one).cpus_allowed for one in (second, third)]
    assert [len(one) for one in own] == [1, 1]
    assert len(own[0] | own[1] | lost) == 3
    assert (state(node, second), isolated(node)) == ("isolated", own[0] | lost)
    node.launch(best_effort("other"))
    assert node.bayplan.status()["drift"] == []
    # The next scenario wants all CPUs.
    node.shut_down()
    node.restore()


@pytest.mark.matrix
@on_systemd(TWO_NODES, "2.4")
def test_cpus_are_isolated_beside_systemd(node: Node) -> None:
    follows(node)


@pytest.mark.matrix
@on(THIS_MACHINE, "2.4-nri")
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_processes_that_enter_a_container_begin_beside_its_own_cpus(node: Node, runtime: str) -> None:
    """NRI decides, and the wrapper adds what it has no field for."""
    wrapped(node, runtime)
    running = node.launch(apart("app", 1.5, APART), handler="wrapped")
    allowed = cpus_allowed(node.guest.read(f"/proc/{node.crictl.pid(running.container_id)}/status"))
    own = allowed - parse_ids(node.bayplan.status()["sharedCpus"])
    assert len(own) == 1
    assert begins(node, running, runtime, EXECS) == {allowed - own: EXECS}


@pytest.mark.matrix
@on_systemd(TWO_NODES)
@pytest.mark.parametrize("form", ["precreate", "wrapper"])
def test_processes_that_podman_has_enter_a_container_begin_beside_its_own_cpus(node: Node, form: str) -> None:
    install_runc(node)
    node.forms.install()
    node.bayplan.start("--oci-deadline", "20s")
    # This runc is built without seccomp.
    more = ("--security-opt=seccomp=unconfined",)
    asked = Asked(form, memory="100m", cpus=1.5, annotations=APART, more=more)
    running = node.podman.run(node.forms.engine(form, "runc"), asked)
    allowed = cpus_allowed(node.guest.read(f"/proc/{node.podman.pid(running)}/status"))
    own = allowed - parse_ids(node.bayplan.status()["sharedCpus"])
    assert len(own) == 1
    said = [node.podman("exec", running, *SHOW_STATUS).stdout for _ in range(EMULATED_EXECS)]
    assert Counter(map(cpus_allowed, said)) == {allowed - own: EMULATED_EXECS}


@pytest.mark.matrix
@on(THIS_MACHINE, "2.4-nri")
@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_runtime_that_is_kept_to_reserved_cpus_lets_processes_begin_on_others(
    node: Node, runtime: str
) -> None:
    """The kernel refuses an affinity that has nothing of the caller's cpuset, and runc has it before it is in
    the container's cgroup."""
    wrapped(node, runtime)
    node.guest.run("sh", "-ec", KEEP_TO_RESERVED)
    running = node.launch(apart("app", 1, {"bayplan.dev/exec-cpus": "first"}), handler="wrapped")
    allowed = cpus_allowed(node.guest.read(f"/proc/{node.crictl.pid(running.container_id)}/status"))
    assert allowed == {1}
    assert begins(node, running, runtime, 20) == {allowed: 20}
