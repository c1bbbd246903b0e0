"""`modelscope featuremaps`."""

import modelscope_cli as ms
from modelscope_cli.records.featuremaps import FeatureMapsRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import check_target, emit, save, save_tensors

PLACE = 13  # in `modelscope --help`


@command
def featuremaps(call: CommandCall) -> None:
    """Save the feature maps of an image: a grid for each layer, and a contact sheet.

    The forward pass stops after the last selected layer. Gray cells are constant channels. Tokens and windows are
    drawn at their place in the image; extra tokens, such as class tokens, are left out and listed. Without
    --layer a deep network gives one grid per stage: the last output of each map size. With --top-images and a
    folder: the images that activate each channel most, cropped to its receptive field.

    Examples:

      modelscope featuremaps resnet34 demo/harbour.jpg --weights none --layer conv@1..4

      modelscope featuremaps demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors -l
        block3 --strongest --max-channels 16 --overlay

      modelscope featuremaps resnet34 demo/harbour.jpg --weights none -l layer1.0.conv1 --channels 3,7,10..20

      modelscope featuremaps vit_b_32 demo/harbour.jpg --weights none -l 'encoder.layers.*.mlp' --cmap magma

      modelscope featuremaps vit_b_32 demo/harbour.jpg --weights none --attention --overlay

      modelscope featuremaps demo/tiny_resnet.py:TinyResNet demo/shapes -c demo/tiny_resnet.safetensors -l
        block3.conv2 --top-images 9
    """
    from modelscope_cli.report.featuremaps.table import featuremaps_columns, featuremaps_sheet
    from modelscope_cli.report.image_tiles import make_palette

    where = call.begin()
    model, inputs = call.subject()
    where.view.check(featuremaps_columns(True, call["top_images"] > 0))
    make_palette(call["cmap"])
    if not call["top_images"]:
        inputs.check_one()
    folder, tensors = call.folder(model.model), call["save_tensors"]
    if tensors is not None:
        check_target(tensors)
    record = ms.featuremaps(model, inputs, **call.keywords())
    if tensors is not None:
        record = save_tensors(record, tensors)
    record = save(record, folder, content=_content)
    emit(where, featuremaps_sheet(record), record)


def _content(record: FeatureMapsRecord) -> str:
    """Return how many images of maps, or sheets of images, a saved result has."""
    if record.top_images:
        return counted(len({row.file for row in record.channels if row.file}), "sheet")
    return counted(sum(row.file is not None for row in record.maps), "grid")
