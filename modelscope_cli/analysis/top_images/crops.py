"""What each place that fired sees: its receptive field, cut out of the image as the model is given it."""

from collections import defaultdict

from PIL import Image
from torch import Tensor

from modelscope_cli.analysis.top_images.find import LayerImages
from modelscope_cli.inputs.batch import Inputs
from modelscope_cli.records.featuremaps import ChannelImage

Crops = dict[ChannelImage, Image.Image]


def cut_crops(inputs: Inputs, layer: LayerImages, side: int) -> Crops:
    """Return for every image that is shown of a layer what its place sees, `side` pixels on its long side.

    Only the blocks that hold such images are decoded, each once.
    """
    assert inputs.make_blocks is not None
    wanted: dict[int, list[tuple[int, ChannelImage]]] = defaultdict(list)
    for row in layer.channels:
        for _, images in row.groups:
            for image in images:
                seen = layer.seen[image.image]
                wanted[seen.block].append((seen.number, image))
    crops: Crops = {}
    for batch in inputs.make_blocks(sorted(wanted)):
        pictures = dict(zip(batch.numbers, batch.pictures, strict=True))
        for number, image in wanted[batch.block]:
            if image not in crops:
                crops[image] = _cut(pictures[number], image.box, side)
    return crops


def _cut(picture: Tensor, box: tuple[int, int, int, int], side: int) -> Image.Image:
    """Cut out a box; an empty one, of what sees padding alone, is a single pixel of the corner next to it."""
    height, width = picture.shape[-2:]
    left, top = min(max(box[0], 0), width - 1), min(max(box[1], 0), height - 1)
    right, bottom = max(min(box[2], width), left + 1), max(min(box[3], height), top + 1)
    crop = Image.fromarray(picture[:, top:bottom, left:right].permute(1, 2, 0).contiguous().numpy(), "RGB")
    scale = side / max(crop.size)
    size = (max(round(crop.width * scale), 1), max(round(crop.height * scale), 1))
    # Few pixels are shown as the pixels they are.
    return crop.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
