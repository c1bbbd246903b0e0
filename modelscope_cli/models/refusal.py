"""Explain a pickle that holds more than tensors: what it would run, and how to convert it."""

import contextlib
import json
import pickletools
import re
import shlex
import zipfile
from pathlib import Path

from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.errors import CannotRunError

_CONVERT = (
    "import torch, safetensors.torch as s; "
    'c = torch.load({source}, map_location="cpu", weights_only=False); '
    'keys = ("state_dict", "model", "model_state_dict", "ema", "module"); '
    "c = next((c[k] for k in keys if isinstance(c, dict) and k in c), c); "
    'c = c.state_dict() if hasattr(c, "state_dict") else c; '
    's.save_file({{k: v.clone().contiguous() for k, v in c.items() if hasattr(v, "clone")}}, {target})'
)


def refused(path: Path, reason: str) -> CannotRunError:
    """Return the error for a file that torch, for `reason`, would not load as weights only."""
    named = re.search(r"GLOBAL ([\w.]+)", reason)
    name = named[1] if named else _first_global(path)
    if "TorchScript" in reason:
        what = "it is a TorchScript program"
    else:
        what = f"it would run '{name}'" if name else "it holds more than tensors"
    target = path.with_name(f"{path.stem}-converted.safetensors")
    if _has_tensors(path):
        safely = f"modelscope weights {shlex.quote(str(path))} --convert {shlex.quote(str(target))}"
        return CannotRunError(f"checkpoint '{path}' is not loaded: {what}", safely)
    script = _CONVERT.format(source=json.dumps(str(path)), target=json.dumps(str(target)))
    hint = f"only if you trust where it came from: python -c {shlex.quote(script)}"
    return CannotRunError(f"checkpoint '{path}' is not loaded: {what}", hint)


def _has_tensors(path: Path) -> bool:
    """Tell whether there is a state dict in it that can be read without running anything."""
    try:
        return bool(read_contents(path).tensors)
    except CannotRunError:
        return False


def _first_global(path: Path) -> str | None:
    """Return the first function or class outside torch that a pickle names, without loading it."""
    strings: list[str] = []
    with contextlib.suppress(Exception):  # a damaged pickle names nothing
        for operation, argument, _ in pickletools.genops(_pickle_bytes(path)):
            name = None
            if operation.name == "GLOBAL":
                name = str(argument).replace(" ", ".")
            elif operation.name == "STACK_GLOBAL":
                name = ".".join(strings[-2:])
            elif isinstance(argument, str):
                strings.append(argument)
            if name and not name.startswith(("torch.", "collections.")):
                return name
    return None


def _pickle_bytes(path: Path) -> bytes:
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))
