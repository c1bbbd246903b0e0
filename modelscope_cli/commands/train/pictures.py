"""The pictures of a training: its curves, and several variants side by side."""

import math
from collections.abc import Sequence
from typing import Any

from modelscope_cli.commands.train.table import first_layer, settings_of
from modelscope_cli.records.naming import label_of
from modelscope_cli.records.train import Training, TrainRecord
from modelscope_cli.records.watch import WatchedLayer, WatchedParameter
from modelscope_cli.report import training_curves as curves
from modelscope_cli.report.canvas import ACCENT, AMBER, GREEN, INK, LINE, new_figure

_VARIANTS = (LINE, ACCENT, AMBER, GREEN, "#7b5ea7", "#4aa3c0", "#8a6d5a", "#e07a9c")
_STYLES = ("-", "--", ":", "-.")
_MOST_LABELS = 44


def draw_training(record: TrainRecord) -> Any:
    """Draw one training, or several over one another."""
    return draw_comparison(record) if record.is_study else draw_curves(record)


def draw_curves(record: TrainRecord) -> Any:
    """Draw one training: the loss, mean and deviation of every layer, and over layers and time what is zero, what
    is dead and how far each weight moves.
    """
    training = record.trainings[0]
    weights = curves.matrices(training.parameters)
    rows = max(len(training.layers), len(weights), 14)
    title = f"{record.run.model.short_name}: {settings_of(training)}"
    figure = new_figure(13.0, min(5.6 + 0.13 * rows, 16.0), title)
    grid = figure.add_gridspec(2, 3, height_ratios=[3.4, max(0.13 * rows, 2.0)])
    _draw_loss(figure.add_subplot(grid[0, 0]), training)
    for column, (key, title) in enumerate(
        (("mean", "mean of each layer"), ("std", "standard deviation of each layer")), 1
    ):
        _draw_layers(figure.add_subplot(grid[0, column]), training.layers, key, title)
    zeros = [row for row in training.layers if _has_zeros(row)]
    relus = curves.rectifiers(training.layers)
    _draw_shares(figure, grid[1, 0], zeros, lambda series: series.zero_fraction, "zeros, %")
    _draw_shares(figure, grid[1, 1], relus, lambda series: series.dead_fraction or (), "dead channels, %")
    _draw_updates(figure, grid[1, 2], weights)
    return figure


def draw_comparison(record: TrainRecord) -> Any:
    """Draw the variants of a study over one another: losses, dead channels, mean and std of the first layer."""
    figure = new_figure(11.0, 7.0, f"{record.run.model.short_name}: (!) has findings")
    loss, dead, mean, std = figure.subplots(2, 2, sharex=True).flat
    for number, training in enumerate(record.trainings):
        look: dict[str, Any] = {
            "color": _VARIANTS[number % len(_VARIANTS)],
            "ls": _STYLES[number // len(_VARIANTS) % len(_STYLES)],
            "lw": 1.5,
        }
        name = training.name + ("  (!)" if training.findings else "")
        (line,) = loss.plot(
            training.loss[0].step, curves.floats(_smooth(training.losses)), label=name, **look
        )
        ends = [i for i, value in enumerate(training.losses) if value is not None]
        if len(ends) < len(training.losses):
            loss.plot(
                ends[-1:], [training.losses[i] for i in ends[-1:]], "x", ms=8, mew=2, color=line.get_color()
            )
        shares = _mean_dead(training.layers)
        if shares:
            dead.plot(training.layers[0].series.step, curves.floats(shares, 100.0), **look)
        row = first_layer(training)
        if row:
            mean.plot(row.series.step, curves.floats(row.series.mean), **look)
            std.plot(row.series.step, curves.floats(row.series.std), **look)
    row = first_layer(record.trainings[0])
    name = label_of(row) if row else "the first layer"
    for axes, label in ((loss, "loss, smoothed"), (dead, "dead channels of all ReLUs, %"),
                        (mean, f"mean of {name}"), (std, f"standard deviation of {name}")):  # fmt: skip
        _tidy(axes, label)
    dead.set_ylim(bottom=0)
    _robust(loss, [value for t in record.trainings for value in t.losses if value is not None])
    _robust(
        std, [v for t in record.trainings if (r := first_layer(t)) for v in r.series.std if v is not None]
    )
    for axes in (mean, std):
        axes.set_xlabel("step")
    figure.legend(loc="outside lower center", ncols=min(len(record.trainings), 3), frameon=False, fontsize=9)
    return figure


def _draw_loss(axes: Any, training: Training) -> None:
    curve = training.loss[0]
    axes.plot(curve.step, curves.floats(training.losses), color=LINE, lw=0.7, alpha=0.45)
    axes.plot(
        curve.step, curves.floats(_smooth(training.losses)), color=LINE, lw=1.8, label="training, smoothed"
    )
    measured = [row for row in training.held_out if row.loss is not None]
    places = [row.step for row in measured]
    axes.plot(places, [row.loss for row in measured], "o-", ms=4, color=ACCENT, lw=1, label="validation")
    _robust(axes, [value for value in training.losses if value is not None])
    rate = axes.twinx()
    rate.plot(
        training.lr[0].step,
        curves.floats(training.lr[0].value),
        color=INK,
        lw=0.8,
        ls=":",
        label="learning rate",
    )
    rate.set_ylim(bottom=0)
    rate.tick_params(labelsize=7)
    rate.spines[["top"]].set_visible(False)
    handles = [*axes.get_lines()[1:], *rate.get_lines()]
    axes.legend(handles, [line.get_label() for line in handles], frameon=False, fontsize=8)
    _tidy(axes, "loss")
    axes.set_xlabel("step")


def _draw_layers(axes: Any, layers: Sequence[WatchedLayer], key: str, title: str) -> None:
    from matplotlib import colormaps

    for number, row in enumerate(layers):
        colour = colormaps["viridis"](0.92 * number / max(len(layers) - 1, 1))
        axes.plot(row.series.step, curves.floats(getattr(row.series, key)), color=colour, lw=1.0)
    values = [value for row in layers for value in getattr(row.series, key) if value is not None]
    usual = max(sorted(map(abs, values))[len(values) // 2], 1e-6) if values else 1.0
    if key == "mean":
        axes.set_yscale("symlog", linthresh=10.0 ** math.ceil(math.log10(usual)))
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
    _tidy(axes, f"{title} (dark: first, light: last)")
    axes.set_xlabel("step")


def _has_any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _has_zeros(row: WatchedLayer) -> bool:
    return any(share is not None and share > 0.005 for share in row.series.zero_fraction)


def _draw_updates(figure: Any, place: Any, weights: Sequence[WatchedParameter]) -> None:
    def magnitudes(series: Any) -> list[float | None]:
        return [math.log10(value) if value else None for value in series.update_ratio]

    labels = [row.name for row in weights]
    look = {"cmap": "viridis", "vmin": -5, "vmax": 0}
    _heat(figure, place, weights, labels, magnitudes, "log10 of |change| / |weight|", look)


def _draw_shares(
    figure: Any, place: Any, layers: Sequence[WatchedLayer], read: curves.Read, title: str
) -> None:
    def percent(series: Any) -> list[float | None]:
        return [None if share is None else 100.0 * share for share in read(series)]

    look = {"cmap": "magma", "vmin": 0, "vmax": 100}
    _heat(figure, place, layers, list(map(label_of, layers)), percent, title, look)


def _heat(
    figure: Any,
    place: Any,
    rows: Sequence[curves.Row],
    labels: Sequence[str],
    read: curves.Read,
    title: str,
    look: dict[str, Any],
) -> None:
    from matplotlib import colormaps

    axes = figure.add_subplot(place)
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    told = [(row, label) for row, label in zip(rows, labels, strict=True) if _has_any(read(row.series))]
    if not told:
        axes.set_xlabel("step")
        axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, color=INK)
        axes.set_yticks([])
        return
    shown = [row for row, _ in told]
    steps = curves.all_steps(shown)
    stride = steps[1] - steps[0] if len(steps) > 1 else 1
    look["extent"] = (steps[0] - stride / 2, steps[-1] + stride / 2, len(shown) - 0.5, -0.5)
    look["cmap"] = colormaps[look["cmap"]].with_extremes(bad="#d7dbe2")
    image = curves.draw_heat(axes, curves.grid_of(shown, steps, read), **look)
    step = -(-len(shown) // _MOST_LABELS)
    axes.set_yticks(range(0, len(shown), step), [label for _, label in told[::step]], fontsize=6.5)
    figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02).ax.tick_params(labelsize=7)


def _mean_dead(layers: Sequence[WatchedLayer]) -> list[float | None]:
    """Average the dead shares of all ReLUs at every step."""
    series = [row.series.dead_fraction or () for row in curves.rectifiers(layers)]
    at_step = ([share for share in shares if share is not None] for shares in zip(*series, strict=False))
    return [sum(shares) / len(shares) if shares else None for shares in at_step]


def _smooth(values: Sequence[float | None]) -> list[float | None]:
    """Average exponentially with weight 0.9, corrected for the beginning."""
    smoothed: list[float | None] = []
    total = weight = 0.0
    for value in values:
        if value is None:
            smoothed.append(None)
            continue
        total, weight = 0.9 * total + 0.1 * value, 0.9 * weight + 0.1
        smoothed.append(total / weight)
    return smoothed


def _robust(axes: Any, values: list[float]) -> None:
    """Keep one enormous value from flattening everything else."""
    if not values:
        return
    usual = sorted(values)[int(0.95 * (len(values) - 1))]
    if max(values) > 8 * usual > 0:
        axes.set_ylim(0, 3 * usual)


def _tidy(axes: Any, label: str) -> None:
    axes.set_title(label, loc="left", fontsize=9, color=INK)
    axes.grid(lw=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {"training": draw_training}
