"""Does the map depend on the model? It must change when the weights become meaningless (Adebayo et al. 2018).

The head goes first: that is where maps which ignore what the classes weigh are found, such as guided backprop. All
methods explain the same changed copies.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.explaining.receipt.rankings import spearman

N_STAGES = 4
N_DRAWS = 3  # of the last stage: a map of 7 x 7 cells is a little like any other by chance
Maps = Mapping[str, Tensor | None]  # by method; None of one that found no map


@dataclass(frozen=True, slots=True)
class Randomised:
    """How alike the maps of a model and of its ruins are.

    Attributes:
        head: mean rank correlation with the maps of two models: one whose head is shuffled, and one whose head is
            the negative of that. Their correlations are opposite where a map is linear in the head; None where
            neither had a map.
        cascade: rank correlation of the two maps after each stage, the head first and then ever more of the model;
            None where there was no map, or a flat one.
        rho: mean of its magnitude over models with all weights shuffled; None where none of them had a map.
    """

    head: float | None
    cascade: tuple[float | None, ...] = ()
    rho: float | None = None


def randomisation(
    layers: list[nn.Module],
    explain_again: Callable[[], Maps],
    references: Maps,
    *,
    seed: int = 0,
    is_full: bool,
) -> dict[str, Randomised]:
    """Shuffle the weights from the head down and explain again after each stage; the model is left as it was.

    The values of each parameter change places among themselves, so that activations stay about as large as they
    were; statistics of batch norms stay. Without layers there is nothing to shuffle, and nothing is returned.

    Args:
        layers: with parameters of their own, the head first, as `from_the_head` gives them.
        explain_again: returns the maps that the model now has, `(H, W)` each.
        references: the maps of the model as it is, by the same methods.
        is_full: whether it goes on below the head.
    """
    if not layers:
        return {}
    ends = sorted({1, *(round(len(layers) * (stage + 1) / N_STAGES) for stage in range(N_STAGES))} - {0})
    copies = [(1, seed, 1.0), (1, seed, -1.0)]
    if is_full:
        copies += [(end, seed + n, 1.0) for n, end in enumerate([*ends, *[len(layers)] * (N_DRAWS - 1)])][1:]
    rhos: dict[str, list[float | None]] = {name: [] for name in references}
    for end, drawn, sign in copies:
        with shuffled(layers[:end], torch.Generator().manual_seed(drawn), sign):
            maps = explain_again()
        for name, reference in references.items():
            found = maps[name]
            rhos[name].append(None if found is None or reference is None else spearman(found, reference))
    return {name: _summed_up(found, len(ends) if is_full else 0) for name, found in rhos.items()}


def _summed_up(rhos: list[float | None], n_stages: int) -> Randomised:
    cascade = (rhos[0], *rhos[2:])
    last = [abs(rho) for rho in cascade[n_stages - 1 :] if rho is not None] if n_stages else []
    head = [rho for rho in rhos[:2] if rho is not None]
    return Randomised(
        fmean(head) if head else None, cascade[:n_stages] if n_stages else (), fmean(last) if last else None
    )


def from_the_head(model: nn.Module, run: Callable[[], object]) -> list[nn.Module]:
    """Return the layers with parameters of their own that a pass calls, the last called first."""
    order: dict[nn.Module, None] = {}

    def note(module: nn.Module, _: object) -> None:
        order.pop(module, None)
        order[module] = None

    with ExitStack() as stack, torch.no_grad():
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                stack.callback(module.register_forward_pre_hook(note).remove)
        run()
    return list(reversed(order))


@contextmanager
def shuffled(layers: list[nn.Module], generator: torch.Generator, sign: float = 1.0) -> Iterator[None]:
    """Let the parameters of some layers hold their own values in other places, for as long as this is open.

    Only what they point at is exchanged, so that the old values come back to the bit.
    """
    parameters = {id(p): p for layer in layers for p in layer.parameters(recurse=False)}.values()
    originals = [parameter.data for parameter in parameters]
    try:
        for parameter, original in zip(parameters, originals, strict=True):
            order = torch.randperm(original.numel(), generator=generator).to(original.device)
            parameter.data = original.flatten()[order].view(original.shape) * sign
        yield
    finally:
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data = original
