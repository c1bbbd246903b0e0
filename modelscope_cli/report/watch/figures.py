"""The figures of `watch` and its output folder."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from modelscope_cli.output_files import write_text
from modelscope_cli.records.naming import counted
from modelscope_cli.records.watch import TrainingFinding, WatchedLayer, WatchRecord, labelling
from modelscope_cli.report import training_panels
from modelscope_cli.report.canvas import ACCENT, INK, axes_at, new_figure, save_figure
from modelscope_cli.report.formats import render_csv
from modelscope_cli.report.layer_axis import POINTS
from modelscope_cli.report.numbers import shortened
from modelscope_cli.report.training_figures import WIDE, codes, draw_heat, draw_maps, draw_training
from modelscope_cli.report.watch.table import watch_sheet


def figure_title(record: WatchRecord, what: str) -> str:
    return f"{record.run.model.name}: {what}"


def draw_activations(record: WatchRecord) -> Any:
    """Draw mean and standard deviation of every layer, and the losses."""
    return draw_training(record, figure_title(record, "means and standard deviations of the layers' outputs"))


def draw_dead(record: WatchRecord) -> Any:
    """Draw the fraction of zeros of rectifiers, else of every layer."""
    rectifiers = training_panels.rectifiers(record.layers)
    subject = "zeros in the outputs of the ReLUs" if rectifiers else "zeros in each layer's output"
    zeros = training_panels.heat_map(rectifiers or record.layers, "zero_fraction", most=90.0)
    return draw_maps(record, figure_title(record, subject), [zeros], "not recorded", 10.0)


def draw_updates(record: WatchRecord) -> Any:
    """Draw gradients and relative updates of the weights, without biases, whose magnitudes differ."""
    weights = training_panels.matrices(record.parameters)
    maps = [training_panels.heat_map(weights, key) for key in ("grad_norm", "update_ratio")]
    title = figure_title(record, "gradients and updates of the weights")
    return draw_maps(record, title, maps, "zero, or none", WIDE)


_MOST_STRIPS = 48
_MOST_COLUMNS = 3
_END_ROWS = 4  # of a strip, for what is below the lowest bin and above the highest
_GAP_ROWS = 14  # above a strip, for its name
# Inches: a strip with its name, a column, and what is left free around them.
_STRIP, _COLUMN, _BETWEEN = 1.3, 4.0, 0.15
_LEFT, _RIGHT, _HEAD, _FOOT, _KEY_HEIGHT = 0.65, 0.95, 0.8, 0.5, 4.0
_POWERS = (1e-4, 1e-2, 1.0, 100.0)


def draw_histograms(record: WatchRecord) -> Any:
    """Draw one strip per layer: x the step, y |x| in powers of two, colour the fraction on a log scale.

    The strips of a column are one image with blank rows in between: thirty small plots take ten times as long.
    """
    import numpy as np

    label = labelling(record.layers, record.parameters)
    findings = training_panels.by_layer(record.findings)
    rows = chosen(record.layers, label, findings)
    steps = training_panels.all_steps(rows)
    n_columns = min(_MOST_COLUMNS, len(rows))
    n_lines = -(-len(rows) // n_columns)
    edges = rows[0].series.histogram.edges if rows[0].series.histogram else ()
    size = len(edges) - 1 + 2 * _END_ROWS + _GAP_ROWS
    width = _LEFT + n_columns * _COLUMN + (n_columns - 1) * _BETWEEN + _RIGHT
    height = _HEAD + n_lines * _STRIP + _FOOT
    title = figure_title(record, "distribution of |x| over the steps")
    figure = new_figure(width, height, title, is_laid_out=False)
    image: Any = None
    for column in range(n_columns):
        column_rows = rows[column::n_columns]
        left = _LEFT + column * (_COLUMN + _BETWEEN)
        axes = axes_at(figure, left, _HEAD, _COLUMN, len(column_rows) * _STRIP)
        pixels = np.full((len(column_rows) * size, len(steps)), math.nan)
        bottoms = [(len(column_rows) - 1 - line) * size for line in range(len(column_rows))]
        for bottom, row in zip(bottoms, column_rows, strict=True):
            shade = _shades(row, steps)
            pixels[bottom : bottom + len(shade)] = shade
            _name(axes, label(row), findings.get(label(row), ()), bottom, len(shade))
        image = draw_heat(axes, pixels, steps, origin="lower", cmap="magma", vmin=-5, vmax=0)
        axes.set_facecolor("none")
        axes.tick_params(labelsize=POINTS, length=2)
        axes.spines[:].set_visible(False)
        axes.set_yticks([])
        if column == 0 and edges:
            _mark_powers(axes, edges, bottoms)
    key_axes = axes_at(figure, width - 0.75, _HEAD, 0.14, min(_KEY_HEIGHT, n_lines * _STRIP))
    key = figure.colorbar(image, cax=key_axes)
    key.set_ticks(
        [-5, -4, -3, -2, -1, 0], labels=["none", "0.01 %", "0.1 %", "1 %", "10 %", "all"], fontsize=POINTS
    )
    if edges:
        _explain(figure, record, len(rows), edges)
    return figure


def chosen(
    rows: Sequence[WatchedLayer],
    label: Callable[[WatchedLayer], str],
    findings: Mapping[str, Sequence[TrainingFinding]],
) -> list[WatchedLayer]:
    """Return the layers to draw, in order: all if there is room, else those with findings and an even selection."""
    if len(rows) <= _MOST_STRIPS:
        return list(rows)
    found = [at for at, row in enumerate(rows) if findings.get(label(row))][:_MOST_STRIPS]
    room = _MOST_STRIPS - len(found)
    even = (at * (len(rows) - 1) // max(room - 1, 1) for at in range(room))
    return [rows[at] for at in sorted({*found, *even})]


def _shades(row: WatchedLayer, steps: list[int]) -> Any:
    """Return log10 of the share of each bin, `(bins, steps)`; the first and the last are several rows high."""
    import numpy as np

    assert row.series.histogram is not None
    counts = np.asarray(row.series.histogram.counts, dtype=float).T
    whole = counts.sum(0)
    shares = counts / np.where(whole, whole, math.nan)  # blank without finite values
    ends = [np.repeat(end, _END_ROWS - 1, axis=0) for end in (shares[:1], shares[-1:])]
    shares = np.concatenate([ends[0], shares, ends[1]])
    shade = np.full((len(shares), len(steps)), math.nan)
    place = {step: i for i, step in enumerate(steps)}
    shade[:, [place[step] for step in row.series.step]] = np.log10(np.maximum(shares, 1e-5))
    return shade


def _name(axes: Any, label: str, findings: Sequence[TrainingFinding], bottom: int, size: int) -> None:
    """Write the name above a strip; for findings their codes at the right, and a line at the step."""
    look: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "fontsize": POINTS, "va": "bottom"}
    axes.annotate(shortened(label), (0.005, bottom + size), color=INK, **look)
    axes.annotate(codes(findings), (0.995, bottom + size), color=ACCENT, ha="right", **look)
    for since in [*training_panels.by_step(findings)][:1]:
        axes.plot([since] * 2, [bottom - 0.5, bottom + size - 0.5], ":", color="white", lw=1.2)


def _mark_powers(axes: Any, edges: Sequence[float], bottoms: list[int]) -> None:
    """Label powers of ten. The first rows are below the first edge (mostly zeros), the last above the last."""
    places = [
        _END_ROWS + min(range(len(edges)), key=lambda i: abs(math.log(edges[i] / w))) - 0.5 for w in _POWERS
    ]
    ticks = [(_END_ROWS - 1) / 2, *places, len(edges) - 1 + _END_ROWS + (_END_ROWS - 1) / 2]
    names = ["0", "1e-4", "0.01", "1", "100", "more"]
    axes.set_yticks([bottom + tick for bottom in bottoms for tick in ticks], names * len(bottoms))


def _explain(figure: Any, record: WatchRecord, n_shown: int, edges: Sequence[float]) -> None:
    sentences = [f"y: |x|, log scale (bottom < {edges[0]:.0e}, top > {edges[-1]:g})"]
    if any(finding.layer for finding in record.findings):
        sentences.append("dotted: first step of a finding, code on the right")
    histograms = [row.series.histogram for row in record.layers if row.series.histogram]
    if any(not sum(counts) for one in histograms for counts in one.counts):
        sentences.append("white: no finite value")
    words, n = "; ".join(sentences), len(record.layers)
    if n_shown < n:
        words += (
            f"\n{n_shown} of {counted(n, 'layer')}: those with findings, others evenly; report.html has all"
        )
    width, height = figure.get_size_inches()
    figure.text(_LEFT / width, 1 - 0.36 / height, words, fontsize=8, color=INK, va="top")


FIGURES = {
    "activations": draw_activations,
    "histograms": draw_histograms,
    "dead_units": draw_dead,
    "gradients": draw_updates,
}


def write_run(
    record: WatchRecord,
    folder: Path,
    attempt: Callable[[str], AbstractContextManager[None]],
    *,
    has_figures: bool,
) -> None:
    """Write the table of a run, and its figures, into a folder.

    Args:
        has_figures: draw the figures as well, which may take longer than the training.
        attempt: context manager around each of them, called with the message for its failure.
    """
    with attempt("layers.csv was not written"):
        write_text(folder / "layers.csv", render_csv(watch_sheet(record)))
    if has_figures and record.recorded:
        for name, draw in FIGURES.items():
            if training_panels.matrices(record.parameters) if name == "gradients" else record.layers:
                with attempt(f"{name}.png was not drawn"):
                    save_figure(draw(record), folder / f"{name}.png")
