"""The figures of `train` and its output folder."""

from collections.abc import Sequence
from typing import Any

from modelscope_cli.records.naming import label_of
from modelscope_cli.records.train import TrainRecord
from modelscope_cli.records.watch import WatchedLayer
from modelscope_cli.report import training_panels
from modelscope_cli.report.canvas import ACCENT, AMBER, GREEN, LINE, new_figure, tidy
from modelscope_cli.report.train.table import first_layer, settings_of
from modelscope_cli.report.training_figures import cut_off, draw_training, plot_series, whole_steps


def draw_curves(record: TrainRecord) -> Any:
    """Draw one training: its layers and losses, and maps of zeros, dead channels and weight updates.

    Rows without numbers are left out of the maps.
    """
    (training, *_) = record.trainings
    zeros = [
        row for row in training.layers if any((share or 0) > 0.005 for share in row.series.zero_fraction)
    ]
    rectifiers = training_panels.rectifiers(training.layers)
    weights = training_panels.matrices(training.parameters)
    maps = [
        training_panels.heat_map(zeros, "zero_fraction"),
        training_panels.heat_map(_with_numbers(rectifiers, "dead_fraction"), "dead_fraction"),
        training_panels.heat_map(_with_numbers(weights, "update_ratio"), "update_ratio"),
    ]
    title = f"{record.run.model.short_name}: {settings_of(training)}"
    return draw_training(training, title, maps, "gap: zero, or not finite")


def _with_numbers(rows: Sequence[Any], key: str) -> list[Any]:
    return [row for row in rows if any(value is not None for value in getattr(row.series, key) or ())]


_VARIANTS = (LINE, ACCENT, AMBER, GREEN, "#7b5ea7", "#4aa3c0", "#8a6d5a", "#e07a9c")
_STYLES = ("-", "--", ":", "-.")
_MARK = "(!)"


def draw_comparison(record: TrainRecord) -> Any:
    """Draw the variants of a study: losses, dead channels, mean and standard deviation of the first layer."""
    title = record.run.model.short_name + (f": {_MARK} has findings" if record.findings else "")
    figure = new_figure(11.0, 7.0, title)
    loss, dead, mean, std = figure.subplots(2, 2, sharex=True).flat
    firsts = [row for training in record.trainings if (row := first_layer(training))]
    name = label_of(firsts[0]) if firsts else "the first layer"
    is_broken = any(None in training.losses for training in record.trainings)
    tidy(loss, "loss, smoothed" + ("; x: not finite from here on" if is_broken else ""))
    tidy(dead, "dead channels of all ReLUs")
    tidy(mean, f"mean of {name}")
    tidy(std, f"standard deviation of {name}")
    for number, training in enumerate(record.trainings):
        style = _STYLES[(number + number // len(_VARIANTS)) % len(_STYLES)]
        look: dict[str, Any] = {"color": _VARIANTS[number % len(_VARIANTS)], "ls": style, "lw": 1.5}
        label = training.name + (f"  {_MARK}" if training.findings else "")
        step, values = training.loss[0].step, training.losses
        plot_series(loss, step, training_panels.smoothed(values), label=label, **look)
        places = [i for i, value in enumerate(values) if value is not None]
        if places and len(places) < len(values):  # a cross at the last finite value
            loss.plot(step[places[-1]], values[places[-1]], "x", ms=8, mew=2, color=look["color"])
        if shares := _mean_dead(training.layers):
            plot_series(dead, training.layers[0].series.step, shares, **look)
        if row := first_layer(training):
            plot_series(mean, row.series.step, row.series.mean, **look)
            plot_series(std, row.series.step, row.series.std, **look)
    for axes, label in ((loss, "loss"), (dead, "percent"), (mean, "mean"), (std, "standard deviation")):
        axes.set_ylabel(label)
        axes.tick_params(labelsize=8)
        whole_steps(axes)
    for axes in (mean, std):
        axes.set_xlabel("step")
    dead.set_ylim(bottom=0)
    cut_off(loss, [value for training in record.trainings for value in training.losses])
    cut_off(std, [value for row in firsts for value in row.series.std])
    figure.legend(loc="outside lower center", ncols=min(len(record.trainings), 3), frameon=False, fontsize=9)
    return figure


def _mean_dead(layers: Sequence[WatchedLayer]) -> list[float | None]:
    """Return the mean percentage of dead channels of all ReLUs at every step."""
    series = [row.series.dead_fraction or () for row in training_panels.rectifiers(layers)]
    at_step = (training_panels.finite(shares) for shares in zip(*series, strict=False))
    return [100.0 * (sum(shares) / len(shares)) if shares else None for shares in at_step]


def draw(record: TrainRecord) -> Any:
    """Draw one training, or compare several."""
    return draw_comparison(record) if record.is_study else draw_curves(record)
