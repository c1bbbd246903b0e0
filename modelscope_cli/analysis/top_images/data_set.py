"""`featuremaps --top-images`: the record and the sheets for a data set."""

from collections import defaultdict

from PIL import Image
from torch import Tensor

from modelscope_cli.analysis.activations.maps import ChannelChoice, nothing_to_draw
from modelscope_cli.analysis.results import Results
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.analysis.top_images.find import LayerImages, find_top_images
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.batch import Inputs
from modelscope_cli.records.featuremaps import ChannelImage, FeatureMap, FeatureMapsRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.records.progress import counting
from modelscope_cli.report.image_tiles import scaled
from modelscope_cli.report.views import figures_of

Crops = dict[ChannelImage, Image.Image]


def cut_crops(inputs: Inputs, layer: LayerImages, side: int) -> Crops:
    """Return the receptive field crop of every image shown for a layer, `side` pixels on its long side.

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
    """Crop a box; an empty one, in padding alone, becomes the pixel of the nearest corner."""
    height, width = picture.shape[-2:]
    left, top = min(max(box[0], 0), width - 1), min(max(box[1], 0), height - 1)
    right, bottom = max(min(box[2], width), left + 1), max(min(box[3], height), top + 1)
    crop = Image.fromarray(picture[:, top:bottom, left:right].permute(1, 2, 0).contiguous().numpy(), "RGB")
    # Few pixels are enlarged without interpolation.
    is_enlarged = side > max(crop.size)
    return scaled(crop, side, Image.Resampling.NEAREST if is_enlarged else Image.Resampling.LANCZOS)


def rank_data_set(
    subject: Subject, selection: Selection, k: int, choice: ChannelChoice, results: Results
) -> FeatureMapsRecord:
    """Go through all images once, and draw sheets where there is a folder for them."""
    subject.bind()
    layers, n_sampled = find_top_images(subject, selection, k, choice)
    never = subject.uncalled(selection, [one.layer.name for one in layers])
    hooks = subject.conclude()
    if not any(one.channels for one in layers):
        rows = [one.layer for one in layers]
        raise nothing_to_draw(rows, never, False, subject.loaded.info.name)
    record = FeatureMapsRecord(
        run=subject.run(),
        maps=tuple(one.layer for one in layers),
        contact_sheet=None,
        out_dir=results.path,
        not_called=never,
        hooks=hooks,
        top_images=k,
        images=subject.inputs.n_images,
        sampled=n_sampled,
        channels=tuple(row for one in layers for row in one.channels),
    )
    by_layer = {one.layer: one for one in layers}
    with results.open() as stage:
        if stage is not None:
            with counting(subject.progress, "layers drawn", len(layers)) as step:

                def crops(layer: FeatureMap, side: int) -> Crops:
                    step()
                    return cut_crops(subject.inputs, by_layer[layer], side)

                record = figures_of("featuremaps").save_sheets(record, stage, crops)
    if results.path is not None:
        n_sheets = len({row.file for row in record.channels if row.file})
        subject.progress.note(f"wrote {results.path} ({counted(n_sheets, 'sheet')})")
    return record
