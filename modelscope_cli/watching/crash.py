"""What ended a script: the layer whose forward raised, what it was given and needs, and the line of the script."""

from contextlib import suppress
from traceback import walk_tb
from typing import Any

from torch import nn

from modelscope_cli.errors import DEVICE_FAILED, failed_device
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.source_location import place_of_error
from modelscope_cli.watching.crash_advice import advice_for
from modelscope_cli.watching.model_registry import peel

_LONGEST = 200  # characters of an error
_LATE = "devices report errors late, often an index or a label out of range"
_IN_TIME = "CUDA_LAUNCH_BLOCKING=1 shows where"
# Attribute of torch's layers: the dimension of the input that has this size, and what it counts
_SIZES = {
    "in_features": (-1, "features"),
    "num_features": (1, "channels"),
    "num_channels": (1, "channels"),
    "input_size": (-1, "features"),
    "embed_dim": (-1, "features"),
}


def crash_of(error: BaseException) -> str | None:
    """Return ` in layer 3 (Linear): got 8x9120, needs 7200 features (train.py:41)`; None for Ctrl-C."""
    if not isinstance(error, Exception):
        return None
    with suppress(Exception):  # the user's own `__str__` may raise
        calls = [
            (frame.f_locals["self"], [frame.f_locals.get("args"), frame.f_locals.get("kwargs")])
            for frame, _ in walk_tb(error.__traceback__)
            if frame.f_code.co_name == "_call_impl" and isinstance(frame.f_locals.get("self"), nn.Module)
        ]
        module, inputs = calls[-1] if calls else (None, ())
        names = {id(one): name for name, one in peel(calls[0][0]).named_modules()} if calls else {}
        shapes = [tuple(tensor.shape) for _, tensor in tensors_in(inputs)]
        name, kind = names.get(id(module)), type(module).__name__
        where = f" in layer {name} ({kind})" if name else f" in {kind}" if calls else ""
        place = place_of_error(error)
        if (failed := failed_device(error)) is not None and failed[0].startswith(DEVICE_FAILED):
            # Neither the layer nor the line need be those of the error
            return f": {failed[0]}" + (f" (seen at {place}; {_LATE}: {_IN_TIME})" if place else "")
        advice = f"; try: {words}" if (words := advice_for(error)) else ""
        told = _unmet(module, shapes) or _told(error, shapes)
        return f"{where}: {told}" + (f" ({place})" if place else "") + advice
    return None


def _unmet(module: Any, shapes: list[tuple[int, ...]]) -> str | None:
    """Return `got 8x9120, needs 7200 features` for one of torch's layers whose input has another size."""
    if not shapes or not type(module).__module__.startswith("torch.nn"):
        return None
    sizes: dict[str, tuple[int, str]] = dict(_SIZES)
    if hasattr(module, "kernel_size") and hasattr(module, "in_channels"):
        sizes["in_channels"] = -1 - len(module.kernel_size), "channels"
    for name, (at, what) in sizes.items():
        needed = getattr(module, name, None)
        is_there = -len(shapes[0]) <= at < len(shapes[0])
        if isinstance(needed, int) and needed and is_there and shapes[0][at] != needed:
            return f"got {_text(shapes[0])}, needs {needed} {what}"
    return None


def _told(error: Exception, shapes: list[tuple[int, ...]]) -> str:
    """Return the error in one line; of one in a worker of a data loader, which holds a traceback, the last."""
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        return in_one_line(text.splitlines()[-1], _LONGEST)
    given = f", given {' and '.join(map(_text, shapes))}" if shapes else ""
    line = in_one_line(text, _LONGEST + 1)
    if len(line) > _LONGEST:  # whole sentences
        line = line[:_LONGEST].rpartition(". ")[0] or line[:_LONGEST]
    return f"{type(error).__name__}: {line}".rstrip(":. ") + given


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
