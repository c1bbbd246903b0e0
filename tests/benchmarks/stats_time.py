"""What `stats` adds to a forward: resnet50, eight pictures, on the CPU."""

from collections.abc import Iterator

import torch
from figure import Figure
from obvious import observe_obviously
from paired import compare_calls
from torchvision.models import resnet50

from modelscope_cli.analysis.activations.observer import observe_activations, to_row
from modelscope_cli.analysis.blocks.in_order import in_turn
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.hooks.selection import select
from modelscope_cli.inputs.batch import Batch

_FEW = Wanted(mad=False, zero=False, near_zero=False, channels=False, histogram=False)


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare every column, the four cheap ones, and obvious hooks with the bare forward."""
    torch.manual_seed(0)
    model = resnet50().eval()
    pictures = torch.randn(8, 3, 224, 224)

    def bare() -> None:
        with torch.no_grad():
            model(pictures)

    def stats(wanted: Wanted) -> None:
        selection = select(model, (), (), (pictures,))
        for activation in observe_activations(model, in_turn([Batch((pictures,), 8)]), selection, wanted):
            to_row(activation)

    pairs = pairs or 9
    peer = "the bare forward (resnet50, batch 8)"
    every = compare_calls(lambda: stats(Wanted()), bare, pairs)
    yield every.at_most(f"`stats`, every column / {peer}", 2.0)
    few = compare_calls(lambda: stats(_FEW), bare, pairs)
    yield few.at_most(f"`stats`, mean, std, min, max / {peer}", 1.35)
    obvious = compare_calls(lambda: observe_obviously(model, pictures), bare, pairs)
    yield obvious.at_most(f"obvious hooks, the same columns / {peer}", None)
