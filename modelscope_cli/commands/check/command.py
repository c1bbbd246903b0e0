"""`modelscope check`."""

from typing import Annotated, Any

import typer

import modelscope_cli as ms
from modelscope_cli.commands.check import options as own
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.shell import console
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
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
            help="Mode of the forward and backward pass. auto: eval, but train if no batch norm has seen a batch "
            "yet.",
            rich_help_panel="Model",
        ),
    ] = opt.Mode.auto,
    loading: own.LoadingOptions = own.LOADING,
    inputs: groups.InputOptions = groups.INPUT,
    dataset: own.DatasetOptions = own.DATASET,
    blocks: groups.BlockOptions = groups.BLOCKS,
    output: own.CheckOutputOptions = own.OUTPUT,
) -> int:
    """Check a model or a data set against rules, and exit with 1 if one is broken.

    Weights, activations, gradients, structure, budgets and predictions: each rule has a code, a threshold with its
    source, and a hint. Give images if you can: without them, noise is used. A folder without a model is judged as a
    data set: copies, broken, odd, dark, flat and blurred images, and images that also occur in another data set.
    The table tool.modelscope of the nearest pyproject.toml sets model, checkpoint, images, select, ignore,
    thresholds, fail-on, baseline, allow and the budgets; options on the command line win. Under torchrun the
    forward pass over images is shared out, and --out keeps its blocks; gradients are computed by every process.

    Examples:

      modelscope check demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors

      modelscope check resnet18 --weights none --max-params 25M --max-macs 5G --expect-output 1,1000

      modelscope check resnet18 --weights none --select MS1,MS4 --format github

      modelscope check demo/shapes --against demo --fail-on warning
    """
    from modelscope_cli.commands.check.table import (
        COLUMNS,
        append_summary,
        check_sheet,
        render_github,
        render_junit,
    )
    from modelscope_cli.records.check import CheckRecord
    from modelscope_cli.report.formats import render_markdown

    where = output.begin(("github", "junit"), is_shared=True)
    where.view.check(COLUMNS)
    settings = rules.settings()
    if settings.project is not None:
        PROGRESS.note(f"settings: {settings.project}")
    judged: dict[str, Any] = {
        **{"select": settings.select, "ignore": settings.ignore, "set": settings.thresholds},
        **{"fail_on": settings.fail_on, "baseline": settings.baseline, "progress": PROGRESS},
        "update_baseline": rules.update_baseline,
    }
    folders = dataset.take(first, images, settings, loading, inputs)
    refused = None
    try:
        if folders:
            own.refuse_idle(mode, blocks)
            record = ms.check_images(folders, against=dataset.against or (), **judged)
        else:
            model, images = loading.take(first, images, settings)
            if not images and not inputs.input_shape:
                images = list(settings.images)
            asked = loading.completed(model, settings).request(model)
            judged["allow"] = settings.allow
            shared: dict[str, Any] = {**said(blocks), "share": True, "force": output.force, "mode": mode}
            record = ms.check(asked, inputs.request(images, loading.seed), **judged, **shared)
    except ModelscopeError as error:
        if not isinstance(error.record, CheckRecord):
            raise
        record, refused = error.record, error
    sheet = check_sheet(record)
    try:
        if not console.settings.is_silent:
            append_summary(render_markdown(sheet))
    except OSError as error:
        PROGRESS.warn(f"no summary of the step: {error}")
    emit(
        where,
        sheet,
        record,
        more={"github": lambda: render_github(record), "junit": lambda: render_junit(record)},
    )
    if refused is not None:
        raise refused
    return 0 if record.passed else FOUND
