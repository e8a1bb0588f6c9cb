"""What each way into bayplan adds to the start of a container.

python tests/e2e/start_overhead.py [--starts N] [--beside N] [--only NRI]

In one virtual machine, in one run and by turns: `runc create` (and crun's) without bayplan, with the hook,
after precreate and by the wrapper; then, in another one, `crictl create` and `crictl rm` on containerd
without bayplan and with it over NRI, of a container that shares its CPUs and of one with a CPU of its own
beside some that share the rest; medians. Creation is all that a form has a part in. A guest without KVM is
emulated and slower all over, by the factor that the yardstick shows: a bare start of Python takes 7 ms on a
common server.
"""

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from testbed.acceleration import acceleration
from testbed.errors import TestBedError
from testbed.forms import FORMS, HOOKS_DIR, LIBEXEC, PROGRAMS, WRAPPER
from testbed.node import Node
from testbed.podman import IMAGE_ROOT
from testbed.pods import burstable, guaranteed
from testbed.topology import TWO_NODES

BARE_MS = 7.0
WITHOUT = "without"
YARDSTICK = "python3 -IS -c pass"
BUNDLE = "/var/lib/start-overhead"
LIMIT_S = 600
CONTAINERD = "2.3"
NRI = "NRI"
TURNS = 4
SHARED, WHOLE = "shared CPUs", "a whole CPU"
# Runs in the guest, so that the way to it is not measured; does what an engine does around the runtime.
MEASURE = """
import json, secrets, subprocess, sys, time
asked = json.load(sys.stdin)
found = {}
def run(argv, given=None):
    return subprocess.run(argv, input=given, stdin=None if given else subprocess.DEVNULL, check=True,
        stdout=subprocess.PIPE if given else subprocess.DEVNULL).stdout
def write(text):
    with open(asked["bundle"] + "/config.json", "wb") as file:
        file.write(text)
for number in range(asked["starts"] + 1):
    started = time.perf_counter()
    run(asked["yardstick"].split())
    found.setdefault(asked["yardstick"], []).append((time.perf_counter() - started) * 1000)
    for form, how in asked["forms"].items():
        spec, name = how["spec"], secrets.token_hex(32)
        spec["linux"]["cgroupsPath"] = "machine.slice:bench:" + name
        text = json.dumps(spec).encode()
        write(text)
        started = time.perf_counter()
        if how["precreate"]:
            write(run(how["precreate"], text))
        run([how["runtime"], "--systemd-cgroup", "create", "--bundle", asked["bundle"], name])
        found.setdefault(form, []).append((time.perf_counter() - started) * 1000)
        run([how["runtime"], "delete", "--force", name])
# The first round found everything cold.
print(json.dumps({name: times[1:] for name, times in found.items()}))
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="What each way into bayplan adds to the start of a container."
    )
    parser.add_argument("--starts", type=int, default=20, metavar="N")
    parser.add_argument(
        "--beside", type=int, default=20, metavar="N", help="running containers that share CPUs"
    )
    parser.add_argument("--only", choices=[NRI], help="leave out what is started without NRI")
    given = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    node = None
    try:
        if given.only is None:
            node = Node(TWO_NODES, systemd=True)
            show_forms(console, node, given.starts)
            node.shut_down()
        node = Node(TWO_NODES, CONTAINERD)
        console.print(nri_table(measure_nri(node, given.starts, given.beside), given.beside))
    except TestBedError as error:
        sys.stderr.write(f"start_overhead: {error}\n")
        return 1
    finally:
        if node is not None:
            node.shut_down()
    return 0


def how() -> str:
    return "with KVM" if "kvm" in acceleration() else "emulated"


def show_forms(console: Console, node: Node, starts: int) -> None:
    node.forms.install()
    node.bayplan.start("--oci-deadline", "20s")
    node.guest.run("mkdir", "-p", f"{BUNDLE}/rootfs")
    node.guest.run("tar", "-C", f"{BUNDLE}/rootfs", "-xf", IMAGE_ROOT)
    for runtime in PROGRAMS:
        console.print(table(f"{runtime}, {how()}, median of {starts}", measure(node, runtime, starts)))
    counters = node.bayplan.status()["counters"]
    console.print(f"the daemon counted {counters}", soft_wrap=True)


def measure(node: Node, runtime: str, starts: int) -> dict[str, list[float]]:
    """Milliseconds of every creation, by form."""
    node.forms.wrap(runtime)
    node.guest.run("sh", "-c", f"cd {BUNDLE} && rm -f config.json && {PROGRAMS[runtime]} spec")
    spec = json.loads(node.guest.read(f"{BUNDLE}/config.json"))
    spec["process"].update(terminal=False, args=["/bin/workload", "pause"])
    spec["annotations"] = {"io.container.manager": "libpod"}
    spec["linux"]["resources"].update(
        memory={"limit": 100 << 20}, cpu={"quota": 50_000, "period": 100_000, "shares": 512}
    )
    hooks = {
        stage: [json.loads(node.guest.read(f"{HOOKS_DIR}/{file}"))["hook"]]
        for stage, file in (("createRuntime", "90-bayplan.json"), ("poststop", "90-bayplan-poststop.json"))
    }
    poststop = {"poststop": hooks["poststop"]}
    precreate = [f"{LIBEXEC}/oci-hook", "--timeout", "20", "precreate"]
    program = PROGRAMS[runtime]
    forms = {
        WITHOUT: {"spec": spec, "runtime": program, "precreate": []},
        "hook": {"spec": {**spec, "hooks": hooks}, "runtime": program, "precreate": []},
        "precreate": {"spec": {**spec, "hooks": poststop}, "runtime": program, "precreate": precreate},
        "wrapper": {"spec": spec, "runtime": WRAPPER, "precreate": []},
    }
    assert set(forms) == {WITHOUT, *FORMS}
    request = {"forms": forms, "starts": starts, "yardstick": YARDSTICK, "bundle": BUNDLE}
    said = node.guest.run("python3", "-c", MEASURE, stdin=json.dumps(request).encode(), limit_s=LIMIT_S)
    found: dict[str, list[float]] = json.loads(said.stdout)
    return found


def measure_nri(node: Node, starts: int, beside: int) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of operations by crictl, by what was done and whether with the daemon."""
    memory_bytes = node.kernel.memory_total_bytes()
    pods = {
        SHARED: burstable("bench", node_memory_bytes=memory_bytes, memory="50Mi"),
        WHOLE: guaranteed("owner", 1, "50Mi"),
    }
    sandbox_ids = {kind: node.crictl.run_sandbox(pod) for kind, pod in pods.items()}
    found = defaultdict[tuple[str, str], list[float]](list)
    others = list[str]()
    for _ in range(TURNS):
        for form in (WITHOUT, NRI):
            if form == NRI:
                since = node.bayplan.log_position()
                node.bayplan.start()
                node.bayplan.await_synchronized(since=since)
                while len(others) < beside:
                    one = replace(pods[SHARED].containers[0], name=f"other-{len(others)}")
                    others.append(node.crictl.create(sandbox_ids[SHARED], pods[SHARED], one))
                    node.crictl.start(others[-1])
            for kind, pod in pods.items():
                # The first one of a turn finds everything cold.
                for number in range(starts // TURNS + 1):
                    started = time.perf_counter()
                    container_id = node.crictl.create(sandbox_ids[kind], pod, pod.containers[0])
                    created = time.perf_counter()
                    node.crictl.remove(container_id)
                    if number:
                        found[f"create, {kind}", form].append((created - started) * 1000)
                        found[f"rm, {kind}", form].append((time.perf_counter() - created) * 1000)
            if form == NRI:
                node.bayplan.stop()
    return found


def nri_table(found: Mapping[tuple[str, str], list[float]], beside: int) -> Table:
    count = len(next(iter(found.values())))
    title = f"crictl, containerd {CONTAINERD}, {how()}, beside {beside} running, median of {count}"
    shown = Table(title=title)
    shown.add_column("")
    for heading in ("without, ms", "with bayplan, ms", "more, ms", "more, %"):
        shown.add_column(heading, justify="right")
    for what in dict.fromkeys(what for what, _ in found):
        without, over_nri = (statistics.median(found[what, form]) for form in (WITHOUT, NRI))
        more = over_nri - without
        shown.add_row(what, f"{without:.0f}", f"{over_nri:.0f}", f"{more:.0f}", f"{more / without * 100:.1f}")
    return shown


def table(title: str, found: dict[str, list[float]]) -> Table:
    medians = {name: statistics.median(times) for name, times in found.items()}
    bare_ms = medians.pop(YARDSTICK)
    slower = bare_ms / BARE_MS
    shown = Table(
        title=title, caption=f"`{YARDSTICK}`: {bare_ms:.1f} ms, {slower:.1f} times {BARE_MS:.0f} ms"
    )
    shown.add_column("create")
    for heading in ("ms", "more than without, ms", "divided by the factor, ms"):
        shown.add_column(heading, justify="right")
    for form, median in medians.items():
        more = median - medians[WITHOUT]
        shown.add_row(form, f"{median:.0f}", f"{more:.0f}", f"{more / slower:.1f}")
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
