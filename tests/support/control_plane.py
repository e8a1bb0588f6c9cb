"""Kubernetes' control plane on this machine: etcd and kube-apiserver, with RBAC, at a port of loopback.

All that it writes is in one directory: certificates and keys, which are made for it, the data, the logs and
the audit log, by which a test knows who asked for what. The port is held while the API server is down.
"""

import base64
import contextlib
import json
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import yaml

from support.kubernetes_page import scheduler_roles, scheduler_rules

Object = dict[str, Any]

GUESTS_VIEW: Final = "10.0.2.2"
"""This machine's loopback, for a virtual machine with QEMU's user-mode network."""
SERVICE: Final = "10.96.0.1"
"""The API server, for pods: the first address of the services."""

NOBODY: Final = "http://127.0.0.1:1"
"""What etcd tells others of itself must be an address; there are none."""

ADMIN: Final = "admin-token"
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
LIMIT_S: Final = 180.0
POLL_S: Final = 0.1
SCHEDULER: Final = "scheduler"
"""The scheduler's service account, of the namespace default."""

_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_RBAC: Final = "rbac.authorization.k8s.io"
_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlaneError(Exception):
    """It did not come up; with the end of what it said."""


class ApiRefusalError(Exception):
    """The API server refuses: *status* is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ControlPlane:
    """A control plane of *programs*, a directory with ``bin/etcd`` and ``bin/kube-apiserver``, with its files
    in *directory*. *nodes* are names of kubelets, whose token is their name; *gates* are feature gates that
    API server and scheduler have on."""

    def __init__(
        self, programs: Path, directory: Path, nodes: tuple[str, ...] = (), gates: tuple[str, ...] = ()
    ) -> None:
        self.directory = directory
        self.ca = directory / "server.pem"
        self.to_nodes = directory / "to-nodes.sock"
        """By what is put there the API server reaches kubelets (HTTP CONNECT), as `kubectl exec` needs it."""
        self._programs = programs / "bin"
        self._gates = [f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"] if gates else []
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api_server: subprocess.Popen[bytes] | None = None
        self._controllers: subprocess.Popen[bytes] | None = None
        self._schedulers: list[subprocess.Popen[bytes]] = []
        # Bound and not listening: nobody else gets it, and the API server may have it too.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._port.bind(("127.0.0.1", 0))
        self.port: int = self._port.getsockname()[1]
        kubelets = tuple((node, f"system:node:{node}", "system:nodes") for node in nodes)
        admin = (ADMIN, "admin", "system:masters")
        users = [f'{token},{user},{user},"{group}"\n' for token, user, group in (admin, *kubelets)]
        (directory / "tokens.csv").write_text("".join(users))
        (directory / "audit.yaml").write_text(json.dumps(_AUDIT))
        (directory / "egress.yaml").write_text(json.dumps(_egress(self.to_nodes)))
        _openssl("genpkey", "-algorithm", "RSA", "-out", str(directory / "accounts.key"))
        names = f"subjectAltName=IP:127.0.0.1,IP:{GUESTS_VIEW},IP:{SERVICE}"
        self._certify("server", "/CN=kube-apiserver", "-addext", names)

    @property
    def url(self) -> str:
        """Where the API server is."""
        return f"https://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def running(self) -> Iterator["ControlPlane"]:
        """Both programs run, and are killed at the end."""
        try:
            self._start_etcd()
            self.start_api_server()
            # Made by a controller where one runs; no pod is admitted without it.
            self._make_account("default")
            yield self
        finally:
            self.stop_schedulers()
            self.stop_controllers()
            self.kill_api_server()
            if self._etcd is not None:
                _end(self._etcd)
            self._port.close()

    def start_api_server(self) -> None:
        """Start it, and wait until it is ready. It ends with the thread that calls this."""
        made = self.directory
        self._api_server = self._start(
            self._programs / "kube-apiserver",
            f"--etcd-servers=unix://{made}/etcd.sock",
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}", "--permit-port-sharing"),
            *(f"--advertise-address={GUESTS_VIEW}", "--endpoint-reconciler-type=none"),
            *(f"--tls-cert-file={self.ca}", f"--tls-private-key-file={made}/server.key"),
            *(f"--client-ca-file={self.ca}", f"--token-auth-file={made}/tokens.csv"),
            # As kubeadm has it; the daemon's pod is privileged.
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            f"--egress-selector-config-file={made}/egress.yaml",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={made}/accounts.key",
            f"--service-account-signing-key-file={made}/accounts.key",
            "--service-cluster-ip-range=10.96.0.0/24",
            *(f"--audit-policy-file={made}/audit.yaml", f"--audit-log-path={made}/audit.log"),
            "--audit-log-mode=blocking",
            *self._gates,
        )
        self._await_ready(self._api_server)

    def kill_api_server(self) -> None:
        """It is gone at once; etcd stays."""
        if self._api_server is not None:
            _end(self._api_server)

    def start_controllers(self, programs: Path, *names: str) -> None:
        """Start these controllers, of ``bin/kube-controller-manager`` in *programs*."""
        self._controllers = self._start(
            programs / "bin/kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('controllers', token=ADMIN)}",
            *(f"--controllers={','.join(names)}", "--leader-elect=false", "--secure-port=0"),
        )

    def stop_controllers(self) -> None:
        """They are gone at once."""
        if self._controllers is not None:
            _end(self._controllers)

    def start_scheduler(self, programs: Path, configuration: Object) -> None:
        """Start ``bin/scheduler`` in *programs* with this KubeSchedulerConfiguration, and the documented
        rights."""
        token = self.make_service_account(SCHEDULER, scheduler_rules(), *scheduler_roles())
        kubeconfig = self.kubeconfig(SCHEDULER, token=token)
        path = self.directory / f"scheduler-{len(self._schedulers)}.json"
        here = {"clientConnection": {"kubeconfig": str(kubeconfig)}, "leaderElection": {"leaderElect": False}}
        path.write_text(json.dumps(configuration | here))
        flags = (f"--config={path}", "--secure-port=0", *self._gates)
        self._schedulers.append(self._start(programs / "bin/scheduler", *flags))

    def stop_schedulers(self) -> None:
        """They are gone at once."""
        while self._schedulers:
            _end(self._schedulers.pop())

    def ask(
        self, method: str, path: str, body: Object | None = None, content_type: str = "application/json"
    ) -> Object:
        """The object that the API server answers an administrator; raises ApiRefusalError."""
        found: Object = json.loads(self._ask(method, path, body, content_type))
        return found

    def text(self, path: str) -> str:
        """What the API server answers an administrator, as it is."""
        return self._ask("GET", path, None, "application/json").decode()

    def _ask(self, method: str, path: str, body: Object | None, content_type: str) -> bytes:
        """The answer. Of a resource that was just made the API server wants to be asked again."""
        while True:
            try:
                return self._ask_once(method, path, body, content_type)
            except ApiRefusalError as error:
                if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
            time.sleep(POLL_S)

    def _ask_once(self, method: str, path: str, body: Object | None, content_type: str) -> bytes:
        context = ssl.create_default_context(cafile=str(self.ca))
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": content_type}
        encoded = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}{path}", encoded, headers, method=method)
        try:
            with urlopen(request, timeout=LIMIT_S, context=context) as answer:
                content: bytes = answer.read()
                return content
        except HTTPError as error:
            with error:
                raise ApiRefusalError(error.code, error.read().decode(errors="replace")) from error

    def apply(self, path: str, item: Object) -> Object:
        """Have the object at *path* be as *item* says, whether it is there or not."""
        return self.ask("PATCH", f"{path}?fieldManager=test&force=true", item, APPLY)

    def find(self, path: str) -> Object | None:
        """The object at *path*, if there is one."""
        try:
            return self.ask("GET", path)
        except ApiRefusalError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None

    def wait_for(self, path: str, condition: Callable[[Object | None], bool]) -> None:
        """Wait until the object at *path*, or that there is none, is as wanted."""
        deadline_s = time.monotonic() + LIMIT_S
        while not condition(found := self.find(path)):
            if time.monotonic() > deadline_s:
                raise ControlPlaneError(f"{path} is still {found}")
            time.sleep(POLL_S)

    def define(self, definition: Object) -> None:
        """Have a CustomResourceDefinition; its objects can be asked for a little later."""
        self.apply(f"{_DEFINITIONS}/{definition['metadata']['name']}", definition)

    def remove_definition(self, definition: Object) -> None:
        """Delete a CustomResourceDefinition, if it is there, with all of its objects; they are gone then."""
        path = f"{_DEFINITIONS}/{definition['metadata']['name']}"
        if self.find(path) is not None:
            self.ask("DELETE", path)
            self.wait_for(path, lambda found: found is None)

    def make_service_account(self, name: str, rules: list[Object], *roles: str) -> str:
        """Make the service account *name* of the namespace default, with *rules* everywhere, and these
        ClusterRoles; its token."""
        account = self._make_account(name)
        # The chart's role is bayplan-agent: Helm installs nothing where somebody else's is.
        own = f"default:{name}"
        meta = {"name": own}
        self.apply(
            f"/apis/{_RBAC}/v1/clusterroles/{own}",
            {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules},
        )
        for role in (own, *roles):
            self._bind(name, role)
        return self.token(account)

    def token(self, account: str, bound: Object | None = None) -> str:
        """A token of the service account at the path *account*, which says of the object *bound*, a pod or a
        node, that it is its bearer's."""
        spec = {} if bound is None else {"boundObjectRef": bound}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.ask("POST", f"{account}/token", asked)["status"]["token"])

    def _bind(self, account: str, role: str) -> None:
        """Give a service account of the namespace default a ClusterRole."""
        name = f"{account}:{role}"
        self.apply(
            f"/apis/{_RBAC}/v1/clusterrolebindings/{name}",
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": account}],
            },
        )

    def _make_account(self, name: str) -> str:
        """Make a service account of the namespace default; its path."""
        path = f"/api/v1/namespaces/default/serviceaccounts/{name}"
        self.apply(path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
        return path

    def kubeconfig(self, name: str, host: str = "127.0.0.1", **user: str) -> Path:
        """A kubeconfig for *user*, as a kubeconfig has users, and for who reaches this machine as *host*."""
        ca = self.ca.read_text()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": f"https://{host}:{self.port}",
                        "certificate-authority-data": _base64(ca),
                    },
                }
            ],
            "users": [{"name": name, "user": user}],
        }
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path

    def audited(self, user: str) -> list[Object]:
        """All requests of *user* that were answered so far."""
        lines = (self.directory / "audit.log").read_text().splitlines()
        return [one for one in map(json.loads, lines) if one["user"].get("username") == user]

    def log(self, program: str) -> str:
        """What a program said."""
        return (self.directory / f"{program}.log").read_text(errors="replace")

    def client_certificate(self, name: str) -> tuple[Path, Path]:
        """A certificate of the user *name*, and its key."""
        signed = ("-CA", str(self.ca), "-CAkey", str(self.directory / "server.key"))
        self._certify(name, f"/CN={name}", *signed, "-addext", "extendedKeyUsage=clientAuth")
        return self.directory / f"{name}.pem", self.directory / f"{name}.key"

    def _certify(self, name: str, subject: str, *more: str) -> None:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        files = ("-keyout", str(self.directory / f"{name}.key"), "-out", str(self.directory / f"{name}.pem"))
        _openssl("req", "-x509", *key, *files, "-days", "2", "-subj", subject, *more)

    def _start_etcd(self) -> None:
        clients, peers = (f"unix://{self.directory}/{name}.sock" for name in ("etcd", "peers"))
        self._etcd = self._start(
            self._programs / "etcd",
            *("--name=here", f"--data-dir={self.directory}/etcd", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={clients}", f"--advertise-client-urls={NOBODY}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={NOBODY}"),
            f"--initial-cluster=here={NOBODY}",
        )

    def _start(self, program: Path, *flags: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{program.name}.log").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", program, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it is ready and has made what it makes by itself: roles, and the namespace default."""
        deadline_s = time.monotonic() + LIMIT_S
        for path in ("/readyz", "/api/v1/namespaces/default"):
            while not self._answers(path):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    said = self.log("kube-apiserver")[-4000:]
                    raise ControlPlaneError(f"kube-apiserver does not answer {path}:\n{said}")
                time.sleep(POLL_S)

    def _answers(self, path: str) -> bool:
        try:
            return bool(self._ask("GET", path, None, "application/json"))
        except (OSError, ApiRefusalError):
            return False


def _egress(to_nodes: Path) -> Object:
    """Has connections to nodes go through a proxy."""
    through = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(to_nodes)}}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": through}],
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(LIMIT_S)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@contextlib.contextmanager
def running_control_plane(programs: Path, *nodes: str, gates: tuple[str, ...] = ()) -> Iterator[ControlPlane]:
    """A control plane that runs, for these nodes and with these gates on; its files are gone at the end."""
    # A socket's path is short; pytest's directories are not.
    with tempfile.TemporaryDirectory() as directory:
        plane = ControlPlane(programs, Path(directory), nodes, gates)
        with plane.running():
            yield plane
