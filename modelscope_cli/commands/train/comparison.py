"""The picture of a study: its variants over one another."""

from collections.abc import Sequence
from typing import Any

from modelscope_cli.commands.train.table import first_layer
from modelscope_cli.records.naming import label_of
from modelscope_cli.records.train import Training, TrainRecord
from modelscope_cli.records.watch import WatchedLayer
from modelscope_cli.report import training_curves
from modelscope_cli.report.canvas import ACCENT, AMBER, GREEN, LINE, new_figure, tidy

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
            "ls": _STYLES[number // len(_VARIANTS) % len(_STYLES)],
            "lw": 1.5,
        }
        _draw_loss(loss, training, look)
        shares = _mean_dead(training.layers)
        if shares:
            percent = [None if share is None else 100.0 * share for share in shares]
            training_curves.plot_series(dead, training.layers[0].series.step, percent, **look)
        row = first_layer(training)
        if row:
            training_curves.plot_series(mean, row.series.step, row.series.mean, **look)
            training_curves.plot_series(std, row.series.step, row.series.std, **look)
    _name_panels(record, loss, dead, mean, std)
    training_curves.cut_off(loss, [value for training in record.trainings for value in training.losses])
    firsts = [row for training in record.trainings if (row := first_layer(training))]
    training_curves.cut_off(std, [value for row in firsts for value in row.series.std])
    figure.legend(loc="outside lower center", ncols=min(len(record.trainings), 3), frameon=False, fontsize=9)
    return figure


def _draw_loss(axes: Any, training: Training, look: dict[str, Any]) -> None:
    """Draw the smoothed loss; a cross is the last one that was finite."""
    name = training.name + (f"  {_MARK}" if training.findings else "")
    values = training_curves.smoothed(training.losses)
    (line,) = training_curves.plot_series(axes, training.loss[0].step, values, label=name, **look)
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
        training_curves.whole_steps(axes)
    for axes in (mean, std):
        axes.set_xlabel("step")
    dead.set_ylim(bottom=0)


def _mean_dead(layers: Sequence[WatchedLayer]) -> list[float | None]:
    """Average the dead shares of all ReLUs at every step."""
    series = [row.series.dead_fraction or () for row in training_curves.rectifiers(layers)]
    at_step = ([share for share in shares if share is not None] for shares in zip(*series, strict=False))
    return [sum(shares) / len(shares) if shares else None for shares in at_step]
