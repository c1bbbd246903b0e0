"""The figures of `ablate` and its output folder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from modelscope_cli.commands.ablate.table import ablate_sheet, answer_of, picture_title, signed
from modelscope_cli.output_files import write_with
from modelscope_cli.records.ablate import AblateRecord, Ablation
from modelscope_cli.records.naming import label_of
from modelscope_cli.records.predict import Guess
from modelscope_cli.report import gallery, image_tiles, numbers
from modelscope_cli.report.canvas import ACCENT, INK, LINE, new_figure
from modelscope_cli.report.layer_axis import Panel, layer_names, layer_panels
from modelscope_cli.report.numbers import shortened
from modelscope_cli.report.page import results
from modelscope_cli.report.reading import RESULT_FILES

_MOST_PANELS = 8  # of channels
_NAMED = 8  # longest bars of each panel


def draw_ablation(record: AblateRecord) -> Any:
    """Draw the rows in execution order; red where the prediction changes, paler if only for some images."""
    if any(row.channel is not None for row in record.rows):
        return _draw_channels(record)
    rows = sorted(record.rows, key=lambda row: row.order)
    names = layer_names(map(label_of, rows))
    figure, (upper, lower) = layer_panels(picture_title(record), [names], [3, 2], 7.2, least_down=5)
    places = range(len(rows))
    _bars(upper, places, rows, [row.target_logit_change for row in rows])
    upper.say(f"change of the target's {record.score_name}")
    _explain(upper, record)
    if record.baseline.target_probability is None:
        _bars(lower, places, rows, [row.output_l2 for row in rows])
        lower.say("distance of the outputs (L2)")
    else:
        _draw_probabilities(lower, rows, record.baseline.target_probability)
    return figure


def _draw_probabilities(panel: Panel, rows: Sequence[Ablation], whole: float) -> None:
    _bars(panel, range(len(rows)), rows, [row.target_probability for row in rows])
    panel.level(whole, color=INK, lw=0.8, ls="--", label="whole model")
    highest = max([whole, *(row.target_probability or 0.0 for row in rows)])
    panel.limits(0, max(1.1 * highest, 1e-3))
    panel.say("its probability")
    panel.legend(ncols=3)


def _draw_channels(record: AblateRecord) -> Any:
    by_call: dict[tuple[int, str], list[Ablation]] = {}
    for row in record.rows:
        by_call.setdefault((row.order, label_of(row)), []).append(row)
    calls = sorted(list(by_call)[:_MOST_PANELS])  # those with the largest effects
    figure = new_figure(11.0, 1.4 + 2.3 * len(calls), picture_title(record))
    panels = [Panel(axes, is_down=False) for axes in figure.subplots(len(calls), 1, squeeze=False)[:, 0]]
    for panel, key in zip(panels, calls, strict=True):
        rows, axes = by_call[key], panel.axes
        _bars(panel, [row.channel or 0 for row in rows], rows, [row.target_logit_change for row in rows])
        for row in sorted(rows, key=lambda row: -abs(row.target_logit_change or 0))[:_NAMED]:
            if row.target_logit_change:
                text = f"{row.channel}: {answer_of(row)}" if row.prediction_changed else str(row.channel)
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
    panels[-1].axes.set_xlabel(f"channel; the bar is the change of the target's {record.score_name}")
    _explain(panels[0], record)
    return figure


def _bars(
    panel: Panel, places: Sequence[int], rows: Sequence[Ablation], heights: Sequence[float | None]
) -> None:
    colours = [_mixed(row.changed_fraction) for row in rows]
    lengths = [height or 0.0 for height in heights]
    panel.bars(places, lengths, width=0.85, color=colours, edgecolor=colours, lw=0.4)
    missing = [x for x, height in zip(places, heights, strict=True) if height is None]
    if missing:
        panel.plot(missing, [0.0] * len(missing), "x", color=ACCENT, label="no number")
    panel.level(0, color=INK, lw=0.6)
    panel.grid()


def _mixed(fraction: float) -> tuple[float, float, float]:
    """Blend from neutral to red by the fraction of changed predictions; even one is visible."""
    from matplotlib.colors import to_rgb

    share = 0.35 + 0.65 * fraction if fraction else 0.0
    red, green, blue = (
        (1 - share) * a + share * b for a, b in zip(to_rgb(LINE), to_rgb(ACCENT), strict=True)
    )
    return red, green, blue


def _explain(panel: Panel, record: AblateRecord) -> None:
    from matplotlib.patches import Patch

    changed = (
        "another prediction" if record.images == 1 else "the prediction changes; darker red: in more images"
    )
    patches = [Patch(color=LINE, label="the same prediction")]
    if any(row.prediction_changed for row in record.rows):
        patches.append(Patch(color=ACCENT, label=changed))
    panel.legend(handles=[*patches, *panel.axes.get_legend_handles_labels()[0]], ncols=3)


# The figures of `record.plot()`; the first is the default.
FIGURES = {"ablation": draw_ablation}


COLUMNS, N_TILES = 4, 12  # the image is one of the tiles
_SIDE, _GAP, _LINE, _FRAME, _LETTERS = 232, 16, 18, 3, 13  # pixels
_CMAP = "viridis"
_PAPER, _INK, _FAINT, _ALARM = (17, 19, 24), (236, 238, 242), (150, 156, 168), (255, 107, 120)
# By name and index of a call: its output for the image, `(C, H, W)` maps or a `(C,)` vector.
Maps = Mapping[tuple[str, int], Tensor]


@dataclass(frozen=True, slots=True)
class _AblationTile:
    """A small image with three lines under it."""

    image: Image.Image
    lines: tuple[str, str, str]
    is_alarming: bool = False

    def draw(self, sheet: Image.Image, x: int, y: int) -> None:
        pen = ImageDraw.Draw(sheet)
        if self.is_alarming:
            pen.rectangle((x - _FRAME, y - _FRAME, x + _SIDE + _FRAME - 1, y + _SIDE + _FRAME - 1), _ALARM)
            pen.rectangle((x, y, x + _SIDE - 1, y + _SIDE - 1), _PAPER)
        centre = (x + (_SIDE - self.image.width) // 2, y + (_SIDE - self.image.height) // 2)
        sheet.paste(self.image, centre)
        colours = (_INK, _FAINT, _ALARM if self.is_alarming else _FAINT)
        font = image_tiles.font_of(_LETTERS)
        for i, (line, colour) in enumerate(zip(self.lines, colours, strict=True)):
            text = image_tiles.cut(line, _LETTERS, _SIDE)
            pen.text((x, y + _SIDE + 6 + i * _LINE), text, fill=colour, font=font)


def rows_shown(record: AblateRecord) -> tuple[Ablation, ...]:
    """Return the rows that get a tile: the largest effects."""
    return record.rows[: N_TILES - 1]


def save_contact_sheet(record: AblateRecord, input_image: Tensor, maps: Maps, path: Path) -> None:
    """Draw the image with the intact model's prediction, then a tile for each of `rows_shown`.

    The frame is red where the prediction changes. A layer is shown by its most varying channels, a
    channel as an overlay on the image.

    Args:
        input_image: `(3, H, W)` uint8.
    """
    tiles = [_AblationTile(image_tiles.thumbnail(input_image, _SIDE), _whole_lines(record))]
    for row in rows_shown(record):
        image = _image(row, maps.get((row.name, row.call)), input_image)
        tiles.append(_AblationTile(image, _lines(row, record), row.prediction_changed))
    n_columns, n_rows = min(COLUMNS, len(tiles)), -(-len(tiles) // COLUMNS)
    width, height = _SIDE + _GAP, _SIDE + 3 * _LINE + _GAP + 4
    sheet = Image.new("RGB", (n_columns * width + _GAP, n_rows * height + _GAP), _PAPER)
    for place, tile in enumerate(tiles):
        tile.draw(sheet, _GAP + place % COLUMNS * width, _GAP + place // COLUMNS * height)
    write_with(path, lambda beside: image_tiles.save_png(sheet, beside))


def _whole_lines(record: AblateRecord) -> tuple[str, str, str]:
    """Return the lines for the intact model: name, value, and prediction of the first image."""
    baseline = record.baseline
    guess = baseline.predictions[0].top[0]
    if record.output != "classes":
        score = f"{record.score_name} {numbers.number(baseline.target_logit)}"
        return "the whole model", score, _name(guess)
    score = f"logit {numbers.number(guess.logit or 0.0)}   {numbers.percent(guess.score)}"
    return "the whole model", score, _name(guess)


def _lines(row: Ablation, record: AblateRecord) -> tuple[str, str, str]:
    name = label_of(row) + (f"   channel {row.channel}" if row.channel is not None else "")
    share = "" if row.target_probability is None else numbers.percent(row.target_probability)
    answer = answer_of(row)
    outcome = f"becomes {answer}" if row.prediction_changed else f"still {answer}"
    if record.output != "classes":
        outcome = f"{numbers.percent(row.changed_fraction)} changed, most often to {answer}"
    elif record.images > 1:
        n_changed = round(row.changed_fraction * record.images)
        outcome = (
            f"{n_changed} of {record.images} change, most often to {answer}"
            if n_changed
            else "no prediction changes"
        )
    change = f"change of the {record.score_name} {signed(row.target_logit_change)}"
    return name, f"{change}   {share}".rstrip(), outcome


def _name(guess: Guess) -> str:
    return guess.label or str(guess.index)


def _image(row: Ablation, maps: Tensor | None, input_image: Tensor) -> Image.Image:
    """Draw the ablated channel over the image, or the most varying channels of the ablated layer."""
    if maps is None or maps.numel() == 0:
        return Image.new("RGB", (_SIDE, _SIDE), _PAPER)
    if maps.ndim == 1:
        return _vector(
            maps if row.channel is None else torch.where(torch.arange(len(maps)) == row.channel, maps, 0)
        )
    if row.channel is not None:
        return image_tiles.overlay(maps[[row.channel]], input_image, _CMAP, _SIDE, "channel")
    return gallery.draw_tile(maps, gallery.MapLook("channel", _CMAP, None), _SIDE).convert("RGB")


def _vector(vector: Tensor) -> Image.Image:
    """Draw the values of a vector as a grid of small squares."""
    n_columns = math.ceil(math.sqrt(len(vector)))
    side = max((_SIDE + image_tiles.GAP) // n_columns - image_tiles.GAP, 1)
    cells = gallery.vector_colours(vector)[:, None, None].expand(-1, side, side)
    image = image_tiles.to_image(image_tiles.mosaic(cells, n_columns), _CMAP).convert("RGB")
    return image_tiles.scaled(image, _SIDE, Image.Resampling.NEAREST)


PLOT, TABLE, CONTACT_SHEET = "ablation.png", "ablation.csv", "contact_sheet.png"


def files_for(input_image: Tensor | None) -> tuple[str, ...]:
    """Return the files that `save_report` writes; the contact sheet only with an image."""
    return (PLOT, *((CONTACT_SHEET,) if input_image is not None else ()), TABLE, *RESULT_FILES)


def save_report(record: AblateRecord, stage: Path, input_image: Tensor | None, maps: Maps) -> None:
    """Write `files_for(input_image)`: the chart, the contact sheet, the table, the record and its page."""
    if input_image is not None:
        save_contact_sheet(record, input_image, maps, stage / CONTACT_SHEET)
    results.save_report(record, stage, {PLOT: draw_ablation(record)}, {TABLE: ablate_sheet(record)})
