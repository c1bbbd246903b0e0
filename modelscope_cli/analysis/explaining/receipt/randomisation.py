"""Tests of a map: shuffled weights must change it (Adebayo et al. 2018), and planted evidence must appear in it.

The head is first: it reveals maps that ignore the weights of the classes, such as guided backprop. All methods
explain the same changed models.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.explaining.receipt.rankings import spearman

Box = tuple[int, int, int, int]  # x0, y0, x1, y1 in cells of the explained tensor, the ends not included
Term = Callable[[Tensor], Tensor]  # from the explained tensor, (N, C, h, w), to (N,)

N_PLANTS = 3
_SIDE = 0.3  # relative to the tensor's
_TRIED = 16


@dataclass(frozen=True, slots=True)
class Planted:
    """Recovery of planted evidence, averaged over the boxes."""

    in_box: float  # the share of the map's absolute change inside the box; 0 without a change
    recovered: float  # the map's gain in the box over the value of the term; 1 if maps add up to the score


def planted_evidence(
    explain_again: Callable[[Term], Tensor],
    reference: Tensor,
    explained: Tensor,
    score: float,
    *,
    seed: int = 0,
) -> Planted | None:
    """Plant evidence in a few boxes, one at a time, and measure how much a method recovers.

    Args:
        explain_again: returns the map of score + term, on the grid of `explained`.
        reference: the map of the score alone, `(h, w)`.
        explained: the tensor the method explains, `(1, C, h, w)`.
        score: the score; the term has its magnitude, at least 1.

    Returns:
        None if every box has a mean of zero.
    """
    plants = []
    for seed_of_plant in range(seed, seed + N_PLANTS):
        box = _choose_box(explained, seed_of_plant)
        if box is None:
            return None
        value = max(abs(score), 1.0)
        term = planted_term(box, value / _mean_over(box, explained).item())
        plants.append(given_back(explain_again(term) - reference, box, value))
    return Planted(fmean(plant.in_box for plant in plants), fmean(plant.recovered for plant in plants))


def planted_term(box: Box, k: float) -> Term:
    """Return `k` times the mean of a tensor over a box, differentiable."""
    return lambda tensor: k * _mean_over(box, tensor)


def given_back(gained: Tensor, box: Box, value: float) -> Planted:
    """Return how much of a map's change, `(h, w)`, is in the box, and its ratio to the term's value."""
    x0, y0, x1, y1 = box
    gained = gained.cpu().double()
    inside = gained[y0:y1, x0:x1]
    whole = gained.abs().sum().item()
    return Planted(inside.abs().sum().item() / whole if whole else 0.0, inside.sum().item() / value)


def _mean_over(box: Box, tensor: Tensor) -> Tensor:
    x0, y0, x1, y1 = box
    return tensor[..., y0:y1, x0:x1].mean((1, 2, 3))


def _choose_box(explained: Tensor, seed: int) -> Box | None:
    """Return the box with the largest mean of a few random ones; None if all are zero."""
    generator = torch.Generator().manual_seed(seed)
    height, width = explained.shape[-2:]
    tall, wide = (max(round(_SIDE * side), 1) for side in (height, width))
    tops = torch.randint(height - tall + 1, (_TRIED,), generator=generator).tolist()
    lefts = torch.randint(width - wide + 1, (_TRIED,), generator=generator).tolist()
    boxes = [(x, y, x + wide, y + tall) for x, y in zip(lefts, tops, strict=True)]
    means = {box: abs(_mean_over(box, explained).item()) for box in boxes}
    best = max(means, key=lambda box: means[box])
    return best if means[best] > 0 else None


N_STAGES = 4
N_DRAWS = 3  # of the last stage, because small maps are a little alike by chance
Maps = Mapping[str, Tensor | None]  # by method; None without a map


@dataclass(frozen=True, slots=True)
class Randomised:
    """Rank correlation of the map with the maps of randomised models."""

    # Mean over two models, one with a shuffled head and one with its negative; these cancel if the map is
    # linear in the head. None if neither had a map.
    head: float | None
    # After each stage, from the head down; None without a map, or for a flat one
    cascade: tuple[float | None, ...] = ()
    # Mean magnitude over models with all weights shuffled; None if none of them had a map
    rho: float | None = None


def randomisation(
    layers: list[nn.Module],
    explain_again: Callable[[], Maps],
    references: Maps,
    *,
    seed: int = 0,
    is_full: bool,
) -> dict[str, Randomised]:
    """Shuffle the weights from the head down and explain again after each stage; the model is restored.

    Values are permuted within each parameter, so that activations keep their magnitude; the statistics of batch
    norms stay. Without layers, return an empty dict.

    Args:
        layers: the layers with parameters, the head first, as returned by `from_the_head`.
        explain_again: returns the maps of the changed model, `(H, W)` each.
        references: the maps of the original model, by the same methods.
        is_full: whether to continue below the head.
    """
    if not layers:
        return {}
    ends = sorted({1, *(round(len(layers) * (stage + 1) / N_STAGES) for stage in range(N_STAGES))} - {0})
    copies = [(1, seed, 1.0), (1, seed, -1.0)]
    if is_full:
        copies += [(end, seed + n, 1.0) for n, end in enumerate([*ends, *[len(layers)] * (N_DRAWS - 1)])][1:]
    rhos: dict[str, list[float | None]] = {name: [] for name in references}
    for end, draw_seed, sign in copies:
        with shuffled(layers[:end], torch.Generator().manual_seed(draw_seed), sign):
            maps = explain_again()
        for name, reference in references.items():
            new_map = maps[name]
            rhos[name].append(None if new_map is None or reference is None else spearman(new_map, reference))
    return {name: _summed_up(values, len(ends) if is_full else 0) for name, values in rhos.items()}


def _summed_up(rhos: list[float | None], n_stages: int) -> Randomised:
    cascade = (rhos[0], *rhos[2:])
    last = [abs(rho) for rho in cascade[n_stages - 1 :] if rho is not None] if n_stages else []
    head = [rho for rho in rhos[:2] if rho is not None]
    return Randomised(
        fmean(head) if head else None, cascade[:n_stages] if n_stages else (), fmean(last) if last else None
    )


def from_the_head(model: nn.Module, run: Callable[[], object]) -> list[nn.Module]:
    """Return the layers with direct parameters that a pass calls, the last called first."""
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
    """Permute the values of each parameter of some layers inside the context; then restore them, bit for bit."""
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
