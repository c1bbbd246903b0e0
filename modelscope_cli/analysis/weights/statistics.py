"""Statistics of the values in a checkpoint, one tensor in memory at a time."""

from dataclasses import replace

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.checkpoints.entries import TensorEntry
from modelscope_cli.models.tensor_values import read_values
from modelscope_cli.records.weights import TensorRow

_WANTED = Wanted(mad=False, near_zero=False, channels=False, histogram=False)
_PLAIN = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def with_stats(row: TensorRow, entry: TensorEntry) -> TensorRow:
    """Return the row with the statistics of its values; with a `problem` where there are none.

    Raises:
        CannotRunError: the file is not what its headers said (exit 4).
    """
    try:
        values = read_values(entry)
        moments = reduce_tensor(_as_numbers(values), None, _WANTED)()
    except TypeError as error:
        return replace(row, problem=str(error))
    row = replace(row, nan_count=moments.n_nan, inf_count=moments.n_inf)
    if not moments.n:
        return replace(row, problem="no finite value" if row.numel else "no values")
    return replace(
        row,
        mean=moments.mean,
        std=moments.std,
        min=moments.low,
        max=moments.high,
        abs_max=max(abs(moments.low), abs(moments.high)),
        zero_fraction=(moments.n_zero or 0) / moments.numel,
    )


def _as_numbers(values: Tensor) -> Tensor:
    """Torch computes with few dtypes; the others fit a wider one."""
    if values.dtype in _PLAIN or values.is_complex():
        return values
    return values.to(torch.float64 if values.dtype.itemsize > 2 else torch.float32)
