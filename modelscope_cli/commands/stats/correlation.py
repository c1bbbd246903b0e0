"""The picture of how alike the channels of a layer are, one a layer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelscope_cli.records.naming import counted, label_of
from modelscope_cli.records.stats import ActivationStats
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import INK, MISSING, axes_at, new_figure, save_figure
from modelscope_cli.report.clustering import alike_together
from modelscope_cli.report.labels import file_stems
from modelscope_cli.report.layer_names import POINTS

if TYPE_CHECKING:
    from torch import Tensor

_CMAP = "RdBu_r"  # blue -1, white 0, red 1
# Inches: the matrix, what is left free around it, a line of text, the key of the colours.
_SIDE, _LEFT, _TOP, _RIGHT, _FOOT, _LINE, _KEY = 6.4, 0.75, 0.8, 1.1, 0.95, 0.15, 0.14
_ROW = 0.155  # from one channel number to the next


def save_correlations(
    rows: Sequence[ActivationStats], matrices: "Sequence[Tensor | None]", folder: Path
) -> tuple[ActivationStats, ...]:
    """Write the `(C, C)` matrix of every row that has one, and return the rows with the names of the files."""
    named = []
    for row, matrix, stem in zip(rows, matrices, file_stems(rows), strict=True):
        if matrix is None or row.correlation is None:
            named.append(row)
            continue
        file = f"{stem}.png"
        save_figure(draw_correlation(row, matrix), folder / file)
        named.append(replace(row, correlation=replace(row.correlation, file=file)))
    return tuple(named)


def draw_correlation(row: ActivationStats, matrix: "Tensor") -> Any:
    """Draw a `(C, C)` matrix of -1..1 with alike channels side by side; those that never varied are gray."""
    values = matrix.numpy()
    order = order_of(values)
    size = (_LEFT + _SIDE + _RIGHT, _TOP + _SIDE + _FOOT)
    figure = new_figure(*size, _title(row), is_laid_out=False)
    axes = axes_at(figure, _LEFT, _TOP, _SIDE, _SIDE)
    axes.set_facecolor(MISSING)
    image = axes.imshow(
        values[order][:, order], cmap=_CMAP, vmin=-1, vmax=1, interpolation="nearest", aspect="auto"
    )
    stride = -(-len(order) // int(_SIDE / _ROW))
    places = range(0, len(order), stride)
    texts = [str(order[place]) for place in places]
    axes.set_xticks(places, texts, rotation=90, fontsize=POINTS)
    axes.set_yticks(places, texts, fontsize=POINTS)
    which = "channel" if stride == 1 else f"channel; every {stride}th is named"
    axes.set_xlabel(which)
    axes.set_ylabel(which)
    key = figure.colorbar(image, cax=axes_at(figure, _LEFT + _SIDE + 0.15, _TOP, _KEY, _SIDE))
    key.set_label("correlation: red vary together, blue against each other", fontsize=9)
    key.ax.tick_params(labelsize=POINTS)
    _explain(figure, row)
    return figure


def order_of(values: Any) -> list[int]:
    """Return the channels so that those that say the same, with either sign, are neighbours; constant ones last."""
    import numpy as np

    varied = np.flatnonzero(np.isfinite(values.diagonal()))
    constant = np.flatnonzero(~np.isfinite(values.diagonal()))
    likeness = np.nan_to_num(np.abs(values[np.ix_(varied, varied)]))
    return [int(varied[place]) for place in alike_together(likeness)] + constant.tolist()


def _explain(figure: Any, row: ActivationStats) -> None:
    said = "Channels that are alike stand side by side, whichever sign."
    constant = (row.channels or 0) - (row.correlation.channels if row.correlation else 0)
    if constant:
        said += f" Gray: {counted(constant, 'channel')} that never varied."
    figure.text(
        _LEFT / figure.get_figwidth(), 1 - 0.5 / figure.get_figheight(), said, fontsize=8.5, color=INK
    )


def _title(row: ActivationStats) -> str:
    mean_abs = numbers.number(row.correlation.mean_abs) if row.correlation else ""
    return (
        f"{label_of(row)}, {counted(row.channels or 0, 'channel')}: mean |correlation| {mean_abs or 'none'}"
    )
