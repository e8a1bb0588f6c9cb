"""The Topology Manager's configuration: policy, scope and options, read from text under kubelet's own names.

Source: Kubernetes v1.36. Problems are reported in kubelet's words, all of them together.
"""

import enum
import re
from collections.abc import Mapping
from typing import Final, TypeVar

from msgspec import Struct, field

from bayplan.errors import BayplanError, excerpt
from bayplan.model.kubelet_version import NEWEST, KubeletRules
from bayplan.model.policy import TopologyPolicy, TopologyScope

PREFER_CLOSEST: Final = "prefer-closest-numa-nodes"
MAX_NODES: Final = "max-allowable-numa-nodes"
DEFAULT_MAX_NODES: Final = 8
"""More nodes than this kubelet accepts only with an option, because its merge takes 2^n steps."""


class Maturity(enum.Enum):
    """The feature gate that an option stands behind."""

    ALPHA = "alpha"
    BETA = "beta"
    STABLE = "stable"


def maturity(kubelet: KubeletRules) -> dict[str, Maturity]:
    """All options, and how mature they are for that version."""
    return {
        name: Maturity.BETA if name in kubelet.beta_options else Maturity.STABLE
        for name in (PREFER_CLOSEST, MAX_NODES)
    }


OPTIONS: Final[Mapping[str, Maturity]] = maturity(NEWEST)
"""All options, of the newest version."""

_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""What Go's strconv.ParseBool accepts."""
_INT64_CHARACTERS: Final = 20


class TopologyConfigError(BayplanError):
    """The Topology Manager cannot work as configured. ``problems`` holds every reason, in kubelet's words."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(self.problems)


class OptionGates(Struct, frozen=True):
    """The feature gates TopologyManagerPolicyAlphaOptions and TopologyManagerPolicyBetaOptions, with their
    defaults. ``options`` says which option stands behind which."""

    alpha: bool = False
    beta: bool = True
    options: Mapping[str, Maturity] = field(default_factory=lambda: OPTIONS)

    def unavailable(self, name: str) -> str | None:
        """Why the option *name* cannot be used; None if it can."""
        maturity = self.options.get(name)
        if maturity is None:
            return f'unknown Topology Manager Policy option: "{name}"'
        if maturity is Maturity.ALPHA and not self.alpha:
            return f'topology manager policy alpha-level options not enabled, but option "{name}" provided'
        if maturity is Maturity.BETA and not self.beta:
            return f'topology manager policy beta-level options not enabled, but option "{name}" provided'
        return None


class TopologyOptions(Struct, frozen=True):
    """topologyManagerPolicyOptions. ``max_nodes`` changes nothing here: see `beyond_kubelet`."""

    prefer_closest: bool = False
    max_nodes: int = DEFAULT_MAX_NODES

    @classmethod
    def parse(cls, options: Mapping[str, str], gates: OptionGates | None = None) -> "TopologyOptions":
        """Read option names and values.

        Raises:
            TopologyConfigError: an option is unknown or behind a gate, or has a bad value.
        """
        gates = gates or OptionGates()
        problems = []
        for name, text in sorted(options.items()):
            problem = gates.unavailable(name) or _bad_value(name, text)
            if problem is not None:
                problems.append(problem)
        if problems:
            raise TopologyConfigError(*problems)
        return cls(
            prefer_closest=options.get(PREFER_CLOSEST) in _TRUE,
            max_nodes=int(options.get(MAX_NODES, DEFAULT_MAX_NODES)),
        )

    def beyond_kubelet(self, nodes: int) -> str | None:
        """Why kubelet would not start on a machine with so many nodes; None if it would. Worth a remark to
        the operator, but no reason to refuse: this engine's merge does not list sets of nodes."""
        if nodes <= self.max_nodes:
            return None
        return f"unsupported on machines with more than {self.max_nodes} NUMA Nodes"


def parse_policy(name: str) -> TopologyPolicy:
    """Read topologyManagerPolicy.

    Raises:
        TopologyConfigError: there is no such policy.
    """
    return _parse(TopologyPolicy, name, "policy")


def parse_scope(name: str) -> TopologyScope:
    """Read topologyManagerScope.

    Raises:
        TopologyConfigError: there is no such scope.
    """
    return _parse(TopologyScope, name, "scope")


_Choice = TypeVar("_Choice", bound=enum.Enum)


def _parse(kind: type[_Choice], name: str, what: str) -> _Choice:
    try:
        return kind(name)
    except ValueError:
        raise TopologyConfigError(f'unknown {what}: "{name}"') from None


def _bad_value(name: str, text: str) -> str | None:
    if name == PREFER_CLOSEST and text not in _TRUE | _FALSE:
        return f'bad value for option "{name}": strconv.ParseBool: parsing "{text}": invalid syntax'
    if name == MAX_NODES:
        if re.fullmatch("[+-]?[0-9]+", text) is None:
            return (
                f'unable to convert policy option to integer "{name}": '
                f'strconv.Atoi: parsing "{text}": invalid syntax'
            )
        if len(text) > _INT64_CHARACTERS:
            return (
                f'unable to convert policy option to integer "{name}": '
                f'strconv.Atoi: parsing "{excerpt(text)}": value out of range'
            )
        if int(text) < DEFAULT_MAX_NODES:
            return f'the minimum value of "{name}" should not be less than {DEFAULT_MAX_NODES}'
    return None
