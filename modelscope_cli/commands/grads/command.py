"""`modelscope grads`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.commands.grads import options as own
from modelscope_cli.records.grads import EXPLODING, VANISHING
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import FirstArg
from modelscope_cli.shell.numbers import real, whole
from modelscope_cli.shell.output import emit


@spread
def grads(
    first: FirstArg = None,
    images: opt.ImagesArg = None,
    layers: groups.LayerOptions = groups.LAYERS,
    hook: opt.HookOpt = None,
    loss: own.LossOptions = own.LOSS,
    clip: own.ClipOptions = own.CLIP,
    trained: own.TrainedOptions = own.TRAINED,
    mode: opt.ModeOpt = opt.Mode.auto,
    repeat: Annotated[
        int,
        whole("--repeat", min=1, metavar="N", help="Go through the input N times. Noise is new each time."),
    ] = 1,
    full_backward: Annotated[
        bool,
        typer.Option("--full-backward", help="Read the gradients with register_full_backward_hook."),
    ] = False,
    vanishing: Annotated[
        float,
        real("--vanishing", metavar="X", help="Mark |g| below X times the one at the output."),
    ] = VANISHING,
    exploding: Annotated[
        float,
        real("--exploding", metavar="X", help="Mark |g| above X times the one at the output."),
    ] = EXPLODING,
    model: groups.ModelOptions = groups.MODEL,
    inputs: groups.InputOptions = groups.INPUT,
    report: own.ReportOptions = own.REPORT,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Run a forward and a backward pass, and print and draw what the gradients do.

    Several images mean several passes, of one image each unless --batch says otherwise: then the mean gradient and
    the noise around it are shown. Gradients are computed, inspected and discarded; nothing is trained.

    Examples:

      modelscope grads resnet34 demo/harbour.jpg --weights none --clip 1.0

      modelscope grads demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors -t star

      modelscope grads resnet18 --weights none --train-only fc --num-classes 10 --mode train --no-save

      modelscope grads resnet34 demo/harbour.jpg -w none --hook 'grad:clamp=-1,1@conv' --no-save
    """
    from modelscope_cli.analysis.gradients.request import has_own_loss
    from modelscope_cli.commands.grads.table import grads_columns, grads_sheet
    from modelscope_cli.report.folder import free_folder
    from modelscope_cli.report.shared_tables import check_drift

    where = output.begin()
    named, images = model.take("grads", first, images)
    asked = model.request(named), inputs.request(images, model.seed)
    where.view.check(grads_columns(report.table))
    output.check_saving(report.save, report.out)
    if report.table == own.Table.batch_norm:
        check_drift(mode == opt.Mode.train or (mode == opt.Mode.auto and has_own_loss(asked[0], loss.loss)))
    record = ms.grads(
        *asked,
        **said(layers, loss, clip, trained),
        hook=hook or (),
        mode=mode,
        repeat=repeat,
        full_backward=full_backward,
        vanishing=vanishing,
        exploding=exploding,
        out=(report.out or free_folder("grads", named)) if report.save else None,
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, grads_sheet(record, report.table), record)
