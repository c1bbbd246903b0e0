"""The names of torchvision's models, read from its source: shell completion must not import torch."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# `@register_model()` above other decorators and `def resnet18(`, or `@register_model(name="quantized_...")`.
_REGISTRATION = re.compile(r'^@register_model\((?:name="(\w+)")?\)$.*?^def (\w+)\(', re.MULTILINE | re.DOTALL)


@cache
def model_names() -> tuple[str, ...]:
    """Return the names that the installed torchvision's `list_models()` returns, sorted; empty without it."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return ()
    sources = (Path(spec.origin).parent / "models").rglob("*.py")
    found = (_REGISTRATION.finditer(source.read_text(encoding="utf-8")) for source in sources)
    return tuple(sorted(match[1] or match[2] for matches in found for match in matches))
