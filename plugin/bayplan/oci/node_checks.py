"""What the doctor looks at beside the container engines: cgroups, memory protection, the daemon's
capabilities, kubelet's managers, zones of memory; and the form of what it finds.

The kernel protects a cgroup by no more than what all cgroups above it are protected by, the root apart. Those
above containers are kubelet's, systemd's or the runtime's: nobody here writes them.

Reads files below an injectable root, and changes nothing. A file that is not there says nothing: a node
without kubelet is as well as one with it.
"""

import json
import os
import re
import shlex
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from bayplan.config.keys import KEYS
from bayplan.config.values import InvalidValueError
from bayplan.errors import HostError
from bayplan.files import kind_of, read_text
from bayplan.host.changed_files import ChangedFiles
from bayplan.host.cpu_partitions import CpuPartitions
from bayplan.host.kubelet_program import flags_in, kubelet_flags
from bayplan.host.memory_statistics import read_zones
from bayplan.host.placement_files import DIRECTORY
from bayplan.host.sysfs import read_isolated
from bayplan.model.machine import given_to_nobody
from bayplan.printable import pattern
from bayplan.quantity import format_bytes, whole_number


class Level(Enum):
    """With an ERROR containers are not placed, or soon will not be; with a WARNING they are. A NOTE says how
    far bayplan reaches where nothing is wrong."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Finding(Struct, frozen=True):
    """A problem: ``subject`` is the thing, ``text`` what is wrong with it, ``advice`` what to do."""

    level: Level
    subject: str
    text: str
    advice: str = ""


class DaemonState(Struct, frozen=True):
    """What is known of a running daemon. ``nri_runtime``: the runtime that is connected over NRI, "" for
    none. ``pid``: its process, 0 where it is not known. ``faults``: what does not hold of its ledger, each
    sentence with whether it was put right. ``assumed_kubelet``: the version of kubelet whose rules it goes by
    without knowing which one the node has, else "". ``placement_directory``: where it keeps placement files,
    "" where it does not say. ``wishes``: the annotations of containers, without prefix, that need something
    of the node. ``hugepage_pools``: some pools are to grow and shrink. ``refuses``: a container that it
    cannot decide about is not to start."""

    nri_runtime: str = ""
    runtime_version: str = ""
    nri_version: str = ""
    pid: int = 0
    faults: Mapping[str, bool] = {}
    assumed_kubelet: str = ""
    placement_directory: str = ""
    wishes: frozenset[str] = frozenset()
    hugepage_pools: bool = False
    refuses: bool = False


_FILES: Final = ("memory.min", "memory.low")
MOST_LEVELS: Final = 16
MOST_NAMED: Final = 4
_SHOWN: Final = "/sys/fs/cgroup"
_CONTAINER: Final = pattern(r"(?:^|[^0-9a-f])[0-9a-f]{64}(?:$|[^0-9a-f])")
"""In the name of a container's cgroup, whatever runtime made it."""
_KUBELETS: Final = pattern(r"kubepods(?:[-./].*)?")
"""The beginning of the paths in kubelet's tree, below whatever cgroupRoot it has."""
_BY_KUBELET: Final = (
    "let kubelet write sums: MemoryQoS and memoryReservationPolicy: TieredReservation in its own file; what "
    "others write there lasts until kubelet starts again (from 1.37 on it writes 0 into kubepods)"
)
_ADVICE: Final = "set MemoryMin= or MemoryLow= of the slice, or write the file"


def void_protections(mount: Path) -> Iterator[Finding]:
    """The cgroups below *mount* that protect less than what their containers are to be protected by, the
    outermost first."""
    for name in _FILES:
        lacking: list[tuple[Path, int, int]] = []
        for top in _children(mount):
            _protected(top, name, MOST_LEVELS, lacking)
        # The outermost has the last word.
        lacking.sort(key=lambda one: (len(one[0].parts), one[0]))
        for directory, own_bytes, wanted_bytes in lacking[:MOST_NAMED]:
            wanted, own = format_bytes(wanted_bytes), format_bytes(own_bytes)
            effect = "only in part" if own_bytes else "not at all"
            text = f"is {own}, so that the containers below, with {wanted} together, are protected {effect}"
            path = directory.relative_to(mount)
            advice = _BY_KUBELET if any(map(_KUBELETS.fullmatch, path.parts)) else _ADVICE
            yield Finding(Level.WARNING, f"{_SHOWN}/{path}/{name}", text, advice)


def _protected(directory: Path, name: str, levels: int, lacking: list[tuple[Path, int, int]]) -> int:
    """What the containers in *directory* and below are to be protected by; what protects less is added to
    *lacking*."""
    own_bytes = _value(directory / name)
    if _CONTAINER.search(directory.name):
        return own_bytes
    below = _children(directory) if levels else []
    wanted_bytes = sum(_protected(one, name, levels - 1, lacking) for one in below)
    if wanted_bytes > own_bytes:
        lacking.append((directory, own_bytes, wanted_bytes))
    return wanted_bytes


def _value(file: Path) -> int:
    """What a file of the kernel says in bytes; 0 where it is not there. ``max`` is more than anything."""
    try:
        text = read_text(file, errors="replace").strip()
    except OSError:
        return 0
    return 1 << 62 if text == "max" else whole_number(text) or 0


def _children(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(one.path) for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []  # It ended meanwhile.


_CGROUP: Final = "sys/fs/cgroup"
_CONTROLLERS: Final = ("cpuset", "memory")
_CAPABILITIES: Final[Mapping[int, tuple[str, str]]] = {
    0: ("CAP_CHOWN", "a config.json that a hook has rewritten gets another owner"),
    1: ("CAP_DAC_OVERRIDE", "files of other users' containers cannot be written"),
    5: ("CAP_KILL", "pods of other users cannot be evicted (memoryPressure evict)"),
    18: ("CAP_SYS_CHROOT", "hooks mount no placement files"),
    19: ("CAP_SYS_PTRACE", "pages of other users' processes are not moved, and wrapped runtimes not found"),
    21: (
        "CAP_SYS_ADMIN",
        "interfaces in pods give no device hints, and hooks mount no placement files",
    ),
    23: ("CAP_SYS_NICE", "pages of containers are not moved where promised memory would run out"),
    24: ("CAP_SYS_RESOURCE", "oom_score_adj cannot be lowered, neither of containers nor of baypland"),
}
"""By their numbers in capability(7); the unit of packaging/systemd grants them."""

_KUBELET_CONFIGURATIONS: Final = (
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/config",
    "etc/kubernetes/kubelet.conf",
    "etc/kubernetes/kubelet.yaml",
    "etc/default/kubeletconfig.json",
    "home/kubernetes/kubelet-config.yaml",
    "run/k0s/kubelet/config.yaml",
    "var/lib/kubelet/kubelet.conf",
    "var/lib/microshift/resources/kubelet/config/config.yaml",
)
"""Where distributions have it, as long as no kubelet runs and says where. Some have a kubeconfig there."""
_ISOLATED: Final = "cpuset.cpus.isolated"
_ENDED_BY: Final = frozenset({"WATCHDOG_USEC", "KUBERNETES_SERVICE_HOST"})
"""Variables of a process that systemd watches, or kubelet."""
_COMPACTION: Final = "proc/sys/vm/compact_memory"
_LRU_GEN: Final = "sys/kernel/mm/lru_gen"
_KILLS_WHO_ASKS: Final = "proc/sys/vm/oom_kill_allocating_task"
_PANIC: Final = "proc/sys/vm/panic_on_oom"
_PANICS: Final = {
    "1": "as soon as a container that may use all nodes finds no memory, whoever took it",
    "2": "as soon as one node, or one container within its limit, has no memory left",
}
"""mm/oom_kill.c, `check_panic_on_oom`. kubelet writes 0, unless it has `protectKernelDefaults`."""
_IRQBALANCE: Final = "irqbalance"
_KUBELET_DIRECTORY: Final = "var/lib/kubelet"
_RANCHER: Final = ("etc/rancher/k3s/config.yaml", "etc/rancher/rke2/config.yaml")
_SNAPS: Final = ("var/snap/microk8s/current/args/kubelet", "var/snap/k8s/common/args/kubelet")
"""kubelet's flags, one a line."""
_STATE: Final = {
    "cpuManagerPolicy": "cpu_manager_state",
    "memoryManagerPolicy": "memory_manager_state",
}
_LARGE_LISTS: Final = 32
"""Worth a word is more than this part of a node: of large ones the kernel's default is a thousandth."""
_OFF: Final = {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}
_PINS: Final = {"cpuManagerPolicy": ("CPUs", "static"), "memoryManagerPolicy": ("memory", "static")}


def node_findings(root: Path, daemon: DaemonState | None) -> Iterator[Finding]:
    """All that is worth saying of the node below *root*; *daemon* is None if none answers."""
    yield from _of_cgroups(root)
    if daemon is not None and daemon.pid:
        yield from _of_capabilities(root, daemon.pid)
        if daemon.refuses:
            yield from _of_watchdog(root, daemon.pid)
    yield from _of_kubelet(root)
    if daemon is not None and daemon.assumed_kubelet and (root / _KUBELET_DIRECTORY).is_dir():
        text = (
            f"baypland goes by the rules of {daemon.assumed_kubelet}: which kubelet this is was not found out"
        )
        advice = "set kubeletVersion, or let bayplan-agent ask the API server"
        yield Finding(Level.NOTE, "kubelet", text, advice)
    yield from _of_zones(root)
    yield from _of_working_sets(root)
    yield from _of_kills(root)
    yield from _of_placement_files(root, "" if daemon is None else daemon.placement_directory)
    yield from _of_lost_cpus(root)
    if daemon is not None:
        yield from _of_isolation(root, daemon.wishes)
        if daemon.hugepage_pools:
            yield from _of_compaction(root)


def _of_compaction(root: Path) -> Iterator[Finding]:
    """What keeps pools of huge pages from growing as far as memory is free."""
    nodes = root / "sys/devices/system/node"
    if not any(nodes.glob("node[0-9]*/compact")) and not (root / _COMPACTION).exists():
        text = "the kernel cannot move pages together: pools of huge pages grow by large free blocks alone"
        yield Finding(Level.NOTE, f"/{_COMPACTION}", text, "boot a kernel with CONFIG_COMPACTION")


def _of_isolation(root: Path, wishes: Collection[str]) -> Iterator[Finding]:
    """What is in the way of containers that want to be alone on their CPUs."""
    cpusets = [one.parent for one in sorted((root / _CGROUP).glob("*/cpuset.cpus.partition"))]
    if "cpu-partition" in wishes and cpusets and not (cpusets[0] / "cpuset.cpus.exclusive").exists():
        text = "the kernel has no cpuset.cpus.exclusive: containers with bayplan.dev/cpu-partition have none"
        yield Finding(Level.WARNING, f"/{_CGROUP}", text, "boot Linux 6.7 or a later one")
    if "irqs" in wishes and _runs(root, _IRQBALANCE):
        text = "runs, and moves interrupts back onto CPUs that are to be without: for ten seconds at a time"
        advice = "set IRQBALANCE_BANNED_CPULIST in its configuration, or stop it"
        yield Finding(Level.WARNING, _IRQBALANCE, text, advice)


def _of_lost_cpus(root: Path) -> Iterator[Finding]:
    """CPUs that the kernel gives to no cgroup until the next boot."""
    partitions = CpuPartitions(str(root / _CGROUP), ChangedFiles(None))
    if lost := partitions.lost_cpus(read_isolated(root)):
        advice = "drain the node and boot it"
        yield Finding(Level.ERROR, f"/{_CGROUP}/{_ISOLATED}", given_to_nobody(lost), advice)


def _runs(root: Path, program: str) -> bool:
    found = (one for one in (root / "proc").glob("[0-9]*/comm"))
    return any((_read(one) or "").strip() == program for one in found)


def _of_placement_files(root: Path, directory: str) -> Iterator[Finding]:
    """What is in the place of the directories that containers have mounted."""
    subject = directory or str(DIRECTORY)
    try:
        found = (root / subject.lstrip("/")).lstat()
    except OSError:
        return  # No container has asked for one yet.
    advice = "remove it, and restart baypland"
    if not stat.S_ISDIR(found.st_mode):
        text = f"is {kind_of(found)} and no directory: containers get no placement file"
        yield Finding(Level.ERROR, subject, text, advice)
    elif found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid()):
        text = f"mode {stat.S_IMODE(found.st_mode):o}, user {found.st_uid}: others than root can change it"
        yield Finding(Level.ERROR, subject, text, f"chown root {subject}; chmod 755 {subject}")


def _of_zones(root: Path) -> Iterator[Finding]:
    try:
        zones = read_zones(root)
    except HostError:
        return  # The daemon needs it, and says so.
    for node, zone in sorted(zones.items()):
        kept_bytes = zone.lists.lasting_bytes
        if kept_bytes * _LARGE_LISTS > zone.managed_bytes:
            text = (
                f"CPUs keep {format_bytes(kept_bytes)} of {format_bytes(zone.managed_bytes)} as free pages "
                "on lists of their own: nobody else gets them, and they cannot be promised"
            )
            advice = "set percpuPagelistHighFraction, to 1024 for instance, if promises need that memory"
            yield Finding(Level.WARNING, f"node {node}", text, advice)
        if zone.managed_bytes and not zone.kernel_bytes:
            text = (
                "all of its memory is in the zone Movable: the kernel has none for a container that may use "
                "this node alone, and which no OCI runtime gets started"
            )
            advice = "use runc 1.4, which sets memory policies, or bring it online with online_kernel"
            yield Finding(Level.WARNING, f"node {node}", text, f"{advice} (daxctl: --no-movable)")


def _of_working_sets(root: Path) -> Iterator[Finding]:
    """A kernel that kills before memory is gone, whoever it is and wherever memory is free (mm/vmscan.c,
    `lru_gen_age_node`): a node that is full of what was promised there is enough."""
    enabled, kept = (_read(root / _LRU_GEN / name) or "0" for name in ("enabled", "min_ttl_ms"))
    kept_ms = int(kept) if kept.strip().isdecimal() else 0
    if kept_ms and re.fullmatch(r"0x[0-9a-f]*[13579bdf]|y", enabled.strip()):
        text = (
            f"the kernel kills somebody as soon as one node has no page that was not used for {kept_ms} ms, "
            "though others have memory: promises are not kept"
        )
        yield Finding(Level.WARNING, f"/{_LRU_GEN}/min_ttl_ms", text, "write 0 to it")


def _of_kills(root: Path) -> Iterator[Finding]:
    """A kernel that goes by other things than `oom_score_adj` when a node has no memory left."""
    if (_read(root / _KILLS_WHO_ASKS) or "0").strip() != "0":
        text = (
            "the kernel kills whoever asks for memory that is not there, promised or not, "
            "and not the container that was promised nothing"
        )
        yield Finding(Level.WARNING, f"/{_KILLS_WHO_ASKS}", text, "write 0 to it")
    when = _PANICS.get((_read(root / _PANIC) or "0").strip())
    if when is not None:
        yield Finding(Level.WARNING, f"/{_PANIC}", f"the machine panics {when}", "write 0 to it")


def _of_cgroups(root: Path) -> Iterator[Finding]:
    available = _read(root / _CGROUP / "cgroup.controllers")
    if available is not None:
        missing = [name for name in _CONTROLLERS if name not in available.split()]
        if missing:
            text = f"cgroup v2 has no controller {' and '.join(missing)}: containers cannot be confined"
            advice = "remove cgroup_disable= and cgroup_no_v1= from the kernel's command line"
            yield Finding(Level.ERROR, f"/{_CGROUP}", text, advice)
        yield from void_protections(root / _CGROUP)
    elif (root / _CGROUP / "cpuset").is_dir():
        text = "is cgroup v1: memory.high and memory.min are not set, so that nobody is slowed down until"
        text += " promised memory is freed, and page cache is not reclaimed"
        advice = "boot with systemd.unified_cgroup_hierarchy=1; Kubernetes drops cgroup v1 as well"
        yield Finding(Level.WARNING, f"/{_CGROUP}", text, advice)


def _of_capabilities(root: Path, pid: int) -> Iterator[Finding]:
    found = re.search(r"^CapEff:\s+([0-9a-f]{1,16})$", _read(root / f"proc/{pid}/status") or "", re.MULTILINE)
    if found is None:
        return
    effective = int(found[1], 16)
    for number, (name, consequence) in _CAPABILITIES.items():
        if not effective >> number & 1:
            advice = f"add {name} to CapabilityBoundingSet= of its systemd unit, or to what starts it"
            yield Finding(Level.WARNING, f"baypland (process {pid})", f"has no {name}: {consequence}", advice)


def _of_watchdog(root: Path, pid: int) -> Iterator[Finding]:
    """Whether somebody ends a daemon that hangs: with ``whenDown: refuse`` runtimes wait for it, in all that
    they do with pods once its socket is full. systemd tells the process; pods have the chart's probe."""
    variables = {one.partition("=")[0] for one in (_read(root / f"proc/{pid}/environ") or "").split("\0")}
    if variables - {""} and variables.isdisjoint(_ENDED_BY):
        text = "nobody ends it if it hangs: with whenDown refuse the runtime waits for it, and so do all pods"
        advice = "set WatchdogSec= in its systemd unit, as the shipped one has it"
        yield Finding(Level.WARNING, f"baypland (process {pid})", text, advice)


def _of_kubelet(root: Path) -> Iterator[Finding]:
    for key, (where, policy) in _kubelet_policies(root).items():
        what, pinning = _PINS[key]
        if policy.lower() != pinning:
            continue
        text = f"kubelet pins {what} itself ({key}: {policy}); bayplan leaves these containers as they are"
        advice = (
            f"let one of the two decide: set {key}: {_OFF[key]}, drain the node, remove "
            f"/{_state_files(kubelet_flags(root))[key]}, and restart kubelet"
        )
        yield Finding(Level.WARNING, where, text, advice)


def _kubelet_policies(root: Path) -> dict[str, tuple[str, str]]:
    """Policy and where it is said, by the manager's key: in kubelet's file, its drop-ins, its flags; what it
    has written down last wins. A kubelet that runs says by its flags where its files are."""
    flags = kubelet_flags(root)
    policies: dict[str, tuple[str, str]] = {}
    for path in _kubelet_files(root, flags):
        content = _table(root / path)
        policies |= {key: (f"/{path}", str(content[key])) for key in _STATE if content.get(key)}
    for path in _RANCHER:
        arguments = _table(root / path).get("kubelet-arg")
        listed = arguments if isinstance(arguments, list) else [arguments]
        policies |= _policies_in(f"/{path}", flags_in([f"--{str(one).lstrip('-')}" for one in listed]))
    for path in _SNAPS:
        with suppress(ValueError):
            policies |= _policies_in(f"/{path}", flags_in(shlex.split(_read(root / path) or "")))
    policies |= _policies_in("kubelet's command line", flags)
    for key, path in _state_files(flags).items():
        policy = _table(root / path).get("policyName")
        if policy:
            policies[key] = (f"/{path}", str(policy))
    return policies


def _kubelet_files(root: Path, flags: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Kubelet's files in its order, below the root."""
    yield from [_below_root(path) for path in flags.get("config", ())[-1:]] or _KUBELET_CONFIGURATIONS
    for directory in flags.get("config-dir", ())[-1:]:
        yield from sorted(
            str(file.relative_to(root)) for file in (root / _below_root(directory)).rglob("*.conf")
        )


def _policies_in(where: str, flags: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, str]]:
    said = {key: flags.get(KEYS[key].flag, ())[-1:] for key in _STATE}
    return {key: (where, texts[0]) for key, texts in said.items() if texts}


def _state_files(flags: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The paths of the managers' state files, by the manager's key."""
    directory = _below_root(flags.get("root-dir", (_KUBELET_DIRECTORY,))[-1])
    return {key: f"{directory}/{name}" for key, name in _STATE.items()}


def _below_root(path: str) -> str:
    return path.strip("/")


def _table(path: Path) -> dict[str, Any]:
    """A file of YAML or JSON; empty if it is absent or something else. To read it right is its owner's
    part."""
    text = _read(path)
    if text is None:
        return {}
    from bayplan.config.yaml_text import parse_yaml  # noqa: PLC0415 - the daemon, which loads this, does without YAML

    try:
        content = json.loads(text) if text.lstrip().startswith("{") else parse_yaml(text)
    except (ValueError, RecursionError, InvalidValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read(path: Path) -> str | None:
    try:
        return read_text(path, errors="replace")
    except OSError:
        return None
