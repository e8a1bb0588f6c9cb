"""Where a KubeletConfiguration is in what others wrap around it, and what a document is that has none.

Pure, on plain values. A document is read if it is kubelet's own, or holds exactly one of kubelet's as a
whole: what kubelet answers to /configz, a KubeletConfig of OpenShift, a ConfigMap (kubeadm's kubelet-config),
a List of such. What only a program of its distribution turns into kubelet's file (a NodeConfig of EKS, Talos'
machine configuration) is refused by its name, with the place of the file that came of it, which has more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from bayplan.config.values import InvalidValueError, invalid, show
from bayplan.errors import Problem, excerpt
from bayplan.quantity import counted

KUBELETS_KIND: Final = "KubeletConfiguration"
KUBELETS_API: Final = "kubelet.config.k8s.io/v1beta1"

_CONFIGZ: Final = "kubeletconfig"
_OPENSHIFT: Final = "machineconfiguration.openshift.io"
_EXPECTED: Final = f"bayplan's own keys, or kubelet's file, which has kind: {KUBELETS_KIND}"

_AKS: Final = "/etc/default/kubeletconfig.json, or flags alone in /etc/default/kubelet"
_WRITTEN_FILES: Final[Mapping[str, str]] = {
    "node.eks.aws": "/etc/kubernetes/kubelet/config.json, and its directory config.json.d",
    "eksctl.io": "/etc/kubernetes/kubelet/config.json, and its directory config.json.d",
    "karpenter.k8s.aws": "/etc/kubernetes/kubelet/config.json, and its directory config.json.d",
    "karpenter.azure.com": _AKS,
    "k0s.k0sproject.io": "/run/k0s/kubelet/config.yaml",
    "kops.k8s.io": "/var/lib/kubelet/kubelet.conf",
    "kubeadm.k8s.io": "/var/lib/kubelet/config.yaml",
    "kind.x-k8s.io": "/var/lib/kubelet/config.yaml",
    "bootstrap.cluster.x-k8s.io": "/var/lib/kubelet/config.yaml",
    "infrastructure.cluster.x-k8s.io": "/var/lib/kubelet/config.yaml",
    "v1alpha1": "/etc/kubernetes/kubelet.yaml",
    _OPENSHIFT: "/etc/kubernetes/kubelet.conf",
    "performance.openshift.io": "/etc/kubernetes/kubelet.conf",
}
"""The file that kubelet is started with on a node, by the API group of what it is made from. Talos' documents
have a version and no group."""


class _Tool(Struct, frozen=True):
    """A tool whose files have no kind. ``path``: the keys, one in the table of the other, that show it."""

    path: tuple[str, ...]
    name: str
    file: str


_TALOS: Final = "Talos' machine configuration", "/etc/kubernetes/kubelet.yaml"
_GKE: Final = "GKE's node system configuration", "/home/kubernetes/kubelet-config.yaml"
_K3S: Final = "the directory agent/etc/kubelet.conf.d below /var/lib/rancher/k3s or /var/lib/rancher/rke2"
_MICROK8S: Final = (
    "MicroK8s' launch configuration",
    "flags alone, in /var/snap/microk8s/current/args/kubelet",
)
_MICROSHIFT: Final = (
    "MicroShift's configuration",
    "/var/lib/microshift/resources/kubelet/config/config.yaml",
)
_TOOLS: Final = (
    _Tool(("machine", "kubelet"), *_TALOS),
    _Tool(("machine", "type"), *_TALOS),
    _Tool(("settings", "kubernetes"), "Bottlerocket's settings", "/etc/kubernetes/kubelet/config"),
    _Tool(("kubelet",), *_MICROSHIFT),
    _Tool(("kubelet-arg",), "the configuration of k3s or RKE2", _K3S),
    _Tool(("extraKubeletArgs",), *_MICROK8S),
    _Tool(("kubeletConfig",), *_GKE),
    _Tool(("linuxConfig",), *_GKE),
)


class KubeletConfiguration(Struct, frozen=True):
    """A KubeletConfiguration: its values, with its kind, and where it is in the file ("": the file is it).
    ``whole_file`` is where the node has all of it, if this is a part."""

    where: str
    values: Mapping[str, object]
    whole_file: str = ""


def kubelet_configuration(documents: Sequence[object]) -> KubeletConfiguration | None:
    """The only KubeletConfiguration in *documents*, those of one file; None if there is none.

    Raises:
        InvalidValueError: there are several, or one that cannot be read.
    """
    found = [
        one
        for number, document in enumerate(documents, 1)
        for one in _within(document, f"document {number}" if len(documents) > 1 else "")
    ]
    if len(found) > 1:
        places = ", ".join(one.where for one in found)
        raise invalid(
            "the file", f"{counted(len(found), 'document')} of kind {KUBELETS_KIND}: {excerpt(places)}", "one"
        )
    return found[0] if found else None


def refuse_foreign(documents: Sequence[object]) -> None:
    """Nothing, if *documents* may be one of bayplan's own.

    Raises:
        InvalidValueError: they are several, or what another program is configured with. Says which.
    """
    names = [name for document in documents if (name := _foreign_name(document))]
    file = next((file for document in documents if (file := _written_file(document))), "")
    made = f"; kubelet's is made from it, on the node: {file}" if file else ""
    if len(documents) > 1:
        kinds = f" ({excerpt(', '.join(names))})" if names else ""
        raise invalid("the file", f"{counted(len(documents), 'document')}{kinds}", f"one; {_EXPECTED}{made}")
    if names:
        raise invalid("the file", excerpt(names[0]), f"{_EXPECTED}{made}")


def _within(document: object, where: str) -> Iterator[KubeletConfiguration]:
    """Every KubeletConfiguration in *document*, which is at *where* in its file."""
    if not isinstance(document, Mapping):
        return
    kind = document.get("kind")
    if kind == KUBELETS_KIND:
        yield KubeletConfiguration(where, document)
    elif kind is None and isinstance(document.get(_CONFIGZ), Mapping):
        yield KubeletConfiguration(_below(where, _CONFIGZ), _of_kubelets_kind(document[_CONFIGZ]))
    elif kind == "KubeletConfig" and _group(document) == _OPENSHIFT:
        yield _of_openshift(document, where)
    elif kind == "ConfigMap":
        for key, text in _table(document, "data").items():
            if isinstance(text, str) and KUBELETS_KIND in text:
                yield from _in_text(text, _below(where, f"data.{key}"))
    elif isinstance(kind, str) and kind.endswith("List"):
        listed = document.get("items")
        for number, item in enumerate(listed if isinstance(listed, list) else ()):
            yield from _within(item, _below(where, f"items[{number}]"))


def _of_openshift(document: Mapping[Any, object], where: str) -> KubeletConfiguration:
    """A KubeletConfig; one without kubelet's keys only chooses a profile of TLS or a level of logging."""
    place = _below(where, "spec.kubeletConfig")
    patch = _table(document, "spec").get("kubeletConfig")
    if patch is not None and not isinstance(patch, Mapping):
        raise invalid(place, show(patch), "a table")
    return KubeletConfiguration(place, _of_kubelets_kind(patch or {}), _WRITTEN_FILES[_OPENSHIFT])


def _in_text(text: str, where: str) -> Iterator[KubeletConfiguration]:
    from bayplan.config.yaml_text import parse_documents  # noqa: PLC0415 - most nodes have no YAML

    try:
        inner = parse_documents(text)
    except InvalidValueError as wrong:
        raise InvalidValueError(
            *(Problem(where, one.found, one.expected) for one in wrong.problems)
        ) from wrong
    for number, document in enumerate(inner, 1):
        yield from _within(document, f"{where}, document {number}" if len(inner) > 1 else where)


def _below(where: str, part: str) -> str:
    return f"{where}: {part}" if where else part


def _of_kubelets_kind(values: Mapping[str, object]) -> Mapping[str, object]:
    return {**values, "apiVersion": KUBELETS_API, "kind": KUBELETS_KIND}


def _foreign_name(document: object) -> str:
    """What *document* is, in words, if it has a kind or is of a tool that is known; else empty."""
    if not isinstance(document, Mapping):
        return ""
    kind, version = document.get("kind"), document.get("apiVersion")
    if isinstance(kind, str) and kind:
        return f"{kind} ({version})" if isinstance(version, str) and version else kind
    tool = _tool(document)
    return "" if tool is None else tool.name


def _written_file(document: object) -> str:
    if not isinstance(document, Mapping):
        return ""
    tool = _tool(document)
    return _WRITTEN_FILES.get(_group(document), "" if tool is None else tool.file)


def _tool(document: Mapping[Any, object]) -> _Tool | None:
    return next((tool for tool in _TOOLS if _has(document, tool.path)), None)


def _has(document: object, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    return isinstance(document, Mapping) and path[0] in document and _has(document[path[0]], path[1:])


def _group(document: Mapping[Any, object]) -> str:
    """The API group of a document."""
    return str(document.get("apiVersion") or "").partition("/")[0]


def _table(document: Mapping[Any, object], key: str) -> Mapping[Any, object]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}
