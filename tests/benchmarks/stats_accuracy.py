"""The statistics against NumPy in float64."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from figure import Figure
from torch import Tensor, nn
from torchvision.models import resnet50

from modelscope_cli.analysis.activations.observer import observe_activations, to_row
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.inputs.batch import Batch

TARGET = 1e-5
Array = np.ndarray[Any, np.dtype[np.float64]]
_FIGURES: dict[str, Callable[[Array], float]] = {
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "rms": lambda x: math.sqrt(np.square(x).mean()),
    "zero_fraction": lambda x: (x == 0).mean(),
}
Figures = dict[str, float]


class _Reference(Observer):
    """What NumPy makes of every output, by layer and call."""

    def __init__(self) -> None:
        self.figures: dict[tuple[str, int], Figures] = {}

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        ((_, tensor),) = tensors_in(output)
        self.figures[call.name, call.index] = _by_numpy(tensor)


def measure(pairs: int | None) -> Iterator[Figure]:
    """Report the worst relative error over all layers of a network, and far away from zero."""
    torch.manual_seed(0)
    for what, errors in (
        ("resnet50 on noise, every call", _errors_in_resnet50()),
        ("mean 1000 deviations from zero, several batches", _errors_far_from_zero()),
    ):
        worst = max(errors, key=errors.__getitem__)
        yield Figure(
            f"worst relative error against NumPy in float64: {what}",
            f"{errors[worst]:.1e} ({worst})",
            f"<= {TARGET:.0e}",
            errors[worst] <= TARGET,
        )


def _errors_in_resnet50() -> Figures:
    model = resnet50().eval()
    pictures = torch.randn(2, 3, 224, 224)
    reference = _Reference()
    with HookSession(model, [reference]) as session:
        session.run((pictures,))
    rows = _rows(model, [pictures])
    return {
        f"{figure} of {row['name']}#{row['call']}": error
        for row in rows
        for figure, error in _errors(row, reference.figures[row["name"], row["call"]]).items()
    }


def _errors_far_from_zero() -> Figures:
    errors: Figures = {}
    for deviation in (1e-3, 1.0, 1e4):
        for side in (-1, 1):
            batches = [deviation * (torch.randn(4, 16, 56, 56) + 1000 * side) for _ in range(3)]
            (row,) = _rows(nn.Sequential(nn.Identity()), batches)
            found = _errors(row, _by_numpy(torch.cat(batches)))
            errors |= {f"{figure}, deviation {deviation:g}": error for figure, error in found.items()}
    return errors


def _rows(model: nn.Module, batches: Sequence[Tensor]) -> list[dict[str, Any]]:
    every = Selection(is_innermost_only=True)
    observed = observe_activations(
        model, lambda phase, compute, kind: [compute(Batch((x,), len(x))) for x in batches], every, Wanted()
    )
    rows = [to_row(activation) for activation in observed]
    return [{name: getattr(row, name) for name in ("name", "call", *_FIGURES)} for row in rows]


def _by_numpy(x: Tensor) -> Figures:
    values = x.numpy().astype(np.float64)
    return {name: float(figure(values)) for name, figure in _FIGURES.items()}


def _errors(row: dict[str, Any], truth: Figures) -> Figures:
    return {name: _relative(row[name], true) for name, true in truth.items()}


def _relative(value: float, true: float) -> float:
    if value == true:
        return 0.0
    return abs(value - true) / abs(true) if true else math.inf
