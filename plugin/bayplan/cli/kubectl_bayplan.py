"""Where `kubectl bayplan` starts: what `bayplan` shows of a node, of all nodes of a cluster.

kubectl knows the API server and who the user is; nothing here does. A node that does not answer is part of
the answer, and the others are shown all the same.

What is shown is a pure function of the nodes' answers. An answer has a hundred kilobytes: only what is
counted and listed is kept of it, as soon as it comes (`status_digest`, `nodes_digest`, `map_digest`); for
scripts it is written as soon as those before it are. A view of a node has its ``name``, its ``pool``, and the
digest of its ``answer``, or the ``problem`` why there is none. A thousand nodes fit on two screens: what is
well is counted. What is not is listed, up to `MOST_ROWS` rows, the worst kind first and what many nodes have
once; below that stands how to see the rest.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from bayplan import __version__
from bayplan.admin_protocol import API_VERSION, printable_answer
from bayplan.cli import claims, nodes, status
from bayplan.cli.cluster_map import cluster_blocks, map_digest
from bayplan.cli.daemon import Map
from bayplan.cli.decisions import Explain
from bayplan.cli.layout import Block, Column, CommandVerb, Output, Table, rendered
from bayplan.errors import EXIT_FAILURE, EXIT_UNAVAILABLE, BayplanError, HostError, UnavailableError, excerpt
from bayplan.model.machine import MEMORY
from bayplan.printable import printable_lines
from bayplan.quantity import counted, format_bytes
from bayplan.standard_streams import CommandLineParser, make_writable, write_answer, write_error
from bayplan.views.attention import attention

Object = dict[str, Any]

DAEMONS: Final = "app.kubernetes.io/name=bayplan,app.kubernetes.io/component=daemon"
"""The labels of the chart's pods with a daemon."""
_CONTAINER: Final = "daemon"

_AT_ONCE: Final = 32
"""So many answers are waited for at once: a thousand nodes are asked in half a minute where each takes a
second, and the API server has no more streams to carry."""
POOL_LABELS: Final = (
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
"""Labels by which nodes are of one pool, where the user names none; the first that a node has counts."""
_NO_VALUE: Final = "<none>"
_REMOTE: Final = "command terminated with exit code "
"""The last line of kubectl where not kubectl failed, but what it ran."""


class DaemonPod(NamedTuple):
    """The pod on *node*; ``problem`` is why it cannot be asked, "" if it can."""

    node: str
    name: str
    problem: str = ""


class NodeAnswer(NamedTuple):
    """What the daemon of *node* answered; None if it did not, and ``problem`` is why. ``status`` is then the
    exit status of `bayplan` there, None if it was not reached."""

    node: str
    answer: Object | None
    problem: str = ""
    status: int | None = None


class Kubectl(NamedTuple):
    """kubectl with the *options* of every call, where bayplan is installed in *namespace*."""

    namespace: str
    options: tuple[str, ...] = ()
    timeout_s: float = 30.0

    def daemons(self) -> tuple[DaemonPod, ...]:
        """The daemons' pods, one for each node, in the order of these.

        Raises:
            UnavailableError: kubectl is not there, or is refused, or there is no such pod.
        """
        words = ("get", "pods", f"--namespace={self.namespace}", f"--selector={DAEMONS}", "--output=json")
        finished = self._run(words)
        if finished.returncode:
            raise UnavailableError("the pods of bayplan cannot be listed", _said(finished.stderr))
        try:
            items = json.loads(finished.stdout)["items"]
            pods = sorted((_pod_of(item) for item in items), key=lambda one: (one.node, bool(one.problem)))
        except (ValueError, KeyError, TypeError) as error:
            raise UnavailableError("the pods of bayplan cannot be listed", f"kubectl: {error!r}") from error
        if not pods:
            problem = "install the chart (docs/kubernetes.md), or name the namespace with --installed-in"
            raise UnavailableError(f"no pod of bayplan is in the namespace {self.namespace}", problem)
        by_node: dict[str, DaemonPod] = {}
        for pod in pods:
            # While one is replaced there are two; the one that can be asked comes first.
            by_node.setdefault(pod.node, pod)
        return tuple(by_node.values())

    def pools(self, labels: Sequence[str] = POOL_LABELS) -> dict[str, str]:
        """The pool of each node by the first of *labels* that it has, "" where it has none; of no node where
        the user may not list nodes: what is shown does not depend on it."""
        columns = ",".join(f"L{number}:{_path_of(label)}" for number, label in enumerate(labels))
        listed = f"--output=custom-columns=NAME:.metadata.name,{columns}"
        try:
            finished = self._run(("get", "nodes", "--no-headers", listed))
        except BayplanError:
            return {}
        if finished.returncode:
            return {}
        rows = (line.split() for line in finished.stdout.splitlines())
        return {row[0]: next((cell for cell in row[1:] if cell != _NO_VALUE), "") for row in rows if row}

    def ask(
        self,
        pods: Sequence[DaemonPod],
        verb: str,
        words: Sequence[str],
        kept: Callable[[NodeAnswer], NodeAnswer] = lambda answer: answer,
    ) -> Iterator[NodeAnswer]:
        """What `bayplan VERB WORDS` answers in each of *pods*, in their order, and of that what is *kept*. No
        more answers wait for one before them than there are asked at once."""
        left = iter(pods)
        with ThreadPoolExecutor(_AT_ONCE) as pool:

            def asked(pod: DaemonPod) -> "Future[NodeAnswer]":
                return pool.submit(lambda: kept(self._answer(pod, verb, words)))

            waiting = deque(map(asked, islice(left, 2 * _AT_ONCE)))
            while waiting:
                found = waiting.popleft().result()
                waiting.extend(map(asked, islice(left, 1)))
                yield found

    def _answer(self, pod: DaemonPod, verb: str, words: Sequence[str]) -> NodeAnswer:
        if pod.problem:
            return NodeAnswer(pod.node, None, f"the pod {pod.name} {pod.problem}")
        where = ("exec", f"--namespace={self.namespace}", pod.name, f"--container={_CONTAINER}", "--")
        try:
            finished = self._run((*where, "bayplan", verb, "--output=json", *words))
        except BayplanError as error:
            return NodeAnswer(pod.node, None, str(error))
        if finished.returncode:
            said, _, status = finished.stderr.strip().rpartition(_REMOTE)
            reached = status.isdecimal()
            problem = _said(said if reached else finished.stderr).removeprefix("bayplan: ")
            return NodeAnswer(pod.node, None, problem, int(status) if reached else None)
        try:
            answer = json.loads(finished.stdout)
        except (ValueError, RecursionError) as error:
            return NodeAnswer(pod.node, None, f"answered something that is not JSON ({error})")
        if not isinstance(answer, dict):
            return NodeAnswer(pod.node, None, "answered something that is not an object")
        return NodeAnswer(pod.node, answer)

    def _run(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(  # noqa: S603 - no shell, and every word is one argument
                ["kubectl", *self.options, *words],  # noqa: S607 - whichever the user runs
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError("kubectl", f"no answer within {self.timeout_s:g} s (--timeout)") from None
        except OSError as error:
            raise UnavailableError("kubectl", f"cannot be started: {error.strerror}") from error


def _path_of(label: str) -> str:
    """Where a label stands, as kubectl's JSONPath has it."""
    return ".metadata.labels." + label.replace(".", "\\.")


def _pod_of(item: Object) -> DaemonPod:
    status, metadata = item.get("status", {}), item["metadata"]
    node, name = item.get("spec", {}).get("nodeName", "(no node yet)"), metadata["name"]
    if "deletionTimestamp" in metadata:
        return DaemonPod(node, name, "is being deleted")
    states = {one["name"]: one for one in status.get("containerStatuses", ())}
    if "running" in states.get(_CONTAINER, {}).get("state", {}):
        return DaemonPod(node, name)
    reasons = [_why(one) for one in (*status.get("initContainerStatuses", ()), *states.values())]
    reason = next(filter(None, reasons), status.get("reason", "") or status.get("message", ""))
    return DaemonPod(node, name, f"is {status.get('phase', 'not known')}{reason and f': {reason}'}")


def _why(container: Object) -> str:
    """Why a container does not run: its last message, else kubelet's; "" if nothing is wrong."""
    for state in (container.get("state", {}), container.get("lastState", {})):
        ended = state.get("terminated", {})
        if ended.get("exitCode") and ended.get("message"):
            return f"{container['name']}: {_said(ended['message'])}"
    waiting = container.get("state", {}).get("waiting", {})
    said = waiting.get("message") or waiting.get("reason", "")
    return f"{container['name']}: {_said(said)}" if said and said != "PodInitializing" else ""


def _said(text: str) -> str:
    """*text* of another program, on one line."""
    return excerpt(" ".join(text.split())) or "it said nothing"


View = dict[str, Any]

FEW_NODES: Final = 8
"""Up to so many are shown whole."""
MOST_ROWS: Final = 30
_KINDS: Final = ("problem", "refused", "not promised", "differs", "unmanaged", "degraded")
"""What can need attention on a node (`bayplan.views.attention`), the worst first."""
_MOST_NAMES: Final = 5

_ATTENTION: Final = (Column("NODE"), Column("WHAT"), Column("WHO", rank=1), Column("MORE"))
_POOLS: Final = (
    Column("POOL"),
    Column("NODES", number=True),
    Column("NO ANSWER", number=True),
    Column("CONTAINERS", number=True),
    *(Column(kind.upper(), number=True, rank=1) for kind in _KINDS),
)
_ROOM: Final = (
    Column("POOL"),
    Column("NODES", number=True),
    Column("NO ANSWER", number=True),
    Column("NUMA NODES", number=True, rank=2),
    Column("MEMORY", number=True),
    Column("PROMISED", number=True),
    Column("SHARE", number=True, rank=1),
    Column("LARGEST FREE PIECE", number=True),
    Column("WHERE", rank=1),
)


def status_digest(answer: dict[str, Any]) -> dict[str, Any]:
    """What `status_summary` needs of a node's answer to ``status``."""
    return {"attention": attention(answer), "containers": len(answer["containers"])}


def nodes_digest(answer: dict[str, Any]) -> dict[str, Any]:
    """What `nodes_summary` needs of a node's answer to ``nodes``: the memory of each NUMA node."""
    rooms = ((node["id"], node["resources"].get(MEMORY)) for node in answer["nodes"])
    fields = ("allocatableBytes", "bookedBytes", "freeBytes")
    return {"rooms": [{"id": name, **{key: room[key] for key in fields}} for name, room in rooms if room]}


def status_summary(views: Sequence[View]) -> list[Block]:
    """Pools, what needs attention on which nodes, and which nodes did not answer."""
    found = {view["name"]: view["answer"]["attention"] for view in _answered(views)}
    nodes_with: dict[tuple[str, str, str], list[str]] = {}
    for node, some in found.items():
        for kind, who, more in some:
            nodes_with.setdefault((kind, who, more), []).append(node)
    rows = sorted(nodes_with.items(), key=lambda row: (_KINDS.index(row[0][0]), -len(row[1]), row[1]))
    pools = Table(_POOLS, tuple(_pool_row(name, some, found) for name, some in _by_pool(views)))
    shown: list[Block] = [_heading(views, sum(map(bool, found.values()))), pools]
    if rows:
        listed = tuple((_first_of(nodes), *what) for what, nodes in rows[:MOST_ROWS])
        shown.append(Table(_ATTENTION, listed, title="Needs attention"))
    if len(rows) > MOST_ROWS:
        left = len({node for _, nodes in rows[MOST_ROWS:] for node in nodes})
        more = f"{len(rows) - MOST_ROWS} more on {counted(left, 'node')}"
        shown.append(f"And {more}: kubectl bayplan status --all, or --node NAME.")
    return [*shown, *silent_blocks(views)]


def nodes_summary(views: Sequence[View]) -> list[Block]:
    """For each pool its memory, what of it is promised, and the largest piece that one NUMA node has free."""
    rows = tuple(_room_row(name, some) for name, some in _by_pool(views))
    return [_heading(views, None), Table(_ROOM, rows), *silent_blocks(views)]


def silent_blocks(views: Iterable[View]) -> list[Block]:
    """The nodes that did not answer, those with the same reason together; last, so that they are not
    overlooked."""
    by_problem: dict[str, list[str]] = {}
    for view in views:
        if "problem" in view:
            by_problem.setdefault(view["problem"], []).append(view["name"])
    return [f"{_named(nodes)}: no answer: {problem}" for problem, nodes in by_problem.items()]


def _named(nodes: Sequence[str]) -> str:
    if len(nodes) == 1:
        return f"Node {nodes[0]}"
    more = len(nodes) - _MOST_NAMES
    return f"Nodes {', '.join(nodes[:_MOST_NAMES])}" + (f" and {more} more" if more > 0 else "")


def _first_of(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


def _answered(views: Iterable[View]) -> list[View]:
    return [view for view in views if "problem" not in view]


def _by_pool(views: Iterable[View]) -> list[tuple[str, list[View]]]:
    pools: dict[str, list[View]] = {}
    for view in views:
        pools.setdefault(view["pool"], []).append(view)
    return sorted(pools.items())


def _heading(views: Sequence[View], troubled: int | None) -> str:
    silent = len(views) - len(_answered(views))
    said = (
        f"{counted(len(views), 'node')}, {silent} without an answer"
        if silent
        else counted(len(views), "node")
    )
    return f"{said}." if troubled is None else f"{said}; {troubled} need attention."


def _pool_row(
    name: str, views: Sequence[View], found: Mapping[str, Sequence[Sequence[str]]]
) -> tuple[str, ...]:
    """A pool's name, its number of nodes, and how many of these have something of each kind."""
    answered = _answered(views)
    kinds = Counter(kind for view in answered for kind in {row[0] for row in found[view["name"]]})
    containers = sum(view["answer"]["containers"] for view in answered)
    return (
        name or "-",
        str(len(views)),
        str(len(views) - len(answered)),
        str(containers),
        *(str(kinds[kind]) for kind in _KINDS),
    )


def _room_row(name: str, views: Sequence[View]) -> tuple[str, ...]:
    answered = _answered(views)
    rooms = [(room, view["name"], room["id"]) for view in answered for room in view["answer"]["rooms"]]
    total = _sum(rooms, lambda room: room["allocatableBytes"])
    promised = _sum(rooms, lambda room: room["bookedBytes"])
    largest = max(rooms, key=lambda room: room[0]["freeBytes"], default=None)
    return (
        name or "-",
        str(len(views)),
        str(len(views) - len(answered)),
        str(len(rooms)),
        format_bytes(total),
        format_bytes(promised),
        f"{100 * promised / total:.0f} %" if total else "-",
        "-" if largest is None else format_bytes(largest[0]["freeBytes"]),
        "-" if largest is None else f"node {largest[2]} of {largest[1]}",
    )


def _sum(rooms: Iterable[tuple[Any, str, int]], amount: Callable[[Any], int]) -> int:
    return sum(amount(room) for room, _, _ in rooms)


"""Of one node: its name, and its answer or the problem."""

_PROGRAM: Final = "kubectl-bayplan"
_INSTALLED_IN: Final = "bayplan"
_TIMEOUT_S: Final = 30.0

_OTHER_FIELDS: Final = (LookupError, TypeError, AttributeError)
"""What comes of an answer that has not the fields it should have."""
_OTHER_VERSION: Final = (
    f"kubectl-bayplan {__version__} cannot show what it answered: its daemon is of another version"
)

_SUMMARIES: Final = {
    status.VERB: (status_digest, status_summary),
    nodes.VERB: (nodes_digest, nodes_summary),
}
"""Verbs of which much can be said in few lines: what of each answer that needs, and the lines."""

_DESCRIPTION: Final = """\
Shows what bayplan decided on all nodes of a cluster. It runs kubectl, and asks by `kubectl exec` in the pods
of the daemons."""
_EPILOG: Final = """\
Exit status: 0 all nodes answered, 1 no node knows the name, or the answer could not be written, 2 wrong
usage, 3 a node did not answer, and the others are shown, or none could be asked."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run kubectl-bayplan with *argv*; its exit status."""
    make_writable()
    arguments = build_parser().parse_args(argv)
    try:
        return _run(arguments)
    except BayplanError as error:
        write_error(f"{_PROGRAM}: {printable_lines(str(error))}\n")
        return error.exit_code


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = CommandLineParser(
        prog="kubectl bayplan",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    shown: tuple[CommandVerb, ...] = (status, Explain(), nodes, claims, Map())
    for verb in shown:
        below = verbs.add_parser(verb.VERB, help=verb.HELP, description=f"On every node: {verb.HELP}.")
        if verb.VERB == Map.VERB:
            below.add_argument(
                "--svg",
                type=Path,
                metavar="DIR",
                help="also write a picture NODE.svg of each node there, and cluster.svg of all",
            )
        else:
            verb.add_arguments(below)
        _add_options(below)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node", action="append", metavar="NAME", help="only this node; may be given more than once"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"each node whole, also where there are more than {FEW_NODES}"
    )
    parser.add_argument(
        "--pool-label",
        metavar="LABEL",
        help="the label of nodes by which they are counted together (default: the first of "
        f"{', '.join(POOL_LABELS)})",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "yaml"),
        default="table",
        help="table or wide, with more in it, for people; json or yaml for scripts (default: table)",
    )
    parser.add_argument("--no-color", action="store_true", help="no colours on a terminal, as with NO_COLOR")
    parser.add_argument(
        "--installed-in",
        metavar="NAMESPACE",
        default=_INSTALLED_IN,
        help=f"the namespace of bayplan's own pods (default: {_INSTALLED_IN})",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        default=_TIMEOUT_S,
        help=f"how long a node is waited for (default: {_TIMEOUT_S:g})",
    )
    for option in ("context", "kubeconfig"):
        parser.add_argument(f"--{option}", metavar=option.upper(), help=f"kubectl's option --{option}")


def _run(arguments: argparse.Namespace) -> int:
    given = {option: getattr(arguments, option) for option in ("context", "kubeconfig")}
    options = tuple(f"--{option}={value}" for option, value in given.items() if value)
    kubectl = Kubectl(arguments.installed_in, options, arguments.timeout)
    pods = _chosen(kubectl.daemons(), arguments.node)
    asked = nodes.VERB if arguments.verb == Map.VERB else arguments.verb
    summarized = _summarized(arguments, len(pods))
    kept = partial(_digested, _SUMMARIES[arguments.verb][0]) if summarized else _whole
    if arguments.verb == Map.VERB:
        kept = partial(_mapped, arguments.svg)
    answers = _counted(kubectl.ask(pods, asked, _words(arguments), kept), len(pods))
    pools: dict[str, str] = {}
    if arguments.verb == Map.VERB or summarized:
        pools = kubectl.pools((arguments.pool_label,) if arguments.pool_label else POOL_LABELS)
    if arguments.verb == Explain.VERB:
        answers = iter(_from_who_knows(tuple(answers)))
    if arguments.verb == Map.VERB and arguments.svg is not None:
        answers = iter(_all_drawn(tuple(answers), pools, arguments.svg))
    silent: list[str] = []
    views = _views(answers, silent)
    if arguments.output in ("json", "yaml"):
        written = write_answer(_PROGRAM, partial(_write_document, arguments.output, views))
    else:
        shown = list(views)
        blocks = _blocks(arguments, shown, pools)
        silent = [view["name"] for view in shown if "problem" in view]
        written = write_answer(_PROGRAM, partial(_show_paged, blocks, arguments))
    return written or (EXIT_UNAVAILABLE if silent else 0)


def _views(answers: Iterable[NodeAnswer], silent: list[str]) -> Iterator[View]:
    """The views of *answers* as they come; the names of nodes with a problem are added to *silent*."""
    for one in answers:
        if one.answer is None:
            silent.append(one.node)
        (view,) = printable_answer({"nodes": [_view(one)]})["nodes"]
        yield view


def _summarized(arguments: argparse.Namespace, count: int) -> bool:
    """Whether nodes are counted instead of shown: many, for people, and nobody asked for each."""
    whole = arguments.all or arguments.node or arguments.output != "table"
    return arguments.verb in _SUMMARIES and count > FEW_NODES and not whole


def _whole(answer: NodeAnswer) -> NodeAnswer:
    return answer


def _digested(digest: Callable[[Any], Any], one: NodeAnswer) -> NodeAnswer:
    """*one* with the *digest* of its answer; a problem if a daemon of another version has other fields."""
    if one.answer is None:
        return one
    try:
        return one._replace(answer=digest(one.answer))
    except _OTHER_FIELDS:
        return one._replace(answer=None, problem=_OTHER_VERSION)


def _counted(answers: Iterator[NodeAnswer], count: int) -> Iterator[NodeAnswer]:
    """*answers*; where a person looks on, one line says meanwhile how many have come."""
    shown = sys.stderr.isatty() and count > FEW_NODES
    for number, one in enumerate(answers, 1):
        if shown:
            sys.stderr.write(f"\r{number} of {counted(count, 'node')} \r")
            sys.stderr.flush()
        yield one
    if shown:
        sys.stderr.write("\r\x1b[K")


def _chosen(pods: tuple[DaemonPod, ...], wanted: list[str] | None) -> tuple[DaemonPod, ...]:
    known = {pod.node for pod in pods}
    if missing := [node for node in wanted or () if node not in known]:
        problem = f"bayplan runs on {', '.join(sorted(known))}"
        raise UnavailableError(f"no pod of bayplan is on {', '.join(missing)}", problem)
    return tuple(pod for pod in pods if wanted is None or pod.node in wanted)


def _words(arguments: argparse.Namespace) -> list[str]:
    """The verb's own arguments, as the daemons' command line is given them."""
    if arguments.verb == Explain.VERB:
        return ["--", arguments.subject]
    chosen = {option: getattr(arguments, option, None) for option in ("namespace", "outcome")}
    return [f"--{option}={value}" for option, value in chosen.items() if value is not None]


def _from_who_knows(answers: tuple[NodeAnswer, ...]) -> tuple[NodeAnswer, ...]:
    """The answers of the nodes that know the name: a pod is on one node, and the other daemons say that they
    do not know it.

    Raises:
        UnknownNameError: all nodes answered, and none knows it.
    """
    left = tuple(one for one in answers if one.status != EXIT_FAILURE)
    if not left:
        raise UnknownNameError("; ".join(dict.fromkeys(one.problem for one in answers)))
    return left


class UnknownNameError(BayplanError):
    """No node knows the name; the message is what they said."""


def _mapped(directory: Path | None, node_answer: NodeAnswer) -> NodeAnswer:
    """*node_answer* with what a map needs of it; its picture is written to *directory*, if one is given."""
    if node_answer.answer is None:
        return node_answer
    picture = ""
    try:
        found = node_answer.answer["nodes"]
        digest = map_digest(node_answer.answer)
        cluster_blocks([("", [{"name": node_answer.node, "nodes": digest}])])
        if directory is not None:
            from bayplan.drawing.maps import cluster_map, machine_map  # noqa: PLC0415 - only pictures need it

            picture = machine_map(found)
            cluster_map([{"name": node_answer.node, "pool": "", "nodes": digest}])
    except _OTHER_FIELDS:
        return node_answer._replace(answer=None, problem=_OTHER_VERSION)
    answer = {"apiVersion": API_VERSION, "kind": "Map", "nodes": len(found), "numaNodes": digest}
    if directory is not None:
        # The name of a node is one of DNS, and becomes the name of a file as it is.
        answer["file"] = str(_saved(directory / f"{node_answer.node}.svg", picture))
    return node_answer._replace(answer=answer)


def _all_drawn(
    answers: tuple[NodeAnswer, ...], pools: Mapping[str, str], directory: Path
) -> tuple[NodeAnswer, ...]:
    """*answers*; the picture of all of them is written."""
    from bayplan.drawing.maps import cluster_map  # noqa: PLC0415 - only this verb draws

    _saved(directory / "cluster.svg", cluster_map([_map_view(_view(one), pools) for one in answers]))
    return answers


def _map_view(view: View, pools: Mapping[str, str]) -> View:
    """The name of a node, its pool, and its NUMA nodes or the problem."""
    name = view["name"]
    found = {"problem": view["problem"]} if "problem" in view else {"nodes": view["answer"]["numaNodes"]}
    return {"name": name, "pool": pools.get(name, ""), **found}


def _map_blocks(views: Sequence[View], pools: Mapping[str, str], directory: Path | None) -> list[Block]:
    """The nodes as characters, and where the pictures are."""
    mapped = [_map_view(view, pools) for view in views]
    drawn = [] if directory is None else [f"Pictures: {directory / 'cluster.svg'}, and NODE.svg beside it."]
    return [
        _heading(mapped, None),
        *cluster_blocks(_by_pool(mapped)),
        *drawn,
        *silent_blocks(views),
    ]


def _saved(path: Path, picture: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise HostError(str(path), f"cannot be written: {error.strerror}") from error
    return path


def _write_document(form: str, views: Iterable[View], stream: TextIO) -> None:
    """All *views* as one document, each written as it comes."""
    top = {"apiVersion": API_VERSION, "kind": "Cluster"}
    if form == "json":
        stream.write(json.dumps(top, indent=2).removesuffix("\n}") + ',\n  "nodes": [')
        for number, view in enumerate(views):
            text = json.dumps(view, indent=2).replace("\n", "\n    ")
            stream.write(f"{',' if number else ''}\n    {text}")
        stream.write("\n  ]\n}\n")
        return
    import yaml  # noqa: PLC0415 - loading PyYAML takes 20 ms

    dump = partial(yaml.safe_dump, stream=stream, sort_keys=False, allow_unicode=False)
    dump(top)
    stream.write("nodes:\n")
    for view in views:
        dump([view])


def _show_paged(blocks: Sequence[Block], arguments: argparse.Namespace, stream: TextIO) -> None:
    """On a terminal that is too small for them, in a pager as git has it: $PAGER, else less."""
    output = Output.of(stream, color=not arguments.no_color and not os.environ.get("NO_COLOR"))
    text = "\n".join(f"{one}\n" for one in rendered(blocks, output))
    pager = _pager() if stream.isatty() else []
    if pager and text.count("\n") >= shutil.get_terminal_size().lines and shutil.which(pager[0]):
        options = {"LESS": "FRX", **os.environ}
        subprocess.run(pager, input=text, encoding="utf-8", env=options, check=False)  # noqa: S603 - the user's own
    else:
        stream.write(text)


def _pager() -> list[str]:
    """The command of the pager, empty for none: also where $PAGER is none."""
    try:
        return shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:
        return []


def _view(one: NodeAnswer) -> View:
    if one.answer is None:
        return {"name": one.node, "problem": one.problem}
    return {"name": one.node, "answer": one.answer}


def _blocks(arguments: argparse.Namespace, views: list[View], pools: Mapping[str, str]) -> list[Block]:
    """Each node's blocks below its name, or what there is to say of many; those that did not answer come
    last, so that they are not overlooked. An answer that cannot be shown, because a daemon of another version
    has other fields, becomes a problem."""
    shown: list[Block] = []
    makers = {
        status.VERB: status.wide_blocks if arguments.output == "wide" else status.blocks,
        nodes.VERB: nodes.wide_blocks if arguments.output == "wide" else nodes.blocks,
        Explain.VERB: Explain.blocks,
        claims.VERB: claims.wide_blocks if arguments.output == "wide" else claims.blocks,
    }
    if arguments.verb == Map.VERB:
        return _map_blocks(views, pools, arguments.svg)
    if _summarized(arguments, len(views)):
        _, summary = _SUMMARIES[arguments.verb]
        return summary([{**view, "pool": pools.get(view["name"], "")} for view in views])
    for view in views:
        if "problem" in view:
            continue
        try:
            shown += [f"Node {view['name']}", *makers[arguments.verb](view["answer"])]
        except _OTHER_FIELDS:
            view["problem"] = _OTHER_VERSION
    return [*shown, *silent_blocks(views)]


if __name__ == "__main__":
    sys.exit(main())
