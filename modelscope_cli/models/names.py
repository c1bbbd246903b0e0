"""List model names without importing torch: torchvision's, timm's, and those in a Python file."""

import ast
import glob
import json
import os
import re
import shlex
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from modelscope_cli.errors import CannotRunError
from modelscope_cli.paths import look_for

# After `@register_model(`: a name, or, below other decorators, a function of that name.
_REGISTERED = re.compile(rb'name="(\w+)"|.*?\ndef (\w+)\(', re.DOTALL)
_FUNCTION = re.compile(rb"def (\w+)\(")


@cache
def model_names() -> tuple[str, ...]:
    """Return the names that the installed torchvision's `list_models()` returns, sorted; empty without it."""
    matches = filter(None, map(_REGISTERED.match, _after("torchvision", b"\n@register_model(")))
    return tuple(sorted((match[1] or match[2]).decode() for match in matches))


@cache
def timm_names() -> tuple[str, ...]:
    """Return the names that the installed timm's `list_models()` returns, sorted; empty without it."""
    matches = filter(None, map(_FUNCTION.match, _after("timm", b"\n@register_model\n")))
    return tuple(sorted(match[1].decode() for match in matches))


def _after(package: str, mark: bytes) -> Iterator[bytes]:
    """Yield the text after each `mark` in a package's models; nothing if it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return
    for source in (Path(spec.origin).parent / "models").rglob("*.py"):
        # Splitting first is four times faster than searching at every line.
        yield from source.read_bytes().split(mark)[1:]


def refuse_missing_file(spec: str) -> None:
    """Refuse `path/to/file.py:attr` without its file; the hint names the nearest file beside it."""
    where, _, name = spec.rpartition(":")
    file = Path(where)
    if file.suffix != ".py" or file.is_file():
        return
    others = (other.name for other in file.parent.glob("*.py") if other.is_file())
    near = get_close_matches(file.name, others, n=1, cutoff=0.5)
    hint = look_for(file)
    if near:
        models = models_in(file.with_name(near[0])) or [name]
        model = name if name in models else models[0]
        hint = f"--model {shlex.quote(f'{file.with_name(near[0])}:{model}')}"
    raise CannotRunError(f"no file '{where}' (from '{spec}')", hint)


def models_in(path: Path) -> list[str]:
    """Return the names of the modules that a file defines, those first that no other one uses.

    A class counts as a module if a base is named like one (`nn.Module`, `nn.Sequential`) or is such a class in the
    same file. Empty for an unreadable file.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    classes: dict[str, ast.ClassDef] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(base.endswith(("Module", "Sequential")) or base in classes for base in bases):
                classes[node.name] = node
    used = {
        inner.id
        for name, node in classes.items()
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and inner.id != name
    }
    return sorted(classes, key=lambda name: name in used)


def kept_layers(model: str) -> list[str]:
    """Return the names of a model's layers from its last cached summary; empty without one."""
    files = sorted(
        kept_summaries().glob(f"{glob.escape(model.lower())}-*.json"), key=lambda file: file.stat().st_mtime
    )
    if not model or not files:
        return []
    try:
        rows = json.loads(files[-1].read_bytes())["document"]["layers"]
        return [row["name"] for row in rows if row["name"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def kept_summaries() -> Path:
    """Return the folder of cached summaries, which need not exist."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "modelscope")
    return Path(os.environ.get("MSCOPE_CACHE") or base, "summary")
