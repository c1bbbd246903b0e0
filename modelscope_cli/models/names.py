"""List model names without importing torch: torchvision's, timm's, and those in a Python file."""

import ast
import glob
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator
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
    """Return the names of the modules that a file defines, those first that no other one uses."""
    classes = _modules_in(path)
    used = {
        inner.id
        for name, node in classes.items()
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and inner.id != name
    }
    return sorted(classes, key=lambda name: name in used)


def file_with(name: str) -> Path | None:
    """Return the file of the current folder that defines a module of this name."""
    return next((file for file in sorted(Path().glob("*.py")) if name in _modules_in(file)), None)


def class_with(names: Collection[str]) -> str:
    """Return `file.py:Net` for the module of the current folder that uses all attributes with which the names of
    tensors begin, and the fewest others; `FILE.py:NAME` without one. A wrapper may have put a prefix before all."""
    firsts = {name.partition(".")[0] for name in names}
    fitting: dict[str, int] = {}
    for file in sorted(Path().glob("*.py")):
        classes = _modules_in(file)
        for name, node in classes.items():
            named = (base.id for base in node.bases if isinstance(base, ast.Name))
            bases = (classes[one] for one in named if one in classes)
            used = {*re.findall(r"self\.(\w+)", "".join(map(ast.unparse, (node, *bases))))}
            if firsts <= used:
                fitting[f"{file}:{name}"] = len(used)
    inner = [name.partition(".")[2] for name in names]
    if not fitting and len(firsts) == 1 and all(inner):
        return class_with(inner)
    return min(fitting, key=fitting.__getitem__, default="FILE.py:NAME")


def _modules_in(path: Path) -> dict[str, ast.ClassDef]:
    """Return the classes of a file with a base named like a module (`nn.Module`, `nn.Sequential`), or that is one
    of them; empty for an unreadable file."""
    classes: dict[str, ast.ClassDef] = {}
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return classes
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(base.endswith(("Module", "Sequential")) or base in classes for base in bases):
                classes[node.name] = node
    return classes


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
