"""YAML and JSON as plain values, strictly: a key that occurs twice is an error, not a silent last-wins.

A module of its own because importing PyYAML takes time that nodes with a TOML file need not spend.
"""

import json
from collections.abc import Hashable
from typing import Any, Final

import yaml

from bayplan.config.values import invalid
from bayplan.errors import excerpt

YAML_ERRORS: Final = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)
"""The errors of PyYAML's own and those from inside of it: ValueError for a value that looks like a date and
is none, the others where a tag such as !!bool or !!map stands before something else, or tables have no
end."""


def parse_yaml(content: str) -> object:
    """The plain value of the only document in *content*; an empty document is an empty table.

    Raises:
        InvalidValueError: not YAML, several documents, or a key twice in one table.
    """
    try:
        value = yaml.load(content, _StrictLoader)  # noqa: S506 - a SafeLoader
    except YAML_ERRORS as error:
        raise invalid("the file", yaml_problem(error), "YAML") from error
    return {} if value is None else value


def parse_json(content: str) -> object:
    """The plain value in *content*; YAML's parser does not take JSON that is indented with tabs.

    Raises:
        InvalidValueError: not JSON, or a key twice in one object.
    """
    try:
        value: object = json.loads(content, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise invalid("the file", str(error), "JSON") from error
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"the key {twice} a second time")
    return found


class _StrictLoader(yaml.SafeLoader):
    """A safe loader that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue
            if key in seen:
                problem = f"the key {key} a second time"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def yaml_problem(error: Exception) -> str:
    """One of `YAML_ERRORS` in one line."""
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or str(error)
    if isinstance(error, TypeError | LookupError | AttributeError):
        text = f"a value that its tag does not allow ({text})"
    problem = excerpt(" ".join(text.split()))
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return f"{problem}{where}"
