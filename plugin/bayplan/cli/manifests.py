"""Files of pod manifests: YAML (several documents, a List) or JSON, which is YAML too."""

import sys
from pathlib import Path
from typing import Any

import yaml

from bayplan.errors import ConfigError, Problem

_KEPT = ("kind", "metadata", "spec", "status", "items")
_METADATA = ("name", "generateName", "namespace", "uid", "annotations")


def read_manifests(path: str) -> list[Any]:
    """The documents in the file at *path* (``-`` is the standard input), without what no decision needs.

    Raises:
        ConfigError: the file cannot be read, or is not YAML.
    """
    try:
        content = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(content))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = Problem("the file", " ".join(str(error).split()), "pod manifests in YAML or JSON")
        raise ConfigError(path, (problem,)) from error
    return [_slim(document) for document in documents if document is not None]


def _slim(document: Any) -> Any:
    """The document as plain values; managedFields and the like are left at home."""
    if not isinstance(document, dict):
        return document
    kept = {key: value for key, value in document.items() if key in _KEPT}
    if isinstance(kept.get("metadata"), dict):
        kept["metadata"] = {key: value for key, value in kept["metadata"].items() if key in _METADATA}
    if isinstance(kept.get("items"), list):
        kept["items"] = [_slim(item) for item in kept["items"]]
    return kept
