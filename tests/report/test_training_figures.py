"""The figures of a training: steps evenly spaced, findings where they belong, and nothing cut off in silence."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rules.trainings import layer, training
from tolerance import close

from modelscope_cli.records.watch import TrainingFinding, WatchRecord
from modelscope_cli.report import training_figures as curves
from modelscope_cli.report.canvas import new_figure
from modelscope_cli.report.registry import view_of
from modelscope_cli.report.training_figures import mark_steps
from modelscope_cli.report.training_panels import smoothed

UNEVEN = (0, 3, 6, 15, 22, 49)


def finding(code: str, since: int | None, layer: str | None = None) -> TrainingFinding:
    return TrainingFinding(code, "a-rule", "error", layer, since, 1.0, 0.5, "it is so", "mend it")


def uneven(name: str = "relu", kind: str = "ReLU", order: int = 0) -> Any:
    row = layer(name, kind, order, zero_fraction=(0.1, 0.2, 0.3, 0.4, 0.95, 1.0))
    return replace(row, series=replace(row.series, step=UNEVEN))


def figure_of(record: WatchRecord, picture: str) -> Any:
    figure = view_of(record).figures[picture](record)
    figure.set_dpi(130)
    figure.draw_without_rendering()
    return figure


def words(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text)]


@pytest.mark.parametrize("origin", ["upper", "lower"])
def test_a_heat_map_is_linear_in_steps(origin):
    axes = new_figure(4, 3).subplots()
    grid = np.arange(12.0).reshape(2, 6)
    image = curves.draw_heat(axes, grid, UNEVEN, origin=origin)
    low, high, bottom, top = image.get_extent()
    assert (low, high) == (-0.5, 49.5)
    assert (bottom, top) == ((-0.5, 1.5) if origin == "lower" else (1.5, -0.5))
    drawn = np.asarray(image.get_array())
    middles = low + (high - low) * (np.arange(drawn.shape[1]) + 0.5) / drawn.shape[1]
    nearest = [min(range(6), key=lambda i: abs(UNEVEN[i] - at)) for at in middles]
    assert np.mean(drawn == grid[:, nearest]) > 0.99  # a middle between two steps may be of either


def panels_of(figure):
    """Return the maps of means and deviations, and the losses."""
    maps = [axes for axes in figure.axes if axes.get_title(loc="left") in ("mean", "standard deviation")]
    return [*maps, *(axes for axes in figure.axes if axes.get_ylabel() == "loss")]


def test_maps_and_loss_of_a_watched_training_share_a_linear_axis_of_steps():
    record = training(layers=(uneven(), uneven("late", order=1)), findings=(finding("MS705", 22, "relu"),))
    figure = figure_of(record, "activations")
    mean, std, falling = panels_of(figure)
    assert {axes.get_xscale() for axes in (mean, std, falling)} == {"linear"}
    assert mean.get_xlim() == std.get_xlim() == falling.get_xlim() == (-0.5, 59.5)
    (line,) = [line for line in falling.lines if line.get_label() == "training loss"]
    assert list(line.get_xdata()) == list(range(60))
    assert all([22, 22] in [list(line.get_xdata()) for line in axes.lines] for axes in (mean, std, falling))
    assert "MS705" in words(figure)
    assert {"training loss", "training loss, smoothed", "learning rate", "first step of a finding"} <= set(
        words(figure)
    )


@pytest.mark.parametrize("steps", [[0], [0, 1, 2, 3], [55, 57, 59], list(range(0, 60, 2)), [0, 59]])
def test_codes_over_steps_never_lie_on_each_other(steps):
    figure = new_figure(8, 3, is_laid_out=False)
    axes = figure.subplots()
    axes.set_xlim(-0.5, 59.5)
    mark_steps([axes], [finding("MS705", step) for step in steps], 8 * 0.775)
    figure.draw_without_rendering()
    assert len(axes.lines) == len(steps)  # every step has its line
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) >= min(len(steps), 4)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
    right = axes.get_window_extent().x1
    assert all(box.x1 <= right + 1 for box in boxes)


def test_the_smoothed_loss_goes_on_after_a_loss_that_is_not_finite():
    assert smoothed([1.0, None, math.nan, math.inf, 1.0]) == [close(1.0), None, None, None, close(1.0)]


@pytest.mark.parametrize(("values", "bands"), [
    ((1.0,) * 30 + (None,) * 30, [(29.5, 59.5)]),
    ((1.0,) * 10 + (math.nan,) + (1.0,) * 48 + (math.inf,), [(9.5, 10.5), (58.5, 59.5)]),
    ((None,) * 60, [(-0.5, 59.5)]),
    ((1.0,) * 60, []),
])  # fmt: skip
def test_steps_whose_loss_is_not_finite_are_a_band_and_never_an_axis_of_nothing(values, bands):
    record = training(layers=(uneven(),))
    record = replace(record, loss=(replace(record.loss[0], value=values),))
    loss = panels_of(figure_of(record, "activations"))[-1]
    assert [(band.get_x(), band.get_x() + band.get_width()) for band in loss.patches] == bands
    assert bool(len(loss.get_yticks())) == any(value == 1.0 for value in values)
    assert not bands or "loss not finite" in words(loss.figure)
