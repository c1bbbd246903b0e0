"""The figure of `explain`."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.records.explain import FAILED, PASSED, WEAK, ExplainedImage, ExplainRecord
from modelscope_cli.report.canvas import ACCENT, INK, axes_at, new_figure
from modelscope_cli.report.explain.table import likelihood
from modelscope_cli.report.numbers import shortened

# In inches; at 130 dots the widest image has less than 2,000 pixels.
_WIDTH, _MARGIN, _GAP, _HEAD, _CAPTION, _LINE = 12.5, 0.15, 0.12, 0.45, 0.3, 0.17
_CELL_OF_ONE, _CELL = 4.4, 1.75
_NOTES, _LETTERS = 4, 17  # lines under a map, letters in an inch of them
_COLUMNS = 5
_COLOURS = "RdBu_r"
_SHOWN = 0.995  # quantile of the colour range: a few extreme pixels would leave all others pale
_MOST_METHODS = 12
_MARKS = {
    PASSED: ("✓", "#2f7d4a", "passed"),
    WEAK: ("~", "#8a6100", "weak"),
    FAILED: ("✗", ACCENT, "failed"),
}
_UNTESTED = ("–", INK, "not tested")


def _fit(image: Tensor, width: float, most: float) -> tuple[float, float]:
    """Return width and height of an image fitted into a size in inches, with a minimum for long images."""
    height, long = image.shape[-2:]
    scale = min(width / long, most / height)
    return max(long * scale, 0.05), max(height * scale, 0.05)


def _answer(one: ExplainedImage) -> str:
    return f"{one.words}{' ' if one.probability is not None else ', '}{likelihood(one)}"


class _FigurePage:
    """A figure whose axes are placed in inches from the upper left corner."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self.figure = new_figure(width, height, title, is_laid_out=False)

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        return axes_at(self.figure, left, top, width, height)

    def image(
        self, one: ExplainedImage, left: float, top: float, size: tuple[float, float], words: str
    ) -> Any:
        axes = self.axes(left, top, *size)
        axes.set_title(words, loc="left", fontsize=9, color=INK, pad=3)
        _show(axes, one.picture.permute(1, 2, 0).numpy())
        return axes

    def explain_colours(self, one: ExplainedImage) -> None:
        words = "red is evidence for the class, blue against it"
        if one.index is None:
            words = f"red raises the {one.score_name}, blue lowers it"
        words += ", stronger values are more opaque; each map has its own range"
        self.figure.text(_MARGIN / self.width, 0.5 * _LINE / self.height, words, fontsize=8, color=INK)

    def map(
        self, one: ExplainedImage, method: str, left: float, top: float, size: tuple[float, float]
    ) -> None:
        """Draw a map with its mark above and its test results below, in the warning colour if one failed."""
        axes, outcome = self.axes(left, top, *size), one.maps[method]
        receipt = outcome.receipt
        limit = _overlay(axes, one.picture, outcome.shown)
        mark, colour, answer = (
            _MARKS.get(receipt.verdict.answer, _UNTESTED) if receipt.verdict else ("", INK, "")
        )
        title = f"{mark} {method}: {answer}" if answer else method
        axes.set_title(title, loc="left", fontsize=9, color=colour, pad=3)
        results = [f"covering {receipt.covering:.2f}"] if receipt.covering is not None else []
        lines = ["  ".join([*results, f"range ±{limit:.2g} {outcome.units}".rstrip()])]
        failed = [one.test for one in receipt.tests if one.answer == FAILED]
        lines += [f"fails {', '.join(failed)}"] if failed else []
        most = max(int(size[0] * _LETTERS), 12)
        wrapped = [line for text in lines for line in textwrap.wrap(text, most)]
        lines_shown = [*wrapped[: _NOTES - 1], "…"] if len(wrapped) > _NOTES else wrapped
        axes.set_xlabel("\n".join(lines_shown), fontsize=7, color=INK, loc="left", labelpad=3)


def draw_explanations(record: ExplainRecord, explained: Sequence[ExplainedImage]) -> Any:
    """Draw one image with the winner's map and the other maps; or several images, one per row.

    Returns:
        The figure; None without images, which noise and tensors are not.
    """
    shown = [one for one in explained if one.picture is not None]
    if not shown:
        return None
    title = f"{record.run.model.heading}, why {record.target}"
    return _draw_one(shown[0], title) if len(shown) == 1 else _draw_many(shown, title)


def _room_below(one: ExplainedImage) -> float:
    """Return the inches for the lines under its maps: failed tests are named there."""
    is_failed = any(outcome.receipt.failed for outcome in one.maps.values())
    return (_NOTES + 1 if is_failed else 3) * _LINE


def _draw_one(one: ExplainedImage, title: str) -> Any:
    """Draw the image and every map in one size."""
    methods = list(one.maps)[:_MOST_METHODS]
    n_columns = min(len(methods) + 1, _COLUMNS)
    cell = min((_WIDTH - 2 * _MARGIN) / n_columns, _CELL_OF_ONE)
    size = _fit(one.picture, cell - _GAP, 1.5 * cell)
    row = _CAPTION + size[1] + _room_below(one)
    n_rows = -(-(len(methods) + 1) // n_columns)
    page = _FigurePage(2 * _MARGIN + n_columns * cell, _HEAD + n_rows * row + _LINE, title)
    page.image(one, _MARGIN, _HEAD + _CAPTION, size, f"{shortened(Path(one.name).name)}: {_answer(one)}")
    for place, method in enumerate(methods, 1):
        down, across = divmod(place, n_columns)
        left, top = _MARGIN + across * cell, _HEAD + down * row + _CAPTION
        page.map(one, method, left, top, size)
    page.explain_colours(one)
    return page.figure


def _draw_many(explained: Sequence[ExplainedImage], title: str) -> Any:
    methods = list(explained[0].maps)[:_MOST_METHODS]
    cell = min((_WIDTH - 2 * _MARGIN) / (len(methods) + 1), _CELL)
    sizes = [_fit(one.picture, cell - _GAP, 2 * cell) for one in explained]
    rows = [
        height + _room_below(one) + _LINE + _CAPTION
        for one, (_, height) in zip(explained, sizes, strict=True)
    ]
    page = _FigurePage(max(2 * _MARGIN + cell * (len(methods) + 1), 6.0), _HEAD + sum(rows) + _LINE, title)
    top = _HEAD
    for one, size, row in zip(explained, sizes, rows, strict=True):
        upper = top + 2 * _LINE
        page.image(
            one, _MARGIN, upper, size, f"{shortened(Path(one.name).name, 22)}\n{shortened(_answer(one), 22)}"
        )
        for place, method in enumerate(methods, 1):
            if method in one.maps:
                page.map(one, method, _MARGIN + place * cell, upper, size)
        top += row
    page.explain_colours(explained[0])
    return page.figure


def _show(axes: Any, image: Any, **how: Any) -> Any:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes.imshow(image, aspect="auto", **how)


def _overlay(axes: Any, image: Tensor, scores: Tensor) -> float:
    """Draw a signed map over the gray image: diverging colours symmetric about zero, opacity by magnitude.

    Returns:
        The value from which a colour is the strongest.
    """
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
