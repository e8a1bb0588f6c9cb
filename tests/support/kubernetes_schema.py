"""What an object of Kubernetes may have in it, by the OpenAPI specification that Kubernetes publishes.

As strict as an API server with ``fieldValidation=Strict``: a field that is not there is an error. Rules
between fields are the API server's own.
"""

from collections.abc import Iterator
from typing import Any

_REFERENCE = "#/definitions/"
_TYPES: dict[str, Any] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": list,
    "object": dict,
}


class Schema:
    """The definitions of a ``swagger.json``."""

    def __init__(self, swagger: dict[str, Any]) -> None:
        self._definitions: dict[str, Any] = swagger["definitions"]
        self._kinds = {
            (kind["group"], kind["version"], kind["kind"]): name
            for name, definition in self._definitions.items()
            for kind in definition.get("x-kubernetes-group-version-kind", ())
        }

    def problems(self, item: dict[str, Any]) -> list[str]:
        """What is wrong with *item*, each with its path; also of a kind that is not Kubernetes'."""
        group, _, version = item["apiVersion"].rpartition("/")
        name = self._kinds.get((group, version, item["kind"]))
        if name is None:
            return [f"{item['apiVersion']} {item['kind']}: no such kind"]
        return list(self._wrong(item, {"$ref": _REFERENCE + name}, item["kind"]))

    def _wrong(self, value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
        if "$ref" in schema:
            schema = self._definitions[schema["$ref"].removeprefix(_REFERENCE)]
        if schema.get("format") == "int-or-string":
            schema = {"type": "integer"} if isinstance(value, int) else {"type": "string"}
        expected = schema.get("type", "object" if "properties" in schema else None)
        if expected is None:
            return
        if not isinstance(value, _TYPES[expected]) or (expected != "boolean" and isinstance(value, bool)):
            yield f"{path}: found {value!r}, expected {expected}"
        elif expected == "array":
            for number, one in enumerate(value):
                yield from self._wrong(one, schema["items"], f"{path}[{number}]")
        elif expected == "object":
            yield from self._wrong_fields(value, schema, path)

    def _wrong_fields(self, value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
        fields = schema.get("properties", {})
        yield from (f"{path}.{name}: missing" for name in schema.get("required", ()) if name not in value)
        for name, one in value.items():
            below = fields.get(name, schema.get("additionalProperties"))
            if below is not None:
                yield from self._wrong(one, below, f"{path}.{name}")
            elif fields:
                yield f"{path}.{name}: no such field"
