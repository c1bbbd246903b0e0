"""Seeded noise where there is no image."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from modelscope_cli.errors import OUT_OF_MEMORY, CannotRunError
from modelscope_cli.inputs.grammar import ShapeSpec, by


def make_noise(
    specs: Sequence[ShapeSpec],
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    n_codes: int,
    is_picture: bool,
) -> list[Tensor]:
    """Return one tensor a spec, the same on every device.

    Floats are standard normal (uniform in 0..1 where `is_picture`), integers uniform in 0..`n_codes` - 1.
    The global random state is left alone.

    Raises:
        CannotRunError: exit code 4; it does not fit in memory.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_one(spec, generator, dtype, device, n_codes, is_picture) for spec in specs]


def count_codes(module: nn.Module | None) -> int:
    """Return how many integers every embedding of `module` can look up; 2 where it has none."""
    layers = module.modules() if module is not None else ()
    return min((layer.num_embeddings for layer in layers if isinstance(layer, nn.Embedding)), default=2)


def count_values(spec: ShapeSpec, n_codes: int) -> int:
    """Return how many different integers, from 0 on, the noise of an integer `spec` may hold."""
    return min(n_codes, 2 if spec.dtype == "bool" else torch.iinfo(_dtype(spec)).max + 1)


def _one(
    spec: ShapeSpec,
    generator: torch.Generator,
    dtype: torch.dtype,
    device: torch.device,
    n_codes: int,
    is_picture: bool,
) -> Tensor:
    wanted = _dtype(spec) if spec.dtype else dtype
    if device.type == "meta":
        return torch.empty(spec.shape, dtype=wanted, device=device)
    try:
        if spec.is_integer:
            drawn = torch.randint(count_values(spec, n_codes), spec.shape, generator=generator)
        else:
            drawn = (torch.rand if is_picture else torch.randn)(spec.shape, generator=generator)
        return drawn.to(device, wanted)
    except (RuntimeError, TypeError, MemoryError) as error:  # out of memory, or no such dtype on the device
        reason = (str(error).splitlines() or [OUT_OF_MEMORY])[0]
        raise CannotRunError(
            f"noise of {by(spec.shape)} ({wanted}) cannot be made on '{device}': {reason}",
            "--input-shape 1,3,224,224",
        ) from error


def _dtype(spec: ShapeSpec) -> torch.dtype:
    return getattr(torch, str(spec.dtype))
