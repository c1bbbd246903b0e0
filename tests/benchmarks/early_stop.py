"""`featuremaps --layer conv1` of a deep network: nothing after that layer is run."""

from collections.abc import Iterator

import torch
from figure import Figure
from paired import compare_calls
from torchvision.models import resnet152

from modelscope_cli.analysis.activations.maps import capture_maps
from modelscope_cli.hooks.selection import select


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare selecting and capturing with a full forward."""
    torch.manual_seed(0)
    model = resnet152().eval()
    args = (torch.randn(1, 3, 224, 224),)

    def ours() -> None:
        capture_maps(model, args, select(model, ["conv1"], (), args, is_feedforward=True))

    def peer() -> None:
        with torch.no_grad():
            model(*args)

    ratio = compare_calls(ours, peer, pairs or 11)
    yield ratio.at_most("`featuremaps --layer conv1` on resnet152 / a full forward", 0.3)
