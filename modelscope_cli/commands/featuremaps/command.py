"""`modelscope featuremaps`."""

import modelscope_cli as ms
from modelscope_cli.commands.featuremaps.options import CHANNELS, LOOK, ChannelOptions, LookOptions
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import FirstArg
from modelscope_cli.shell.output import emit


@spread
def featuremaps(
    first: FirstArg = None,
    images: opt.ImagesArg = None,
    layers: groups.LayerOptions = groups.LAYERS,
    channels: ChannelOptions = CHANNELS,
    look: LookOptions = LOOK,
    hook: opt.HookOpt = None,
    model: groups.ModelOptions = groups.MODEL,
    input_shape: opt.InputShapeOpt = None,
    input: opt.NamedInputsOpt = None,
    prepared: groups.ImageOptions = groups.IMAGES,
    folder: groups.FolderOptions = groups.FOLDER,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Save what the layers see in an image: a grid for each layer, and a contact sheet.

    The forward stops after the last layer that was asked for. Gray cells are channels of a single value. Tokens and
    windows are drawn where they lie in the image; what is left out, such as class tokens, is listed. Without
    --layer a deep network gives one grid per stage: the last output of each map size. With --top-images and a
    folder: the images that fire each channel most, cropped to what it sees of them.

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
    from modelscope_cli.commands.featuremaps.table import featuremaps_columns, featuremaps_sheet
    from modelscope_cli.report.image_tiles import make_palette

    where = output.begin()
    named, images = model.take("featuremaps", first, images)
    asked = model.request(named), prepared.request(images, model.seed, input_shape, named=input)
    where.view.check(featuremaps_columns(True, look.top_images > 0))
    make_palette(look.cmap)
    if not look.top_images:
        asked[1].check_one()
    record = ms.featuremaps(
        *asked,
        **said(layers, channels, look),
        hook=hook or (),
        out=folder.choose("featuremaps", named),
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, featuremaps_sheet(record), record)
