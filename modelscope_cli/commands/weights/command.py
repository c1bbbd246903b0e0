"""`modelscope weights`."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.numbers import whole
from modelscope_cli.shell.output import check_target, destination, emit
from modelscope_cli.shell.run import set_up, tell

if TYPE_CHECKING:
    from modelscope_cli.checkpoints.entries import Contents, TensorEntry
    from modelscope_cli.records.run import Notice

_N_NAMED = 8


def weights(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A checkpoint (.safetensors, .pt, .pth, .bin, .ckpt), a *.index.json of shards, or a folder "
            "of torch.distributed.checkpoint.",
        ),
    ],
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="PATTERN",
            help="Only these tensors (repeatable): a name, the beginning of one (layer1), a glob "
            "('*.weight') or 're:...'. There is no model, so no types and no calls.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="NAME",
            help="Take this out of the file instead of its state dict: state_dict_ema, discriminator, model.optim.",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        whole("--depth", min=1, metavar="N", help="A tree of N levels, with sums, instead of tensors."),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Read the values, tensor by tensor: mean, std, range, zeros, NaN.")
    ] = False,
    convert: Annotated[
        Path | None,
        typer.Option("--convert", metavar="FILE", help="Write these tensors to a .safetensors file."),
    ] = None,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    force: opt.ForceOpt = False,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """List what a checkpoint holds and name its architecture, without loading it.

    Names, shapes and dtypes come from headers; a pickle is read but never run, and what loading it in full would
    run is listed. Only --stats and --convert read values.

    Examples:

      modelscope weights samples/sick.safetensors --stats

      modelscope weights samples/shapes_squeezenet1_1.safetensors --depth 2

      modelscope weights checkpoint.pth --convert checkpoint.safetensors
    """
    from modelscope_cli.analysis.weights.describe import describe_tensors, select_tensors, total_weights
    from modelscope_cli.checkpoints.reading import read_contents
    from modelscope_cli.commands.weights.table import check_columns, weights_sheet
    from modelscope_cli.models.identify import identify
    from modelscope_cli.records.run import versions
    from modelscope_cli.records.weights import WeightsRecord

    set_up(quiet, debug, force)
    where = destination(format, json, output)
    stats = check_columns(columns, depth) or stats
    if convert is not None:
        _check_target(file, convert)
    contents = read_contents(file, key)
    warnings = _warnings(contents)
    tell((), warnings)
    tensors = select_tensors(contents.tensors, layer or ())
    rows = describe_tensors(tensors)
    totals = total_weights(contents, tensors, rows)
    if stats:
        from modelscope_cli.analysis.weights.statistics import with_stats

        rows = with_stats(rows, tensors, lambda pairs: _console.track("reading", pairs, len(tensors)))
    record = WeightsRecord(
        versions=versions(),
        argv=_console.settings.argv,
        source=str(file),
        format=contents.format,
        tensors=rows,
        totals=totals,
        metadata=contents.metadata,
        beside=contents.beside,
        foreign=contents.foreign,
        note=contents.note,
        architecture=identify(contents.shapes()),
        has_stats=stats,
        warnings=warnings,
        elapsed_ms=round((time.monotonic() - _console.settings.started) * 1000, 1),
    )
    if convert is not None:
        _convert(contents, tensors, convert, is_whole=not layer)
    emit(where, weights_sheet(record, columns, depth), record.to_dict())


def _warnings(contents: "Contents") -> tuple["Notice", ...]:
    """Warn of foreign code; a file that holds nothing else is an error.

    Raises:
        CannotRunError: no tensors (exit 4).
    """
    from modelscope_cli.checkpoints.entries import printable
    from modelscope_cli.records.run import Notice

    names = [printable(name) for name in contents.foreign]
    run = ", ".join(names[:_N_NAMED]) + (
        f" and {len(names) - _N_NAMED} more" if len(names) > _N_NAMED else ""
    )
    if not contents.tensors:
        keys = f", but the keys {', '.join(map(repr, list(contents.beside)[:5]))}" if contents.beside else ""
        what = f", but loading it in full would run '{run}'" if names else keys
        message = f"checkpoint '{contents.path}' holds no tensors{what}"
        raise CannotRunError(message, "torch.save(model.state_dict(), 'model.pt') makes one that does")
    return (Notice("foreign_code", f"a full load would run: {run}"),) if names else ()


def _check_target(file: Path, target: Path) -> None:
    if target.suffix.lower() != ".safetensors":
        raise UsageError(f"'--convert {target}' is no .safetensors file", f"--convert {target}.safetensors")
    if target.exists() and file.exists() and target.samefile(file):
        raise UsageError(
            f"'--convert {target}' is the file itself", f"--convert {target.stem}-copy.safetensors"
        )
    check_target(target)


def _convert(contents: "Contents", tensors: Sequence["TensorEntry"], target: Path, *, is_whole: bool) -> None:
    from modelscope_cli.analysis.weights.to_safetensors import check_convertible, write_safetensors
    from modelscope_cli.report.folder import write_with

    def track(entries: Iterable["TensorEntry"]) -> Iterable["TensorEntry"]:
        return _console.track("writing", entries, len(tensors))

    check_convertible(contents, tensors, is_whole=is_whole)
    write_with(target, lambda beside: write_safetensors(beside, tensors, contents.metadata, track))
    _console.note(f"wrote {target}")
