"""Strict JSON: what is not finite becomes null, keys are those of the contract."""

import json
import math
from typing import Any

from modelscope_cli.plain_text import plain_json

DOCUMENT = "report.json"
"""The name of a document in the folder of a result."""


def render_json(document: dict[str, Any], *, is_indented: bool = True) -> str:
    """Return `document` as JSON that any parser takes; indented, or on one line."""
    layout: dict[str, Any] = {"indent": 2} if is_indented else {"separators": (",", ":")}
    return plain_json(json.dumps(strict(document), ensure_ascii=False, allow_nan=False, **layout)) + "\n"


def strict(value: Any) -> Any:
    """Return `value` with null for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if type(item) is int else strict(item) for item in value]
    return value
