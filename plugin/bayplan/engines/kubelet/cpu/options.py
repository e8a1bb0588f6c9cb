"""The options of the CPU Manager's static policy: names, values, feature gates, and which exclude each other.

Source: Kubernetes v1.37. Nothing here knows a configuration file; names and values come as text.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from bayplan.engines.kubelet.cpu.errors import CpuConfigError
from bayplan.engines.kubelet.cpu.topology import CpuTopology
from bayplan.model.kubelet_version import NEWEST, KubeletRules
from bayplan.model.policy import TopologyPolicy

FULL_PCPUS_ONLY: Final = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
ALIGN_BY_SOCKET: Final = "align-by-socket"
DISTRIBUTE_ACROSS_CORES: Final = "distribute-cpus-across-cores"
STRICT_RESERVATION: Final = "strict-cpu-reservation"
PREFER_UNCORE: Final = "prefer-align-cpus-by-uncorecache"

_OPTIONS: Final = frozenset(
    {
        FULL_PCPUS_ONLY,
        DISTRIBUTE_ACROSS_NUMA,
        ALIGN_BY_SOCKET,
        DISTRIBUTE_ACROSS_CORES,
        STRICT_RESERVATION,
        PREFER_UNCORE,
    }
)

_EXCLUSIVE: Final = (
    (FULL_PCPUS_ONLY, DISTRIBUTE_ACROSS_CORES),
    (DISTRIBUTE_ACROSS_NUMA, DISTRIBUTE_ACROSS_CORES),
    (PREFER_UNCORE, DISTRIBUTE_ACROSS_CORES),
    (PREFER_UNCORE, DISTRIBUTE_ACROSS_NUMA),
)

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""What Go's strconv.ParseBool accepts, and with it kubelet."""


class CpuOptions(Struct, frozen=True):
    """The options of the static policy, by their kubelet names with underscores."""

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        alpha: bool = False,
        beta: bool = True,
        rules: KubeletRules = NEWEST,
    ) -> "CpuOptions":
        """Read option names and values as KubeletConfiguration's cpuManagerPolicyOptions has them.

        Args:
            options: the values by name.
            alpha: the feature gate CPUManagerPolicyAlphaOptions, off by default as in kubelet.
            beta: the feature gate CPUManagerPolicyBetaOptions, on by default as in kubelet.
            rules: of the kubelet; which option stands behind which gate changes from version to version.

        Raises:
            CpuConfigError: an option is unknown, behind a gate or has a bad value, or two exclude each other.
        """
        problems = []
        values: dict[str, bool] = {}
        for name, text in sorted(options.items()):
            problem = unavailable(name, alpha=alpha, beta=beta, rules=rules)
            if problem is None and text not in _TRUE | _FALSE:
                problem = (
                    f'bad value for option "{name}": strconv.ParseBool: parsing "{text}": invalid syntax'
                )
            if problem is not None:
                problems.append(problem)
            values[name] = text in _TRUE
        problems += [
            f"static policy options {one} and {other} can not be used at the same time"
            for one, other in _EXCLUSIVE
            if values.get(one) and values.get(other)
        ]
        if problems:
            raise CpuConfigError(*problems)
        return cls(**{name.replace("-", "_"): value for name, value in values.items()})

    def check(self, topology: CpuTopology, topology_policy: TopologyPolicy) -> None:
        """Check the options against the machine and the Topology Manager's policy.

        Raises:
            CpuConfigError: align-by-socket cannot be had with them.
        """
        problems = tuple(self._conflicts(topology, topology_policy))
        if problems:
            raise CpuConfigError(*problems)

    def _conflicts(self, topology: CpuTopology, topology_policy: TopologyPolicy) -> Iterator[str]:
        if not self.align_by_socket:
            return
        if topology_policy is TopologyPolicy.SINGLE_NUMA_NODE:
            yield (
                f"Topology manager {topology_policy.value} policy is incompatible with "
                f"CPUManager {ALIGN_BY_SOCKET} policy option"
            )
        if topology.num_sockets > topology.num_nodes:
            yield (
                "Align by socket is not compatible with hardware "
                "where number of sockets are more than number of NUMA"
            )


def unavailable(name: str, *, alpha: bool, beta: bool, rules: KubeletRules = NEWEST) -> str | None:
    """Why the option *name* cannot be used under these feature gates; None if it can."""
    if name not in _OPTIONS:
        return f'unknown CPU Manager Policy option: "{name}"'
    level, is_open = ("Beta", beta) if name in rules.beta_options else ("Alpha", alpha)
    if is_open or name in rules.stable_options:
        return None
    return f'CPU Manager Policy {level}-level Options not enabled, but option "{name}" provided'
