"""The picture of a divergence: how far B is from A, row by row along the depth."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.records.diff import Difference, DiffRecord
from modelscope_cli.report.canvas import ABOVE, ACCENT, INK, LINE, new_figure

_FAINT = "#9fb3cf"
_MOST_LABELS = 160


def draw_divergence(record: DiffRecord) -> Any:
    """Draw the relative L2 of every row in order on a logarithmic scale, with SQNR on the right: one is the other.

    What is equal to the last bit, which such a scale has no place for, stands on the lower edge. Below, 1 - cosine.
    """
    rows = record.rows
    figure = new_figure(min(max(8.0, 0.16 * len(rows) + 2.5), 40.0), 7.2, _title(record))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    _draw_distance(upper, record)
    _draw_angle(lower, rows)
    step = -(-len(rows) // _MOST_LABELS) or 1
    labels = [row.label for row in rows]
    lower.set_xticks(range(0, len(rows), step), labels[::step], rotation=90, fontsize=6.5)
    lower.set_xlim(-0.7, max(len(rows) - 0.3, 0.7))
    return figure


def _draw_distance(axes: Any, record: DiffRecord) -> None:
    rows = record.rows
    distances = [row.rel_l2 for row in rows]
    floor, top = _limits([*distances, record.tolerance], has_edge=not all(distances))
    axes.set_yscale("log")
    axes.set_ylim(floor, top)
    heights = [math.nan if one is None else min(max(one, floor), top) for one in distances]
    joined = [height if row.differing else math.nan for row, height in zip(rows, heights, strict=True)]
    axes.plot(joined, "-", lw=1.0, color=_FAINT, zorder=1)
    looks = (
        ("beyond the tolerance", "o", LINE, LINE),
        ("within the tolerance", "o", LINE, "white"),
        ("equal to the last bit", "s", _FAINT, "white"),
    )
    kinds = [0 if row.differing and row.status != "same" else 1 if row.differing else 2 for row in rows]
    for kind, (name, marker, edge, face) in enumerate(looks):
        places = [x for x, row in enumerate(rows) if kinds[x] == kind and row.rel_l2 is not None]
        points = [heights[x] for x in places]
        if places:
            axes.plot(places, points, marker, ms=4, mec=edge, mfc=face, label=name, clip_on=False, zorder=2)
    if record.tolerance > 0:
        axes.axhline(record.tolerance, color=INK, lw=0.8, ls=":", label=f"tolerance {record.tolerance:g}")
    apart = [x for x, row in enumerate(rows) if row.rel_l2 is None]
    if apart:
        axes.plot(
            apart,
            [floor] * len(apart),
            "x",
            ms=5,
            color=ACCENT,
            label="added, removed, reshaped",
            clip_on=False,
        )
    first = next((x for x, row in enumerate(rows) if row.label == record.first_divergence), None)
    if first is not None and record.layers is not None:
        axes.axvline(first, color=ACCENT, lw=1.0, zorder=0, label=f"first divergence: {rows[first].label}")
    axes.set_ylabel("relative L2, |a - b| / |a|")
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    axes.legend(**ABOVE, ncols=5)
    decibels = axes.twinx()
    decibels.set_ylim(-20 * math.log10(floor), -20 * math.log10(top))
    decibels.set_ylabel("SQNR, dB")


def _draw_angle(axes: Any, rows: Sequence[Difference]) -> None:
    # Below this a cosine in float64 says nothing; what is equal has none to show.
    angles = [
        max(1 - row.cosine, 1e-16) if row.cosine is not None and row.differing else math.nan for row in rows
    ]
    axes.set_yscale("log")
    axes.plot(angles, ".-", ms=4, lw=1.0, color=LINE)
    drawn = [angle for angle in angles if angle > 0] or [1.0]
    axes.set_ylim(10 ** math.floor(math.log10(0.5 * min(drawn))), 10 ** math.ceil(math.log10(2 * max(drawn))))
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_ylabel("1 - cosine")
    axes.grid(axis="y", lw=0.4, alpha=0.5)


def _limits(values: Sequence[float | None], *, has_edge: bool) -> tuple[float, float]:
    """Return whole powers of ten around what can be drawn, with room for what stands on the lower edge."""
    drawn = [value for value in values if value and math.isfinite(value)] or [1.0]
    low, high = math.floor(math.log10(min(drawn))), math.ceil(math.log10(max(drawn)) + 1e-9)
    return 10.0 ** (low - has_edge), 10.0 ** max(high, low + 1)


def _title(record: DiffRecord) -> str:
    sides = (
        (record.run.model, record.run.dtype, record.mode),
        (record.b.model, record.b.dtype, record.b.mode),
    )
    texts = []
    for model, dtype, mode in sides:
        name = Path(model.name).name
        weights = f", {model.weights.resolved} weights" if model.source != "file" else ""
        texts.append(f"{name}{weights}" + (f", {dtype}, {mode} mode" if mode else ""))
    return f"A: {texts[0]}\nB: {texts[1]}"


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {"divergence": draw_divergence}
