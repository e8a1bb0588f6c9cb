"""Every key of the configuration, once: its name in files, its flag, its reader, its default and its
meaning.

The reader of files, the flags, --help and the test of the documentation are all made from this table.
Names and shapes are KubeletConfiguration's wherever it has them.

The command line of baypland is one flag for every key, in kubelet's spelling, and what is not a key. The
values are read by `bayplan.config.load`: a flag is checked like a file.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from bayplan import __version__
from bayplan.admin_protocol import LOG_LEVELS
from bayplan.config import syntax
from bayplan.config.amounts import (
    amount_bytes,
    by_signal,
    positive_bytes,
    reserved_memory,
    reserved_resources,
    transition_period,
)
from bayplan.config.settings import MemoryPressure, Settings, Undecided
from bayplan.config.syntax import switch
from bayplan.config.values import (
    InvalidValueError,
    ProblemCollector,
    Reader,
    absolute_path,
    absolute_path_or_none,
    boolean,
    cpu_list,
    digits,
    duration_ms,
    entries,
    invalid,
    items,
    join,
    kubelet_minor,
    list_fraction,
    namespaces,
    node_owners,
    off_or_one_of,
    one_of,
    parsed,
    policy_options,
    share_or_none,
    show,
    socket_path,
    socket_path_or_none,
    some_of,
    table,
    text_like,
    whole_number,
    whole_number_or,
)
from bayplan.engines.interface import EXACT, KUBELET
from bayplan.errors import ParseError, Problem
from bayplan.kubelet.eviction_manager import read_grace_period, read_min_reclaim, read_threshold
from bayplan.kubelet.manager_options import CPU_OPTIONS, NONE, OPTIONS, STATIC, MemoryManagerPolicy
from bayplan.model.machine import CORE_KINDS, hugepages
from bayplan.model.policy import (
    CpuPool,
    CpuRule,
    Defragment,
    KeepWhole,
    MemoryReservationPolicy,
    OutsideRequests,
    PlacementFiles,
    PlacementStrategy,
    PoolBounds,
    TopologyPolicy,
    TopologyScope,
)
from bayplan.model.wishes import KEYS as ANNOTATIONS
from bayplan.model.wishes import POOL_NAME, wrong_rule
from bayplan.quantity import format_bytes, parse_page_size
from bayplan.sets import CpuSet, NodeSet
from bayplan.standard_streams import CommandLineParser

FEATURE_GATES: Final = (
    "MemoryQoS",
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "TopologyManagerPolicyAlphaOptions",
    "TopologyManagerPolicyBetaOptions",
)
"""kubelet's feature gates that mean something here."""


def _same(*names: str) -> Mapping[str, str]:
    return {name: name for name in names}


def cpu_rules(path: str, value: object) -> tuple[CpuRule, ...]:
    """Rules about CPUs: a list of tables, of which none may be for containers alone that an earlier one is
    for."""
    if not isinstance(value, list):
        raise invalid(path, show(value), "a list of rules")
    collector, rules = ProblemCollector(), list[CpuRule]()
    for place, item in enumerate(value):
        here = f"{path}[{place}]"
        with collector:
            found = table(_OF_A_RULE)(here, item)
            rule = CpuRule(**{"cpu_kind" if key == "cpuKind" else key: one for key, one in found.items()})
            if not (rule.cpus or rule.cpu_kind):
                raise invalid(here, "a rule that gives nothing", "cpus, cpuKind or both")
            problem = wrong_rule(rule)
            if problem is not None:
                raise InvalidValueError(Problem(join(here, problem.path), problem.found, problem.expected))
            first = next((index for index, one in enumerate(rules) if one.covers(rule)), None)
            rules.append(rule)
            if first is not None:
                expected = (
                    f"containers that {path}[{first}] is not for; the first rule for a container counts"
                )
                raise invalid(here, "a rule that never counts", expected)
    collector.raise_problems(tuple(rules))
    return tuple(rules)


def _labels(path: str, value: object) -> dict[str, str]:
    return {
        key: text_like(r".{0,63}", "a label's value")(join(path, key), one) for key, one in items(path, value)
    }


_OF_A_RULE: Final[Mapping[str, Reader[Any]]] = {
    "namespaces": namespaces,
    "labels": _labels,
    "containers": namespaces,
    "cpus": text_like(r".{1,68}", "a value of the annotation cpus"),
    "cpuKind": text_like(r".{1,32}", "a value of the annotation cpu-kind"),
}


def cpu_pools(path: str, value: object) -> dict[str, CpuPool]:
    """Named pools: a table of tables, by name."""

    def pool(here: str, name: str, item: object) -> CpuPool:
        if not POOL_NAME.fullmatch(name):
            raise invalid(here, show(name), "a name of lower-case letters, digits and -, 63 at most")
        found = table(_OF_A_POOL)(here, item)
        if "maximum" not in found:
            raise invalid(here, "no maximum", "how many CPUs the pool has at most")
        least, most = found.get("minimum", 1), found["maximum"]
        if least > most:
            raise invalid(join(here, "minimum"), digits(least), f"at most its maximum, {most}")
        return CpuPool(least, most, found.get("cpuKind", ""))

    return entries(path, value, pool)


def hugepage_pools(path: str, value: object) -> dict[int, dict[int, PoolBounds]]:
    """Bounds of pools of huge pages: by lists of NUMA nodes, tables by resource name."""
    collector, pools_by_node = ProblemCollector(), dict[int, dict[int, PoolBounds]]()

    def pool(here: str, name: str, item: object) -> PoolBounds:
        size = _size_of(here, name)
        bounds = table(_OF_A_HUGEPAGE_POOL)(here, item)
        if "maximum" not in bounds:
            raise invalid(here, "no maximum", "how much memory the pool takes at most")
        least, most = bounds.get("minimum", 0), bounds["maximum"]
        for key, amount in (("minimum", least), ("maximum", most)):
            if amount % size:
                raise invalid(join(here, key), format_bytes(amount), f"whole pages of {format_bytes(size)}")
        if least > most:
            raise invalid(
                join(here, "minimum"), format_bytes(least), f"at most its maximum, {format_bytes(most)}"
            )
        return PoolBounds(least, most)

    for key, item in items(path, value):
        here = join(path, key)
        with collector:
            nodes = parsed(NodeSet.parse, here, key, "a list of NUMA nodes such as 0-3")
            pools = {_size_of(here, name): one for name, one in entries(here, item, pool).items()}
            for node in nodes:
                if node in pools_by_node:
                    raise invalid(here, f"node {node} a second time", "each node once")
                pools_by_node[node] = pools
    collector.raise_problems()
    return pools_by_node


def _size_of(path: str, name: str) -> int:
    prefix, _, size = name.partition("-")
    if prefix == "hugepages":
        with suppress(ParseError):
            size_bytes = parse_page_size(size)
            if hugepages(size_bytes) == name:
                return size_bytes
    raise invalid(path, show(name), "the name of a resource such as hugepages-2Mi")


_OF_A_HUGEPAGE_POOL: Final[Mapping[str, Reader[int]]] = {
    "minimum": amount_bytes,
    "maximum": positive_bytes,
}

_OF_A_POOL: Final[Mapping[str, Reader[Any]]] = {
    "minimum": whole_number(1, CpuSet.max_id),
    "maximum": whole_number(1, CpuSet.max_id),
    "cpuKind": one_of({kind: kind for kind in CORE_KINDS}),
}


class Key(Struct, frozen=True):
    """One key. ``field`` is its attribute of Settings; ``plain`` turns the flag's texts into the value that a
    file would hold; ``default`` is for people. ``of_kubelet``: also taken from kubelet's own file;
    ``of_managers``: how kubelet's managers work, which is for the engine `kubelet` only; ``at_start``: a
    change takes a restart."""

    name: str
    field: str
    flag: str
    metavar: str
    read: Reader[Any]
    plain: Callable[[Sequence[str]], object]
    default: str
    meaning: str
    of_kubelet: bool = False
    of_managers: bool = False
    at_start: bool = False


PLACEMENT: Final = (
    Key(
        "engine", "engine", "engine", "ENGINE",
        one_of(_same(EXACT, KUBELET)), syntax.text, EXACT,
        "how places are found: exact, or kubelet for the answers that kubelet's managers would give",
    ),
    Key(
        "kubeletVersion", "kubelet_minor", "kubelet-version", "VERSION",
        kubelet_minor, syntax.text, "the node's",
        "the version of the node's kubelet, whose defaults and rules are taken, e.g. 1.36; without it as "
        "found on the node, else the newest",
    ),
    Key(
        "placementStrategy", "placement_strategy", "placement-strategy", "STRATEGY",
        one_of({strategy.value: strategy for strategy in PlacementStrategy}), syntax.text, "pack",
        "which of equally narrow and near nodes are taken: pack for the fullest, spread for the emptiest",
    ),
    Key(
        "keepWhole", "keep_whole", "keep-whole", "WHAT",
        one_of({what.value: what for what in KeepWhole}), syntax.text, "cache",
        "what pack keeps in one piece for requests to come, with the engine exact: node for NUMA nodes, "
        "cache for L3 caches, or off",
    ),
    Key(
        "topologyManagerPolicy", "topology", "topology-manager-policy", "POLICY",
        one_of({policy.value: policy for policy in TopologyPolicy}), syntax.text, "best-effort",
        "what to do with a container that can't be placed on few enough NUMA nodes: none, best-effort, "
        "restricted or single-numa-node", of_kubelet=True,
    ),
    Key(
        "topologyManagerScope", "topology_scope", "topology-manager-scope", "SCOPE",
        one_of({scope.value: scope for scope in TopologyScope}), syntax.text, "container",
        "what is placed as one: container or pod", of_kubelet=True,
    ),
    Key(
        "topologyManagerPolicyOptions", "topology_options", "topology-manager-policy-options",
        "NAME=VALUE[,...]", policy_options(OPTIONS), syntax.assignments("="), "none",
        "options of the topology policy, with the engine kubelet: prefer-closest-numa-nodes, "
        "max-allowable-numa-nodes", of_managers=True,
    ),
    Key(
        "memoryManagerPolicy", "memory_manager", "memory-manager-policy", "POLICY",
        one_of({policy.value: policy for policy in MemoryManagerPolicy}), syntax.text, "Static",
        "how memory is placed: Static, or with the engine kubelet also None and BestEffort",
        of_managers=True,
    ),
    Key(
        "cpuManagerPolicy", "cpu_manager", "cpu-manager-policy", "POLICY",
        one_of(_same(STATIC, NONE)), syntax.text, STATIC,
        "how CPUs are placed: static, or with the engine kubelet also none", of_managers=True,
    ),
    Key(
        "cpuManagerPolicyOptions", "cpu_options", "cpu-manager-policy-options", "NAME=BOOL[,...]",
        policy_options(CPU_OPTIONS), syntax.assignments("="), "none",
        "which CPUs of its own a container gets, e.g. full-pcpus-only=true", of_kubelet=True,
    ),
    Key(
        "returnDeadline", "return_deadline_ms", "return-deadline", "DURATION",
        duration_ms(10, 600_000), syntax.text, "30s",
        "how long the memory of one container that goes back to fewer nodes is moved at most",
    ),
    Key(
        "returnMaxMove", "return_most_bytes", "return-max-move", "AMOUNT",
        positive_bytes, syntax.text, "64Gi",
        "a container that would have to move more memory than this to go back to fewer nodes stays on more",
    ),
    Key(
        "memoryPressure", "memory_pressure", "memory-pressure", "MODE",
        off_or_one_of({mode.value: mode for mode in MemoryPressure}), syntax.text, "relieve",
        "what to do where nodes cannot give what was promised on them: off does not check, observe reports "
        "it, relieve reclaims page cache and moves pages of containers that may lie elsewhere, evict also "
        "ends pods where eviction thresholds are met all the same",
    ),
    Key(
        "pageMoveRate", "page_move_rate_bytes", "page-move-rate", "AMOUNT",
        positive_bytes, syntax.text, "1Gi",
        "how many bytes are moved per second at most for the sake of memory that was promised to others",
    ),
    Key(
        "defragment", "defragment", "defragment", "MODE",
        off_or_one_of({mode.value: mode for mode in Defragment}), syntax.text, "plan",
        "what to do for a container that does not fit as asked and would if others went to other nodes, with "
        "the engine exact: off is nothing, plan says which ones in refusal, explain and what-if, move moves "
        "them rather than that it is refused",
    ),
    Key(
        "relocationsPerHour", "relocations_per_hour", "relocations-per-hour", "NUMBER",
        whole_number_or("unlimited", 10_000), syntax.whole_number, "6",
        "how many containers go to other nodes in an hour at most with defragment: move, or unlimited",
    ),
    Key(
        "hugepagePools", "hugepage_pools", "hugepage-pools", "NODES:TYPE=LEAST-MOST[,...][;...]",
        hugepage_pools, syntax.hugepage_pools, "none",
        "pools of huge pages that grow out of free memory when a container needs them and shrink when nobody "
        "does, with the engine exact: how much memory each takes at least and at most, e.g. "
        "'0-3:hugepages-2Mi=0-8Gi,hugepages-1Gi=0-4Gi'; all others stay as they are",
    ),
    Key(
        "percpuPagelistHighFraction", "list_fraction", "percpu-pagelist-high-fraction", "N",
        list_fraction, syntax.text, "0",
        "what the kernel's sysctl of that name is while the daemon runs: CPUs may keep one N-th of a node's "
        "memory on lists of their own; 0 leaves the sysctl as it is",
    ),
)  # fmt: skip

RESERVATIONS: Final = (
    Key(
        "reservedMemory", "reserved_memory", "reserved-memory", "N:TYPE=AMOUNT[,...][;...]",
        reserved_memory, syntax.reserved_memory, "kubeReserved + systemReserved + evictionHard, evenly",
        "memory and huge pages that containers can't have, by NUMA node, e.g. '0:memory=1Gi;1:memory=2148Mi'",
        of_kubelet=True,
    ),
    Key(
        "reservedSystemCPUs", "reserved_cpus", "reserved-cpus", "CPUS",
        cpu_list, syntax.text, "the lowest CPU",
        "CPUs that never become exclusive, e.g. 0-1", of_kubelet=True,
    ),
    Key(
        "sharedCPUsMinimum", "shared_cpus_minimum", "shared-cpus-minimum", "NUMBER",
        whole_number_or("requests", CpuSet.max_id), syntax.whole_number, "requests",
        "how many CPUs stay in the shared pool at least, with the engine exact: a number, or requests for as "
        "many as the containers of kubelet's pods in it request",
    ),
    Key(
        "cpuRules", "cpu_rules", "cpu-rules", "NAME=VALUE[,...][;...]",
        cpu_rules, syntax.cpu_rules, "none",
        "what containers have of CPUs by namespace, label and name, where no annotation says it, with the "
        "engine exact, e.g. 'namespaces=payments,labels=app:db,cpus=exclusive'; of several rules the first "
        "counts",
    ),
    Key(
        "cpuPools", "cpu_pools", "cpu-pools", "NAME=LEAST-MOST[:KIND][,...]",
        cpu_pools, syntax.cpu_pools, "none",
        "named pools of CPUs that their members share and nobody else runs on, with the engine exact: how "
        "many CPUs each has at least and at most, e.g. db=2-8; cpuRules or the annotation cpus say pool=db",
    ),
    Key(
        "kubeReserved", "kube_reserved", "kube-reserved", "TYPE=AMOUNT[,...]",
        reserved_resources, syntax.assignments("="), "nothing",
        "resources for Kubernetes' own daemons; memory is used where reservedMemory is not given",
        of_kubelet=True,
    ),
    Key(
        "systemReserved", "system_reserved", "system-reserved", "TYPE=AMOUNT[,...]",
        reserved_resources, syntax.assignments("="), "nothing",
        "resources for the rest of the system; memory is used where reservedMemory is not given",
        of_kubelet=True,
    ),
    Key(
        "evictionHard", "eviction_hard", "eviction-hard", "SIGNAL<AMOUNT[,...]",
        by_signal(read_threshold), syntax.assignments("<"), "memory.available: 100Mi",
        "kubelet's hard eviction thresholds, also node0.memory.available, or node.memory.available for every "
        "NUMA node; memory.available counts as reserved where reservedMemory is not given",
        of_kubelet=True,
    ),
    Key(
        "evictionSoft", "eviction_soft", "eviction-soft", "SIGNAL<AMOUNT[,...]",
        by_signal(read_threshold), syntax.assignments("<"), "none",
        "kubelet's soft eviction thresholds, of NUMA nodes too; each needs a grace period",
        of_kubelet=True,
    ),
    Key(
        "evictionSoftGracePeriod", "eviction_grace_ns", "eviction-soft-grace-period",
        "SIGNAL=DURATION[,...]", by_signal(read_grace_period), syntax.assignments("="), "none",
        "how long soft thresholds must be met before something is done",
        of_kubelet=True,
    ),
    Key(
        "evictionMinimumReclaim", "eviction_min_reclaim", "eviction-minimum-reclaim",
        "SIGNAL=AMOUNT[,...]", by_signal(read_min_reclaim), syntax.assignments("="), "none",
        "how much more than the threshold is to be available until eviction ends",
        of_kubelet=True,
    ),
    Key(
        "evictionPressureTransitionPeriod", "eviction_transition_ns", "eviction-pressure-transition-period",
        "DURATION", transition_period, syntax.text, "5m0s",
        "for how long a node condition is reported after it was there last",
        of_kubelet=True,
    ),
    Key(
        "mergeDefaultEvictionSettings", "merge_default_eviction", "merge-default-eviction-settings", "BOOL",
        boolean, syntax.switch, "false",
        "let evictionHard without memory.available keep kubelet's default of 100Mi, with the engine kubelet",
        of_kubelet=True,
    ),
    Key(
        "measuredReservation", "measured_reservation", "measured-reservation", "BOOL",
        boolean, syntax.switch, "true",
        "keep from containers what the kernel and other processes really hold of each node's memory",
    ),
    Key(
        "deviceMemory", "device_memory", "device-memory", "NODES=DEVICE[,...]",
        node_owners, syntax.assignments("="), "what drivers and firmware say",
        "NUMA nodes that are memory of a device, only for containers that have it, e.g. 1-8=0009:01:00.0",
    ),
)  # fmt: skip

REWRITING: Final = (
    Key(
        "featureGates", "feature_gates", "feature-gates", "GATE=BOOL[,...]",
        table(dict.fromkeys(FEATURE_GATES, boolean)), syntax.switches, "MemoryQoS: false",
        "MemoryQoS=true sets memory.high, and with memoryReservationPolicy also memory.min and memory.low",
        of_kubelet=True,
    ),
    Key(
        "memoryThrottlingFactor", "memory_throttling_factor", "memory-throttling-factor", "FACTOR",
        share_or_none, syntax.number, "0.9",
        "how far memory.high is on the way from request to limit: above 0, up to 1; none sets none",
        of_kubelet=True,
    ),
    Key(
        "memoryReservationPolicy", "memory_reservation", "memory-reservation-policy", "POLICY",
        one_of({policy.value: policy for policy in MemoryReservationPolicy}), syntax.text, "None",
        "None, or TieredReservation to protect requests with memory.min and memory.low", of_kubelet=True,
    ),
    Key(
        "singleProcessOOMKill", "single_process_oom_kill", "single-process-oom-kill", "BOOL",
        boolean, syntax.switch, "false",
        "let the kernel kill single processes of a container instead of all of it (memory.oom.group)",
        of_kubelet=True,
    ),
    Key(
        "placementFiles", "placement_files", "placement-files", "WHO",
        off_or_one_of({who.value: who for who in PlacementFiles}), syntax.text, "asked",
        "which containers get a read-only file that says what they were given: asked for those that ask by "
        "annotation, all, or off",
    ),
    Key(
        "placementDirectory", "placement_directory", "placement-directory", "PATH",
        absolute_path, syntax.text, "/run/bayplan-placements",
        "where these files are on the node, a directory for each container", at_start=True,
    ),
    Key(
        "cdiDirectory", "cdi_directory", "cdi-directory", "PATH",
        absolute_path, syntax.text, "/var/run/cdi",
        "where the CDI specs of resource claims are on the node, a file for each", at_start=True,
    ),
    Key(
        "setOomScoreAdj", "set_oom_score_adj", "set-oom-score-adj", "BOOL",
        boolean, syntax.switch, "true",
        "give an oom_score_adj by kubelet's formula to containers without one",
    ),
    Key(
        "defaultMemoryLimit", "default_memory_limit_bytes", "default-memory-limit", "CLASS=AMOUNT[,...]",
        table({"Burstable": positive_bytes, "BestEffort": positive_bytes}), syntax.assignments("="), "none",
        "memory limit for containers without one, by QoS class, e.g. Burstable=4Gi,BestEffort=1Gi",
    ),
    Key(
        "requestsOutsideKubelet", "outside_requests", "requests-outside-kubelet", "WHAT",
        one_of({what.value: what for what in OutsideRequests}), syntax.text, "limits",
        "what counts as a request outside of kubelet's cgroup tree: limits, reservations or nothing",
    ),
    Key(
        "annotationErrors", "refuse_wrong_annotations", "annotation-errors", "WHAT",
        one_of({"default": False, "refuse": True}), syntax.text, "default",
        "what a wrong bayplan.dev annotation does: default logs and ignores it, refuse refuses the container",
    ),
    Key(
        "forbiddenAnnotations", "forbidden_annotations", "forbidden-annotations", "KEY[,...]",
        some_of(ANNOTATIONS), syntax.text, "none",
        "bayplan.dev annotations that count for no container of this node, e.g. cpu-partition,irqs",
    ),
)  # fmt: skip

CONNECTION: Final = (
    Key(
        "nriSocket", "nri_socket", "nri-socket", "PATH",
        absolute_path, syntax.text, "/var/run/nri/nri.sock",
        "the container runtime's NRI socket", at_start=True,
    ),
    Key(
        "pluginName", "plugin_name", "plugin-name", "NAME",
        text_like(r"[A-Za-z0-9][\w.-]{0,62}", "up to 63 letters, digits and _.-"), syntax.text, "bayplan",
        "the name under which the daemon registers with the runtime", at_start=True,
    ),
    Key(
        "pluginIndex", "plugin_index", "plugin-index", "NN",
        text_like(r"[0-9]{2}", "a text of two digits such as '90'"), syntax.text, "90",
        "its place among the runtime's plugins, two digits; a higher one sees the changes of the lower ones",
        at_start=True,
    ),
    Key(
        "ociSocket", "oci_socket", "oci-socket", "PATH",
        socket_path_or_none, syntax.text, "/run/bayplan/oci.sock",
        "the socket that OCI hooks and the runtime wrapper talk to; none serves neither", at_start=True,
    ),
    Key(
        "ociDeadline", "oci_deadline_ms", "oci-deadline", "DURATION",
        duration_ms(10, 60_000), syntax.text, "1500ms",
        "after this time hooks and wrappers are answered that there is no decision; less than they wait (2s)",
    ),
    Key(
        "whenDown", "refuse_undecided", "when-down", "WHAT",
        one_of({"pass": False, "refuse": True}), syntax.text, "pass",
        "what becomes of a container of NRI about which bayplan cannot decide in time: pass lets it start on "
        "the shared CPUs, refuse fails its creation",
    ),
    Key(
        "whenDownExcept", "undecided_namespaces", "when-down-except", "NAMESPACE[,...]",
        namespaces, syntax.text, "kube-system",
        "the namespaces whose containers start all the same",
    ),
    Key(
        "ociUndecided", "oci_undecided", "oci-undecided", "WHAT",
        one_of({what.value: what for what in Undecided}), syntax.text, "client",
        "the answer to hooks and wrappers when no decision can be made or carried out: client leaves it to "
        "their own --on-failure, refuse fails the container, allow starts it unplaced",
    ),
    Key(
        "crioSocket", "crio_socket", "crio-socket", "PATH",
        absolute_path, syntax.text, "/var/run/crio/crio.sock",
        "CRI-O's own socket, which is asked what runs after it listed that over NRI, and whether containers "
        "without a process have ended",
    ),
    Key(
        "containerdSocket", "containerd_socket", "containerd-socket", "PATH",
        absolute_path, syntax.text, "/run/containerd/containerd.sock",
        "containerd's own socket, which is asked likewise",
    ),
    Key(
        "requestDeadline", "request_deadline_ms", "request-deadline", "DURATION",
        duration_ms(10, 60_000), syntax.text, "1s",
        "after this time the runtime gets a safe default answer; less than its plugin_request_timeout (2s)",
        at_start=True,
    ),
)  # fmt: skip

DAEMON: Final = (
    Key(
        "shadow", "shadow", "shadow", "BOOL",
        boolean, syntax.switch, "false",
        "decide, record and report everything, and apply nothing: no container is changed, moved or refused",
        at_start=True,
    ),
    Key(
        "stateDirectory", "state_directory", "state-dir", "PATH",
        absolute_path, syntax.text, "/var/lib/bayplan",
        "where decisions are recorded; one daemon per directory", at_start=True,
    ),
    Key(
        "adminSocket", "admin_socket", "admin-socket", "PATH",
        socket_path, syntax.text, "/run/bayplan/admin.sock",
        "the socket that the bayplan command talks to", at_start=True,
    ),
    Key(
        "agentSocket", "agent_socket", "agent-socket", "PATH",
        socket_path_or_none, syntax.text, "/run/bayplan/agent.sock",
        "the socket that bayplan-agent talks to; none serves no agent", at_start=True,
    ),
    Key(
        "agentGroup", "agent_group", "agent-group", "GROUP",
        text_like(r"[A-Za-z_][\w.-]{0,31}", "the name of a group"), syntax.text, "bayplan-agent",
        "the group whose members may use the agent socket, beside root", at_start=True,
    ),
    Key(
        "logLevel", "log_level", "log-level", "LEVEL",
        one_of(_same(*LOG_LEVELS)), syntax.text, "info",
        "debug, info, warning or error",
    ),
    Key(
        "logFormat", "log_format", "log-format", "FORMAT",
        one_of(_same("auto", "json", "text")), syntax.text, "auto",
        "json, text, or auto: text on a terminal, else json", at_start=True,
    ),
    Key(
        "recording", "recording", "record", "FILE",
        absolute_path_or_none, syntax.text, "none",
        "a file for every question to the engine and its answer, for bayplan replay; none records nothing",
        at_start=True,
    ),
)  # fmt: skip

GROUPS: Final[Mapping[str, Sequence[Key]]] = {
    "placement": PLACEMENT,
    "what containers cannot have": RESERVATIONS,
    "what is rewritten": REWRITING,
    "the container runtime": CONNECTION,
    "the daemon": DAEMON,
}
"""The keys in the order in which people read them, by heading."""

KEYS: Final[Mapping[str, Key]] = {key.name: key for keys in GROUPS.values() for key in keys}


def changed_at_start(before: Settings, after: Settings) -> list[str]:
    """The names of the keys that differ and are only read at the start."""
    return [
        key.name
        for key in KEYS.values()
        if key.at_start and getattr(before, key.field) != getattr(after, key.field)
    ]


_DESCRIPTION: Final = """\
Decides which NUMA nodes hold each container's memory and which CPUs run it, and has the container runtime
make it so before the container's first instruction. Runs on every node, as root."""

_EPILOG: Final = """\
Flags win over files, later files over earlier ones. Without --config, /etc/bayplan/bayplan.toml is read if
it is there, then /etc/bayplan/conf.d/*.toml (or .yaml) in lexical order. kubelet's own file can be given too.

Exit status: 0 stopped as asked, 1 failure, 2 wrong flags or files, 3 another daemon is in the way."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of baypland's command line."""
    parser = CommandLineParser(
        prog="baypland",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="%(prog)s [--config PATH]... [--KEY VALUE]...",
    )
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="read this TOML or YAML file, or all of this directory; may be given more than once",
    )
    parser.add_argument(
        "--check-config", action="store_true", help="check files and flags against this machine, and exit"
    )
    version = f"%(prog)s {__version__} (python {'.'.join(map(str, sys.version_info[:3]))})"
    parser.add_argument("--version", action="version", version=version)
    for heading, keys in GROUPS.items():
        group = parser.add_argument_group(heading)
        for key in keys:
            _add(group, key)
    return parser


def given_flags(arguments: argparse.Namespace) -> Mapping[str, Sequence[str]]:
    """The keys that were set on the command line, with the texts they were set to."""
    values = {name: getattr(arguments, key.field) for name, key in KEYS.items()}
    return {name: texts for name, texts in values.items() if texts is not None}


def _add(group: argparse._ArgumentGroup, key: Key) -> None:
    # A switch without a value means true, as for kubelet's own switches.
    bare: dict[str, object] = {"nargs": "?", "const": "true"} if key.plain is switch else {}
    group.add_argument(
        f"--{key.flag}",
        dest=key.field,
        action="append",
        metavar=key.metavar,
        help=f"{key.meaning} (default: {key.default})".replace("%", "%%"),
        **bare,  # type: ignore[arg-type]  # keywords of several types
    )
