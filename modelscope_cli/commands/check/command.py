"""`modelscope check`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.commands.check import options as own
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.named_model import ModelArg
from modelscope_cli.shell.output import emit

FOUND = 1


@spread
def check(
    first: ModelArg = None,
    images: opt.ImagesArg = None,
    rules: own.RuleOptions = own.RULES,
    mode: Annotated[
        opt.Mode,
        typer.Option(
            "--mode",
            help="Mode of the forward and backward pass. auto: eval, but train where no batch norm has seen "
            "a batch yet.",
            rich_help_panel="Model",
        ),
    ] = opt.Mode.auto,
    loading: own.LoadingOptions = own.LOADING,
    inputs: groups.InputOptions = groups.INPUT,
    output: own.CheckOutputOptions = own.OUTPUT,
) -> int:
    """Judge a model by rules, and exit with 1 if one is broken; see `modelscope rules`.

    Weights, activations, gradients, structure, budgets and predictions: each rule has a code, a threshold with its
    source, and a hint. Images are better than the noise that is taken without them. The table tool.modelscope of
    the nearest pyproject.toml sets model, checkpoint, images, select, ignore, thresholds, fail-on, baseline and the
    budgets; what is typed wins.

    Examples:

      modelscope check demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors

      modelscope check resnet18 --weights none --max-params 25M --max-macs 5G --expect-output 1,1000

      modelscope check resnet18 --weights none --select MS1,MS4 --format github
    """
    from modelscope_cli.commands.check.github import append_summary, render_github
    from modelscope_cli.commands.check.junit import render_junit
    from modelscope_cli.commands.check.table import COLUMNS, check_sheet
    from modelscope_cli.records.check import CheckRecord
    from modelscope_cli.report.markdown import render_markdown
    from modelscope_cli.report.sheet import choose_columns

    where = output.begin(more=("github", "junit"))
    choose_columns(COLUMNS, output.columns)
    settings = rules.settings()
    if settings.project is not None:
        PROGRESS.note(f"settings: {settings.project}")
    model, images = loading.take(first, images, settings)
    if not images and not inputs.input_shape:
        images = list(settings.images)
    refused = None
    try:
        record = ms.check(
            loading.completed(model, settings).request(model),
            inputs.request(images, loading.seed),
            select=settings.select,
            ignore=settings.ignore,
            set=settings.thresholds,
            fail_on=settings.fail_on,
            baseline=settings.baseline,
            update_baseline=rules.update_baseline,
            mode=mode,
            progress=PROGRESS,
        )
    except ModelscopeError as error:
        if not isinstance(error.record, CheckRecord):
            raise
        record, refused = error.record, error
    sheet = check_sheet(record, output.columns)
    try:
        append_summary(render_markdown(sheet))
    except OSError as error:
        PROGRESS.warn(f"no summary of the step: {error}")
    emit(
        where,
        sheet,
        record.to_dict(),
        more={"github": lambda: render_github(record), "junit": lambda: render_junit(record)},
    )
    if refused is not None:
        raise refused
    return 0 if record.passed else FOUND
