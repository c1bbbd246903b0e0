"""An 8 x 8 grid of 112 x 112 maps, from tensor to a PNG on disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from figure import Figure
from paired import compare_calls
from PIL import Image
from torchvision.models import ResNet18_Weights, resnet18
from torchvision.utils import save_image

from modelscope_cli.analysis.activations.maps import CapturedOutput, capture_maps
from modelscope_cli.hooks.selection import select
from modelscope_cli.records.featuremaps import MapLook
from modelscope_cli.report.gallery import draw
from modelscope_cli.report.image_tiles import save_png

_PICTURE = Path(__file__).parents[2] / "samples" / "harbour.jpg"


def measure(pairs: int | None) -> Iterator[Figure]:
    """Compare with `torchvision.utils.save_image`; ours has colours and a title line besides."""
    exhibit = _first_convolution()
    maps = exhibit.maps
    assert maps is not None
    assert maps.shape == (64, 112, 112)
    look = MapLook("channel")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        ratio = compare_calls(
            lambda: save_png(draw(exhibit.record, maps, look), path / "ours.png"),
            lambda: save_image(maps[:, None], path / "peer.png", nrow=8, normalize=True, scale_each=True),
            pairs or 21,
        )
    yield ratio.times_faster("an 8 x 8 grid of 112 x 112 maps, tensor to PNG / `save_image`", 8.0)


def _first_convolution() -> CapturedOutput:
    """What the first convolution makes of a real picture: noise would compress like nothing one draws."""
    torch.manual_seed(0)
    model = resnet18().eval()
    picture = ResNet18_Weights.DEFAULT.transforms()(Image.open(_PICTURE).convert("RGB"))[None]
    selection = select(model, ["conv1"], (), (picture,), is_feedforward=True)
    (exhibit,) = capture_maps(model, (picture,), selection)
    return exhibit
