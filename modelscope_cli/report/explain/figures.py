"""The figure of `explain`."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.records.explain import FAILED, PASSED, WEAK, ExplainedImage, ExplainRecord
from modelscope_cli.report.canvas import ACCENT, INK, axes_at, new_figure
from modelscope_cli.report.explain.table import graded, likelihood
from modelscope_cli.report.numbers import shortened

# In inches; at 130 dots the widest image has less than 2,000 pixels.
_WIDTH, _LEAST, _MARGIN, _GAP, _HEAD, _CAPTION, _LINE = 12.5, 6.0, 0.15, 0.12, 0.45, 0.36, 0.17
_CELL_OF_ONE, _CELL = 4.4, 1.75
_NOTES, _LETTERS, _TITLE_LETTERS = 4, 17, 13  # lines under a map, letters in an inch of them, of a title
_COLUMNS = 5
_LEGEND = "each map has its own range; half of the red is in the box"
_COLOURS = "RdBu_r"
_SHOWN = 0.995  # quantile of the colour range: a few extreme pixels would leave all others pale
_MOST_METHODS = 12
_MARKS = {PASSED: ("✓", "#2f7d4a"), WEAK: ("~", "#8a6100"), FAILED: ("✗", ACCENT)}


def draw_explanations(record: ExplainRecord, explained: Sequence[ExplainedImage]) -> Any:
    """Draw each image and its maps in the order of the table, in rows of at most five.

    Returns:
        The figure; None without images, which noise and tensors are not.
    """
    shown = [one for one in explained if one.picture is not None]
    if not shown:
        return None
    methods = [row.method for row in record.rows][:_MOST_METHODS]
    n_columns = min(len(methods) + 1, _COLUMNS)
    n_rows = -(-(len(methods) + 1) // n_columns)
    cell = min((_WIDTH - 2 * _MARGIN) / n_columns, _CELL if len(shown) > 1 else _CELL_OF_ONE)
    sizes = []  # in inches, with a minimum for long images
    for height, long in (one.picture.shape[-2:] for one in shown):
        scale = min((cell - _GAP) / long, 1.5 * cell / height)
        sizes.append((max(long * scale, 0.05), max(height * scale, 0.05)))
    # Failed tests are named below the maps
    are_failed = [any(outcome.receipt.failed for outcome in one.maps.values()) for one in shown]
    rooms = [(_NOTES + 1 if is_failed else 3) * _LINE for is_failed in are_failed]
    rows = [_CAPTION + size[1] + room for size, room in zip(sizes, rooms, strict=True)]
    width, height = max(2 * _MARGIN + n_columns * cell, _LEAST), _HEAD + n_rows * sum(rows) + _LINE
    title = f"{record.run.model.heading}: evidence for {record.target}"
    figure = new_figure(width, height, title, is_laid_out=False)
    top = _HEAD + _CAPTION
    for one, size, row in zip(shown, sizes, rows, strict=True):
        for place, method in enumerate(("", *methods)):
            down, across = divmod(place, n_columns)
            if method and method not in one.maps:
                continue
            axes = axes_at(figure, _MARGIN + across * cell, top + down * row, *size)
            if method:
                _draw_map(axes, one, method, size[0])
                continue
            most = max(int(size[0] * _TITLE_LETTERS), 12)
            answer = f"{one.words}{' ' if one.probability is not None else ', '}{likelihood(one)}"
            words = f"{shortened(Path(one.name).name, most)}\n{shortened(answer, most)}"
            axes.set_title(words, loc="left", fontsize=9, color=INK, pad=3)
            _show(axes, one.picture.permute(1, 2, 0).numpy())
        top += n_rows * row
    other = f"red raises the {shown[0].score_name}, blue lowers it"
    words = other if shown[0].index is None else "red is evidence for the class, blue against it"
    words = textwrap.fill(f"{words}, stronger values are more opaque; {_LEGEND}", int(width * _LETTERS))
    figure.text(_MARGIN / width, 0.4 * _LINE / height, words, fontsize=8, color=INK)
    return figure


def _draw_map(axes: Any, one: ExplainedImage, method: str, width: float) -> None:
    """Draw a map, the box with half of its evidence, its mark above and its test results below."""
    outcome = one.maps[method]
    receipt = outcome.receipt
    limit = _overlay(axes, one.picture, outcome.shown)
    if outcome.where is not None:
        left, top, right, bottom = (edge - 0.5 for edge in outcome.where.box)
        x, y = [left, right, right, left, left], [top, top, bottom, bottom, top]
        axes.plot(x, y, color=INK, lw=1, clip_on=False, scalex=False, scaley=False)
    answer = graded(receipt.verdict)
    mark, colour = _MARKS.get(answer, ("–" if answer else "", INK))
    axes.set_title(f"{method}\n{mark} {answer}".rstrip(), loc="left", fontsize=9, color=colour, pad=3)
    results = [f"covering {receipt.covering:.2f}"] if receipt.covering is not None else []
    lines = ["  ".join([*results, f"range ±{limit:.2g} {outcome.units}".rstrip()])]
    failed = [one.test for one in receipt.tests if one.answer == FAILED]
    lines += [f"fails {', '.join(failed)}"] if failed else []
    most = max(int(width * _LETTERS), 12)
    wrapped = [line for text in lines for line in textwrap.wrap(text, most)]
    lines_shown = [*wrapped[: _NOTES - 1], "…"] if len(wrapped) > _NOTES else wrapped
    axes.set_xlabel("\n".join(lines_shown), fontsize=7, color=INK, loc="left", labelpad=3)


def _show(axes: Any, image: Any, **how: Any) -> Any:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes.imshow(image, aspect="auto", **how)


def _overlay(axes: Any, image: Tensor, scores: Tensor) -> float:
    """Draw a signed map over the gray image, opacity by magnitude; return the value of the strongest colour."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    height, width = image.shape[-2:]
    gray = (image.float() * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0) / 255
    _show(axes, (0.2 + 0.75 * gray).numpy(), cmap="gray", vmin=0, vmax=1)
    scores = torch.nan_to_num(scores.detach().float().cpu(), nan=0.0, posinf=0.0, neginf=0.0)
    strength = scores.abs().flatten().sort().values
    highest = strength[-1].item()
    limit = strength[round(_SHOWN * (len(strength) - 1))].item() or highest or 1.0
    mapped = ScalarMappable(Normalize(-limit, limit), _COLOURS)
    colours = mapped.to_rgba(scores.numpy())
    colours[..., 3] = 0.75 * (scores.abs() / limit).clamp(max=1).sqrt().numpy()
    _show(axes, colours, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")
    return limit
