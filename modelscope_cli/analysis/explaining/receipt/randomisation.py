"""A shuffled head must change a map (Adebayo et al. 2018).

It reveals maps that ignore the weights of the classes, such as guided backprop. All methods explain the same
changed models.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import fmean

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.explaining.receipt.rankings import spearman

Maps = Mapping[str, Tensor]  # by method, but for those without a map


def head_randomisation(
    head: nn.Module,
    explain_again: Callable[[], Maps],
    references: Maps,
    score: Callable[[], Tensor] | None = None,
    *,
    seed: int = 0,
) -> dict[str, float | None]:
    """Return the mean rank correlation of each map with those of two models; None if neither has a map.

    One has a shuffled head and the other its negative; these cancel if the map is linear in the head. Values are
    permuted within each parameter, so that activations keep their magnitude. The model is restored.

    Args:
        explain_again: returns the maps of the changed model, `(H, W)` each.
        references: the maps of the original model, by the same methods.
        score: returns the score of the changed model, if all maps are linear in it: once the negative head has
            negated it, it has negated the maps, and they are not computed again. None for other maps.
    """
    rhos: dict[str, list[float]] = {name: [] for name in references}
    maps: Maps = {}
    scores: list[Tensor] = []
    for sign in (1.0, -1.0):
        with shuffled(head, torch.Generator().manual_seed(seed), sign):
            scores += [] if score is None else [score()]
            if len(scores) == 2 and torch.equal(scores[0], -scores[1]):
                maps = {name: -one for name, one in maps.items()}
            else:
                maps = explain_again()
        for name, reference in references.items():
            rho = spearman(maps[name], reference) if name in maps else None
            rhos[name] += [] if rho is None else [rho]
    return {name: fmean(values) if values else None for name, values in rhos.items()}


def find_head(model: nn.Module, score: Callable[[], Tensor]) -> nn.Module | None:
    """Return the last layer with direct parameters that a pass calls and that changes the score; None without one.

    Of several heads, the score may be that of one which is not called last.
    """
    called: list[nn.Module] = []
    with ExitStack() as stack, torch.no_grad():
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                stack.callback(module.register_forward_pre_hook(lambda one, _: called.append(one)).remove)
        reference = score()
    for layer in dict.fromkeys(reversed(called)):
        with shuffled(layer, torch.Generator().manual_seed(0), -1.0), torch.no_grad():
            if not torch.equal(score(), reference):
                return layer
    return None


@contextmanager
def shuffled(layer: nn.Module, generator: torch.Generator, sign: float) -> Iterator[None]:
    """Permute the values of each parameter of a layer inside the context; then restore them, bit for bit."""
    parameters = {id(p): p for p in layer.parameters(recurse=False)}.values()
    originals = [parameter.data for parameter in parameters]
    try:
        for parameter, original in zip(parameters, originals, strict=True):
            order = torch.randperm(original.numel(), generator=generator).to(original.device)
            parameter.data = original.flatten()[order].view(original.shape) * sign
        yield
    finally:
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data = original
