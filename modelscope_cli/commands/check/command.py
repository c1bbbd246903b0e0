"""`modelscope check`."""

from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import fit_batch, load, make_run, open_for, read_options, set_up

_RULES, _BUDGETS = "Rules", "Budgets, for one image"


def check(
    model: opt.ModelArg,
    images: opt.ImagesArg = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            metavar="CODES",
            help="Only these rules: MS202, its name, or a beginning such as MS2 (repeatable).",
            rich_help_panel=_RULES,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="CODES", help="Not these rules.", rich_help_panel=_RULES),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="CODE=THRESHOLD",
            help="Another threshold for a rule (repeatable); `modelscope rules` lists them.",
            rich_help_panel=_RULES,
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="SEVERITY",
            help="The least severity that makes the exit code 1: error or warning.",
            show_default="error",
            rich_help_panel=_RULES,
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Findings listed there do not count; a file that is not there is written, and all is well.",
            rich_help_panel=_RULES,
        ),
    ] = None,
    max_params: Annotated[
        str | None,
        typer.Option("--max-params", metavar="N", help="Parameters, 25M.", rich_help_panel=_BUDGETS),
    ] = None,
    max_macs: Annotated[
        str | None,
        typer.Option("--max-macs", metavar="N", help="Multiply-adds, 5G.", rich_help_panel=_BUDGETS),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="BYTES",
            help="Weights, buffers and the output of every layer, 500MB.",
            rich_help_panel=_BUDGETS,
        ),
    ] = None,
    expect_output: Annotated[
        str | None,
        typer.Option(
            "--expect-output", metavar="SHAPE", help="Shape of the output, 1,1000.", rich_help_panel=_BUDGETS
        ),
    ] = None,
    mode: Annotated[
        opt.Mode,
        typer.Option(
            "--mode",
            help="Mode of the forward and backward pass. auto: eval, but train where no batch norm has seen "
            "a batch yet.",
            rich_help_panel="Model",
        ),
    ] = opt.Mode.auto,
    weights: opt.WeightsOpt = "auto",
    checkpoint: opt.CheckpointOpt = None,
    strict: opt.StrictOpt = True,
    num_classes: opt.NumClassesOpt = None,
    model_arg: opt.ModelArgsOpt = None,
    device: opt.DeviceOpt = "auto",
    dtype: opt.DtypeOpt = "float32",
    seed: opt.SeedOpt = 0,
    offline: opt.OfflineOpt = False,
    input_shape: opt.InputShapeOpt = None,
    size: opt.SizeOpt = None,
    mean: opt.MeanOpt = None,
    std: opt.StdOpt = None,
    normalize: opt.NormalizeOpt = True,
    batch: opt.BatchOpt = None,
    columns: opt.ColumnsOpt = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="auto (table on a terminal, tsv in a pipe), table, tsv, csv, json, markdown, github, junit.",
            rich_help_panel="Output",
        ),
    ] = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> int:
    """Judge a model by rules, and exit with 1 where one is broken; `modelscope rules` lists them.

    Weights, activations, gradients, structure, budgets and answers: each rule has a code, a threshold with its
    source, and a hint. Pictures are better than the noise that is taken without them. The table tool.modelscope of
    the nearest pyproject.toml sets select, ignore, thresholds, fail-on, baseline and the budgets; flags win.

    Examples:

      modelscope check samples/tiny_resnet.py:TinyResNet samples/star.png -c samples/sick.safetensors

      modelscope check resnet18 --weights none --max-params 25M --max-macs 5G --expect-output 1,1000

      modelscope check resnet18 --weights none --select MS1,MS4 --format github
    """
    options = locals()
    from modelscope_cli.commands.check.table import COLUMNS
    from modelscope_cli.report.sheet import choose_columns
    from modelscope_cli.rules.baseline import mark_known, read_baseline, render_baseline
    from modelscope_cli.rules.judge import fails, judge, needs_of
    from modelscope_cli.rules.settings import read_settings

    set_up(quiet, debug)
    where = destination(format, json, output, more=("github", "junit"))
    choose_columns(COLUMNS, columns)
    settings = read_settings(
        Path.cwd(),
        select=select,
        ignore=ignore,
        set_=set_,
        budgets={
            "max-params": max_params,
            "max-macs": max_macs,
            "max-memory": max_memory,
            "expect-output": expect_output,
        },
        fail_on=fail_on,
        baseline=baseline,
    )
    if settings.project is not None:
        _console.note(f"settings: {settings.project}")
    rules = settings.rules()
    known = None
    if settings.baseline is not None:
        from modelscope_cli.report.folder import check_file

        if settings.baseline.exists():
            known = read_baseline(settings.baseline)
        else:
            check_file(settings.baseline)
    request, given = read_options(options)

    from modelscope_cli.analysis.health.checkup import gather, is_untrained
    from modelscope_cli.records.check import CheckRecord

    loaded = load(request)
    is_training = mode == opt.Mode.train
    if mode == opt.Mode.auto and is_untrained(loaded):
        _console.note("mode: train (auto; no batch norm has seen a batch yet)")
        is_training = True
    inputs = open_for(fit_batch(given, True), loaded)
    evidence = gather(
        loaded,
        inputs,
        needs_of(rules, settings.thresholds),
        is_training=is_training,
        is_real=inputs.info.source != "noise",
        seed=seed,
        track=lambda batches, what: _console.track(what, batches, inputs.n_batches),
    )
    findings, infos = judge(rules, settings.thresholds, evidence)
    if settings.baseline is not None:
        if known is None:
            from modelscope_cli.report.folder import write_text

            write_text(settings.baseline, render_baseline(findings))
            n = "1 finding is" if len(findings) == 1 else f"{len(findings)} findings are"
            _console.note(f"wrote {settings.baseline}: {n} known from now on")
            known = frozenset((finding.code, finding.layer) for finding in findings)
        findings = mark_known(findings, known)
    record = CheckRecord(
        run=make_run("check", loaded, inputs.info, seed, (*loaded.warnings, *inputs.warnings)),
        findings=findings,
        rules=infos,
        passed=not fails(findings, settings.fail_on),
        fail_on=settings.fail_on,
        mode="train" if is_training else "eval",
        images=inputs.n_images,
        baseline=str(settings.baseline) if settings.baseline else None,
    )
    from modelscope_cli.commands.check.github import render_github
    from modelscope_cli.commands.check.junit import render_junit
    from modelscope_cli.commands.check.table import check_sheet

    emit(
        where,
        check_sheet(record, columns),
        record.to_dict(),
        more={"github": lambda: render_github(record), "junit": lambda: render_junit(record)},
    )
    return 0 if record.passed else 1
