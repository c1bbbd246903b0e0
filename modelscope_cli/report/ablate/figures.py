"""The figures of `ablate` and its output folder."""

from collections.abc import Sequence
from typing import Any

from modelscope_cli.records.ablate import AblateRecord, Ablation
from modelscope_cli.records.naming import label_of
from modelscope_cli.report.ablate.table import answer_of, picture_title
from modelscope_cli.report.canvas import ABOVE, ACCENT, INK, LINE, new_figure
from modelscope_cli.report.layer_axis import Panel, layer_names, layer_panels
from modelscope_cli.report.numbers import shortened

_MOST_PANELS = 8  # of channels
_NAMED = 8  # longest bars of each panel


def draw_ablation(record: AblateRecord) -> Any:
    """Draw the rows in execution order; red where the prediction changes, paler if only for some images."""
    if any(row.channel is not None for row in record.rows):
        return _draw_channels(record)
    rows = sorted(record.rows, key=lambda row: row.order)
    names = layer_names(map(label_of, rows))
    figure, (changes, after) = layer_panels(picture_title(record), [names], [3, 2])
    places = range(len(rows))
    _bars(changes, places, rows, [row.target_logit_change for row in rows])
    changes.say(f"change of the target's {record.score_name}")
    changes.legend(handles=_patches(record, changes.axes))
    whole = record.baseline.target_probability
    if whole is None:
        _bars(after, places, rows, [row.output_l2 for row in rows])
        after.say("distance of the outputs (L2)")
    else:
        _bars(after, places, rows, [row.target_probability for row in rows])
        after.axes.axvline(whole, color=INK, lw=0.8, ls="--", label="whole model")
        highest = max([whole, *(row.target_probability or 0.0 for row in rows)])
        after.axes.set_xlim(0, max(1.1 * highest, 1e-3))
        after.say("its probability")
        after.legend()
    return figure


def _draw_channels(record: AblateRecord) -> Any:
    by_call: dict[tuple[int, str], list[Ablation]] = {}
    for row in record.rows:
        by_call.setdefault((row.order, label_of(row)), []).append(row)
    calls = sorted(list(by_call)[:_MOST_PANELS])  # those with the largest effects
    figure = new_figure(11.0, 1.4 + 2.3 * len(calls), picture_title(record))
    panels = figure.subplots(len(calls), 1, squeeze=False)[:, 0]
    for axes, key in zip(panels, calls, strict=True):
        rows = by_call[key]
        changes = [row.target_logit_change for row in rows]
        colours = [_mixed(row.changed_fraction) for row in rows]
        axes.bar(
            [row.channel or 0 for row in rows], [one or 0.0 for one in changes], width=0.85, color=colours
        )
        missing = [row.channel or 0 for row, one in zip(rows, changes, strict=True) if one is None]
        if missing:
            axes.plot(missing, [0.0] * len(missing), "x", color=ACCENT, label="no number")
        axes.axhline(0, color=INK, lw=0.6)
        axes.grid(axis="y", lw=0.4, alpha=0.5)
        axes.set_axisbelow(True)
        for row in sorted(rows, key=lambda row: -abs(row.target_logit_change or 0))[:_NAMED]:
            if row.target_logit_change:
                answer = answer_of(row) if row.prediction_changed else ""
                text = ": ".join(filter(None, (str(row.channel), answer)))
                up = row.target_logit_change > 0
                axes.annotate(
                    text,
                    (row.channel, row.target_logit_change),
                    xytext=(0, 3 if up else -3),
                    textcoords="offset points",
                    ha="center",
                    va="bottom" if up else "top",
                    fontsize=7,
                    color=INK,
                )
        axes.margins(y=0.18)
        axes.set_xlim(-0.7, len(rows) - 0.3)
        axes.set_ylabel(shortened(key[1]), fontsize=8)
    panels[-1].set_xlabel(f"channel; the bar is the change of the target's {record.score_name}")
    panels[0].legend(handles=_patches(record, panels[0]), ncols=3, **ABOVE)
    return figure


def _bars(
    panel: Panel, places: Sequence[int], rows: Sequence[Ablation], heights: Sequence[float | None]
) -> None:
    colours = [_mixed(row.changed_fraction) for row in rows]
    lengths = [height or 0.0 for height in heights]
    panel.axes.barh(places, lengths, height=0.85, color=colours, edgecolor=colours, lw=0.4)
    missing = [x for x, height in zip(places, heights, strict=True) if height is None]
    if missing:
        panel.axes.plot([0.0] * len(missing), missing, "x", color=ACCENT, label="no number")
    panel.axes.axvline(0, color=INK, lw=0.6)
    panel.grid()


def _mixed(fraction: float) -> tuple[float, float, float]:
    """Blend from neutral to red by the fraction of changed predictions; even one is visible."""
    from matplotlib.colors import to_rgb

    share = 0.35 + 0.65 * fraction if fraction else 0.0
    red, green, blue = (
        (1 - share) * a + share * b for a, b in zip(to_rgb(LINE), to_rgb(ACCENT), strict=True)
    )
    return red, green, blue


def _patches(record: AblateRecord, axes: Any) -> list[Any]:
    """Return what a legend explains: the colours of the bars, and what else is on the axes."""
    from matplotlib.patches import Patch

    changed = (
        "another prediction" if record.images == 1 else "the prediction changes; darker red: in more images"
    )
    patches = [Patch(color=LINE, label="the same prediction")]
    if any(row.prediction_changed for row in record.rows):
        patches.append(Patch(color=ACCENT, label=changed))
    return [*patches, *axes.get_legend_handles_labels()[0]]
