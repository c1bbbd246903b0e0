"""The names of torchvision's and timm's models, read from their source: completion must not import torch."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# What follows `@register_model(`: a name, or, below other decorators, a function of that name.
_REGISTERED = re.compile(rb'name="(\w+)"|.*?\ndef (\w+)\(', re.DOTALL)
_FUNCTION = re.compile(rb"def (\w+)\(")


@cache
def model_names() -> tuple[str, ...]:
    """Return the names that the installed torchvision's `list_models()` returns, sorted; empty without it."""
    found = filter(None, map(_REGISTERED.match, _after("torchvision", b"\n@register_model(")))
    return tuple(sorted((match[1] or match[2]).decode() for match in found))


@cache
def timm_names() -> tuple[str, ...]:
    """Return the names that the installed timm's `list_models()` returns, sorted; empty without it."""
    found = filter(None, map(_FUNCTION.match, _after("timm", b"\n@register_model\n")))
    return tuple(sorted(match[1].decode() for match in found))


def _after(package: str, mark: bytes) -> Iterator[bytes]:
    """Yield what follows each `mark` in the models of a package; nothing where it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return
    for source in (Path(spec.origin).parent / "models").rglob("*.py"):
        # Split first: a search that starts at every line of every file takes four times as long.
        yield from source.read_bytes().split(mark)[1:]
