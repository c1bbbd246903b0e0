"""The JSON documents: every key on the first level, and what it means; types are in the schema."""

from collections import Counter
from typing import Any

from modelscope_cli.records.documents import DOCUMENTS, schema
from tools.docs.markdown import cell, table

_COMMON = ("schema", "tool", "argv", "model", "input", "device", "dtype", "seed", "warnings", "elapsed_ms")


def overview() -> str:
    """Return the keys of each document; those that many have are listed once."""
    documents = {name: schema(name)["properties"] for name in DOCUMENTS}
    texts = Counter(
        (key, one.get("description", "")) for keys in documents.values() for key, one in keys.items()
    )
    often = [(key, text) for (key, text), count in texts.items() if count >= 2 and key not in _COMMON]
    shared = {key: {"description": text} for key, text in often}
    common = documents["stats"]
    parts = [
        "### What all begin with",
        _keys({key: common[key] for key in _COMMON}),
        "### What many have",
        _keys(shared),
    ]
    for name, properties in documents.items():
        own = {
            key: value
            for key, value in properties.items()
            if key not in _COMMON and (key, value.get("description", "")) not in often
        }
        parts += [f"### {name}", _keys(own)]
    return "\n\n".join(parts)


def _keys(properties: dict[str, Any]) -> str:
    """Return a table of the keys that are described, and a line of the others."""
    named: dict[str, list[str]] = {}
    for key, value in properties.items():
        named.setdefault(cell(value.get("description", "")), []).append(f"`{key}`")
    others = named.pop("", [])
    parts = (
        [table(("key", "what it is"), [(", ".join(keys), text) for text, keys in named.items()])]
        if named
        else []
    )
    if others:
        parts.append(f"{'Also' if named else 'Keys:'} {', '.join(others)}.")
    return "\n\n".join(parts)
