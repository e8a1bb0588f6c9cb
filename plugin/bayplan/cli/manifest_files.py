"""Files of pod manifests: YAML (several documents, a List) or JSON, which is YAML too."""

import json
from typing import Any

import yaml

from bayplan.config.yaml_text import YAML_ERRORS, LocatingLoader, yaml_problem
from bayplan.errors import ConfigError, Problem
from bayplan.files import read_named, unreadable

_KEPT = ("kind", "metadata", "spec", "status", "items", "template")
_METADATA = ("name", "generateName", "namespace", "uid", "annotations")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(LocatingLoader):
    """Leaves dates the texts that they are to Kubernetes."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way to say it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_manifests(path: str) -> list[Any]:
    """The documents in the file at *path* (``-`` is the standard input), without what no decision needs.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or holds what JSON cannot express.
    """
    try:
        content = read_named(path)
        documents = [_slim(document) for document in yaml.load_all(content, _Loader) if document is not None]
        json.dumps(documents, allow_nan=False)
    except (OSError, UnicodeDecodeError) as error:
        raise _no_manifests(path, unreadable(error)) from error
    except (*YAML_ERRORS, TypeError) as error:
        raise _no_manifests(path, yaml_problem(error)) from error
    return documents


def _no_manifests(path: str, found: str) -> ConfigError:
    return ConfigError(path, (Problem("the file", found, "pod manifests in YAML or JSON"),))


def _slim(document: Any) -> Any:
    """The document as plain values; managedFields and the like are left out."""
    if not isinstance(document, dict):
        return document
    kept = {key: value for key, value in document.items() if key in _KEPT}
    if isinstance(kept.get("metadata"), dict):
        kept["metadata"] = {key: value for key, value in kept["metadata"].items() if key in _METADATA}
    if isinstance(kept.get("items"), list):
        kept["items"] = [_slim(item) for item in kept["items"]]
    return kept
