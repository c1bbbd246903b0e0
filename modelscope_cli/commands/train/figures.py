"""The figures of `train` and its output folder."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelscope_cli.commands.train.table import first_layer, settings_of, train_sheet
from modelscope_cli.records.naming import label_of
from modelscope_cli.records.train import Training, TrainRecord
from modelscope_cli.records.watch import WatchedLayer
from modelscope_cli.report import training_panels
from modelscope_cli.report.canvas import (
    ACCENT,
    AMBER,
    GREEN,
    INK,
    LINE,
    SHARES,
    axes_at,
    new_figure,
    tidy,
)
from modelscope_cli.report.layer_axis import MOST_ACROSS, Name, layer_names, parameter_names, room_for
from modelscope_cli.report.page import results
from modelscope_cli.report.reading import RESULT_FILES
from modelscope_cli.report.tensor_file import write_tensors
from modelscope_cli.report.training_panels import (
    by_layer,
    depth_colour,
    draw_depth_key,
    explain_marks,
    mark_rows,
    mark_steps,
    n_levels,
    room_for_codes,
)

# Inches: the page of three columns, the curves on top, the gaps between rows of maps and below.
_WIDTH, _COLUMN, _HEAD, _LEVEL = 15.0, 4.95, 0.55, 0.15
_CURVES, _LEFT, _RATE_ROOM, _BETWEEN, _FOOT, _LEGEND = 3.2, 0.75, 1.05, 0.85, 0.55, 0.3


@dataclass(frozen=True, slots=True)
class _HeatMap:
    """The data of one heat map."""

    title: str
    rows: Sequence[training_panels.Row]
    names: Sequence[Name]
    read: Callable[[Any], Sequence[float | None]]
    look: dict[str, Any]


def draw_curves(record: TrainRecord) -> Any:
    """Draw one training: the loss, mean and standard deviation of every layer, and heat maps of zeros, dead
    channels and weight updates. For a deep network all layers are maps.
    """
    (training, *_) = record.trainings
    is_deep = len(training.layers) > MOST_ACROSS
    lines = _maps(training)
    rows = [_sizes(training), lines] if is_deep else [lines]
    heights = [max(training_panels.height_of(max(len(one.rows), 1)) for one in row) for row in rows]
    head = _HEAD + _LEVEL * n_levels(training.findings)
    top = head + _CURVES + _BETWEEN + _LEGEND
    height = top + sum(training_panels.ABOVE + high + _FOOT for high in heights)
    title = f"{record.run.model.short_name}: {settings_of(training)}"
    figure = new_figure(_WIDTH, height, title, is_laid_out=False)
    panels = _draw_lines(figure, training, head, is_deep)
    width = panels[0].get_position().width * _WIDTH
    mark = mark_steps(panels, training.findings, width)
    _explain_loss(panels[0], mark)
    is_marked = bool(by_layer(training.findings))
    explain_marks(figure, (_LEFT, top - _LEGEND), "no number: zero, or not finite", [], is_marked=is_marked)
    for row, high in zip(rows, heights, strict=True):
        for column, one in enumerate(row):
            _draw_map(figure, (column * _COLUMN + 0.1, top + training_panels.ABOVE), one, training)
        top += training_panels.ABOVE + high + _FOOT
    return figure


def _draw_lines(figure: Any, training: Training, top: float, is_deep: bool) -> list[Any]:
    """Draw the loss and, for few layers, their means and standard deviations."""
    width = (_WIDTH - _LEFT - 0.3) / 3 - _RATE_ROOM
    if is_deep:
        width = _WIDTH - _LEFT - _RATE_ROOM
    steps = sorted({*training.loss[0].step, *(row.step for row in training.held_out)})
    loss = axes_at(figure, _LEFT, top, width, _CURVES)
    _draw_loss(loss, training)
    panels = [loss]
    if not is_deep:
        for column, (key, label) in enumerate((("mean", "mean"), ("std", "standard deviation")), 1):
            left = _LEFT + column * (width + _RATE_ROOM) + 0.15 * (2 - column)
            axes = axes_at(figure, left, top, width, _CURVES)
            _draw_layers(axes, training.layers, key)
            axes.set_ylabel(label)
            panels.append(axes)
        place = (_LEFT + 3 * width + 2 * _RATE_ROOM - 0.1, top, _CURVES)
        draw_depth_key(figure, place, list(map(label_of, training.layers)))
    for axes in panels:
        tidy(axes)
        axes.set_xlabel("step")
        axes.set_xlim(*training_panels.step_limits(steps))
        axes.tick_params(labelsize=8)
        training_panels.whole_steps(axes)
    return panels


def _draw_loss(axes: Any, training: Training) -> None:
    step = training.loss[0].step
    training_panels.plot_series(axes, step, training.losses, color=LINE, lw=0.7, alpha=0.45, label="training")
    values = training_panels.smoothed(training.losses)
    training_panels.plot_series(axes, step, values, color=LINE, lw=1.8, label="training, smoothed")
    measured = [row for row in training.held_out if row.loss is not None]
    losses = [row.loss for row in measured]
    axes.plot([row.step for row in measured], losses, "o-", ms=4, color=ACCENT, lw=1, label="validation")
    training_panels.cut_off(axes, training.losses, losses)
    axes.set_ylabel("loss")
    for line in training_panels.draw_rates(axes, training.lr):
        axes.plot([], [], color=line.get_color(), ls=line.get_linestyle(), label=line.get_label())


def _explain_loss(axes: Any, mark: Any) -> None:
    handles = axes.get_legend_handles_labels()[0]
    handles = [one for one in handles if one.get_label() != getattr(mark, "get_label", str)()]
    look: dict[str, Any] = {"frameon": False, "fontsize": 8, "borderaxespad": 0.0}
    handles += [mark] if mark else []
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, -0.14), ncols=3, **look)


def _draw_layers(axes: Any, layers: Sequence[WatchedLayer], key: str) -> None:
    for number, row in enumerate(layers):
        look = {"color": depth_colour(number, len(layers)), "lw": 1.0}
        training_panels.plot_series(axes, row.series.step, getattr(row.series, key), **look)
    if key == "mean":
        axes.set_yscale("symlog", linthresh=_usual(layers, key))
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")


def _usual(layers: Sequence[WatchedLayer], key: str) -> float:
    """Return a power of ten above the median size."""
    values = sorted(abs(v) for row in layers for v in getattr(row.series, key) if v is not None)
    return float(10.0 ** math.ceil(math.log10(max(values[len(values) // 2], 1e-6)))) if values else 1.0


def _sizes(training: Training) -> list[_HeatMap]:
    """Return mean and standard deviation of every layer as maps."""
    from matplotlib.colors import SymLogNorm

    layers = training.layers
    names = layer_names(map(label_of, layers))
    usual = _usual(layers, "mean")
    largest = max((abs(v) for row in layers for v in row.series.mean if v is not None), default=1.0)
    far = max(largest, 2 * usual)
    signed = {"cmap": "RdBu_r", "norm": SymLogNorm(usual, vmin=-far, vmax=far)}
    return [
        _HeatMap("mean", layers, names, lambda series: series.mean, signed),
        _HeatMap(
            "log10 of the standard deviation", layers, names, lambda s: _log10(s.std), {"cmap": "viridis"}
        ),
    ]


def _maps(training: Training) -> list[_HeatMap]:
    """Return zeros, dead channels and weight updates as maps; rows without numbers are left out."""
    weights = training_panels.matrices(training.parameters)
    shares = {"cmap": SHARES, "vmin": 0, "vmax": 100}
    zeros = [row for row in training.layers if _has_zeros(row)]
    dead = [
        row for row in training_panels.rectifiers(training.layers) if _has_any(row.series.dead_fraction or ())
    ]
    moved = [row for row in weights if _has_any(row.series.update_ratio)]
    return [
        _HeatMap("zeros, %", zeros, _names(zeros), lambda s: _percent(s.zero_fraction), shares),
        _HeatMap("dead channels, %", dead, _names(dead), lambda s: _percent(s.dead_fraction or ()), shares),
        _HeatMap(
            "log10 of |change| / |weight|",
            moved,
            parameter_names(row.name for row in moved),
            lambda series: _log10(series.update_ratio),
            {"cmap": "viridis", "vmin": -5, "vmax": 0},
        ),
    ]


def _names(layers: Sequence[WatchedLayer]) -> list[Name]:
    return layer_names(map(label_of, layers))


def _log10(values: Sequence[float | None]) -> list[float | None]:
    return [math.log10(value) if value else None for value in values]


def _percent(values: Sequence[float | None]) -> list[float | None]:
    return [None if share is None else 100.0 * share for share in values]


def _has_any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _has_zeros(row: WatchedLayer) -> bool:
    return any(share is not None and share > 0.005 for share in row.series.zero_fraction)


def _draw_map(figure: Any, corner: tuple[float, float], one: _HeatMap, training: Training) -> None:
    left, top = corner
    if not one.rows:
        width, height = figure.get_size_inches()
        figure.text(
            (left + 0.2) / width, 1 - top / height, f"{one.title}: nothing to show", fontsize=9, color=INK
        )
        return
    findings = by_layer(training.findings)
    labels = [name.text for name in one.names]
    room = room_for(figure, one.names)
    codes = room_for_codes(labels, findings)
    width = _COLUMN - room - codes - training_panels.KEY_ROOM
    steps = training_panels.all_steps(one.rows)
    grid = training_panels.grid_of(one.rows, steps, one.read)
    axes, image = training_panels.draw_map(
        figure, (left + room, top, width), grid, steps, one.names, one.title, **one.look
    )
    mark_rows(axes, labels, findings, steps[0])
    training_panels.draw_key(figure, left + room + width + codes, top, len(one.rows), image)


_VARIANTS = (LINE, ACCENT, AMBER, GREEN, "#7b5ea7", "#4aa3c0", "#8a6d5a", "#e07a9c")
_STYLES = ("-", "--", ":", "-.")
_MARK = "(!)"


def draw_comparison(record: TrainRecord) -> Any:
    """Draw the variants of a study: losses, dead channels, mean and standard deviation of the first layer."""
    title = record.run.model.short_name + (f": {_MARK} has findings" if record.findings else "")
    figure = new_figure(11.0, 7.0, title)
    loss, dead, mean, std = figure.subplots(2, 2, sharex=True).flat
    for number, training in enumerate(record.trainings):
        look: dict[str, Any] = {
            "color": _VARIANTS[number % len(_VARIANTS)],
            "ls": _STYLES[(number + number // len(_VARIANTS)) % len(_STYLES)],
            "lw": 1.5,
        }
        _draw_losses(loss, training, look)
        shares = _mean_dead(training.layers)
        if shares:
            percent = [None if share is None else 100.0 * share for share in shares]
            training_panels.plot_series(dead, training.layers[0].series.step, percent, **look)
        row = first_layer(training)
        if row:
            training_panels.plot_series(mean, row.series.step, row.series.mean, **look)
            training_panels.plot_series(std, row.series.step, row.series.std, **look)
    _name_panels(record, loss, dead, mean, std)
    training_panels.cut_off(loss, [value for training in record.trainings for value in training.losses])
    firsts = [row for training in record.trainings if (row := first_layer(training))]
    training_panels.cut_off(std, [value for row in firsts for value in row.series.std])
    figure.legend(loc="outside lower center", ncols=min(len(record.trainings), 3), frameon=False, fontsize=9)
    return figure


def _draw_losses(axes: Any, training: Training, look: dict[str, Any]) -> None:
    """Draw the smoothed loss; a cross marks the last finite value."""
    name = training.name + (f"  {_MARK}" if training.findings else "")
    values = training_panels.smoothed(training.losses)
    (line,) = training_panels.plot_series(axes, training.loss[0].step, values, label=name, **look)
    finite = [i for i, value in enumerate(training.losses) if value is not None]
    if finite and len(finite) < len(training.losses):
        last = finite[-1]
        axes.plot(
            [training.loss[0].step[last]], [training.losses[last]], "x", ms=8, mew=2, color=line.get_color()
        )


def _name_panels(record: TrainRecord, loss: Any, dead: Any, mean: Any, std: Any) -> None:
    row = first_layer(record.trainings[0])
    name = label_of(row) if row else "the first layer"
    broken = any(None in training.losses for training in record.trainings)
    tidy(loss, "loss, smoothed" + ("; x: not finite from here on" if broken else ""))
    tidy(dead, "dead channels of all ReLUs")
    tidy(mean, f"mean of {name}")
    tidy(std, f"standard deviation of {name}")
    for axes, label in ((loss, "loss"), (dead, "percent"), (mean, "mean"), (std, "standard deviation")):
        axes.set_ylabel(label)
        axes.tick_params(labelsize=8)
        training_panels.whole_steps(axes)
    for axes in (mean, std):
        axes.set_xlabel("step")
    dead.set_ylim(bottom=0)


def _mean_dead(layers: Sequence[WatchedLayer]) -> list[float | None]:
    """Average the dead fractions of all ReLUs at every step."""
    series = [row.series.dead_fraction or () for row in training_panels.rectifiers(layers)]
    at_step = ([share for share in shares if share is not None] for shares in zip(*series, strict=False))
    return [sum(shares) / len(shares) if shares else None for shares in at_step]


def draw_training(record: TrainRecord) -> Any:
    """Draw one training, or compare several."""
    return draw_comparison(record) if record.is_study else draw_curves(record)


# The figures of `record.plot()`; the first is the default.
FIGURES = {"training": draw_training}


WEIGHTS = "model.safetensors"
SINGLE_FILES = ("curves.png", "layers.csv", *RESULT_FILES, WEIGHTS)
STUDY_FILES = ("comparison.png", "variants.csv", *RESULT_FILES)


def files_of(record: TrainRecord) -> tuple[str, ...]:
    """Return the files that are always written."""
    return STUDY_FILES if record.is_study else SINGLE_FILES


def save_report(record: TrainRecord, stage: Path) -> None:
    """Write the tables, the figure and the page into a folder; `save_weights` writes the weights."""
    figure, table = files_of(record)[:2]
    results.save_report(record, stage, {figure: draw_training(record)}, {table: train_sheet(record)})


def save_weights(state: dict[str, Any], path: Path, classes: Sequence[str]) -> None:
    """Write a state dict as safetensors, atomically; its header names the classes."""
    write_tensors(path, state, categories=list(classes))
