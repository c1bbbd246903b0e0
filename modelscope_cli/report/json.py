"""Strict JSON: what is not finite becomes null, keys are those of the contract."""

import json
import math
from typing import Any


def render_json(document: dict[str, Any]) -> str:
    """Return `document` as indented JSON that any parser takes."""
    return json.dumps(strict(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def strict(value: Any) -> Any:
    """Return `value` with null for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if type(item) is int else strict(item) for item in value]
    return value
