"""The commands that pages show for a node, on one: with systemd, containerd, podman and kubelet's files."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from testbed.containerd import CONFIG
from testbed.node import Node
from testbed.scenario import on_systemd
from testbed.topology import TWO_NODES

from support.console_blocks import NODE, commands

if TYPE_CHECKING:
    from conftest import Nodes

PROJECT = Path(__file__).parents[2]
VERSION = "2.4"
UNITS = "/usr/local/lib/systemd/system"
CONTAINERD = f"""\
[Service]
Environment=PATH=/opt/containerd-{VERSION}/bin:/usr/sbin:/usr/bin
ExecStart=/opt/containerd-{VERSION}/bin/containerd --config {CONFIG}
KillMode=process
"""
KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: restricted
"""


@pytest.mark.matrix
@on_systemd(TWO_NODES, VERSION)
def test_what_needs_a_node_runs_on_one(node: Node, nodes: "Nodes") -> None:
    node.containerd.end()
    node.guest.write(f"{UNITS}/containerd.service", CONTAINERD)
    for name in ("bayplan.service", "bayplan-agent.service"):
        node.guest.write(f"{UNITS}/{name}", (PROJECT / "packaging/systemd" / name).read_bytes())
    node.guest.write("/run/agent.conf", (PROJECT / "packaging/systemd/bayplan-agent.conf").read_bytes())
    node.guest.write("/var/lib/kubelet/config.yaml", KUBELET)
    node.guest.write("/etc/kubernetes/kubelet.conf.d/10-more.conf", KUBELET)
    node.guest.write("/etc/bayplan/bayplan.toml", 'recording = "/var/lib/bayplan/recording"\n')
    node.guest.run("sh", "-c", "systemd-sysusers /run/agent.conf && systemctl daemon-reload")
    try:
        for command in commands(NODE):
            # It would serve until somebody ends it.
            checked = command.replace("baypland ", "baypland --check-config ", 1)
            node.guest.run("sh", "-c", f"PATH=/opt/bayplan/bin:$PATH\n{checked}")
        for unit in ("bayplan", "bayplan-agent", "containerd"):
            node.guest.run("systemctl", "is-active", unit)
        assert node.guest.read("/usr/share/containers/oci/hooks.d/90-bayplan.json")
    finally:
        # Units, hooks and containerd's configuration go with the machine.
        nodes.forget()
