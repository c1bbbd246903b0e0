"""From what was typed to a torch device and dtype."""

import torch

from modelscope_cli.errors import CannotRunError, UsageError, nearest
from modelscope_cli.ranks import find_ranks

_AUTO_ORDER = ("cuda", "mps", "xpu")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(requested: str) -> tuple[torch.device, str | None]:
    """Return the device meant by `requested`, and a note on what `auto` became (None where it was explicit).

    `auto` is the first of cuda, mps, xpu that is there, else cpu; of several processes that torchrun has started
    each takes a GPU of its own. `0` means `cuda:0`.

    Raises:
        UsageError: `requested` is not a device at all (exit 2).
        CannotRunError: it is a device, but not one of this machine (exit 4).
    """
    here = _devices_here()
    if requested.lower() == "auto":
        return _choose(here)
    name = f"cuda:{requested}" if requested.isdecimal() else requested.lower()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        near = nearest(name, [*_AUTO_ORDER, "cpu"])
        message = f"'{requested}' is not a device{': ' + near if near else ''}"
        raise UsageError(message, f"--device auto   or one of {', '.join(here)}") from error
    if not {name, f"{name}:0", name.removesuffix(":0")} & set(here):
        raise CannotRunError(f"no device '{requested}' here, only {', '.join(here)}", f"--device {here[-1]}")
    return device, None


def resolve_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called `name`: float32, bfloat16 or float16.

    Raises:
        UsageError: another name (exit 2).
    """
    try:
        return _DTYPES[name.lower()]
    except KeyError as error:
        message = f"'{name}' is not a dtype to run a model in, only {', '.join(_DTYPES)}"
        raise UsageError(message, "--dtype float32") from error


def _choose(here: list[str]) -> tuple[torch.device, str]:
    n_alike = sum(name.partition(":")[0] == here[0].partition(":")[0] for name in here)
    chosen = here[find_ranks().local_rank % n_alike]
    missing = [name for name in _AUTO_ORDER if not any(found.startswith(name) for found in here)]
    reason = f"no {_listed(missing)} here" if chosen == "cpu" else "the first one here"
    return torch.device(chosen), f"device: {chosen} (auto; {reason})"


def _listed(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _devices_here() -> list[str]:
    found = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    found += ["mps"] * torch.backends.mps.is_available()
    if hasattr(torch, "xpu"):
        found += [f"xpu:{index}" for index in range(torch.xpu.device_count())]
    return [*found, "cpu"]
