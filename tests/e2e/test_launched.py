"""The other way to run the plugin: containerd starts it from its plugin directory and hands it a socket."""

import signal

import pytest
from testbed.bayplan import ADMIN_SOCKET, DAEMON
from testbed.node import Node
from testbed.pods import guaranteed
from testbed.scenario import on
from testbed.topology import TWO_NODES

PLUGIN = "/opt/nri/plugins/90-bayplan"


@pytest.mark.matrix
@on(TWO_NODES, "2.4")
def test_containerd_launches_the_plugin_itself(node: Node) -> None:
    # containerd gives a plugin no environment but its own three variables, and no output.
    node.guest.write(PLUGIN, f"#!/bin/sh\nexec {DAEMON} 2>/var/log/bayplan.log\n", mode=0o755)
    try:
        node.containerd.restart()
        node.guest.await_socket(ADMIN_SOCKET)
        # Its log begins anew; where that of an earlier daemon ended says nothing.
        node.bayplan.await_synchronized(since=0)
        first = node.launch(guaranteed("first", 1, "600Mi"))
        second = node.launch(guaranteed("second", 1, "600Mi"))
        assert [node.view(pod).mems_allowed for pod in (first, second)] == [{0}, {1}]
        known = {one["name"] for one in node.bayplan.ask_in_guest("status")["containers"]}
        assert known == {"default/first/main", "default/second/main"}
        # It lives and dies with containerd; what it decided is remembered by the next one.
        node.containerd.restart(how=signal.SIGKILL)
        node.guest.await_socket(ADMIN_SOCKET)
        assert [node.view(pod).mems_allowed for pod in (first, second)] == [{0}, {1}]
    finally:
        node.guest.run("rm", "-f", PLUGIN)
        node.containerd.restart()
