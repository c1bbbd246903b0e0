"""`modelscope explain`."""

from pathlib import Path

import modelscope_cli as ms
from modelscope_cli.commands.explain.options import EXPLAIN, ExplainOptions
from modelscope_cli.shell import console
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.named_model import FirstArg
from modelscope_cli.shell.output import emit

NOT_MET = 1


@spread
def explain(
    first: FirstArg = None,
    images: opt.ImagesArg = None,
    how: ExplainOptions = EXPLAIN,
    hook: opt.HookOpt = None,
    model: groups.ModelOptions = groups.MODEL,
    inputs: groups.InputOptions = groups.INPUT,
    folder: groups.FolderOptions = groups.FOLDER,
    resume: opt.ResumeOpt = False,
    save: opt.SaveOpt = True,
    output: groups.OutputOptions = groups.OUTPUT,
) -> int:
    """Show where in an image the evidence for a class lies, and how far each map can be trusted.

    The layer is found by following one run back from the score, and named with the reason. The winner comes first;
    no figure decides alone. Over a folder: where the evidence for each class lies, and the images in which it lies
    at the border or outside --box or --mask.

    Examples:

      modelscope explain demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope explain demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --method
        hirescam --require passed

      modelscope explain demo/tiny_resnet.py:TinyResNet demo/shapes -c demo/tiny_resnet.safetensors --method
        hirescam --no-receipt
    """
    from modelscope_cli.commands.explain.table import explain_columns, explain_sheet

    where = output.begin(is_shared=True)
    named, images = model.take("explain", first, images)
    asked = model.request(named), inputs.request(images, model.seed)
    where.view.check(explain_columns())
    how.check()
    output.check_saving(save, folder.out, how.save_tensors)
    record = ms.explain(
        *asked,
        **how.keywords(),
        hook=hook or (),
        out=_folder(folder, named) if save else None,
        keep=folder.out is not None,
        resume=resume,
        share=True,
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, explain_sheet(record), record)
    return 0 if record.passed else NOT_MET


def _folder(folder: groups.FolderOptions, model: str) -> Path | None:
    """Return the folder that was asked for, else a free one, which one of several processes writes."""
    if folder.out is not None or console.settings.is_silent:
        return folder.out
    return folder.choose("explain", model)
