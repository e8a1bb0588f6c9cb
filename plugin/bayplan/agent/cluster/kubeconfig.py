"""Where the API server is and who asks it: from a kubeconfig file, or from the service account of the pod.

Of a kubeconfig the present context counts, with tokens and client certificates. Programs that fetch
credentials (`exec`) and proxies are not used, and a server whose certificate is not checked is not asked.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from bayplan.agent.http_client import Server
from bayplan.errors import ConfigError, Problem

IN_CLUSTER: Final = Path("in-cluster")
"""In place of a kubeconfig: the service account of the pod that the agent runs in."""

MAX_BYTES: Final = 1 << 20
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def api_server(
    kubeconfig: Path,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = _SERVICE_ACCOUNT,
) -> Server:
    """The server that *kubeconfig* names.

    Raises:
        ConfigError: it cannot be read, or does not say enough; with all problems that there are.
    """
    if kubeconfig == IN_CLUSTER:
        return _in_cluster(environment, service_account)
    try:
        with kubeconfig.open("rb") as file:
            content = yaml.safe_load(file.read(MAX_BYTES))
    except OSError as error:
        raise _config_error(kubeconfig, Problem("file", error.strerror or "", "a kubeconfig")) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _config_error(kubeconfig, Problem("file", str(error), "a kubeconfig in YAML")) from error
    reading = _Reading(kubeconfig.parent, content if isinstance(content, dict) else {})
    server = reading.server()
    if reading.problems:
        raise _config_error(kubeconfig, *reading.problems)
    return server


def _in_cluster(environment: Mapping[str, str], service_account: Path) -> Server:
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (service_account / "token").exists():
        problem = Problem(
            "service account", str(service_account / "token"), "a pod with one, or --kubeconfig FILE"
        )
        raise _config_error(IN_CLUSTER, problem)
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Server(url, service_account / "ca.crt", token=service_account / "token")


class _Reading:
    """One kubeconfig, with what is wrong in it. Paths in it are relative to *directory*."""

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self.problems: list[Problem] = []
        self._directory = directory
        self._content = content

    def server(self) -> Server:
        """The server of the present context."""
        context = self._named("contexts", "context", str(self._content.get("current-context", "")))
        cluster = self._named("clusters", "cluster", str(context.get("cluster", "")))
        user = self._named("users", "user", str(context.get("user", "")))
        url = str(cluster.get("server", ""))
        if urlsplit(url).scheme != "https" or not urlsplit(url).hostname:
            self.problems.append(Problem("cluster.server", url, "https://HOST:PORT"))
        self._unusable(cluster, "cluster", "insecure-skip-tls-verify", "certificate-authority")
        self._unusable(user, "user", "exec", "a token or a client certificate")
        self._unusable(user, "user", "auth-provider", "a token or a client certificate")
        token = user.get("tokenFile")
        return Server(
            url.rstrip("/"),
            self._content_of(cluster, "cluster", "certificate-authority"),
            str(cluster.get("tls-server-name", "")),
            self._directory / str(token) if token else (str(user.get("token", "")).encode() or None),
            self._content_of(user, "user", "client-certificate"),
            self._content_of(user, "user", "client-key"),
        )

    def _named(self, kind: str, key: str, name: str) -> dict[str, Any]:
        listed = self._content.get(kind)
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and one.get("name") == name and isinstance(one.get(key), dict):
                return dict(one[key])
        self.problems.append(Problem(key, name, f"the name of one of {kind}"))
        return {}

    def _unusable(self, given: dict[str, Any], where: str, key: str, instead: str) -> None:
        if given.get(key):
            self.problems.append(Problem(f"{where}.{key}", "a value", instead))

    def _content_of(self, given: dict[str, Any], where: str, key: str) -> Path | bytes | None:
        """The file that *key* names, or what ``KEY-data`` has, which goes first."""
        encoded, named = given.get(f"{key}-data"), given.get(key)
        if not encoded:
            return self._directory / str(named) if named else None
        try:
            return base64.b64decode(str(encoded), validate=True)
        except (binascii.Error, ValueError) as error:
            self.problems.append(Problem(f"{where}.{key}-data", str(error), "PEM in base64"))
            return None


def _config_error(kubeconfig: Path, *problems: Problem) -> ConfigError:
    return ConfigError(f"--kubeconfig {kubeconfig}", problems)
