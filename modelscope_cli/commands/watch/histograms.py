"""How large the values of every layer are over a training: one strip a layer."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modelscope_cli.commands.watch.heat import figure_title
from modelscope_cli.records.naming import counted
from modelscope_cli.records.watch import TrainingFinding, WatchedLayer, WatchRecord, labelling
from modelscope_cli.report import training_curves as curves
from modelscope_cli.report.canvas import ACCENT, INK, axes_at, new_figure
from modelscope_cli.report.finding_marks import by_layer, codes
from modelscope_cli.report.labels import shortened
from modelscope_cli.report.layer_names import POINTS, groups_of, layer_names

_MOST_STRIPS = 48
_MOST_COLUMNS = 3
_END_ROWS = 4  # of a strip, for what lies below the lowest bin and above the highest
_GAP_ROWS = 14  # above a strip, for its name
# Inches: a strip with its name, a column, and what is left free around them.
_STRIP, _COLUMN, _BETWEEN = 1.3, 4.0, 0.15
_LEFT, _RIGHT, _HEAD, _FOOT, _KEY_HEIGHT = 0.65, 0.95, 0.8, 0.5, 4.0
_POWERS = (1e-4, 1e-2, 1.0, 100.0)


def draw_histograms(record: WatchRecord) -> Any:
    """Draw one strip a layer: steps to the right, |x| upwards by powers of two, as colour the share on a log scale.

    The strips of a column are one image, with blank rows in between: thirty small plots take ten times as long.
    """
    import numpy as np

    label = labelling(record.layers, record.parameters)
    findings = by_layer(record.findings)
    rows = chosen(record.layers, label, findings)
    steps = curves.all_steps(rows)
    n_columns = min(_MOST_COLUMNS, len(rows))
    n_lines = -(-len(rows) // n_columns)
    edges = rows[0].series.histogram.edges if rows[0].series.histogram else ()
    size = len(edges) - 1 + 2 * _END_ROWS + _GAP_ROWS
    width = _LEFT + n_columns * _COLUMN + (n_columns - 1) * _BETWEEN + _RIGHT
    figure = new_figure(
        width,
        _HEAD + n_lines * _STRIP + _FOOT,
        figure_title(record, "how large the values are, over time"),
        is_laid_out=False,
    )
    image: Any = None
    for column in range(n_columns):
        shown = rows[column::n_columns]
        left = _LEFT + column * (_COLUMN + _BETWEEN)
        axes = axes_at(figure, left, _HEAD, _COLUMN, len(shown) * _STRIP)
        picture = np.full((len(shown) * size, len(steps)), math.nan)
        bottoms = [(len(shown) - 1 - line) * size for line in range(len(shown))]
        for bottom, row in zip(bottoms, shown, strict=True):
            shade = _shades(row, steps)
            picture[bottom : bottom + len(shade)] = shade
            _name(axes, label(row), findings.get(label(row), ()), bottom, len(shade))
        image = curves.draw_heat(axes, picture, steps, origin="lower", cmap="magma", vmin=-5, vmax=0)
        axes.set_facecolor("none")
        axes.tick_params(labelsize=POINTS, length=2)
        axes.spines[:].set_visible(False)
        _mark_powers(axes, edges, bottoms, is_named=column == 0)
    key_axes = axes_at(figure, width - 0.75, _HEAD, 0.14, min(_KEY_HEIGHT, n_lines * _STRIP))
    key = figure.colorbar(image, cax=key_axes)
    key.set_ticks(
        [-5, -4, -3, -2, -1, 0], labels=["none", "0.01 %", "0.1 %", "1 %", "10 %", "all"], fontsize=POINTS
    )
    _explain(figure, record, len(rows), edges)
    return figure


def chosen(
    rows: Sequence[WatchedLayer],
    label: Callable[[WatchedLayer], str],
    findings: Mapping[str, Sequence[TrainingFinding]],
) -> list[WatchedLayer]:
    """Return the layers that are drawn, in their order: all where there is room for them.

    Otherwise those with findings, the first, the last, the last of each block, and any, as many as there is room
    for, and of each kind evenly.
    """
    n = len(rows)
    if n <= _MOST_STRIPS:
        return list(rows)
    names = layer_names(map(label, rows))
    kinds = (
        [i for i, name in enumerate(names) if findings.get(name.text)],
        [0, n - 1],
        [group.stop - 1 for group in groups_of(names)],
        range(n),
    )
    taken: dict[int, None] = {}
    for kind in kinds:
        left = [i for i in kind if i not in taken]
        room = min(_MOST_STRIPS - len(taken), len(left))
        taken.update(dict.fromkeys(left[(2 * i + 1) * len(left) // (2 * room)] for i in range(room)))
    return [rows[i] for i in sorted(taken)]


def _shades(row: WatchedLayer, steps: list[int]) -> Any:
    """Return log10 of the share of each bin, `(bins, steps)`; the first and the last are several rows high."""
    import numpy as np

    assert row.series.histogram is not None
    counts = np.asarray(row.series.histogram.counts, dtype=float).T
    whole = counts.sum(0)
    shares = counts / np.where(whole, whole, math.nan)  # of nothing finite: blank
    ends = [np.repeat(end, _END_ROWS - 1, axis=0) for end in (shares[:1], shares[-1:])]
    shares = np.concatenate([ends[0], shares, ends[1]])
    shade = np.full((len(shares), len(steps)), math.nan)
    place = {step: i for i, step in enumerate(steps)}
    shade[:, [place[step] for step in row.series.step]] = np.log10(np.maximum(shares, 1e-5))
    return shade


def _counts(row: WatchedLayer) -> Sequence[Sequence[int]]:
    return row.series.histogram.counts if row.series.histogram else ()


def _name(axes: Any, label: str, findings: Sequence[Any], bottom: int, size: int) -> None:
    """Write the name above a strip; of what is wrong the code at the right, and a line since when."""
    axes.annotate(
        shortened(label), (0.005, bottom + size), xycoords=("axes fraction", "data"), fontsize=POINTS, va="bottom",
        color=INK,
    )  # fmt: skip
    if not findings:
        return
    axes.annotate(
        codes(findings), (0.995, bottom + size), xycoords=("axes fraction", "data"), fontsize=POINTS,
        va="bottom", ha="right", color=ACCENT,
    )  # fmt: skip
    since = [finding.since_step for finding in findings if finding.since_step is not None]
    if since:
        axes.plot([min(since)] * 2, [bottom - 0.5, bottom + size - 0.5], ":", color="white", lw=1.2)


def _mark_powers(axes: Any, edges: Sequence[float], bottoms: list[int], *, is_named: bool) -> None:
    """The first rows are what lies below the first edge, mostly zeros; the last what lies above the last."""
    if not is_named or not edges:
        axes.set_yticks([])
        return
    places = [
        _END_ROWS + min(range(len(edges)), key=lambda i: abs(math.log(edges[i] / w))) - 0.5 for w in _POWERS
    ]
    ticks = [(_END_ROWS - 1) / 2, *places, len(edges) - 1 + _END_ROWS + (_END_ROWS - 1) / 2]
    names = ["0", "1e-4", "0.01", "1", "100", "more"]
    axes.set_yticks([bottom + tick for bottom in bottoms for tick in ticks], names * len(bottoms))


def _explain(figure: Any, record: WatchRecord, n_shown: int, edges: Sequence[float]) -> None:
    if not edges:
        return
    said = [f"|x| upwards; 0: below {edges[0]:.0e}, more: above {edges[-1]:g}, nothing is cut off"]
    if any(finding.layer for finding in record.findings):
        said.append("dotted: the step from which something is wrong, with its code on the right")
    if any(not sum(counts) for row in record.layers for counts in _counts(row)):
        said.append("white: no finite value")
    n = len(record.layers)
    if n_shown < n:
        what = "those with findings, the first, the last, the last of each block, and others evenly chosen"
        said.append(f"\n{n_shown} of {counted(n, 'layer')}: {what}; report.html has all")
    width, height = figure.get_size_inches()
    figure.text(
        _LEFT / width,
        1 - 0.36 / height,
        "; ".join(said).replace("; \n", "\n"),
        fontsize=8,
        color=INK,
        va="top",
    )
