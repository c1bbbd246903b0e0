"""Does the map depend on the model? It must change when the weights become meaningless (Adebayo et al. 2018)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.explaining.receipt.rankings import spearman
from modelscope_cli.errors import CannotRunError

N_STAGES = 4
N_DRAWS = 3  # of the last stage: a map of 7 x 7 cells is a little like any other by chance


@dataclass(frozen=True, slots=True)
class Randomised:
    """How alike the maps of a model and of its ruins are.

    Attributes:
        cascade: rank correlation of the two maps after each stage, the head first and then ever more of the model;
            None where there was no map, or a flat one.
        rho: mean of its magnitude over models with all weights shuffled; None where none of them had a map.
    """

    cascade: tuple[float | None, ...]
    rho: float | None


def randomisation(
    model: nn.Module, explain_again: Callable[[], Tensor], reference: Tensor, *, seed: int = 0
) -> Randomised | None:
    """Shuffle the weights from the head down and explain again after each stage; the model is left as it was.

    The values of each parameter change places among themselves, so that activations stay about as large as they
    were; statistics of batch norms stay. What has no parameters to shuffle gives None.

    Args:
        explain_again: returns the map that the model now has, `(H, W)`.
        reference: the map of the model as it is, by the same method.
    """
    layers = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    if not layers:
        return None
    ends = sorted({1, *(round(len(layers) * (stage + 1) / N_STAGES) for stage in range(N_STAGES))} - {0})
    rhos: list[float | None] = []
    for end in [*ends, *[len(layers)] * (N_DRAWS - 1)]:
        generator = torch.Generator().manual_seed(seed + len(rhos))
        with shuffled(layers[::-1][:end], generator):
            try:
                rhos.append(spearman(explain_again(), reference))
            except CannotRunError:  # such as a gradient that is zero everywhere
                rhos.append(None)
    last = [abs(rho) for rho in rhos[len(ends) - 1 :] if rho is not None]
    return Randomised(tuple(rhos[: len(ends)]), fmean(last) if last else None)


@contextmanager
def shuffled(layers: list[nn.Module], generator: torch.Generator) -> Iterator[None]:
    """Let the parameters of some layers hold their own values in other places, for as long as this is open.

    Only what they point at is exchanged, so that the old values come back to the bit.
    """
    parameters = {id(p): p for layer in layers for p in layer.parameters(recurse=False)}.values()
    originals = [parameter.data for parameter in parameters]
    try:
        for parameter, original in zip(parameters, originals, strict=True):
            order = torch.randperm(original.numel(), generator=generator).to(original.device)
            parameter.data = original.flatten()[order].view(original.shape)
        yield
    finally:
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data = original
