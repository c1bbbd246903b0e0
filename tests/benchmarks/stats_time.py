"""What `stats` adds to a forward: resnet50, eight pictures, on the CPU; and the least that anything could add."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from figure import Figure
from obvious import observe_obviously
from paired import compare_calls
from torch import nn
from torchvision.models import resnet50

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


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare every column, the four cheap ones, a read of everything, and obvious hooks with the bare forward."""
    torch.manual_seed(0)
    model = resnet50().eval()
    pictures = torch.randn(8, 3, 224, 224)

    def bare() -> None:
        with torch.no_grad():
            model(pictures)

    def stats(wanted: Wanted) -> None:
        selection = select(model, (), (), (pictures,))
        for activation in observe_activations(
            model, lambda phase, compute, kind: [compute(Batch((pictures,), 8))], selection, wanted
        ):
            to_row(activation)

    def read_once() -> None:
        with HookSession(model, [_Reading()]) as session:
            session.run((pictures,))

    pairs = pairs or 9
    peer = "the bare forward (resnet50, batch 8)"
    every = compare_calls(lambda: stats(Wanted()), bare, pairs)
    yield every.at_most(f"`stats`, every column / {peer}", 1.8)
    few = compare_calls(lambda: stats(_FEW), bare, pairs)
    yield few.at_most(f"`stats`, mean, std, min, max / {peer}", 1.3)
    quantiles = compare_calls(lambda: stats(replace(_FEW, quantiles=("p01", "p50", "p99"))), bare, pairs)
    yield quantiles.at_most(f"`stats`, the same and three quantiles / {peer}", None)
    floor = compare_calls(read_once, bare, pairs)
    yield floor.at_most(f"the floor: every activation summed, nothing else / {peer}", None)
    obvious = compare_calls(lambda: observe_obviously(model, pictures), bare, pairs)
    yield obvious.at_most(f"obvious hooks, the same columns / {peer}", None)
