"""`weights`: describe a checkpoint, scan it for code, and convert it to safetensors."""

import glob
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path

from modelscope_cli.checkpoints.entries import Contents, TensorEntry
from modelscope_cli.checkpoints.file_type import no_tensors
from modelscope_cli.checkpoints.identify import identify
from modelscope_cli.checkpoints.reading import is_several, read_contents
from modelscope_cli.checkpoints.safety.scan import files_below, scan_checkpoint, scan_file
from modelscope_cli.errors import (
    CannotRunError,
    ModelscopeError,
    UsageError,
    each_layer,
    nearest_names,
    with_nearest,
)
from modelscope_cli.output_files import check_file, write_with
from modelscope_cli.paths import look_for
from modelscope_cli.records.keywords import spelled_out
from modelscope_cli.records.progress import SILENT, Progress, tell
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.records.weights import (
    CALL,
    DtypeTotal,
    Safety,
    ScanRecord,
    TensorRow,
    WeightsRecord,
    WeightTotals,
    tell_allowed,
    warnings_of,
)


@spelled_out
def weights(
    file: str | PathLike[str],
    *,
    layer: str | Sequence[str] = (),
    key: str | None = None,
    stats: bool = False,
    convert: str | PathLike[str] | None = None,
    force: bool = False,
    allow: Sequence[str] = (),
    progress: Progress | None = None,
) -> WeightsRecord:
    """Describe a checkpoint by its headers and name its architecture; no code in it runs, torch is not imported.

    Args:
        file: A checkpoint (.safetensors, .pt, .pth, .bin, .ckpt), or a *.index.json of shards.
        layer: only these tensors (repeatable): a name, the beginning of one (layer1), a glob ('*.weight') or
            're:...'. Patterns of types and calls need a model.
        key: read this entry of the file instead of its state dict: state_dict_ema, discriminator, model.optim.
        stats: read the values, tensor by tensor: mean, std, range, zeros, NaN.
        convert: write these tensors to a .safetensors file.
        allow: patterns of unknown names that are accepted: `timm.models.*`; dangerous ones never are.

    Raises:
        UsageError: a pattern, key or target that is not valid (exit 2 on the command line).
        CannotRunError: not a checkpoint, damaged, or it holds what cannot be written (exit 4); if it was scanned
            for code, `error.record` has the result.
    """
    progress = progress or SILENT
    if not isinstance(file, str | PathLike):
        message = f"weights are read from a file, not from an object of type {type(file).__name__}"
        raise UsageError(message, "give its path; modelscope.summary(model) lists the layers of a module")
    path, target = Path(file), Path(convert) if convert is not None else None
    if target is not None:
        if target.suffix.lower() != ".safetensors":
            message = f"'--convert {target}' does not end in .safetensors"
            raise UsageError(message, f"--convert {shlex.quote(f'{target}.safetensors')}")
        if target.exists() and path.exists() and target.samefile(path):
            message = f"'--convert {target}' is the file itself"
            raise UsageError(
                message, f"--convert {shlex.quote(str(target.with_name(f'{target.stem}-copy.safetensors')))}"
            )
        check_file(target, force)
    contents, safety = _read(path, key, allow)
    tell_allowed(safety, progress)
    tell(progress, (), warnings_of(safety))
    patterns = (layer,) if isinstance(layer, str) else layer
    names = select_names((tensor.name for tensor in contents.tensors), patterns)
    tensors = tuple(tensor for tensor in contents.tensors if tensor.name in names)
    rows = describe_tensors(tensors)
    totals = total_weights(tensors, rows)
    if stats:
        from modelscope_cli.analysis.weights.statistics import with_stats

        rows = with_stats(rows, tensors, lambda pairs: progress.track(pairs, "reading", len(tensors)))
    if target is not None:
        _convert(contents, tensors, target, progress, is_whole=not layer)
    return _to_record(contents, safety, rows, totals, has_stats=stats)


@spelled_out
def scan(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    fail_on: str = CALL,
    allow: Sequence[str] = (),
    progress: Progress | None = None,
) -> ScanRecord:
    """Look for code in files, or in every file below a folder, whatever its name; nothing is run.

    Args:
        path: a file, a folder, a glob, or several of these.
        fail_on: what makes `record.passed` false: `call` (dangerous names and calls of unknown ones), `dangerous`,
            `unknown` (objects of unknown classes too) or `never`.
        allow: patterns of unknown names that are accepted: `timm.models.*`; dangerous ones never are.

    Raises:
        UsageError: an unknown value (exit 2 on the command line).
        CannotRunError: there is nothing of this name, or no file below it (exit 4).
    """
    paths = [path] if isinstance(path, str | PathLike) else [*path]
    files = [*dict.fromkeys(file for one in paths for file in _files_at(Path(one)))]
    if not files:
        raise CannotRunError(
            f"no file to scan below {' '.join(map(repr, map(str, paths)))}", look_for(Path(paths[0]))
        )
    progress = progress or SILENT
    results = tuple(scan_file(one).allowing(allow) for one in progress.track(files, "scanning", len(files)))
    for safety in results:
        tell_allowed(safety, progress)
    return ScanRecord(versions(), invocation().argv, " ".join(map(str, paths)), results, fail_on)


def _files_at(top: Path) -> Iterator[Path]:
    tops = [top] if top.exists() else [*map(Path, sorted(glob.glob(str(top), recursive=True)))]
    if not tops:
        raise CannotRunError(f"nothing to scan at '{top}'", look_for(top))
    for one in tops:
        yield from files_below(one) if one.is_dir() else [one]


def _read(path: Path, key: str | None, allow: Sequence[str]) -> tuple["Contents", Safety]:
    """Scan for code and read the headers; an error carries the result of the scan."""
    try:
        contents = read_contents(path, key)
        if not contents.tensors:
            raise no_tensors(path, contents.beside)
    except UsageError:
        raise
    except ModelscopeError as error:
        if path.exists() and (not path.is_dir() or is_several(path)):
            totals = WeightTotals(0, 0, 0, 0, {})
            safety = scan_checkpoint(path).allowing(allow)
            error.record = _to_record(Contents(path, "not read", ()), safety, (), totals, error=error.message)
        raise
    return contents, scan_checkpoint(path).allowing(allow)


def _to_record(
    contents: Contents,
    safety: Safety,
    rows: tuple[TensorRow, ...],
    totals: WeightTotals,
    *,
    has_stats: bool = False,
    error: str | None = None,
) -> WeightsRecord:
    return WeightsRecord(
        versions=versions(),
        argv=invocation().argv,
        source=str(contents.path),
        format=contents.format,
        tensors=rows,
        totals=totals,
        metadata=contents.metadata,
        beside=contents.beside,
        foreign=safety.foreign,
        note=contents.note,
        architecture=identify(contents.shapes()),
        has_stats=has_stats,
        warnings=warnings_of(safety),
        elapsed_ms=invocation().elapsed_ms,
        safety=safety,
        error=error,
        saved_class=contents.saved_as[0] or None,
    )


def _convert(
    contents: "Contents",
    tensors: Sequence["TensorEntry"],
    target: Path,
    progress: Progress,
    *,
    is_whole: bool,
) -> None:
    from modelscope_cli.analysis.weights.statistics import check_convertible, write_safetensors

    def track(entries: Iterable["TensorEntry"]) -> Iterable["TensorEntry"]:
        return progress.track(entries, "writing", len(tensors))

    check_convertible(contents, tensors, is_whole=is_whole)
    write_with(target, lambda beside: write_safetensors(beside, tensors, contents.metadata, track))
    progress.note(f"wrote {target}")


def select_names(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """Return the names of tensors that are a pattern, begin with it and a dot, or match it as a glob or `re:`."""
    every = [*names]
    if not patterns:
        return {*every}
    selected: set[str] = set()
    for pattern in patterns:
        matches = {name for name in every if _matches(pattern, name)}
        if not matches:
            prefixes = [*_prefixes(every)]
            message = with_nearest(f"layer pattern '{pattern}' matches no tensor", pattern, prefixes)
            below = (f"*.{pattern}.*", f"*.{pattern}")  # behind a prefix such as `module.`
            inner = next((glob for glob in below if any(_matches(glob, name) for name in every)), None)
            first = inner or next(iter(nearest_names(pattern, prefixes)), "")
            hint = f"leave out --layer {shlex.quote(pattern)}   takes every tensor"
            if "," in pattern and not pattern.startswith("re:"):
                hint = each_layer(pattern, lambda part: any(_matches(part, name) for name in every), prefixes)
            elif first:
                hint = f"--layer {shlex.quote(first)}"
            raise UsageError(message, hint)
        selected |= matches
    return selected


def describe_tensors(tensors: Sequence[TensorEntry]) -> tuple[TensorRow, ...]:
    """Return a row for each tensor, without statistics; a second name of a tensor says so."""
    first: dict[object, str] = {}
    rows = []
    for tensor in tensors:
        numel, place = tensor.numel, tensor.place
        same = first.setdefault(place, tensor.name) if place is not None and numel else tensor.name
        storage = tensor.storage
        rows.append(
            TensorRow(
                name=tensor.name,
                shape=tensor.shape,
                dtype=tensor.dtype,
                numel=numel,
                bytes=tensor.nbytes,
                file=str(storage.file) if storage else "",
                shared_with=same if same != tensor.name else None,
            )
        )
    return tuple(rows)


def total_weights(tensors: Sequence[TensorEntry], rows: Sequence[TensorRow]) -> WeightTotals:
    """Add up the rows; a tensor with several names counts once."""
    unshared = [row for row in rows if row.shared_with is None]
    of_dtype: dict[str, list[TensorRow]] = {}
    for row in unshared:
        of_dtype.setdefault(row.dtype, []).append(row)
    by_dtype = {
        dtype: DtypeTotal(len(some), sum(row.numel for row in some), sum(row.bytes for row in some))
        for dtype, some in of_dtype.items()
    }
    return WeightTotals(
        tensors=len(unshared),
        numel=sum(row.numel for row in unshared),
        bytes=sum(row.bytes for row in unshared),
        storage_bytes=sum(storage.nbytes for storage in {tensor.storage for tensor in tensors} if storage),
        by_dtype=dict(sorted(by_dtype.items(), key=lambda item: -item[1].bytes)),
    )


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        try:
            return re.search(pattern[3:], name) is not None
        except re.error as error:
            hint = f"--layer {shlex.quote(f're:{re.escape(pattern[3:])}')}"
            raise UsageError(
                f"layer pattern '{pattern}' is not a regular expression: {error}", hint
            ) from error
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def _prefixes(names: Iterable[str]) -> set[str]:
    prefixes: set[str] = set()
    for name in names:
        parts = name.split(".")
        prefixes |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return prefixes
