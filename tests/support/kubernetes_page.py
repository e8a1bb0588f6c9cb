"""What docs/kubernetes.md has operators apply, read from the page: roles, and the scheduler's configuration.

The control plane of tests gives nothing else, so a page that names too little fails a test.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml

_PAGE: Final = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def agent_rules() -> list[dict[str, Any]]:
    """The rules of the agent's role for all of its tasks."""
    text = _PAGE.read_text()
    (role,) = re.findall(r"\n\n((?:    apiVersion: rbac.*\n)(?:    .*\n)+)", text)
    (for_evictions,) = re.findall(r"\n\n(      - \{apiGroups: .*\n)", text)
    rules: list[dict[str, Any]] = yaml.safe_load(role)["rules"] + yaml.safe_load(for_evictions)
    return rules


def scheduler_configuration() -> dict[str, Any]:
    """The configuration of a scheduler that knows the room of NUMA nodes."""
    return _documented("KubeSchedulerConfiguration")


def scheduler_rules() -> list[dict[str, Any]]:
    """What that scheduler needs beside `scheduler_roles`."""
    rules: list[dict[str, Any]] = _documented("ClusterRole")["rules"]
    return rules


def scheduler_roles() -> list[str]:
    """The ClusterRoles of every cluster that a scheduler needs."""
    return re.findall(r"`(system:[a-z-]+)`", _PAGE.read_text())


def _documented(kind: str) -> dict[str, Any]:
    """The object of this kind in a block of the page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = (one for one in map(yaml.safe_load, blocks) if one.get("kind") == kind)
    documented: dict[str, Any] = found
    return documented
