"""The figure of `grads` and its output folder."""

import math
from collections.abc import Sequence
from typing import Any

from modelscope_cli.records.grads import ActivationGradient, GradsRecord, ParameterGradient
from modelscope_cli.records.naming import label_of
from modelscope_cli.report.canvas import ACCENT, AMBER, INK, LINE
from modelscope_cli.report.layer_axis import Panel, layer_names, layer_panels, parameter_names

_NON_FINITE = "non-finite"
_MARKERS = {"zero": "x", "vanishing": "v", "exploding": "^", _NON_FINITE: "s"}


def draw_gradient_flow(record: GradsRecord) -> Any:
    """Draw the norm of every gradient in execution order on a logarithmic scale, activations left, weights right.

    A fainter line shows gradients before clipping. Marked layers are red. Gradients of exactly zero are on the
    left edge, those with NaN or infinities on the right one.
    """
    activations = [row for row in record.activations if _has_gradient(row)]
    parameters = [row for row in record.parameters if _has_gradient(row)]
    names = [layer_names(map(label_of, activations)), parameter_names(row.name for row in parameters)]
    title = f"{record.run.model.heading}, {record.mode} mode: {record.loss.name} = {record.loss.value:.4g}"
    figure, (outputs, parameter_panel) = layer_panels(title, names, [1, 1], legend_lines=3)
    _draw(outputs, activations, [True] * len(activations), AMBER)
    outputs.say("|gradient| at the output of each layer")
    # Biases and scales have other magnitudes than weights: joined up, the line would only zigzag.
    is_weight = [len(row.shape) > 1 for row in parameters]
    _draw(parameter_panel, parameters, is_weight, LINE)
    parameter_panel.say("|gradient| of each parameter")
    at_output = record.totals.output_grad_norm
    if at_output > 0:
        outputs.axes.axvline(at_output, color=INK, lw=0.7, ls=":", label="at the model's output")
        outputs.legend()
    return figure


def _has_gradient(row: ActivationGradient | ParameterGradient) -> bool:
    return row.grad_norm is not None or row.mark == _NON_FINITE  # no norm if all values are


def _draw(
    panel: Panel, rows: Sequence[ActivationGradient | ParameterGradient], is_joined: list[bool], colour: str
) -> None:
    norms = [math.nan if row.mark == _NON_FINITE else row.grad_norm or 0.0 for row in rows]
    before = [row.norm_before_clip if isinstance(row, ParameterGradient) else None for row in rows]
    positive = [
        value for value in (*norms, *(b or 0.0 for b in before)) if value > 0 and math.isfinite(value)
    ]
    low, high = (min(positive), max(positive)) if positive else (1e-3, 1.0)
    floor = low / 10 ** max(0.05 * math.log10(high / low), 0.3)
    panel.axes.set_xscale("log")
    ceiling = high * (high / floor) ** 0.06
    panel.axes.set_xlim(floor, ceiling)
    places = range(len(rows))
    heights = [value if math.isnan(value) else max(value, floor) for value in norms]
    if any(value is not None for value in before):
        unclipped = [max(value or 0.0, floor) for value in before]
        _line(panel.axes, unclipped, is_joined, colour, 0.35, " before clipping")
    _line(panel.axes, heights, is_joined, colour, 1.0, "")
    for mark, marker in _MARKERS.items():
        marked = [x for x in places if rows[x].mark == mark]
        if marked:
            ys = [ceiling if mark == _NON_FINITE else heights[x] for x in marked]
            panel.axes.plot(ys, marked, marker, ms=6, color=ACCENT, label=mark, clip_on=False, zorder=3)
    panel.grid()
    if rows:
        panel.legend()
    else:
        panel.axes.text(
            0.5, 0.5, "no gradient arrived", ha="center", transform=panel.axes.transAxes, color=ACCENT
        )


def _line(
    axes: Any, heights: list[float], is_joined: list[bool], colour: str, alpha: float, suffix: str
) -> None:
    joined = [x for x, joins in enumerate(is_joined) if joins]
    single = [x for x, joins in enumerate(is_joined) if not joins]
    look: dict[str, Any] = {"color": colour, "alpha": alpha}
    name = "weights" if single else "gradient"
    axes.plot([heights[x] for x in joined], joined, "o-", ms=3, lw=1.2, label=name + suffix, **look)
    if single:
        points = [heights[x] for x in single]
        axes.plot(points, single, "o", ms=3.5, mfc="none", mew=0.8, label="biases, scales" + suffix, **look)
