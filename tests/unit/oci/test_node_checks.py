"""What the doctor sees of a node beside its container engines: cgroups, capabilities, kubelet's managers."""

import os
import re
from pathlib import Path

import pytest

from bayplan.oci.node_checks import DaemonState, Finding, Level, node_findings

ALL = (1 << 41) - 1


def write(root: Path, path: str, text: str = "") -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def found(root: Path, daemon: DaemonState | None = None) -> list[Finding]:
    return list(node_findings(root, daemon))


def test_a_node_of_which_nothing_is_known(tmp_path: Path) -> None:
    assert found(tmp_path, DaemonState(pid=1)) == []


def test_cgroups(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
    assert found(tmp_path) == []
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu io memory pids\n")
    (finding,) = found(tmp_path)
    assert (finding.level, "cpuset" in finding.text, "memory" in finding.text) == (Level.ERROR, True, False)


def test_a_version_of_kubelet_that_was_assumed(tmp_path: Path) -> None:
    assumed = DaemonState(assumed_kubelet="1.37")
    assert found(tmp_path, assumed) == []  # nothing depends on it where there is no kubelet
    (tmp_path / "var/lib/kubelet").mkdir(parents=True)
    (finding,) = found(tmp_path, assumed)
    assert (finding.level, finding.subject) == (Level.NOTE, "kubelet")
    assert found(tmp_path, DaemonState()) == []


def test_cgroup_v1(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cpuset/cpuset.cpus")
    (finding,) = found(tmp_path)
    assert (finding.level, finding.subject) == (Level.WARNING, "/sys/fs/cgroup")


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "CAP_CHOWN"), (1, "CAP_DAC_OVERRIDE"), (21, "CAP_SYS_ADMIN"), (23, "CAP_SYS_NICE")],
)
def test_a_capability_that_the_daemon_lacks_is_named(tmp_path: Path, number: int, name: str) -> None:
    write(tmp_path, "proc/42/status", f"Name:\tbaypland\nCapEff:\t{ALL:016x}\n")
    assert found(tmp_path, DaemonState(pid=42)) == []
    write(tmp_path, "proc/42/status", f"Name:\tbaypland\nCapEff:\t{ALL & ~(1 << number):016x}\n")
    (finding,) = found(tmp_path, DaemonState(pid=42))
    assert f"has no {name}: " in finding.text
    assert name in finding.advice
    assert found(tmp_path, None) == []


def test_the_unit_grants_all_capabilities_that_are_looked_for() -> None:
    from bayplan.oci.node_checks import _CAPABILITIES

    unit = (Path(__file__).parents[3] / "packaging/systemd/bayplan.service").read_text()
    (line,) = [one for one in unit.splitlines() if one.startswith("CapabilityBoundingSet=")]
    assert set(line.partition("=")[2].split()) == {name for name, _ in _CAPABILITIES.values()}


@pytest.mark.parametrize(
    ("path", "text", "key"),
    [
        ("var/lib/kubelet/config.yaml", "cpuManagerPolicy: static\n", "cpuManagerPolicy"),
        ("var/lib/kubelet/config.yaml", "memoryManagerPolicy: Static\n", "memoryManagerPolicy"),
        ("var/lib/kubelet/cpu_manager_state", '{"policyName":"static","checksum":1}', "cpuManagerPolicy"),
        ("var/lib/kubelet/memory_manager_state", '{"policyName":"Static"}', "memoryManagerPolicy"),
        ("etc/rancher/k3s/config.yaml", "kubelet-arg:\n- cpu-manager-policy=static\n", "cpuManagerPolicy"),
        (
            "etc/rancher/rke2/config.yaml",
            "kubelet-arg: memory-manager-policy=Static\n",
            "memoryManagerPolicy",
        ),
        (
            "var/snap/microk8s/current/args/kubelet",
            '--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--cpu-manager-policy="static"\n',
            "cpuManagerPolicy",
        ),
    ],
)
def test_a_kubelet_that_pins_containers_itself(tmp_path: Path, path: str, text: str, key: str) -> None:
    write(tmp_path, path, text)
    (finding,) = found(tmp_path)
    assert (finding.level, finding.subject) == (Level.WARNING, f"/{path}")
    assert key in finding.text
    assert f"{key}: " in finding.advice


def test_a_file_of_every_distribution_is_looked_for(tmp_path: Path) -> None:
    from bayplan.config import kubelet_documents

    named = Path(kubelet_documents.__file__).read_text()
    paths = {
        one.strip("/")
        for one in re.findall(r"(?<![a-z])/(?:etc|var|run|home)/[a-z0-9/-]+(?:\.[a-z]+)?", named)
    }
    # Flags alone stand there, or files only if they are configured.
    paths -= {"etc/default/kubelet", "var/snap/microk8s/current/args/kubelet"}
    paths -= {"var/lib/rancher/k3s", "var/lib/rancher/rke2"}
    assert {"home/kubernetes/kubelet-config.yaml", "etc/default/kubeletconfig.json"} <= paths
    for path in paths:
        write(tmp_path, path, "cpuManagerPolicy: static\n")
        assert [one.subject for one in found(tmp_path)] == [f"/{path}"]
        (tmp_path / path).unlink()


RUNS = (
    "kubelet\0--config\0/run/k0s/kubelet/config.yaml\0--config-dir=/etc/k.d\0"
    "--root-dir=/var/lib/k0s/kubelet\0"
)


@pytest.mark.parametrize(
    ("files", "more", "said"),
    [
        ({"run/k0s/kubelet/config.yaml": "cpuManagerPolicy: static"}, "", "/run/k0s/kubelet/config.yaml"),
        ({"etc/k.d/a/9.conf": "cpuManagerPolicy: static"}, "", "/etc/k.d/a/9.conf"),
        ({}, "--cpu-manager-policy=static\0", "kubelet's command line"),
        (
            {"var/lib/k0s/kubelet/cpu_manager_state": '{"policyName":"static"}'},
            "--cpu-manager-policy=none\0",
            "/var/lib/k0s/kubelet/cpu_manager_state",
        ),
        # What the kubelet that runs does not read.
        ({"var/lib/kubelet/config.yaml": "cpuManagerPolicy: static"}, "", ""),
        ({"run/k0s/kubelet/config.yaml": "cpuManagerPolicy: static"}, "--cpu-manager-policy=none\0", ""),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's kubelet counts")
def test_a_kubelet_that_runs_says_where_its_files_are(
    tmp_path: Path, files: dict[str, str], more: str, said: str
) -> None:
    for path, text in files.items():
        write(tmp_path, path, text)
    write(tmp_path, "proc/42/comm", "kubelet\n")
    write(tmp_path, "proc/42/cmdline", RUNS + more)
    for pid in ("1", "42"):
        (tmp_path / f"proc/{pid}/ns").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/ns/mnt").symlink_to("mnt:[1]")
    findings = found(tmp_path)
    assert [one.subject for one in findings] == [said] * bool(said)
    if said:
        assert "/var/lib/k0s/kubelet/cpu_manager_state" in findings[0].advice


@pytest.mark.parametrize("text", ["cpuManagerPolicy: none\n", "[", "- 1\n", "kubelet-arg: 3\n", "\x00"])
def test_a_kubelet_that_does_not_or_a_file_that_is_kubelets_business(tmp_path: Path, text: str) -> None:
    for path in (
        "var/lib/kubelet/config.yaml",
        "var/lib/kubelet/cpu_manager_state",
        "etc/rancher/k3s/config.yaml",
    ):
        write(tmp_path, path, text)
    assert found(tmp_path) == []


def test_long_lists_of_cpus_are_named(tmp_path: Path) -> None:
    zone = "Node {}, zone Normal\n  managed 32000\n  cpu: 0\n  count: {}\n  high_min: 2000\n"
    write(tmp_path, "proc/zoneinfo", zone.format(0, 1000) + zone.format(1, 1001))
    (finding,) = found(tmp_path)
    assert (finding.level, finding.subject) == (Level.WARNING, "node 1")
    assert "percpuPagelistHighFraction" in finding.advice
    write(tmp_path, "proc/sys/vm/percpu_pagelist_high_fraction", "garbage\n")
    assert found(tmp_path) == []


def test_nodes_on_which_the_kernel_has_no_memory_for_itself_are_named(tmp_path: Path) -> None:
    zones = "Node {}, zone {}\n  managed {}\n"
    text = "".join(zones.format(*row) for row in ((0, "Normal", 9), (0, "Movable", 9), (1, "Movable", 9)))
    write(tmp_path, "proc/zoneinfo", text + zones.format(2, "Movable", 0) + zones.format(2, "Normal", 0))
    (finding,) = found(tmp_path)
    assert (finding.level, finding.subject) == (Level.WARNING, "node 1")


@pytest.mark.parametrize(
    ("enabled", "kept_ms", "is_named"),
    [
        ("0x0007", "1000", True),
        ("0x0001", "1", True),
        ("0x0007", "0", False),
        ("0x0000", "1000", False),
        ("garbage", "1000", False),
        ("0x0007", "garbage", False),
    ],
)
def test_a_kernel_that_kills_while_memory_is_free_is_named(
    tmp_path: Path, enabled: str, kept_ms: str, *, is_named: bool
) -> None:
    write(tmp_path, "sys/kernel/mm/lru_gen/enabled", f"{enabled}\n")
    write(tmp_path, "sys/kernel/mm/lru_gen/min_ttl_ms", f"{kept_ms}\n")
    named = [(one.level, one.subject) for one in found(tmp_path)]
    assert named == [(Level.WARNING, "/sys/kernel/mm/lru_gen/min_ttl_ms")] * is_named


@pytest.mark.parametrize(
    ("name", "value", "is_named"),
    [
        ("oom_kill_allocating_task", "0", False),
        # As banzaicloud/pke sets it on nodes of Kubernetes.
        ("oom_kill_allocating_task", "1", True),
        ("panic_on_oom", "0", False),
        # Azure/aks-engine, sonic-net/sonic-buildimage.
        ("panic_on_oom", "1", True),
        ("panic_on_oom", "2", True),
    ],
)
def test_a_kernel_that_does_not_go_by_the_order_of_kills_is_named(
    tmp_path: Path, name: str, value: str, *, is_named: bool
) -> None:
    write(tmp_path, f"proc/sys/vm/{name}", f"{value}\n")
    named = [(one.level, one.subject) for one in found(tmp_path)]
    assert named == [(Level.WARNING, f"/proc/sys/vm/{name}")] * is_named


def test_what_is_in_the_place_of_placement_files(tmp_path: Path) -> None:
    place = tmp_path / "run/bayplan-placements"
    place.mkdir(parents=True)
    place.chmod(0o755)
    assert found(tmp_path) == []
    place.chmod(0o777)
    (finding,) = found(tmp_path)
    assert (finding.level, finding.subject) == (Level.ERROR, "/run/bayplan-placements")
    place.rmdir()
    place.symlink_to("/tmp")
    (finding,) = found(tmp_path)
    assert (finding.level, finding.subject) == (Level.ERROR, "/run/bayplan-placements")


def test_placement_files_are_looked_at_where_the_daemon_keeps_them(tmp_path: Path) -> None:
    write(tmp_path, "srv/places")
    assert found(tmp_path, DaemonState()) == []
    (finding,) = found(tmp_path, DaemonState(placement_directory="/srv/places"))
    assert (finding.level, finding.subject) == (Level.ERROR, "/srv/places")


def test_a_kernel_without_remote_partitions_is_named_where_somebody_wants_one(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/kubepods/cpuset.cpus.partition", "member\n")
    wanted = DaemonState(wishes=frozenset({"cpu-partition"}))
    assert found(tmp_path, DaemonState()) == []
    (finding,) = found(tmp_path, wanted)
    assert (finding.level, "6.7" in finding.advice) == (Level.WARNING, True)
    write(tmp_path, "sys/fs/cgroup/kubepods/cpuset.cpus.exclusive", "\n")
    assert found(tmp_path, wanted) == []


def test_cpus_that_the_kernel_keeps_for_nobody_are_named(tmp_path: Path) -> None:
    cgroups = "sys/fs/cgroup"
    write(tmp_path, f"{cgroups}/cpuset.cpus.isolated", "1-4\n")
    write(tmp_path, "sys/devices/system/cpu/isolated", "4\n")
    write(tmp_path, f"{cgroups}/kubepods/p/c/cpuset.cpus.partition", "isolated invalid (Parent ...)\n")
    write(tmp_path, f"{cgroups}/kubepods/p/c/cpuset.cpus", "1\n")
    write(tmp_path, f"{cgroups}/ovs.slice/cpuset.cpus.partition", "isolated\n")
    write(tmp_path, f"{cgroups}/ovs.slice/cpuset.cpus.exclusive", "2\n")
    write(tmp_path, f"{cgroups}/kubepods/p/d/cpuset.cpus.partition", "member\n")
    write(tmp_path, f"{cgroups}/kubepods/p/d/cpuset.cpus", "0-3\n")
    for daemon in (None, DaemonState()):
        (finding,) = [one for one in found(tmp_path, daemon) if "isolated" in one.subject]
        assert (finding.level, "CPU 3" in finding.text) == (Level.ERROR, True)
    write(tmp_path, f"{cgroups}/cpuset.cpus.isolated", "1-2\n")
    assert found(tmp_path, DaemonState()) == []


def test_irqbalance_is_named_where_interrupts_are_to_stay_away(tmp_path: Path) -> None:
    write(tmp_path, "proc/7/comm", "irqbalance\n")
    assert found(tmp_path, DaemonState()) == []
    (finding,) = found(tmp_path, DaemonState(wishes=frozenset({"irqs"})))
    assert (finding.level, finding.subject) == (Level.WARNING, "irqbalance")


@pytest.mark.parametrize(
    ("environment", "is_named"),
    [
        ("HOME=/\0LANG=C\0", True),
        ("HOME=/\0WATCHDOG_USEC=30000000\0", False),
        ("KUBERNETES_SERVICE_HOST=10.0.0.1\0", False),
        ("", False),
    ],
)
def test_a_daemon_that_refuses_and_that_nobody_ends_is_named(
    tmp_path: Path, environment: str, *, is_named: bool
) -> None:
    write(tmp_path, "proc/7/environ", environment)
    named = [one.level for one in found(tmp_path, DaemonState(pid=7, refuses=True))]
    assert named == [Level.WARNING] * is_named
    assert found(tmp_path, DaemonState(pid=7)) == []


def test_a_kernel_that_cannot_move_pages_together(tmp_path: Path) -> None:
    wanted = DaemonState(hugepage_pools=True)
    (finding,) = found(tmp_path, wanted)
    assert finding.subject == "/proc/sys/vm/compact_memory"
    assert found(tmp_path, DaemonState()) == []
    compact = tmp_path / "sys/devices/system/node/node0/compact"
    compact.parent.mkdir(parents=True)
    compact.touch()
    assert found(tmp_path, wanted) == []
