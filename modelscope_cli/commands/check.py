"""`modelscope check`."""

from pathlib import Path
from typing import Any

import modelscope_cli as ms
from modelscope_cli.commands.check_subject import data_set, subject
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.records.options import CI_FORMATS
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.output import emit, save

FOUND = 1
_BUDGETS = ("max_params", "max_macs", "max_memory", "max_train_memory", "expect_output")

PLACE = 41  # in `modelscope --help`


@command
def check(call: CommandCall) -> int:
    """Check a model or a data set against rules, and exit with 1 if one is broken.

    Weights, activations, gradients, structure, budgets and predictions: each rule has a code, a threshold with its
    source, and a hint. Without images, noise is used, and fewer rules can be judged. A folder without a model is
    checked as a data set: unreadable images, exact copies, and images that are also in another data set.
    The table tool.modelscope of the nearest pyproject.toml sets model, checkpoint, images, select, ignore,
    thresholds, fail-on, baseline, allow and the budgets; options on the command line win. Under torchrun the
    processes share the forward passes, and --out keeps their blocks; each process computes the gradients.

    Examples:

      modelscope check demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors

      modelscope check resnet18 --weights none --max-params 25M --max-macs 5G --expect-output 1,1000

      modelscope check resnet18 --weights none --select MS1,MS4 --format github

      modelscope check demo/shapes --against demo --fail-on warning
    """
    from modelscope_cli.records.check import CheckRecord
    from modelscope_cli.records.reading import RUN
    from modelscope_cli.report.check.table import COLUMNS, check_sheet, render_junit, review
    from modelscope_cli.rules.settings import read_settings

    where = call.begin((*CI_FORMATS, "junit"), is_shared=True)
    where.view.check(COLUMNS)
    said = {name: call[name] for name in ("select", "ignore", "fail_on", "baseline") if name in call.typed}
    budgets = {name.replace("_", "-"): call[name] for name in _BUDGETS}
    settings = read_settings(Path.cwd(), **said, set_=call.typed.get("set"), budgets=budgets)
    if settings.project is not None:
        PROGRESS.note(f"settings: {settings.project}")
    keywords: dict[str, Any] = {
        **{"select": settings.select, "ignore": settings.ignore, "set": settings.thresholds},
        **{"fail_on": settings.fail_on, "baseline": settings.baseline, "progress": PROGRESS},
        "update_baseline": call["update_baseline"],
    }
    refused = None
    try:
        if folders := data_set(call, settings):
            record = ms.check_images(folders, against=call["against"] or (), **keywords)
        else:
            model, images = subject(call, settings)
            how = {**call.keywords("mode", "out", "resume"), "share": True, "force": call["force"]}
            record = ms.check(model, call.inputs(images), **keywords, allow=settings.allow, **how)
    except ModelscopeError as error:
        if not isinstance(error.record, CheckRecord):
            raise
        record, refused = error.record, error
    if (out := call["out"]) is not None:
        record = save(record, out, has_content=(out / RUN).exists())
    sheet = check_sheet(record)
    emit(where, sheet, record, lambda: review(record), {"junit": lambda: render_junit(record)})
    if refused is not None:
        raise refused
    return 0 if record.passed else FOUND
