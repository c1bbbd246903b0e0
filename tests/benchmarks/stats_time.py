"""What `stats` adds to a forward of torchvision's models, in CPU seconds on one thread; and the least that anything
could add."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from figure import Figure
from obvious import observe_obviously
from paired import compare_calls
from torch import Tensor, nn
from torchvision import models

from modelscope_cli.analysis.activations.observer import observe_activations, to_row
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import select
from modelscope_cli.hooks.session import Call, HookSession, Observer
from modelscope_cli.inputs.batch import Batch


class _Reading(Observer):
    """Reads every output once, and makes of it the one number that is quickest to make."""

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if is_innermost:
            for _, tensor in tensors_in(output):
                tensor.sum()


_FEW = Wanted(zero=False, near_zero=False, channels=False, histogram=False)
# The name of a model, images in the batch, and the ratio to reach with every column.
_MODELS = (
    ("resnet50", 8, 1.5),
    ("vit_b_16", 4, 1.8),
    ("convnext_tiny", 4, 1.8),
    ("mobilenet_v3_large", 8, 1.8),
)


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare every column, the four cheap ones and a read of everything with the bare forward of each model, for
    the first also quantiles and obvious hooks."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, batch, target in _MODELS:
        torch.manual_seed(0)
        model, images = getattr(models, name)().eval(), torch.randn(batch, 3, 224, 224)
        yield from _measure_model(model, images, f"the bare forward ({name}, batch {batch})", target, pairs)
    torch.set_num_threads(n_threads)


def _measure_model(
    model: nn.Module, images: Tensor, peer: str, target: float, pairs: int | None
) -> Iterator[Figure]:
    def bare() -> None:
        with torch.no_grad():
            model(images)

    def stats(wanted: Wanted) -> None:
        selection = select(model, (), (), (images,))
        for activation in observe_activations(
            model, lambda phase, compute, kind: [compute(Batch((images,), len(images)))], selection, wanted
        ):
            to_row(activation)

    def read_once() -> None:
        with HookSession(model, [_Reading()]) as session:
            session.run((images,))

    def compare(ours: Callable[[], object], what: str, at_most: float | None) -> Figure:
        return compare_calls(ours, bare, pairs or 7, time.process_time).at_most(f"{what} / {peer}", at_most)

    yield compare(lambda: stats(Wanted()), "`stats`, every column", target)
    yield compare(lambda: stats(_FEW), "`stats`, mean, std, min, max", None)
    yield compare(read_once, "the floor: every activation summed, nothing else", None)
    if isinstance(model, models.ResNet):
        three = replace(_FEW, quantiles=("p01", "p50", "p99"))
        yield compare(lambda: stats(three), "`stats`, the same and three quantiles", None)
        yield compare(lambda: observe_obviously(model, images), "obvious hooks, the same columns", None)
