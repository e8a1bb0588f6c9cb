"""Where `kubectl bayplan` starts: what `bayplan` shows of a node, of all nodes of a cluster."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from bayplan import __version__
from bayplan.admin_protocol import API_VERSION, printable_answer
from bayplan.cli import claims, explain, machine_map, nodes, status
from bayplan.cli.cluster import POOL_LABELS, DaemonPod, Kubectl, NodeAnswer
from bayplan.cli.cluster_summary import (
    FEW_NODES,
    nodes_digest,
    nodes_summary,
    silent_blocks,
    status_digest,
    status_summary,
)
from bayplan.cli.render import show
from bayplan.cli.table_layout import Block
from bayplan.errors import EXIT_FAILURE, EXIT_UNAVAILABLE, BayplanError, HostError, UnavailableError
from bayplan.printable import printable_lines
from bayplan.standard_streams import CommandLineParser, make_writable, write_answer, write_error

View = dict[str, Any]
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
    for verb in (status, explain, nodes, claims, machine_map):
        below = verbs.add_parser(verb.VERB, help=verb.HELP, description=f"On every node: {verb.HELP}.")
        if verb is machine_map:
            below.add_argument(
                "--svg",
                type=Path,
                required=True,
                metavar="DIR",
                help="where to write a picture NODE.svg of each node, and cluster.svg of all",
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
    asked = nodes.VERB if arguments.verb == machine_map.VERB else arguments.verb
    summarized = _summarized(arguments, len(pods))
    kept = partial(_digested, _SUMMARIES[arguments.verb][0]) if summarized else _whole
    answers = _counted(kubectl.ask(pods, asked, _words(arguments), kept), len(pods))
    if arguments.verb == explain.VERB:
        answers = _from_who_knows(answers)
    pools: dict[str, str] = {}
    if arguments.verb == machine_map.VERB or summarized:
        pools = kubectl.pools((arguments.pool_label,) if arguments.pool_label else POOL_LABELS)
    if arguments.verb == machine_map.VERB:
        answers = _all_drawn(answers, pools, arguments.svg)
    views = printable_answer({"nodes": list(map(_view, answers))})["nodes"]
    blocks = [] if arguments.output in ("json", "yaml") else _blocks(arguments, views, pools)
    written = _written(arguments, views, blocks)
    return written or (EXIT_UNAVAILABLE if any("problem" in one for one in views) else 0)


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


def _counted(answers: Iterator[NodeAnswer], count: int) -> tuple[NodeAnswer, ...]:
    """All of *answers*; where a person looks on, one line says meanwhile how many have come."""
    shown = sys.stderr.isatty() and count > FEW_NODES
    found = []
    for one in answers:
        found.append(one)
        if shown:
            sys.stderr.write(f"\r{len(found)} of {count} nodes \r")
            sys.stderr.flush()
    if shown:
        sys.stderr.write("\r\x1b[K")
    return tuple(found)


def _chosen(pods: tuple[DaemonPod, ...], wanted: list[str] | None) -> tuple[DaemonPod, ...]:
    known = {pod.node for pod in pods}
    if missing := [node for node in wanted or () if node not in known]:
        problem = f"bayplan runs on {', '.join(sorted(known))}"
        raise UnavailableError(f"no pod of bayplan is on {', '.join(missing)}", problem)
    return tuple(pod for pod in pods if wanted is None or pod.node in wanted)


def _words(arguments: argparse.Namespace) -> list[str]:
    """The verb's own arguments, as the daemons' command line is given them."""
    if arguments.verb == explain.VERB:
        return ["--", arguments.subject]
    chosen = {option: getattr(arguments, option, None) for option in ("namespace", "outcome")}
    return [f"--{option}={value}" for option, value in chosen.items() if value is not None]


def _from_who_knows(answers: tuple[NodeAnswer, ...]) -> tuple[NodeAnswer, ...]:
    """A pod is on one node, and the other daemons say that they do not know it.

    Raises:
        UnknownNameError: all nodes answered, and none knows it.
    """
    left = tuple(one for one in answers if one.status != EXIT_FAILURE)
    if not left:
        raise UnknownNameError("; ".join(dict.fromkeys(one.problem for one in answers)))
    return left


class UnknownNameError(BayplanError):
    """No node knows the name; the message is what they said."""


def _all_drawn(
    answers: tuple[NodeAnswer, ...], pools: Mapping[str, str], directory: Path
) -> tuple[NodeAnswer, ...]:
    """The pictures of the nodes and that of all of them, written; each answer says where its own is."""
    from bayplan.drawing.cluster_map import cluster_map  # noqa: PLC0415 - only this verb draws
    from bayplan.drawing.machine_map import machine_map as drawing  # noqa: PLC0415 - as above

    views: list[View] = []
    drawn: list[NodeAnswer] = []
    for one in answers:
        view: View = {"name": one.node, "pool": pools.get(one.node, "")}
        answer, problem = one.answer, one.problem
        if answer is not None:
            try:
                found = answer["nodes"]
                picture = drawing(found)
                cluster_map([{**view, "nodes": found}])
            except _OTHER_FIELDS:
                answer, problem = None, _OTHER_VERSION
            else:
                view["nodes"] = found
                # The name of a node is one of DNS, and becomes the name of a file as it is.
                path = _saved(directory / f"{one.node}.svg", picture)
                answer = {"apiVersion": API_VERSION, "kind": "Map", "file": str(path), "nodes": len(found)}
        views.append(view)
        drawn.append(one._replace(answer=answer, problem=problem))
    _saved(directory / "cluster.svg", cluster_map(views))
    return tuple(drawn)


def _saved(path: Path, picture: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise HostError(str(path), f"cannot be written: {error.strerror}") from error
    return path


def _written(arguments: argparse.Namespace, views: list[View], blocks: list[Block]) -> int:
    document = {"apiVersion": API_VERSION, "kind": "Cluster", "nodes": views}

    def write(stream: TextIO) -> None:
        if arguments.output == "json":
            stream.write(json.dumps(document, indent=2) + "\n")
        elif arguments.output == "yaml":
            import yaml  # noqa: PLC0415 - loading PyYAML takes 20 ms

            yaml.safe_dump(document, stream, sort_keys=False, allow_unicode=False)
        else:
            show(blocks, stream, color=not arguments.no_color and not os.environ.get("NO_COLOR"))

    return write_answer(_PROGRAM, write)


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
        explain.VERB: explain.blocks,
        claims.VERB: claims.wide_blocks if arguments.output == "wide" else claims.blocks,
        machine_map.VERB: machine_map.blocks,
    }
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
