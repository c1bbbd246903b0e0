"""The figure of `diff`."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.records.diff import Difference, DiffRecord, first_divergence
from modelscope_cli.report.canvas import ACCENT, INK, LINE
from modelscope_cli.report.diff.table import sides_in_words
from modelscope_cli.report.layer_axis import layer_names, layer_panels, parameter_names

_FAINT = "#9fb3cf"


def draw_divergence(record: DiffRecord) -> Any:
    """Draw the relative L2 of every row in order on a logarithmic scale.

    Bit-equal rows are on the left edge. Of two saved results it is the number of each layer that differs most.
    """
    rows: Sequence[Difference] = record.rows
    if record.figures is not None:
        by_name = itertools.groupby(record.figures, key=lambda row: row.name)
        rows = [max(some, key=lambda row: row.rel_l2 or 0.0) for _, some in by_name]
    differs = [bool(row.differing or row.rel_l2) for row in rows]
    names_of = parameter_names if record.tensors is not None else layer_names
    figure, (panel,) = layer_panels(
        _title(record), [names_of(row.label for row in rows)], [1], legend_lines=3
    )
    distances = [row.rel_l2 for row in rows]
    floor, top = _limits([*distances, record.tolerance], has_edge=not all(distances))
    panel.axes.set_xscale("log")
    panel.axes.set_xlim(floor, top)
    heights = [math.nan if one is None else min(max(one, floor), top) for one in distances]
    joined = [height if is_so else math.nan for is_so, height in zip(differs, heights, strict=True)]
    panel.plot(range(len(rows)), joined, "-", lw=1.0, color=_FAINT, zorder=1)
    looks = (
        ("beyond the tolerance", "o", LINE, LINE),
        ("within the tolerance", "o", LINE, "white"),
        ("bit-identical", "s", _FAINT, "white"),
    )
    kinds = [
        2 if not is_so else 1 if row.status == "same" else 0 for row, is_so in zip(rows, differs, strict=True)
    ]
    for kind, (name, marker, edge, face) in enumerate(looks):
        places = [x for x, row in enumerate(rows) if kinds[x] == kind and row.rel_l2 is not None]
        points = [heights[x] for x in places]
        if places:
            panel.plot(places, points, marker, ms=4, mec=edge, mfc=face, label=name, clip_on=False, zorder=2)
    if record.tolerance > 0:
        panel.level(record.tolerance, color=INK, lw=0.8, ls=":", label=f"tolerance {record.tolerance:g}")
    apart = [x for x, row in enumerate(rows) if row.rel_l2 is None]
    if apart:
        words = "added, removed, reshaped, not finite"
        panel.plot(apart, [floor] * len(apart), "x", ms=5, color=ACCENT, label=words, clip_on=False)
    first = next((x for x, row in enumerate(rows) if row.label == first_divergence(tuple(rows))), None)
    if first is not None and record.tensors is None:
        panel.axes.axhline(
            first, color=ACCENT, lw=1.0, zorder=0, label=f"first divergence: {rows[first].label}"
        )
    panel.say("relative L2, |a - b| / |a|" if record.figures is None else "largest relative difference")
    panel.grid()
    panel.legend()
    return figure


def _limits(values: Sequence[float | None], *, has_edge: bool) -> tuple[float, float]:
    """Return powers of ten around the positive values, with room for zeros on the lower edge."""
    positive = [value for value in values if value and math.isfinite(value)] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)) + 1e-9)
    return 10.0 ** (low - has_edge), 10.0 ** max(high, low + 1)


def _title(record: DiffRecord) -> str:
    models = (record.run.model, record.b.model)
    sides = zip(sides_in_words(record).items(), models, strict=True)
    return "\n".join(f"{side}: {Path(model.name).name}, {words}" for (side, words), model in sides)
