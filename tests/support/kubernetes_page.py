"""What docs/kubernetes.md has operators apply, read from the page: roles, values, settings of the scheduler.

The control plane of tests gives no other rights, so a page that names too few fails a test.
"""

import re
from typing import Any, Final

import yaml

from support.console_blocks import PROJECT, fenced

_PAGE: Final = PROJECT / "docs" / "kubernetes.md"


def agent_rules(*, claims: bool = False) -> list[dict[str, Any]]:
    """The rules of the agent's role for all of its tasks but `claims`, or with that one."""
    text = _PAGE.read_text()
    (role,) = re.findall(r"\n\n((?:    apiVersion: rbac.*\n)(?:    .*\n)+)", text)
    for_evictions, for_claims = re.findall(r"and for `\w+`\n\n((?:      - \{apiGroups: .*\n)+)", text)
    rules: list[dict[str, Any]] = yaml.safe_load(role)["rules"] + yaml.safe_load(for_evictions)
    return rules + yaml.safe_load(for_claims) if claims else rules


def scheduler_configuration(name: str = "default-scheduler") -> dict[str, Any]:
    """The configuration of a scheduler that knows the room of NUMA nodes, for pods that name it so."""
    found = _documented("KubeSchedulerConfiguration")
    (profile,) = found["profiles"]
    assert profile["schedulerName"] == "default-scheduler"
    return {**found, "profiles": [{**profile, "schedulerName": name}]}


def scheduler_rules() -> list[dict[str, Any]]:
    """What that scheduler needs beside `scheduler_roles`."""
    rules: list[dict[str, Any]] = _documented("ClusterRole")["rules"]
    return rules


def scheduler_roles() -> list[str]:
    """The ClusterRoles of every cluster that a scheduler needs."""
    return re.findall(r"`(system:[a-z-]+)`", _PAGE.read_text())


def documented_objects() -> list[dict[str, Any]]:
    """All that the page shows as YAML: objects, and values of the chart."""
    return [yaml.safe_load(block.text) for block in fenced(_PAGE) if block.language == "yaml"]


def _documented(kind: str) -> dict[str, Any]:
    """The object of this kind."""
    (found,) = (one for one in documented_objects() if one.get("kind") == kind)
    return found
