"""The figures of `watch` and its output folder."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from modelscope_cli.commands.watch.table import watch_sheet
from modelscope_cli.output_files import write_text
from modelscope_cli.records.naming import counted
from modelscope_cli.records.watch import TrainingFinding, WatchedLayer, WatchRecord, labelling
from modelscope_cli.report import training_panels
from modelscope_cli.report.canvas import ACCENT, INK, SHARES, axes_at, new_figure, save_figure
from modelscope_cli.report.formats import render_csv
from modelscope_cli.report.labels import shortened
from modelscope_cli.report.layer_axis import (
    MOST_ACROSS,
    POINTS,
    Name,
    groups_of,
    layer_names,
    parameter_names,
    room_for,
)
from modelscope_cli.report.page.results import save_result
from modelscope_cli.report.training_panels import (
    by_layer,
    codes,
    depth_colour,
    draw_depth_key,
    explain_marks,
    mark_rows,
    mark_steps,
    n_levels,
    name_powers,
    room_for_codes,
    room_for_key,
)

_HEAD, _LEGEND, _FOOT, _EDGE = 0.4, 0.25, 0.55, 0.1  # inches


def figure_title(record: WatchRecord, what: str) -> str:
    """Return the title of a figure of a watched training."""
    return f"{record.run.model.name}: {what}"


class HeatPage:
    """A figure of `n_maps` heat maps side by side that share their rows.

    Args:
        names: of the rows; None for layers.
        above: inches to leave free above the maps, as for a loss.
    """

    def __init__(
        self,
        record: WatchRecord,
        what: str,
        rows: Sequence[Any],
        names: Sequence[Name] | None = None,
        *,
        n_maps: int,
        width: float,
        above: float = 0.0,
    ) -> None:
        self._labels = labels = list(map(labelling(record.layers, record.parameters), rows))
        self._names = names = names or layer_names(labels)
        self.steps = training_panels.all_steps(rows)
        self._findings = by_layer(record.findings)
        self._codes = room_for_codes(labels, self._findings)
        self.top = _HEAD + _LEGEND + above + training_panels.ABOVE
        height = self.top + training_panels.height_of(len(names)) + _FOOT
        self.figure = new_figure(width, height, figure_title(record, what), is_laid_out=False)
        self._left = room_for(self.figure, names) + _EDGE
        self._each = (width - self._left - _EDGE) / n_maps
        self.width = self._each - training_panels.KEY_ROOM - self._codes - _EDGE
        self.maps: list[Any] = []

    def left(self, number: int) -> float:
        """Return the left edge of a map in inches."""
        return self._left + self._each * number

    def draw(self, grid: Any, title: str, **look: Any) -> tuple[Any, Any]:
        """Draw the next map; return its axes and its mappable."""
        place = (self.left(len(self.maps)), self.top, self.width)
        names = () if self.maps else self._names
        axes, image = training_panels.draw_map(self.figure, place, grid, self.steps, names, title, **look)
        mark_rows(axes, self._labels, self._findings, self.steps[0])
        self.maps.append(axes)
        return axes, image

    def key(self, image: Any, label: str = "", **how: Any) -> Any:
        """Draw the colour bar of the last map."""
        left = self.left(len(self.maps) - 1) + self.width + self._codes
        return training_panels.draw_key(self.figure, left, self.top, len(self._names), image, label, **how)

    def finish(self, missing: str = "not recorded") -> Any:
        """Draw the legend below the title; return the figure."""
        marks = self.maps[0].get_legend_handles_labels()[0]
        is_marked = any(label in self._findings for label in self._labels)
        explain_marks(self.figure, (self._left, _HEAD), missing, marks, is_marked=is_marked)
        return self.figure


_WHAT = "means and standard deviations of the layers' outputs"
# Inches: the margins, the panels, the gaps between them, the colour bar.
_LEFT, _TOP, _LEVEL, _BOTTOM, _WIDTH, _GAP = 0.85, 0.5, 0.15, 0.75, 7.6, 0.12
_PANELS, _LOSS = (2.9, 2.9), 1.7
_UNDER_LOSS = 0.4


def draw_activations(record: WatchRecord) -> Any:
    """Draw mean and standard deviation of every layer and the loss over evenly spaced steps."""
    return (_draw_heats if len(record.layers) > MOST_ACROSS else _draw_lines)(record)


def _draw_lines(record: WatchRecord) -> Any:
    rows = record.layers
    labels = list(map(labelling(record.layers, record.parameters), rows))
    head = _TOP + _LEVEL * n_levels(record.findings)
    height = head + sum(_PANELS) + _LOSS + 2 * _GAP + _BOTTOM
    title = figure_title(record, _WHAT)
    figure = new_figure(_LEFT + _WIDTH + 0.8 + room_for_key(labels), height, title, is_laid_out=False)
    panels, top = [], head
    for high in (*_PANELS, _LOSS):
        panels.append(axes_at(figure, _LEFT, top, _WIDTH, high))
        top += high + _GAP
    for number, row in enumerate(rows):
        look: dict[str, Any] = {"color": depth_colour(number, len(rows)), "lw": 1.1}
        training_panels.plot_series(panels[0], row.series.step, row.series.mean, **look)
        positive = [v if v > 0 else math.nan for v in training_panels.floats(row.series.std)]
        training_panels.plot_series(panels[1], row.series.step, positive, **look)
    _scale_means(panels[0], rows)
    panels[1].set_yscale("log", subs=(2, 5))
    panels[0].set_ylabel("mean")
    panels[1].set_ylabel("standard deviation")
    for axes in panels:
        axes.grid(lw=0.4, alpha=0.5)
        axes.set_xlim(*_limits(record))
        training_panels.whole_steps(axes)
        if axes.get_yscale() != "linear":
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(_few(axes, "{x:g}"))
            axes.tick_params(which="minor", labelsize=7)
    for axes in panels[:2]:
        axes.tick_params(labelbottom=False)
    line = mark_steps(panels, record.findings, _WIDTH)
    _draw_loss(panels[2], record, [line] if line else [])
    draw_depth_key(figure, (_LEFT + _WIDTH + 0.75, head, sum(_PANELS) + _GAP), labels)
    return figure


def _limits(record: WatchRecord) -> tuple[float, float]:
    """Return the first and the last recorded step."""
    steps = {*training_panels.all_steps(record.layers), *(step for one in record.loss for step in one.step)}
    validated = (step for one in record.facts.criteria if not one.is_training for step in one.series.step)
    return training_panels.step_limits(sorted(steps | set(validated)))


def _draw_heats(record: WatchRecord) -> Any:
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    rows = record.layers
    above = _LEVEL * n_levels(record.findings) + _LEVEL + _LOSS + _UNDER_LOSS
    page = HeatPage(record, _WHAT, rows, n_maps=2, width=15.0, above=above)
    low, usual, high = _sizes(rows)
    grid = training_panels.grid_of(rows, page.steps, lambda series: series.mean)
    far = max(_largest(grid), 2 * usual)
    norm: Any = SymLogNorm(usual, vmin=-far, vmax=far) if far > 10 * usual else Normalize(-far, far)
    mean, image = page.draw(grid, "mean", cmap="RdBu_r", norm=norm)
    page.key(image)
    grid = training_panels.grid_of(rows, page.steps, lambda series: series.std)
    grid[grid <= 0] = math.nan
    std, image = page.draw(grid, "standard deviation", cmap="viridis", norm=LogNorm(low, max(high, 2 * low)))
    page.key(image)
    top = page.top - training_panels.ABOVE - _UNDER_LOSS - _LOSS
    loss = axes_at(page.figure, page.left(0), top, page.width, _LOSS)
    for axes in (loss, mean, std):
        axes.set_xlim(*_limits(record))
    training_panels.whole_steps(loss)
    line = mark_steps([loss, mean, std], record.findings, page.width)
    _draw_loss(loss, record, [line] if line else [], is_beside=True)
    return page.finish("not recorded, not finite, or no deviation")


def _sizes(rows: Sequence[WatchedLayer]) -> tuple[float, float, float]:
    """Return the smallest, a typical and the largest standard deviation."""
    sizes = sorted(v for row in rows for v in row.series.std if v and math.isfinite(v))
    if not sizes:
        return 0.1, 1.0, 1.0
    return sizes[0], 10.0 ** math.ceil(math.log10(sizes[len(sizes) // 2])), sizes[-1]


def _largest(grid: Any) -> float:
    import numpy as np

    finite = np.abs(grid[np.isfinite(grid)])
    return float(finite.max()) if finite.size else 1.0


def _draw_loss(axes: Any, record: WatchRecord, more: list[Any], *, is_beside: bool = False) -> None:
    """Draw the losses of training and validation and the learning rate over the same steps.

    Args:
        more: further lines for the legend, which is below, or at the side with `is_beside`.
    """
    lines: list[Any] = []
    losses = [value for one in record.loss for value in one.value]
    validated: list[float | None] = []
    for number, series in enumerate(record.loss):
        label = "loss" + (f" of {series.optimizer}" if len(record.loss) > 1 else "")
        look: dict[str, Any] = {"color": INK, "lw": 1.1, "ls": ("-", "-.", ":")[number % 3], "label": label}
        lines += training_panels.plot_series(axes, series.step, series.value, **look)
    for one in record.facts.criteria:
        if not one.is_training and one.series.step:
            look = {"ms": 3, "lw": 1.0, "color": ACCENT, "label": "validation"}
            lines += axes.plot(one.series.step, training_panels.floats(one.series.value), "o-", **look)
            validated += one.series.value
    training_panels.cut_off(axes, losses, validated)
    axes.set_ylabel("loss")
    axes.set_xlabel("step")
    lines += [*training_panels.draw_rates(axes, record.lr), *more]
    corner, n_columns = ((1.14, 1.0), 1) if is_beside else ((0.0, -0.24), len(lines))
    look = {"ncols": n_columns, "frameon": False, "fontsize": 8, "borderaxespad": 0.0}
    axes.legend(handles=lines, loc="upper left", bbox_to_anchor=corner, **look)


def _scale_means(axes: Any, rows: Sequence[WatchedLayer]) -> None:
    """Use a symmetric log scale if some means are far beyond the typical deviation."""
    means = [abs(v) for row in rows for v in row.series.mean if v is not None and math.isfinite(v)]
    _, usual, _ = _sizes(rows)
    if means and max(means) > 10 * usual:
        axes.set_yscale("symlog", linthresh=usual, linscale=1.2)
        axes.axhspan(-usual, usual, color="#f0f0f0", zorder=0)
        where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "top"}
        axes.annotate("linear in the gray band", (0.995, usual), fontsize=7, **where)


def _few(axes: Any, format: str) -> str:
    """Return the format of minor ticks: empty if there are enough powers of ten."""
    low, high = axes.get_ylim()
    return format if low > 0 and high < 1000 * low else ""


_MOST_STRIPS = 48
_MOST_COLUMNS = 3
_END_ROWS = 4  # of a strip, for what is below the lowest bin and above the highest
_GAP_ROWS = 14  # above a strip, for its name
# Inches: a strip with its name, a column, and what is left free around them.
_STRIP, _COLUMN, _BETWEEN = 1.3, 4.0, 0.15
_HISTOGRAM_LEFT, _RIGHT, _HISTOGRAM_HEAD, _HISTOGRAM_FOOT, _KEY_HEIGHT = 0.65, 0.95, 0.8, 0.5, 4.0
_POWERS = (1e-4, 1e-2, 1.0, 100.0)


def draw_histograms(record: WatchRecord) -> Any:
    """Draw one strip per layer: x the step, y |x| in powers of two, colour the fraction on a log scale.

    The strips of a column are one image with blank rows in between: thirty small plots take ten times as long.
    """
    import numpy as np

    label = labelling(record.layers, record.parameters)
    findings = by_layer(record.findings)
    rows = chosen(record.layers, label, findings)
    steps = training_panels.all_steps(rows)
    n_columns = min(_MOST_COLUMNS, len(rows))
    n_lines = -(-len(rows) // n_columns)
    edges = rows[0].series.histogram.edges if rows[0].series.histogram else ()
    size = len(edges) - 1 + 2 * _END_ROWS + _GAP_ROWS
    width = _HISTOGRAM_LEFT + n_columns * _COLUMN + (n_columns - 1) * _BETWEEN + _RIGHT
    figure = new_figure(
        width,
        _HISTOGRAM_HEAD + n_lines * _STRIP + _HISTOGRAM_FOOT,
        figure_title(record, "distribution of |x| over the steps"),
        is_laid_out=False,
    )
    image: Any = None
    for column in range(n_columns):
        column_rows = rows[column::n_columns]
        left = _HISTOGRAM_LEFT + column * (_COLUMN + _BETWEEN)
        axes = axes_at(figure, left, _HISTOGRAM_HEAD, _COLUMN, len(column_rows) * _STRIP)
        pixels = np.full((len(column_rows) * size, len(steps)), math.nan)
        bottoms = [(len(column_rows) - 1 - line) * size for line in range(len(column_rows))]
        for bottom, row in zip(bottoms, column_rows, strict=True):
            shade = _shades(row, steps)
            pixels[bottom : bottom + len(shade)] = shade
            _name(axes, label(row), findings.get(label(row), ()), bottom, len(shade))
        image = training_panels.draw_heat(axes, pixels, steps, origin="lower", cmap="magma", vmin=-5, vmax=0)
        axes.set_facecolor("none")
        axes.tick_params(labelsize=POINTS, length=2)
        axes.spines[:].set_visible(False)
        _mark_powers(axes, edges, bottoms, is_named=column == 0)
    key_axes = axes_at(figure, width - 0.75, _HISTOGRAM_HEAD, 0.14, min(_KEY_HEIGHT, n_lines * _STRIP))
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
    """Return the layers to draw, in order: all if there is room for them.

    Otherwise those with findings, the first, the last, the last of each block, then any; an even selection of
    a group that does not fit.
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
    shares = counts / np.where(whole, whole, math.nan)  # blank without finite values
    ends = [np.repeat(end, _END_ROWS - 1, axis=0) for end in (shares[:1], shares[-1:])]
    shares = np.concatenate([ends[0], shares, ends[1]])
    shade = np.full((len(shares), len(steps)), math.nan)
    place = {step: i for i, step in enumerate(steps)}
    shade[:, [place[step] for step in row.series.step]] = np.log10(np.maximum(shares, 1e-5))
    return shade


def _counts(row: WatchedLayer) -> Sequence[Sequence[int]]:
    return row.series.histogram.counts if row.series.histogram else ()


def _name(axes: Any, label: str, findings: Sequence[Any], bottom: int, size: int) -> None:
    """Write the name above a strip; for findings their codes at the right, and a line at the step."""
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
    """Label powers of ten. The first rows are below the first edge (mostly zeros), the last above the last."""
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
    sentences = [f"y: |x|, log scale (bottom < {edges[0]:.0e}, top > {edges[-1]:g})"]
    if any(finding.layer for finding in record.findings):
        sentences.append("dotted: first step of a finding, code on the right")
    if any(not sum(counts) for row in record.layers for counts in _counts(row)):
        sentences.append("white: no finite value")
    n = len(record.layers)
    if n_shown < n:
        what = "those with findings, the first, the last, the last of each block, and others evenly chosen"
        sentences.append(f"\n{n_shown} of {counted(n, 'layer')}: {what}; report.html has all")
    width, height = figure.get_size_inches()
    figure.text(
        _HISTOGRAM_LEFT / width,
        1 - 0.36 / height,
        "; ".join(sentences).replace("; \n", "\n"),
        fontsize=8,
        color=INK,
        va="top",
    )


_MOSTLY = 0.9  # fraction of zeros that is marked


def save_figures(
    record: WatchRecord, folder: Path, attempt: Callable[[str], AbstractContextManager[None]]
) -> None:
    """Draw every figure that has data, each inside `attempt`."""
    for name, draw in FIGURES.items():
        if training_panels.matrices(record.parameters) if name == "gradients" else record.layers:
            with attempt(f"{name}.png was not drawn"):
                save_figure(draw(record), folder / f"{name}.png")


def draw_dead(record: WatchRecord) -> Any:
    """Draw the fraction of zeros of rectifiers, else of every layer."""
    rectifiers = training_panels.rectifiers(record.layers)
    rows = rectifiers or list(record.layers)
    subject = "zeros in the outputs of the ReLUs" if rectifiers else "zeros in each layer's output"
    page = HeatPage(record, subject, rows, n_maps=1, width=10.0)
    grid = training_panels.grid_of(rows, page.steps, lambda series: series.zero_fraction)
    axes, image = page.draw(100 * grid, "", cmap=SHARES, vmin=0, vmax=100)
    page.key(image, "percent zero")
    mostly = [
        (step, line)
        for line in range(len(rows))
        for step, x in zip(page.steps, grid[line], strict=True)
        if x > _MOSTLY
    ]
    if mostly:
        x, y = zip(*mostly, strict=True)
        label = f"over {100 * _MOSTLY:g} % zero"
        axes.plot(x, y, "x", color="#f5c542", ms=3.5, mew=0.9, label=label)
    return page.finish()


def draw_updates(record: WatchRecord) -> Any:
    """Draw gradients and relative updates of the weights, without biases, whose magnitudes differ."""
    import numpy as np

    rows = training_panels.matrices(record.parameters)
    names = parameter_names(row.name for row in rows)
    page = HeatPage(record, "gradients and updates of the weights", rows, names, n_maps=2, width=15.0)
    steps = page.steps
    with np.errstate(all="ignore"):
        norms = np.log10(training_panels.grid_of(rows, steps, lambda series: series.grad_norm))
        ratios = np.log10(training_panels.grid_of(rows, steps, lambda series: series.update_ratio))
    norms[~np.isfinite(norms)] = math.nan
    ratios[~np.isfinite(ratios)] = math.nan
    usual = norms[np.isfinite(norms)]
    low, high = (math.floor(usual.min()), math.ceil(usual.max())) if usual.size else (-3, 1)
    high = max(high, low + 1)
    _, image = page.draw(norms, "norm of the gradient", cmap="viridis", vmin=low, vmax=high)
    name_powers(page.key(image), low, high)
    words = "update / weight (usual: about 0.001; 0.1 is far too large)"
    _, image = page.draw(ratios, words, cmap="RdBu_r", vmin=-6, vmax=0)
    name_powers(page.key(image, extend="both"), -6, 0)
    return page.finish("zero, or none")


# The figures of `record.plot()`; the first is the default.
FIGURES = {
    "activations": draw_activations,
    "histograms": draw_histograms,
    "dead_units": draw_dead,
    "gradients": draw_updates,
}


def save_watch_report(
    record: WatchRecord,
    stage: Path,
    attempt: Callable[[str], AbstractContextManager[None]],
    *,
    has_figures: bool,
) -> None:
    """Write the report and its table into a folder.

    Args:
        has_figures: draw the figures as well, which may take longer than the training.
        attempt: context manager around each of them, called with the message for its failure.
    """
    with attempt("layers.csv was not written"):
        write_text(stage / "layers.csv", render_csv(watch_sheet(record)))
    if has_figures and record.recorded:
        save_figures(record, stage, attempt)
    with attempt("report.json or report.html was not written"):
        # On one line: one number per line would make long series many times larger.
        save_result(record, stage, is_indented=False)
