"""Statistics of the values in a checkpoint, and its conversion to safetensors, one tensor in memory at a time.

The format of safetensors: https://huggingface.co/docs/safetensors/index#format
"""

import json
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import RANGE_AND_ZEROS, Moments
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.checkpoints.entries import BITS, Contents, TensorEntry
from modelscope_cli.checkpoints.safetensors_header import safetensors_form
from modelscope_cli.checkpoints.tensors import each_with_file, read_values
from modelscope_cli.errors import CannotRunError
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.weights import TensorRow

Track = Callable[[Iterable[TensorEntry]], Iterable[TensorEntry]]
_SMALL = 1 << 12
_PLAIN = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def with_stats(
    rows: Sequence[TensorRow], entries: Sequence[TensorEntry], track: Track
) -> tuple[TensorRow, ...]:
    """Return the rows with the statistics of their values; with a `problem` where there are none."""
    tracked = each_with_file(track(entries))
    return tuple(_with_stats(row, entry, file) for row, (entry, file) in zip(rows, tracked, strict=True))


def _with_stats(row: TensorRow, entry: TensorEntry, file: IO[bytes] | None) -> TensorRow:
    try:
        moments = _moments(_as_numbers(read_values(entry, file)))
    except TypeError as error:
        return replace(row, problem=str(error))
    if not moments.n:
        problem = "no finite value" if row.numel else "no values"
        return replace(row, nan_count=moments.n_nan, inf_count=moments.n_inf, problem=problem)
    return replace(
        row,
        nan_count=moments.n_nan,
        inf_count=moments.n_inf,
        mean=moments.mean,
        std=moments.std,
        min=moments.low,
        max=moments.high,
        abs_max=max(abs(moments.low), abs(moments.high)),
        zero_fraction=(moments.n_zero or 0) / moments.numel,
    )


def _moments(values: Tensor) -> Moments:
    """Reduce a tensor; a small one in few calls in float64, as overhead dominates."""
    n = values.numel()
    if 0 < n <= _SMALL and not values.is_complex():
        x = values.reshape(-1).to(torch.float64)
        mean = float(x.mean())
        deviation = x - mean
        m2 = float(deviation.dot(deviation))
        if math.isfinite(m2):
            low, high = (float(edge) for edge in torch.aminmax(x))
            return Moments(n, mean, m2, low, high, n_zero=n - int(torch.count_nonzero(x)))
    return reduce_tensor(values, None, RANGE_AND_ZEROS)()


def _as_numbers(values: Tensor) -> Tensor:
    """Cast dtypes that torch cannot compute with to a wider one."""
    if values.dtype in _PLAIN or values.is_complex():
        return values
    try:
        return values.to(torch.float64 if values.dtype.itemsize > 2 else torch.float32)
    except RuntimeError as error:  # torch has no arithmetic for float4 and the like
        raise TypeError(f"no statistics of {dtype_name(values.dtype)}") from error


def check_convertible(contents: Contents, tensors: Sequence[TensorEntry], *, is_whole: bool) -> None:
    """Refuse what safetensors cannot hold, before anything is written.

    Args:
        is_whole: all tensors are converted, so none may be left out.
    """
    path, quoted = contents.path, shlex.quote(str(contents.path))
    for tensor in tensors:
        has_values = tensor.storage is not None
        if tensor.special or not has_values or safetensors_form(tensor) is None:
            what = tensor.special or (tensor.dtype if has_values else "without values")
            raise CannotRunError(
                f"'{path}' cannot be converted: '{plain(tensor.name)}' is {what}",
                f"modelscope weights {quoted}",
            )
    if is_whole and contents.inside:
        message = f"'{path}' cannot be converted whole: '{contents.inside[0]}' holds unnamed tensors"
        raise CannotRunError(message, "--layer '*'")


def write_safetensors(
    path: Path, tensors: Sequence[TensorEntry], metadata: dict[str, str], track: Track
) -> None:
    """Write tensors, contiguous; shared storage is written for each name."""
    # The widest first, so that each begins at a multiple of its own width.
    tensors = sorted(tensors, key=lambda tensor: (-BITS[tensor.dtype], tensor.name))
    header = _header(tensors, metadata)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor, source in each_with_file(track(tensors)):
            values = read_values(tensor, source).contiguous()
            flat = values.as_strided((values.numel(),), (1,))  # the stride of a single element may be any
            file.write(flat.view(torch.uint8).numpy().data)


def _header(tensors: Sequence[TensorEntry], metadata: dict[str, str]) -> bytes:
    document: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for tensor in tensors:
        form = safetensors_form(tensor)
        assert form is not None  # refused by `check_convertible`
        document[tensor.name] = {"dtype": form[0], "shape": form[1], "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(document, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)
