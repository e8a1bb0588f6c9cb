"""The command line of bayplan-agent. It has no file: what it does is decided where it is started."""

import argparse
import enum
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from bayplan import __version__
from bayplan.admin_protocol import LOG_LEVELS
from bayplan.agent_protocol import DEFAULT_SOCKET
from bayplan.quantity import whole_number
from bayplan.standard_streams import CommandLineParser

PROGRAM: Final = "bayplan-agent"

MOST_CONTAINERS: Final = 10_000
"""As many containers can be named in metrics, if somebody wants that."""

_HIGHEST_PORT: Final = 65535

_DESCRIPTION: Final = """\
Follows the daemon of bayplan, and tells it what kubelet says of pods: what their containers request, to the
byte. Runs beside the daemon as an unprivileged user, who has to be a member of the agent socket's group. It
may be stopped and started at any time: nothing that was promised depends on it."""

_EPILOG: Final = """\
Exit status: 0 stopped as asked, 1 failure, 2 wrong flags."""


class Address(NamedTuple):
    """Where to listen for TCP."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ClusterTask(enum.Enum):
    """What the agent does at the API server."""

    TOPOLOGY = "topology"
    PODS = "pods"
    EVENTS = "events"
    EVICTIONS = "evictions"
    CLAIMS = "claims"


class AgentSettings(Struct, frozen=True):
    """What the command line says."""

    daemon_socket: Path = DEFAULT_SOCKET
    kubelet_pods_socket: Path | None = Path("/var/lib/kubelet/pods-api/pods-api.sock")
    kubelet_url: str | None = None
    kubelet_token: Path | None = None
    kubelet_ca: Path | None = None
    kubelet_server_name: str = ""
    pod_resources_socket: Path | None = Path("/run/bayplan-agent/pod-resources.sock")
    kubelet_pod_resources: Path | None = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    listen: Address | None = Address("127.0.0.1", 9476)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    container_metrics: int = 100
    kubeconfig: Path | None = None
    node_name: str = ""
    cluster_tasks: frozenset[ClusterTask] = frozenset(
        {ClusterTask.TOPOLOGY, ClusterTask.PODS, ClusterTask.EVENTS}
    )
    remove_topology: bool = False
    kubelet_plugins: Path = Path("/var/lib/kubelet/plugins")
    kubelet_plugins_registry: Path = Path("/var/lib/kubelet/plugins_registry")
    log_level: str = "info"
    log_format: str = "auto"


def parse(argv: Sequence[str] | None = None) -> AgentSettings:
    """The settings in *argv*, the command line without the program's name."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        parser.error("--tls-cert and --tls-key are given together or not at all")
    if arguments.remove_topology and arguments.kubeconfig is None:
        parser.error("--remove-topology needs --kubeconfig")
    return AgentSettings(**vars(arguments))


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line; each flag is a field of `AgentSettings`."""
    parser = CommandLineParser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    default = AgentSettings()
    parser.add_argument(
        "--version",
        action="version",
        version=f"{PROGRAM} {__version__} (python {platform.python_version()})",
    )
    parser.add_argument(
        "--daemon-socket",
        type=Path,
        metavar="PATH",
        default=default.daemon_socket,
        help=f"the daemon's agent socket (default: {default.daemon_socket})",
    )
    kubelet = parser.add_argument_group("kubelet, which knows what containers request")
    kubelet.add_argument(
        "--kubelet-pods-socket",
        type=_path_or_none,
        metavar="PATH",
        default=default.kubelet_pods_socket,
        help="kubelet's Pods service (feature gate PodsAPI), or none to do without "
        f"(default: {default.kubelet_pods_socket})",
    )
    kubelet.add_argument(
        "--kubelet-url",
        type=_pods_url,
        metavar="URL",
        help="where kubelet is asked while that service is not there: https://127.0.0.1:10250/pods, or "
        "http://127.0.0.1:10255/pods where the read-only port is open (default: it is not asked)",
    )
    kubelet.add_argument(
        "--kubelet-token", type=Path, metavar="FILE", help="the bearer token for it; read each time"
    )
    kubelet.add_argument(
        "--kubelet-ca", type=Path, metavar="FILE", help="what kubelet's certificate is checked by, in PEM"
    )
    kubelet.add_argument(
        "--kubelet-server-name",
        metavar="NAME",
        default=default.kubelet_server_name,
        help="the name in that certificate, often the node's (default: the URL's)",
    )
    pod_resources = parser.add_argument_group("PodResources, for what reads kubelet's")
    pod_resources.add_argument(
        "--pod-resources-socket",
        type=_path_or_none,
        metavar="PATH",
        default=default.pod_resources_socket,
        help=f"where to serve v1.PodResourcesLister, or none (default: {default.pod_resources_socket})",
    )
    pod_resources.add_argument(
        "--kubelet-pod-resources",
        type=_path_or_none,
        metavar="PATH",
        default=default.kubelet_pod_resources,
        help="kubelet's own socket, whose devices and dynamic resources are passed on, or none "
        f"(default: {default.kubelet_pod_resources})",
    )
    http = parser.add_argument_group("HTTP: the page, /metrics, /livez, /readyz")
    http.add_argument(
        "--listen",
        type=_address_or_none,
        metavar="HOST:PORT",
        default=default.listen,
        help=f"where to listen, or none (default: {default.listen}, which only this machine reaches)",
    )
    http.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS with this certificate (PEM)")
    http.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key (PEM)")
    http.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="answer only who sends the bearer token in this file; /livez and /readyz answer everybody",
    )
    http.add_argument(
        "--allowed-hosts",
        type=_names,
        metavar="NAME,...",
        default=default.allowed_hosts,
        help="names by which a proxy asks; on loopback without TLS only requests to these and to loopback's "
        "own name and addresses are answered",
    )
    http.add_argument(
        "--container-metrics",
        type=_count,
        metavar="N",
        default=default.container_metrics,
        help="name so many containers at most in metrics, 0 for none "
        f"(default: {default.container_metrics}, those with the most memory on other nodes)",
    )
    cluster = parser.add_argument_group("the API server: the node's room for schedulers, pods, events")
    cluster.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="the API server and who asks it, or in-cluster for the service account of the agent's pod "
        "(default: no API server is asked)",
    )
    cluster.add_argument(
        "--node-name",
        metavar="NAME",
        default=os.environ.get("NODE_NAME") or platform.node().lower(),
        help="this node's name in Kubernetes (default: the environment's NODE_NAME, else the host's name)",
    )
    cluster.add_argument(
        "--cluster-tasks",
        type=_cluster_tasks,
        metavar="TASK,...",
        default=default.cluster_tasks,
        help="what is done there: topology publishes a NodeResourceTopology object, pods learns what pods "
        "request where kubelet does not say, events tells pods what was decided, evictions has pods evicted "
        "there that the daemon decides to evict, claims serves resource claims as a DRA driver "
        "(default: the first three)",
    )
    cluster.add_argument(
        "--remove-topology",
        action="store_true",
        help="delete this node's NodeResourceTopology object, and do nothing else",
    )
    for flag, path, what in (
        ("--kubelet-plugins", default.kubelet_plugins, "serves what kubelet asks of resource claims"),
        ("--kubelet-plugins-registry", default.kubelet_plugins_registry, "is found by kubelet"),
    ):
        cluster.add_argument(
            flag,
            type=Path,
            metavar="DIRECTORY",
            default=path,
            help=f"with the task claims, where the DRA driver {what}, in a directory of its own "
            f"(default: {path})",
        )
    logs = parser.add_argument_group("logs")
    logs.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=default.log_level,
        help=f"from which level on messages are written (default: {default.log_level})",
    )
    logs.add_argument(
        "--log-format",
        choices=("auto", "json", "text"),
        default=default.log_format,
        help="text for people, json for programs, auto: text on a terminal (default: auto)",
    )
    return parser


def _pods_url(word: str) -> str:
    parts = urlsplit(word)
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.path:
        raise argparse.ArgumentTypeError(f"found {word!r}, expected http(s)://HOST:PORT/pods")
    return word


def _path_or_none(word: str) -> Path | None:
    return None if word == "none" else Path(word)


def _address_or_none(word: str) -> Address | None:
    if word == "none":
        return None
    host, _, digits = word.rpartition(":")
    port = whole_number(digits)
    if not host or port is None or port > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"found {word!r}, expected HOST:PORT like 127.0.0.1:9476, or none")
    return Address(host.removeprefix("[").removesuffix("]"), port)


def _names(words: str) -> tuple[str, ...]:
    names = tuple(words.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"found {words!r}, expected names with commas between them")
    return names


def _cluster_tasks(words: str) -> frozenset[ClusterTask]:
    try:
        return frozenset(map(ClusterTask, words.split(",")))
    except ValueError as error:
        expected = ", ".join(task.value for task in ClusterTask)
        raise argparse.ArgumentTypeError(f"found {words!r}, expected some of {expected}") from error


def _count(word: str) -> int:
    count = whole_number(word)
    if count is None or count > MOST_CONTAINERS:
        raise argparse.ArgumentTypeError(f"found {word!r}, expected a number from 0 to {MOST_CONTAINERS}")
    return count
