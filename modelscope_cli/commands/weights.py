"""`modelscope weights`."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError, UsageError
from modelscope_cli.paths import project_file
from modelscope_cli.records.weights import Safety, WeightsRecord
from modelscope_cli.report.ci import CI_FORMATS, Review
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.named_model import refuse_model
from modelscope_cli.shell.output import Destination, emit
from modelscope_cli.shell.output_options import OutputOptions, format_option
from modelscope_cli.shell.parameters import command

FOUND, UNREADABLE = 1, 4


@command
def weights(
    file: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="A checkpoint (.safetensors, .pt, .pth, .bin, .ckpt), or the *.index.json of shards; with --scan, "
            "files, folders and globs.",
        ),
    ],
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="PATTERN",
            help="Only these tensors (repeatable): a name, the beginning of one (layer1), a glob ('*.weight') "
            "or 're:...'. Patterns of types and calls need a model.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Read this entry of the file instead of its state dict: state_dict_ema, discriminator, "
            "model.optim.",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Show a tree of N levels, with sums, instead of the tensors."),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Read the values, tensor by tensor: mean, std, range, zeros, NaN.")
    ] = False,
    convert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write these tensors to a .safetensors file.")
    ] = None,
    scan: Annotated[
        bool, typer.Option("--scan", help="Only scan files and folders for code: one row per file.")
    ] = False,
    fail_on: Annotated[
        Literal["call", "dangerous", "unknown", "never"],
        typer.Option(
            metavar="WHAT",
            help="What makes the exit code 1. call: dangerous code, and calls of unknown functions and classes; "
            "dangerous: only dangerous code; unknown: also objects of unknown classes; never: nothing.",
        ),
    ] = "call",
    format: Annotated[str, format_option(*CI_FORMATS)] = "auto",
    *,
    show: OutputOptions,
) -> int:
    """List a checkpoint and name its architecture, without loading it.

    Names, shapes and dtypes come from headers. A pickle is read but never run: the code that an unrestricted
    torch.load would run is listed, dangerous names first. The exit code is 1 if dangerous code or a call of an
    unknown function is found; objects of unknown classes are only listed. Names allowed by the table
    tool.modelscope of the nearest pyproject.toml, such as allow = ["timm.models.*"], count as known. Only --stats
    and --convert read the values.

    Examples:

      modelscope weights demo/sick.safetensors --stats

      modelscope weights demo/tiny_resnet.safetensors --depth 2

      modelscope weights demo/sick.safetensors --columns name,shape --format csv

      modelscope weights --scan demo/shapes 'demo/*.safetensors' --fail-on unknown
    """
    from modelscope_cli.report.weights.table import check_columns, weights_sheet

    where = show.begin(format, CI_FORMATS)
    for one in file:
        if not (scan and one.exists()):
            refuse_model(str(one))
    allow: tuple[str, ...] = ()
    if project_file(Path.cwd()) is not None:  # else no rule is imported
        from modelscope_cli.rules.settings import read_settings

        allow = read_settings(Path.cwd()).allow
    if scan:
        return _scan(file, fail_on, allow, where)
    if len(file) > 1:
        line = shlex.join(["modelscope", "weights", "--scan", *map(str, file)])
        message = f"one checkpoint is listed at a time, not {len(file)}"
        raise UsageError(message, f"{line}   only looks for code")
    needs_values = check_columns(where.layout, depth)
    try:
        record = ms.weights(
            file[0],
            layer=layer or (),
            key=key,
            stats=stats or needs_values,
            convert=convert,
            allow=allow,
            force=show.force,
            progress=PROGRESS,
        )
    except ModelscopeError as error:
        if error.record is not None:
            _tell_of_refused(error, error.record, fail_on, where)
        raise
    sheet, code = weights_sheet(record, depth), 0
    if record.safety is not None and record.safety.fails(fail_on):
        code = FOUND
        sheet = replace(sheet, facts=(*sheet.facts, ("verdict", f"{record.safety.rank}: exit code {code}")))
    emit(where, sheet, record, lambda: _review(str(file[0]), [record.safety], fail_on))
    return code


def _tell_of_refused(error: ModelscopeError, record: WeightsRecord, fail_on: str, where: Destination) -> None:
    """Report the findings about a file that cannot be read."""
    from modelscope_cli.report.shared_tables import weights_only
    from modelscope_cli.report.weights.table import weights_sheet

    assert record.safety is not None
    for warning in record.warnings:
        if warning.code != "not_read" or not all(text in error.message for text in record.safety.errors):
            PROGRESS.warn(warning.message)
    if record.safety.pickles:
        PROGRESS.note(f"weights only: {weights_only(record.safety.weights_only)}")
    if where.format in ("json", *CI_FORMATS):
        emit(where, weights_sheet(record), record, lambda: _review(record.source, [record.safety], fail_on))
    if record.safety.dangerous:
        error.hint = "do not load it; ask its author for model.state_dict(), saved as safetensors"
    if record.safety.fails(fail_on):
        error.exit_code = FOUND


def _review(source: str, files: Iterable[Safety | None], fail_on: str) -> Review:
    from modelscope_cli.report.shared_tables import review_files

    return review_files(
        source, [file for file in files if file], ms.list_rules("MS001", "MS002").rules, fail_on
    )


def _scan(paths: list[Path], fail_on: str, allow: tuple[str, ...], where: Destination) -> int:
    """Print one row per file; return the exit code of the worst."""
    from modelscope_cli.report.shared_tables import SCAN_COLUMNS, scan_sheet

    where.layout.check(SCAN_COLUMNS)
    record = ms.scan(paths, fail_on=fail_on, allow=allow, progress=PROGRESS)
    emit(where, scan_sheet(record), record, lambda: _review(record.source, record.files, fail_on))
    if any(file.fails(fail_on) for file in record.files):
        return FOUND
    is_any_read = fail_on == "never" and any(not file.errors for file in record.files)
    return 0 if record.passed or is_any_read else UNREADABLE
