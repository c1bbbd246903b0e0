"""`modelscope check`."""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.models.check_request import check_request
from modelscope_cli.models.request import ModelRequest, weights_file
from modelscope_cli.records.check import CheckRecord
from modelscope_cli.records.findings import Finding
from modelscope_cli.report.ci import CI_FORMATS, failure_of, render_junit
from modelscope_cli.report.formats import Format
from modelscope_cli.rules.settings import CheckSettings
from modelscope_cli.shell import console
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.named_model import names_learner, names_model, take_model
from modelscope_cli.shell.options import (
    ImagesArgument,
    InputOptions,
    Labels,
    NamedArgument,
    NamedModelOptions,
    OutputKind,
)
from modelscope_cli.shell.output import emit, save_report
from modelscope_cli.shell.output_options import OutputOptions, format_option
from modelscope_cli.shell.parameters import command

FOUND = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What a model may cost, and what it must reach."""

    panel: ClassVar[str] = "Budgets"

    max_params: Annotated[
        str | None, typer.Option(metavar="N", help="At most this many parameters, such as 25M.")
    ] = None
    max_macs: Annotated[
        str | None, typer.Option(metavar="N", help="At most this many multiply-adds per image, such as 5G.")
    ] = None
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Limit for the peak memory of a forward pass on one image, with the weights, such as 500MB.",
        ),
    ] = None
    max_train_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Limit for the peak memory of one AdamW step at the smallest batch, such as 2GB.",
        ),
    ] = None
    expect_output: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="The expected shape of the output, such as 1,1000.")
    ] = None
    min_accuracy: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="The lowest accuracy allowed on folders named after the classes, such as 0.9.",
        ),
    ] = None


@command
def check(
    first: NamedArgument = None,
    images: ImagesArgument = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODES",
            rich_help_panel="Rules",
            help="Judge only these rules, by code, name or prefix: MS202, dead-channels, MS2.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="CODES", rich_help_panel="Rules", help="Leave out these rules."),
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE=THRESHOLD",
            rich_help_panel="Rules",
            help="Set the threshold of a rule (repeatable); --list shows them.",
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", rich_help_panel="Rules", help="List all rules, or those of --select.")
    ] = False,
    fail_on: Annotated[
        Literal["warning", "error", "never"] | None,
        typer.Option(
            rich_help_panel="Rules",
            help="Exit with 1 at a finding of this severity or worse.",
            show_default="error",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel="Rules",
            help="Ignore the findings listed in this file, unless they got worse.",
        ),
    ] = None,
    update_baseline: Annotated[
        bool,
        typer.Option(
            "--update-baseline",
            rich_help_panel="Rules",
            help="Write the current findings to the --baseline file, and ignore them.",
        ),
    ] = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel="Data set",
            help="A data set that must not share images with the first (repeatable).",
        ),
    ] = None,
    mode: Annotated[
        Literal["auto", "eval", "train"],
        typer.Option(
            rich_help_panel="Model",
            help="The mode of the forward and backward pass. auto: eval, but train if no batch norm has been "
            "updated yet.",
        ),
    ] = "auto",
    labels: Labels = None,
    output_kind: OutputKind = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", rich_help_panel="Output", help="Folder for the report.")
    ] = None,
    format: Annotated[str, format_option(*CI_FORMATS, "junit")] = "auto",
    *,
    limits: Budgets,
    on: NamedModelOptions,
    data: InputOptions,
    show: OutputOptions,
) -> int:
    """Check a model or a data set; exit with 1 if a rule is broken.

    Without images the model runs on noise, and fewer rules are judged. A folder without a model is checked as a
    data set. The table tool.modelscope of the nearest pyproject.toml sets model, checkpoint, images, select,
    ignore, thresholds, fail-on, baseline, allow and the budgets; options on the command line take precedence.

    Examples:

      modelscope check demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors

      modelscope check resnet18 --weights none --max-params 25M --max-macs 5G --expect-output 1,1000

      modelscope check resnet18 --weights none --select MS1,MS4 --format github

      modelscope check demo/shapes --against demo --fail-on warning

      modelscope check --list --select MS2
    """
    from modelscope_cli.report.check.table import COLUMNS, check_sheet, review
    from modelscope_cli.rules.settings import read_settings

    words = [word for word in (first, *(images or ())) if word is not None]
    if list_:
        return _list([*words, *(select or ())], format, show)
    where = show.begin(format, {**CI_FORMATS, "junit": Format(render_junit, ".xml", "review")})
    where.layout.check(COLUMNS)
    settings = read_settings(
        Path.cwd(),
        select=select,
        ignore=ignore,
        fail_on=fail_on,
        baseline=baseline,
        set_=set,
        budgets={name.replace("_", "-"): value for name, value in asdict(limits).items()},
    )
    if settings.project is not None:
        PROGRESS.note(f"settings: {settings.project}")
    keywords: dict[str, Any] = {
        **{"select": settings.select, "ignore": settings.ignore, "set": settings.thresholds},
        **{"fail_on": settings.fail_on, "baseline": settings.baseline, "progress": PROGRESS},
        "update_baseline": update_baseline,
    }
    if out is not None:
        show.folder(out, "")
    has_model = on.model is not None or settings.model is not None or on.default() is not None
    words = words if words or has_model else [*settings.images]
    record, refused, model, files = None, None, None, list[str]()
    try:
        if _is_of_data(words, on.model, against, settings):
            record = ms.check_images(words, against=against or (), **keywords)
        else:
            model, files = _subject(first, images, on, data, settings)
            data = replace(data, size=data.size or settings.size)
            record = ms.check(
                model,
                data.request(files, on.seed),
                **keywords,
                allow=settings.allow,
                mode=mode,
                labels=labels,
                output_kind=output_kind,
            )
    except ModelscopeError as error:
        if not isinstance(error.record, CheckRecord):
            raise
        record, refused = error.record, error
    if model is not None:
        record = _with_commands(record, model, files, settings)
    record = save_report(record, out)
    emit(where, check_sheet(record), record, lambda: review(record, failure_of(refused) if refused else ""))
    if refused is not None:
        raise refused
    return 0 if record.passed else FOUND


def _list(which: list[str], format: str, show: OutputOptions) -> int:
    from modelscope_cli.report.listings import rules_sheet

    where = show.begin(format)
    listed = ms.list_rules(*(word for words in which for word in words.split(",")))
    emit(where, rules_sheet(listed), listed)
    return 0


def _subject(
    first: str | None,
    images: list[str] | None,
    on: NamedModelOptions,
    data: InputOptions,
    settings: CheckSettings,
) -> tuple[ModelRequest, list[str]]:
    """Return the model and the images of the command line, else of the project; the weights are checked later."""

    def is_model(word: str) -> bool:
        if on.model is not None:
            return names_model(word)
        is_alone = settings.model is None and on.default() is None and not any(map(names_model, images or ()))
        return is_alone or names_learner(word)

    named, files = take_model(
        first, images, on.model, default=settings.model or on.default(), is_model=is_model
    )
    if not files and not data.input_shape:
        files = list(settings.images)
    request = on.request(named)
    if named == settings.model and on.weights == "auto" and on.checkpoint is None:
        request = replace(request, checkpoint=settings.checkpoint)
    return (check_request(request) if weights_file(request) is None else request), files


def _with_commands(
    record: CheckRecord, model: ModelRequest, files: list[str], settings: CheckSettings
) -> CheckRecord:
    """Return the findings with what was typed, or is in pyproject.toml, in the commands of their hints."""
    if not record.findings:
        return record
    from modelscope_cli.report.shared_tables import about_file
    from modelscope_cli.shell.hints import with_typed

    argv = [*console.settings.argv]
    if model.model == settings.model and settings.model not in argv:
        argv.insert(1, settings.model)
    if model.checkpoint is not None and model.checkpoint == settings.checkpoint:
        argv += ["--checkpoint", str(model.checkpoint)]
    if files == [*settings.images]:
        argv += files
    weights = str(model.checkpoint or record.run.model.weights.requested)

    def advised(one: Finding) -> Finding:
        hint = with_typed(one.hint, argv, bool(files))
        return replace(one, hint=about_file(hint, weights) if os.path.isfile(weights) else hint)

    return replace(record, findings=tuple(map(advised, record.findings)))


def _is_of_data(
    words: list[str], model: str | None, against: list[str] | None, settings: CheckSettings
) -> bool:
    """Tell whether a data set is checked: by --against, by the selected rules, or by a folder without a model."""
    is_selected = bool(settings.select) and all(code.upper().startswith("MS8") for code in settings.select)
    has_model = model is not None or settings.model is not None
    is_data = bool(words) and not any(map(names_model, words))
    is_data = is_data and (is_data_set(words[0]) or words == [*settings.images])
    return bool(against or is_selected or (is_data and not has_model))


def is_data_set(word: str) -> bool:
    """Tell whether this is a folder of images or a list; with weights or a config it is a model."""
    from modelscope_cli.checkpoints.file_type import CHECKPOINT_SUFFIXES

    if word.startswith("@"):
        return os.path.exists(word[1:])
    if not os.path.isdir(word):
        return False
    names = [Path(name.lower()) for name in os.listdir(word)]
    return not any(name.name == "config.json" or name.suffix in CHECKPOINT_SUFFIXES for name in names)
