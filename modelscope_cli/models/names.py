"""The names of torchvision's models, read from its source: shell completion must not import torch."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# What follows `@register_model(`: a name, or, below other decorators, a function of that name.
_REGISTERED = re.compile(rb'name="(\w+)"|.*?\ndef (\w+)\(', re.DOTALL)


@cache
def model_names() -> tuple[str, ...]:
    """Return the names that the installed torchvision's `list_models()` returns, sorted; empty without it."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return ()
    sources = (Path(spec.origin).parent / "models").rglob("*.py")
    # Split first: a search that starts at every line of every file takes four times as long.
    parts = (part for source in sources for part in source.read_bytes().split(b"\n@register_model(")[1:])
    found = filter(None, map(_REGISTERED.match, parts))
    return tuple(sorted((match[1] or match[2]).decode() for match in found))
