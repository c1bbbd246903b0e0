"""The figures of a training: steps evenly spaced, findings where they belong, and nothing cut off in silence."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rules.trainings import layer, training
from tolerance import close

from modelscope_cli.records.train import LrfindRecord, Restored, Suggestion
from modelscope_cli.records.watch import TrainingFinding, WatchRecord
from modelscope_cli.report import training_figures as curves
from modelscope_cli.report.canvas import new_figure
from modelscope_cli.report.training_figures import mark_steps
from modelscope_cli.report.training_panels import smoothed
from modelscope_cli.report.views import figures_of

UNEVEN = (0, 3, 6, 15, 22, 49)


def finding(code: str, since: int | None, layer: str | None = None) -> TrainingFinding:
    return TrainingFinding(code, "a-rule", "error", layer, since, 1.0, 0.5, "it is so", "mend it")


def uneven(name: str = "relu", kind: str = "ReLU", order: int = 0) -> Any:
    row = layer(name, kind, order, zero_fraction=(0.1, 0.2, 0.3, 0.4, 0.95, 1.0))
    return replace(row, series=replace(row.series, step=UNEVEN))


def figure_of(record: WatchRecord, picture: str) -> Any:
    figure = figures_of("watch").FIGURES[picture](record)
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
    return [axes for axes in figure.axes if axes.get_ylabel() in ("mean", "standard deviation", "loss")]


def test_lines_and_loss_of_a_watched_training_share_a_linear_axis_of_steps():
    record = training(layers=(uneven(), uneven("late", order=1)), findings=(finding("MS705", 22, "relu"),))
    figure = figure_of(record, "activations")
    mean, std, falling = panels_of(figure)
    assert {axes.get_xscale() for axes in (mean, std, falling)} == {"linear"}
    assert mean.get_xlim() == std.get_xlim() == falling.get_xlim() == (-0.5, 59.5)
    assert list(mean.lines[0].get_xdata()) == list(UNEVEN)
    (line,) = [line for line in falling.lines if line.get_label() == "training loss"]
    assert list(line.get_xdata()) == list(range(60))
    assert all([22, 22] in [list(line.get_xdata()) for line in axes.lines] for axes in (mean, std, falling))
    assert "MS705" in words(figure)
    assert {"training loss", "training loss, smoothed", "learning rate", "first step of a finding"} <= set(
        words(figure)
    )


def test_what_is_cut_off_is_said():
    axes = new_figure(4, 3).subplots()
    curves.cut_off(axes, [1.0] * 99 + [500.0, None, math.nan])
    assert axes.get_ylim()[1] == 3
    assert [text.get_text() for text in axes.texts] == ["cut off here: up to 500"]
    calm = new_figure(4, 3).subplots()
    calm.plot([1, 7])
    curves.cut_off(calm, [1.0] * 99 + [7.0])
    assert not calm.texts
    assert calm.get_ylim()[1] > 7


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


def range_test(stopped: str, suggestion: Suggestion) -> LrfindRecord:
    lr = tuple(10.0**-k for k in range(5, 0, -1))
    return LrfindRecord(
        run=training().run,
        lr=lr,
        loss=(2.0, 1.8, 1.0, 0.5, 90.0),
        smoothed=(2.0, 1.9, 1.4, 0.9, 40.0),
        suggestion=suggestion,
        stopped=stopped,
        restored=Restored(True, True, True, True),
        hashes={},
        optimizer="momentum",
        sweep="exponential",
        data="shapes",
    )


@pytest.mark.parametrize(("stopped", "said"), [
    ("the end of the range", "the sweep ended at the end of the range"),
    ("diverged: the smoothed loss is 4 times its lowest value", "the sweep ended because the loss diverged"),
    ("the loss was not finite at step 9", "the sweep ended because the loss was not finite at step 9"),
])  # fmt: skip
def test_a_range_test_recommends_one_rate_in_a_sentence(stopped, said):
    figure = figures_of("lrfind").draw_range_test(range_test(stopped, Suggestion(1e-3, 1e-4, 1e-5)))
    title = " ".join(figure.get_suptitle().split())
    assert title == f"a.py with momentum: try a learning rate of 0.0001; {said}"
    recommended = [text for text in words(figure) if "recommended" in text]
    assert recommended == ["valley: 0.0001, recommended"]
    assert "cut off here: up to 90" in words(figure)  # the single losses; smoothed it is 40
    colours = {line.get_markeredgecolor() for line in figure.axes[0].lines if line.get_marker() in "^os"}
    assert len(colours) == 2  # one for the recommended, one for the others


def test_the_smoothed_loss_goes_on_after_a_loss_that_is_not_finite():
    assert smoothed([1.0, None, math.nan, math.inf, 1.0]) == [close(1.0), None, None, None, close(1.0)]
