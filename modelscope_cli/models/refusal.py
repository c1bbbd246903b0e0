"""Explain a file that holds more than tensors, and none that could be read: what it would run."""

import json
import re
import shlex
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
    """Return the error for a file that torch, for `reason`, would not load as weights only, nor we read."""
    try:
        foreign = read_contents(path).foreign
    except CannotRunError:
        foreign = ()
    named = re.search(r"GLOBAL ([\w.]+)", reason)
    name = named[1] if named else next(iter(foreign), None)
    if "TorchScript" in reason:
        what = "it is a TorchScript program"
    else:
        what = f"it would run '{name}'" if name else "it holds more than tensors"
    target = path.with_name(f"{path.stem}-converted.safetensors")
    script = _CONVERT.format(source=json.dumps(str(path)), target=json.dumps(str(target)))
    hint = f"python -c {shlex.quote(script)}   only if you trust where it came from"
    return CannotRunError(f"checkpoint '{path}' is not loaded: {what}", hint)
