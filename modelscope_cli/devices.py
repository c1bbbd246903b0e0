"""Ask torch which devices are here, and what they can do."""

from functools import cache

import torch

from modelscope_cli.errors import CannotRunError, UsageError, is_out_of_memory, with_nearest
from modelscope_cli.ranks import find_ranks


def resolve_device(requested: str) -> tuple[torch.device, str | None]:
    """Return the device for `requested`, and a note if `auto` became an accelerator.

    `auto` is the machine's accelerator, else the CPU; under torchrun each process takes its own. `0` means the
    first accelerator.
    """
    here = available_devices()
    if requested.lower() == "auto":
        chosen = here[find_ranks().local_rank % max(len(here) - 1, 1)]
        note = None if chosen == "cpu" else f"device: {chosen} (auto; the accelerator of this machine)"
        return torch.device(chosen), note
    kind = here[0].partition(":")[0]
    first = "cuda" if kind == "cpu" else kind
    name = "cuda" if requested.lower() == "gpu" else requested.lower()
    name = f"{first}:{requested}" if requested.isdecimal() else name
    try:
        device = torch.device(name)
    except RuntimeError as error:
        message = with_nearest(f"'{requested}' is not a device", name, ["cuda", "mps", "xpu", kind, "cpu"])
        raise UsageError(message, f"--device auto   or one of {', '.join(here)}") from error
    if not {name, f"{name}:0", name.removesuffix(":0")} & set(here) and not _is_other(device, kind):
        raise CannotRunError(f"no device '{requested}' here, but {', '.join(here)}", f"--device {here[-1]}")
    return device, None


def available_devices() -> list[str]:
    """Return the names of the machine's accelerators, as `cuda:0`, and last `cpu`."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    n = torch.accelerator.device_count() if found else 0
    return [*(f"{found.type}:{index}" for index in range(n) if found), "cpu"]


def devices_in_use() -> list[torch.device]:
    """Return the machine's accelerators if this process has begun to use them, without beginning to."""
    kind = torch.accelerator.current_accelerator()
    module = getattr(torch, kind.type, None) if kind else None
    if kind is None or module is None or not getattr(module, "is_initialized", module.is_available)():
        return []
    return [torch.device(kind.type, index) for index in range(module.device_count())]


def _is_other(device: torch.device, kind: str) -> bool:
    """Tell whether a device is here although it is not of the kind that torch takes for the accelerator."""
    if device.type in (kind, "cpu", "meta"):
        return False
    try:
        torch.empty(1, device=device)
    except Exception:  # each backend has its own: not compiled, not implemented, no driver
        return False
    return True


@cache
def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for a device that has no float64, without waiting for it."""
    try:
        torch.ones(1, device=device).to(torch.float64).square()
    except (RuntimeError, TypeError) as error:
        if is_out_of_memory(error):
            raise
        return torch.float32
    return torch.float64
