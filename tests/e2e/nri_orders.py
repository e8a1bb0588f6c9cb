"""Records in which orders runtimes send the events of containers that do not live long, for tests/data.

python tests/e2e/nri_orders.py VERSION... [crio] >tests/data/nri_orders.json
"""

import json
import sys

from testbed.crio import CrioNode, in_slice
from testbed.node import Node
from testbed.pods import guaranteed
from testbed.short_lives import EventLog, Short, live_shortly
from testbed.topology import FOUR_NODES, TWO_NODES

CRIO = "crio"
ROUNDS = 2


def record(node: Node, name: str) -> dict[str, object]:
    """The orders on one node, whose runtime serves."""
    log = EventLog(node.guest)
    log.start()
    pod = guaranteed("short", 1, "50Mi")
    pod = in_slice(pod) if name == CRIO else pod
    sandbox_id = node.crictl.run_sandbox(pod)
    for number in range(ROUNDS):
        live_shortly(node, pod, sandbox_id, (*Short, Short.EXITS, Short.EXITS), first=10 * number)
    node.crictl.remove_sandbox(sandbox_id)
    orders = sorted(log.orders().items(), key=lambda one: (-one[1], one[0]))
    return {"runtime": name, "orders": [{"seen": number, "events": order} for order, number in orders]}


def main(names: list[str]) -> None:
    """Record them all, and write them to standard output."""
    recorded = []
    for name in names:
        if name == CRIO:
            node: Node = CrioNode(TWO_NODES)
            node.prepare()
            node.crio.start(nri=True)
        else:
            node = Node(FOUR_NODES, name)
        recorded.append(record(node, name))
        node.shut_down()
    json.dump(recorded, sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
