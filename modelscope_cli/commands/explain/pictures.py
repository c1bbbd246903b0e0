"""The pictures of `explain`: the image, where the evidence is, and what each map's receipt says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from modelscope_cli.records.receipt import Receipt, Whereabouts
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import ACCENT, GREEN, INK, new_figure
from modelscope_cli.report.labels import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 15.0  # inches, at 130 dots less than 2,000 pixels
_FOR, _AGAINST = "for the class", "against it"
_COLOURS = "RdBu_r"
_CELL = 1.7  # of one of several images
_SHOWN = 0.995  # of the values lie within the colour bar: a few pixels would leave all others pale
_MOST_CLASSES = 24
_MOST_METHODS = 11


@dataclass(frozen=True, slots=True)
class Explained:
    """One image and what explains it.

    Attributes:
        name: of the image; said: what the model says of it, in words.
        image: `(3, H, W)` uint8, as the model sees it.
        maps: `(H, W)` float32 of each method, the winner first; receipts: of the same names.
        units: what a map is in, `logits` or nothing, by method.
    """

    name: str
    said: str
    image: Tensor
    maps: Mapping[str, Tensor]
    receipts: Mapping[str, Receipt]
    units: Mapping[str, str]


def draw_explanations(explained: Sequence[Explained], title: str = "") -> "Figure":
    """Draw one image large, its winner's map, its curves and the other maps; or several, a row an image."""
    return _draw_one(explained[0], title) if len(explained) == 1 else _draw_many(explained, title)


def _draw_one(one: Explained, title: str) -> "Figure":
    winner, *others = list(one.maps)[: 1 + _MOST_METHODS]
    height, width = one.image.shape[-2:]
    tall = min(max(4.4 * height / width, 2.4), 8.0)
    columns = max(len(others), 5)
    small = (_WIDTH / columns - 0.2) * height / width + 0.75
    figure = new_figure(_WIDTH, tall + 1.1 + (min(small, 4.5) if others else 0), title)
    upper: Any = figure
    if others:
        halves: Any = figure.subfigures(2, 1, height_ratios=[tall + 0.7, small])
        upper, lower = halves
        panels = lower.subplots(1, columns, squeeze=False)[0]
        for axes, method in zip(panels, others, strict=False):
            _overlay(axes, one.image, one.maps[method])
            _caption(axes, method, one.receipts[method])
        for axes in panels[len(others) :]:
            axes.set_axis_off()
    left, middle, right = upper.subplots(1, 3, width_ratios=[1, 1.18, 0.9])
    _show(left, one.image.permute(1, 2, 0).numpy())
    left.set_title(f"{shortened(one.name)}: {one.said}", loc="left", fontsize=10, color=INK)
    drawn, is_clipped = _overlay(middle, one.image, one.maps[winner])
    middle.set_title(winner, loc="left", fontsize=10, color=INK)
    middle.set_xlabel("\n".join(one.receipts[winner].failed), loc="left", fontsize=8, color=ACCENT)
    bar = upper.colorbar(drawn, ax=middle, shrink=0.9, extend="both" if is_clipped else "neither")
    bar.set_label(f"{_AGAINST}  ←  {one.units.get(winner, '')}  →  {_FOR}", fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=8)
    _draw_curves(right, one.receipts[winner])
    return figure


def _draw_many(explained: Sequence[Explained], title: str) -> "Figure":
    methods = list(explained[0].maps)[:_MOST_METHODS]
    cell = min(_WIDTH / (len(methods) + 1), _CELL)
    heights = [min(cell * one.image.shape[-2] / one.image.shape[-1], 2 * cell) + 0.5 for one in explained]
    figure = new_figure(cell * (len(methods) + 1), sum(heights) + 0.5, title)
    grid = figure.subplots(len(explained), len(methods) + 1, squeeze=False, height_ratios=heights)
    for one, (first, *rest) in zip(explained, grid, strict=True):
        _show(first, one.image.permute(1, 2, 0).numpy())
        first.set_title(f"{shortened(one.name, 24)}\n{one.said}", loc="left", fontsize=8, color=INK)
        for axes, method in zip(rest, methods, strict=True):
            if method in one.maps:
                _overlay(axes, one.image, one.maps[method])
                _caption(axes, method, one.receipts[method])
            else:
                axes.set_axis_off()
    figure.supxlabel(f"red is {_FOR}, blue {_AGAINST}, the stronger the less transparent", fontsize=8, color=INK)
    return figure


def _show(axes: Any, picture: Any, **how: Any) -> Any:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return axes.imshow(picture, **how)


def _overlay(axes: Any, image: Tensor, scores: Tensor) -> tuple[Any, bool]:
    """Lay a signed map over the gray image, colour symmetric about zero, as opaque as it is strong.

    Returns:
        What a colour bar is made of, and whether values lie beyond its ends.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    height, width = image.shape[-2:]
    gray = (image.float() * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0) / 255
    _show(axes, (0.2 + 0.75 * gray).numpy(), cmap="gray", vmin=0, vmax=1)
    scores = torch.nan_to_num(scores.detach().float().cpu())
    strength = scores.abs().flatten().sort().values
    limit = strength[round(_SHOWN * (len(strength) - 1))].item() or strength[-1].item() or 1.0
    mapped = ScalarMappable(Normalize(-limit, limit), _COLOURS)
    colours = mapped.to_rgba(scores.numpy())
    colours[..., 3] = 0.8 * (scores.abs() / limit).clamp(max=1).sqrt().numpy()
    _show(axes, colours, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")
    return mapped, strength[-1].item() > 1.05 * limit


def _caption(axes: Any, method: str, receipt: Receipt) -> None:
    """The name of a method, and under its map what the receipt says: in the warning colour where a test failed."""
    axes.set_title(method, loc="left", fontsize=9, color=INK, pad=3)
    figures = {"ins": receipt.insertion, "del": receipt.deletion, "ROAD": receipt.road}
    said = "  ".join(f"{name} {value:.2f}" for name, value in figures.items() if value is not None)
    axes.set_xlabel(said, fontsize=7, color=ACCENT if receipt.failed else INK, loc="left", labelpad=3)


def _draw_curves(axes: Any, receipt: Receipt) -> None:
    """What the model still says while the image is uncovered and covered in the map's order, a line a baseline."""
    styles = ("-", "--")
    for curve, style in zip(receipt.curves, styles, strict=False):
        for values, colour, way in (
            (curve.inserted, GREEN, "insertion"),
            (curve.deleted, ACCENT, "deletion"),
        ):
            if values:
                axes.plot(curve.shares, values, style, color=colour, lw=1.6, label=f"{way}, {curve.baseline}")
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the pixels, the strongest first", fontsize=8)
    axes.set_ylabel("what the model says: 0 blank, 1 the image", fontsize=8)
    pairs = (
        ("insertion", receipt.insertion, receipt.insertion_chance),
        ("deletion", receipt.deletion, receipt.deletion_chance),
    )
    said = [
        f"{way} {value:.2f} (chance {by:.2f})"
        for way, value, by in pairs
        if value is not None and by is not None
    ]
    axes.set_title(
        "\n".join(said) or "no curve: the blank image says the same", loc="left", fontsize=9, color=INK
    )
    axes.tick_params(labelsize=8)
    axes.grid(lw=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize=7)


def draw_class_maps(where: Whereabouts, mean_maps: Mapping[str, Tensor], title: str = "") -> "Figure":
    """Draw for each class where its evidence lies in the mean, the class whose evidence lies most outside first.

    All share one scale: 1 is an even spread. The dotted line is the border, the outer tenth of each side.
    """
    shown = [one for one in where.classes if one.label in mean_maps][:_MOST_CLASSES]
    columns = min(max(len(shown), 4), 6)
    rows = max(-(-len(shown) // columns), 1)
    figure = new_figure(12.0, rows * (12.0 / columns + 0.45) + 0.6, title)
    panels = figure.subplots(rows, columns, squeeze=False)
    highest = max(
        [1.0, *((mean_maps[one.label].max() * mean_maps[one.label].numel()).item() for one in shown)]
    )
    drawn = None
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, one in zip(panels.flat, shown, strict=False):
        cells = mean_maps[one.label]
        drawn = _show(
            axes, (cells * cells.numel()).numpy(), cmap="magma", vmin=0, vmax=highest, extent=(0, 1, 1, 0)
        )
        axes.plot([0.1, 0.9, 0.9, 0.1, 0.1], [0.1, 0.1, 0.9, 0.9, 0.1], ":", color="white", lw=0.8)
        heading = f"{shortened(one.label, 24)}, {numbers.count(one.images)} image{'s' * (one.images != 1)}"
        said = f"{heading}\nborder {numbers.percent(one.border)}"
        said += f", outside {numbers.percent(one.outside)}" if one.outside is not None else ""
        axes.set_title(said, loc="left", fontsize=8, color=INK)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=panels, shrink=0.6)
        bar.set_label("evidence; 1 is an even spread", fontsize=8, color=INK)
    return figure
