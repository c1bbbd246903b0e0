"""The figures of `train` and its output folder."""

from collections.abc import Callable, Sequence
from typing import Any

from modelscope_cli.records.train import Training, TrainRecord
from modelscope_cli.report import training_panels
from modelscope_cli.report.canvas import ACCENT, AMBER, GREEN, LINE, new_figure, tidy
from modelscope_cli.report.train.table import settings_of
from modelscope_cli.report.training_figures import cut_off, draw_training, plot_series, whole_steps


def draw_curves(record: TrainRecord) -> Any:
    """Draw one training: its layers and losses, and maps of zeros, dead channels and weight updates."""
    (training, *_) = record.trainings
    zeros = [
        row for row in training.layers if any((share or 0) > 0.005 for share in row.series.zero_fraction)
    ]
    rows: dict[str, Sequence[training_panels.Row]] = {
        "zero_fraction": zeros,
        "dead_fraction": training_panels.rectifiers(training.layers),
        "update_ratio": training_panels.matrices(training.parameters),
    }
    maps = [training_panels.heat_map(every, key) for key, every in rows.items() if every]
    title = f"{record.run.model.short_name}: {settings_of(training)}"
    return draw_training(training, title, maps, "gap: zero, or not finite")


Points = list[tuple[int, float | None]]  # steps and values
_VARIANTS = (LINE, ACCENT, AMBER, GREEN, "#7b5ea7", "#4aa3c0", "#8a6d5a", "#e07a9c")
_STYLES = ("-", "--", ":", "-.")
_MARK = "(!)"


def draw_comparison(record: TrainRecord) -> Any:
    """Draw the variants of a study: losses, validation accuracies, and dead channels if there are ReLU layers."""
    is_broken = any(None in training.losses for training in record.trainings)
    panels: dict[str, Callable[[Training], Points]] = {
        "loss, smoothed" + ("; x: not finite from here on" if is_broken else ""): lambda r: list(
            zip(r.loss[0].step, training_panels.smoothed(r.losses), strict=True)
        ),
        "validation accuracy, %": lambda one: [(at.step, 100.0 * at.accuracy) for at in one.held_out],
        "dead channels of all ReLUs, %": _mean_dead,
    }
    panels = {title: points for title, points in panels.items() if any(map(points, record.trainings))}
    title = record.run.model.short_name + (f": {_MARK} has findings" if record.findings else "")
    figure = new_figure(11.0, 4.6, title)
    loss, *others = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (words, points) in zip((loss, *others), panels.items(), strict=True):
        tidy(axes, words)
        axes.set_xlabel("step")
        axes.tick_params(labelsize=8)
        for number, training in enumerate(record.trainings):
            colour = _VARIANTS[number % len(_VARIANTS)]
            style = _STYLES[(number + number // len(_VARIANTS)) % len(_STYLES)]
            label = training.name + (f"  {_MARK}" if training.findings else "") if axes is loss else None
            if found := points(training):
                plot_series(axes, *zip(*found, strict=True), label=label, color=colour, ls=style, lw=1.5)
            finite = [
                (at, value)
                for at, value in zip(training.loss[0].step, training.losses, strict=True)
                if value is not None
            ]
            if axes is loss and 0 < len(finite) < len(training.losses):  # a cross at the last finite value
                axes.plot(*finite[-1], "x", ms=8, mew=2, color=colour)
        whole_steps(axes)
    for axes in others:
        axes.set_ylim(bottom=0)
    cut_off(loss, [value for training in record.trainings for value in training.losses])
    figure.legend(loc="outside lower center", ncols=min(len(record.trainings), 3), frameon=False, fontsize=9)
    return figure


def _mean_dead(training: Training) -> Points:
    """Return the mean percentage of dead channels of all ReLUs at every step."""
    rows = training_panels.rectifiers(training.layers)
    shares = [
        training_panels.finite(at)
        for at in zip(*(row.series.dead_fraction or () for row in rows), strict=False)
    ]
    means = [100.0 * (sum(at) / len(at)) if at else None for at in shares]
    return list(zip(rows[0].series.step, means, strict=False)) if rows else []


def draw(record: TrainRecord) -> Any:
    """Draw one training, or compare several."""
    return draw_comparison(record) if record.is_study else draw_curves(record)
