"""Describe a checkpoint: its tensors, their sums, and the architecture they belong to. Imports no torch."""

import re
import shlex
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from modelscope_cli.checkpoints.entries import Contents, TensorEntry
from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.records.weights import DtypeTotal, TensorRow, WeightTotals


def select_tensors(tensors: Sequence[TensorEntry], patterns: Sequence[str]) -> tuple[TensorEntry, ...]:
    """Return the tensors whose name is a pattern, begins with it and a dot, or matches it as a glob or `re:`.

    Raises:
        UsageError: a pattern that matches nothing, or no regular expression (exit 2).
    """
    if not patterns:
        return tuple(tensors)
    wanted: set[str] = set()
    for pattern in patterns:
        found = {tensor.name for tensor in tensors if _matches(pattern, tensor.name)}
        if not found:
            near = nearest(pattern, _prefixes(tensor.name for tensor in tensors))
            message = f"layer pattern '{pattern}' matches no tensor" + (f": {near}" if near else "")
            first = near.removeprefix("did you mean ").split(", ")[0] or (tensors[0].name if tensors else "*")
            raise UsageError(message, f"--layer {shlex.quote(first)}")
        wanted |= found
    return tuple(tensor for tensor in tensors if tensor.name in wanted)


def describe_tensors(tensors: Sequence[TensorEntry]) -> tuple[TensorRow, ...]:
    """Return a row for each tensor, without statistics; a second name of a tensor says so."""
    first: dict[object, str] = {}
    rows = []
    for tensor in tensors:
        numel, place = tensor.numel, tensor.place
        same = first.setdefault(place, tensor.name) if place is not None and numel else tensor.name
        storage = tensor.storage or (tensor.chunks[0].storage if tensor.chunks else None)
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


def total_weights(
    contents: Contents, tensors: Sequence[TensorEntry], rows: Sequence[TensorRow]
) -> WeightTotals:
    """Add up the rows; a tensor with several names counts once."""
    own = [row for row in rows if row.shared_with is None]
    of_dtype: dict[str, list[TensorRow]] = {}
    for row in own:
        of_dtype.setdefault(row.dtype, []).append(row)
    by_dtype = {
        dtype: DtypeTotal(len(some), sum(row.numel for row in some), sum(row.bytes for row in some))
        for dtype, some in of_dtype.items()
    }
    return WeightTotals(
        tensors=len(own),
        numel=sum(row.numel for row in own),
        bytes=sum(row.bytes for row in own),
        storage_bytes=sum(storage.nbytes for storage in {tensor.storage for tensor in tensors} if storage)
        + sum(tensor.nbytes for tensor in tensors if tensor.chunks),
        file_bytes=sum(file.stat().st_size for file in contents.files),
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
    found: set[str] = set()
    for name in names:
        parts = name.split(".")
        found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return found
