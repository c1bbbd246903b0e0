"""The JSON documents: every key on the first level, and what it means."""

from typing import Any

from modelscope_cli.records.documents import DOCUMENTS, schema
from tools.docs.markdown import cell, table

_COMMON = ("schema", "tool", "argv", "model", "input", "device", "dtype", "seed", "warnings", "elapsed_ms")


def overview() -> str:
    """Return a table of keys for each document; those that all begin with are listed once."""
    common = schema("stats")["properties"]
    parts = ["### What all begin with", _table({key: common[key] for key in _COMMON})]
    for name in DOCUMENTS:
        properties = schema(name)["properties"]
        own = {key: value for key, value in properties.items() if key not in _COMMON}
        parts += [f"### {name}", cell(schema(name)["description"]), _table(own)]
    return "\n\n".join(parts)


def _table(properties: dict[str, Any]) -> str:
    rows = [
        (f"`{key}`", _kind(value), cell(value.get("description", ""))) for key, value in properties.items()
    ]
    return table(("key", "type", "what it is"), rows)


def _kind(value: dict[str, Any]) -> str:
    if "const" in value:
        return "string"
    if "$ref" in value:
        return f"`{value['$ref'].rpartition('/')[2]}`"
    if "anyOf" in value:
        return " or ".join(map(_kind, value["anyOf"]))
    if value.get("type") == "array" and "items" in value:
        return f"array of {_kind(value['items'])}"
    kind = value.get("type", "any")
    return kind if isinstance(kind, str) else " or ".join(kind)
