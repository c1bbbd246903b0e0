"""Does the map depend on the model? It must change when the weights are shuffled (Adebayo et al. 2018).

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

N_STAGES = 4
N_DRAWS = 3  # of the last stage, because small maps are a little alike by chance
Maps = Mapping[str, Tensor | None]  # by method; None without a map


@dataclass(frozen=True, slots=True)
class Randomised:
    """Rank correlation of the map with the maps of randomised models.

    Attributes:
        head: mean over two models, one with a shuffled head and one with its negative; these cancel if the map is
            linear in the head. None if neither had a map.
        cascade: after each stage, from the head down; None without a map, or for a flat one.
        rho: mean magnitude over models with all weights shuffled; None if none of them had a map.
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
