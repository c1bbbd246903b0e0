"""`modelscope lrfind`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell.console import PROGRESS, hint, settings
from modelscope_cli.shell.options import ClassesArgument, LearnerOptions, ModelArgument, TrainingOptions
from modelscope_cli.shell.output import emit, save_report
from modelscope_cli.shell.output_options import Out, OutputOptions
from modelscope_cli.shell.parameters import command


@command
def lrfind(
    first: ModelArgument = None,
    folder: ClassesArgument = None,
    low: Annotated[
        float, typer.Option("--from", metavar="R", rich_help_panel="Sweep", help="The first learning rate.")
    ] = 1e-05,
    high: Annotated[
        float, typer.Option("--to", metavar="R", rich_help_panel="Sweep", help="The last learning rate.")
    ] = 10.0,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=3,
            rich_help_panel="Sweep",
            help="How many steps to take; by default 100, or 300 if those are too few.",
        ),
    ] = None,
    out: Out = None,
    *,
    how: TrainingOptions,
    on: LearnerOptions,
    show: OutputOptions,
) -> None:
    """Sweep the learning rate in a short training run and suggest one.

    A copy of the model is trained and then discarded.

    Examples:

      modelscope lrfind demo/tiny_resnet.py:TinyResNet --size 48

      modelscope lrfind demo/tiny_resnet.py:TinyResNet demo/shapes --size 48 --batch 8 --optimizer adamw --to
        0.1

      modelscope lrfind demo/tiny_resnet.py:TinyResNet --size 48 --from 0.001 --to 0.5
    """
    from modelscope_cli.records.train import ZERO_GRADIENT
    from modelscope_cli.report.lrfind.table import COLUMNS, lrfind_sheet, rate
    from modelscope_cli.shell.hints import filled_in

    where = show.begin()
    model, images = on.learner(first, folder)
    where.layout.check(COLUMNS)
    out = show.folder(out, model.model)
    record = ms.lrfind(model, images, **how.keywords(), low=low, high=high, steps=steps, progress=PROGRESS)
    record = save_report(record, out)
    emit(where, lrfind_sheet(record), record)
    lr = record.suggestion.recommended
    if lr is not None and not settings.is_quiet:
        hint(filled_in(f"modelscope train ... --lr {rate(lr)}", settings.argv, ""))
    elif record.stopped == ZERO_GRADIENT and not settings.is_quiet:
        hint(filled_in("modelscope grads ...   shows where the gradient ends", settings.argv, ""))
