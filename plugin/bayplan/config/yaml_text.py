"""YAML and JSON as plain values, strictly: a key that occurs twice is an error, not a silent last-wins.

A module of its own because importing PyYAML takes time that nodes with a TOML file need not spend. Files of
pod manifests are read here, too: there keys may be twice, as Kubernetes' own tools take them.
"""

import json
from collections.abc import Hashable
from typing import Any, Final

import yaml

from bayplan.config.values import invalid
from bayplan.errors import ConfigError, Problem, excerpt
from bayplan.files import read_named, unreadable
from bayplan.printable import pattern
from bayplan.quantity import counted

_EXPECTED_BUT_FOUND: Final = pattern(r"(?:did not find |expected )(.*), but found (.*)")
"""How PyYAML says most of what is wrong."""

YAML_ERRORS: Final = (yaml.YAMLError, ValueError, RecursionError)
"""What loading with a `LocatingLoader` raises; RecursionError where tables have no end."""

_KEPT_OF_MANIFEST = ("kind", "metadata", "spec", "status", "items", "template")
_KEPT_OF_METADATA = ("name", "generateName", "namespace", "uid", "annotations")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


def parse_yaml(content: str) -> object:
    """The plain value of the only document in *content*; an empty document is an empty table.

    Raises:
        InvalidValueError: not YAML, several documents, or a key twice in one table.
    """
    documents = parse_documents(content)
    if len(documents) > 1:
        raise invalid("the file", counted(len(documents), "document"), "one")
    return documents[0] if documents else {}


def parse_documents(content: str, repeated: list[str] | None = None) -> list[object]:
    """The plain values of all documents in *content* but the empty ones. Keys that are twice in one table are
    added to *repeated*, where that is given, and count by their last value.

    Raises:
        InvalidValueError: not YAML, or a key twice in one table.
    """

    class Loader(_StrictLoader):
        pass

    Loader.repeated = repeated
    try:
        values = list(yaml.load_all(content, Loader))
    except YAML_ERRORS as error:
        raise invalid("the file", yaml_problem(error), "YAML") from error
    return [value for value in values if value is not None]


def parse_json(content: str, repeated: list[str] | None = None) -> object:
    """The plain value in *content*; YAML's parser does not take JSON that is indented with tabs. *repeated*
    is that of `parse_documents`.

    Raises:
        InvalidValueError: not JSON, or a key twice in one object.
    """

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
            if repeated is None:
                raise ValueError(f"the key {twice} a second time")
            repeated.append(twice)
        return found

    try:
        value: object = json.loads(content, object_pairs_hook=table)
    except (ValueError, RecursionError) as error:
        raise invalid("the file", str(error), "JSON") from error
    return value


class LocatingLoader(yaml.SafeLoader):
    """A safe loader that says where a value is that its tag does not allow (``!!bool x``, ``2026-99-99``).

    PyYAML lets whatever its constructors meet out: KeyError, AttributeError, ValueError.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The node's value."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            problem = f"{node.value!r} is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


class _StrictLoader(LocatingLoader):
    """Refuses duplicate keys, or adds them to ``repeated``."""

    repeated: list[str] | None = None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The table, which PyYAML refuses where a tag says that something else is one."""
        seen = set()
        for key_node, _ in node.value if node.id == "mapping" else ():
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue
            if key in seen and self.repeated is not None:
                self.repeated.append(str(key))
            elif key in seen:
                problem = f"the key {key} a second time"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def yaml_problem(error: Exception) -> str:
    """One of `YAML_ERRORS` in one line."""
    mark = getattr(error, "problem_mark", None)
    problem = " ".join((getattr(error, "problem", None) or str(error)).split())
    # It stands behind the word found.
    problem = _EXPECTED_BUT_FOUND.sub(r"\2 where \1 is due", problem).removeprefix("found ")
    problem = excerpt(problem.replace("could not find expected", "no"))
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{problem}{where}"


class _ManifestLoader(LocatingLoader):
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
        documents = [
            _slim(document) for document in yaml.load_all(content, _ManifestLoader) if document is not None
        ]
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
    kept = {key: value for key, value in document.items() if key in _KEPT_OF_MANIFEST}
    if isinstance(kept.get("metadata"), dict):
        kept["metadata"] = {key: value for key, value in kept["metadata"].items() if key in _KEPT_OF_METADATA}
    if isinstance(kept.get("items"), list):
        kept["items"] = [_slim(item) for item in kept["items"]]
    return kept
