"""The contact sheet of `ablate`: the picture, and what the layers or channels that matter most see in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from modelscope_cli.commands.ablate.table import answer_of, signed
from modelscope_cli.plain_text import plain
from modelscope_cli.records.ablate import AblateRecord, Ablation
from modelscope_cli.records.naming import label_of
from modelscope_cli.records.predict import Guess
from modelscope_cli.report import gallery, grids, numbers
from modelscope_cli.report.folder import write_with

COLUMNS, N_TILES = 4, 12  # the picture is one of the tiles
_SIDE, _GAP, _LINE, _FRAME = 232, 16, 18, 3  # pixels
_CMAP = "viridis"
_PAPER, _INK, _FAINT, _ALARM = (17, 19, 24), (236, 238, 242), (150, 156, 168), (255, 107, 120)
# Of every call, by name and index: what it gave for the picture, `(C, H, W)` maps or a `(C,)` vector.
Maps = Mapping[tuple[str, int], Tensor]


@dataclass(frozen=True, slots=True)
class _Tile:
    """A small picture with three lines under it."""

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
        lines = (_end_of(plain(self.lines[0])), *(_start_of(plain(line)) for line in self.lines[1:]))
        for i, (text, colour) in enumerate(zip(lines, colours, strict=True)):
            pen.text((x, y + _SIDE + 6 + i * _LINE), text, fill=colour, font=_font())


def rows_shown(record: AblateRecord) -> tuple[Ablation, ...]:
    """Return the rows that get a tile: the largest effects."""
    return record.rows[: N_TILES - 1]


def save_contact_sheet(record: AblateRecord, picture: Tensor, maps: Maps, path: Path) -> None:
    """Draw the picture with the whole model's answer, then a tile for each of `rows_shown`, framed in red where
    the answer becomes another one.

    A layer is shown by its liveliest channels, a channel laid over the picture.

    Args:
        picture: `(3, H, W)` uint8.

    Raises:
        CannotRunError: the file cannot be written (exit 4).
    """
    tiles = [_Tile(_thumbnail(picture), _whole_lines(record))]
    for row in rows_shown(record):
        image = _image(row, maps.get((row.name, row.call)), picture)
        tiles.append(_Tile(image, _lines(row, record), row.prediction_changed))
    n_columns, n_rows = min(COLUMNS, len(tiles)), -(-len(tiles) // COLUMNS)
    width, height = _SIDE + _GAP, _SIDE + 3 * _LINE + _GAP + 4
    sheet = Image.new("RGB", (n_columns * width + _GAP, n_rows * height + _GAP), _PAPER)
    for place, tile in enumerate(tiles):
        tile.draw(sheet, _GAP + place % COLUMNS * width, _GAP + place // COLUMNS * height)
    write_with(path, lambda beside: grids.save_png(sheet, beside))


def _whole_lines(record: AblateRecord) -> tuple[str, str, str]:
    """Name the whole model, its number and its prediction: of the first image, where it is a row of scores."""
    baseline = record.baseline
    top = next((one.top for one in baseline.predictions), ())
    if record.output != "classes":
        said = _name(top[0]) if top else ""
        return "the whole model", f"{record.score_name} {numbers.number(baseline.target_logit)}", said
    (guess, *_) = top
    said = f"logit {numbers.number(guess.logit or 0.0)}   {numbers.percent(guess.score)}"
    return "the whole model", said, _name(guess)


def _lines(row: Ablation, record: AblateRecord) -> tuple[str, str, str]:
    name = label_of(row) + (f"   channel {row.channel}" if row.channel is not None else "")
    share = "" if row.target_probability is None else numbers.percent(row.target_probability)
    answer = answer_of(row)
    said = f"becomes {answer}" if row.prediction_changed else f"still {answer}"
    if row.changed_fraction is None:
        said = f"L2 {numbers.number(row.output_l2)}" if row.output_l2 is not None else "NaN"
    elif record.output != "classes":
        said = f"{numbers.percent(row.changed_fraction)} changed, most {answer}"
    elif record.images > 1:
        n_changed = round(row.changed_fraction * record.images)
        said = (
            f"{n_changed} of {record.images} change, most say {answer}"
            if n_changed
            else "no prediction changes"
        )
    change = f"change of the {record.score_name} {signed(row.target_logit_change)}"
    return name, f"{change}   {share}".rstrip(), said


def _name(guess: Guess) -> str:
    return guess.label or str(guess.index)


def _thumbnail(picture: Tensor) -> Image.Image:
    image = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy(), "RGB")
    return _fitted(image, Image.Resampling.LANCZOS)


def _image(row: Ablation, maps: Tensor | None, picture: Tensor) -> Image.Image:
    """Draw what a row took out: one channel over the picture, or the liveliest channels of the layer."""
    if maps is None or maps.numel() == 0:
        return Image.new("RGB", (_SIDE, _SIDE), _PAPER)
    if maps.ndim == 1:
        return _vector(maps if row.channel is None else _only(maps, row.channel))
    if row.channel is not None:
        return grids.overlay(maps[[row.channel]], picture, _CMAP, _SIDE, "channel")
    cells = gallery.tile(maps, gallery.Look("channel", _CMAP, None))
    per_row = 3 if len(cells) > 4 else 2 if len(cells) > 1 else 1
    side = (_SIDE + grids.GAP) // per_row - grids.GAP
    return grids.to_image(grids.mosaic(grids.resize(cells, side), per_row), _CMAP).convert("RGB")


def _only(vector: Tensor, channel: int) -> Tensor:
    return torch.where(torch.arange(len(vector)) == channel, vector, 0)


def _vector(vector: Tensor) -> Image.Image:
    """Lay the values of a vector out as a square of small squares."""
    n_columns = math.ceil(math.sqrt(len(vector)))
    side = max((_SIDE + grids.GAP) // n_columns - grids.GAP, 1)
    cells = gallery.vector_colours(vector)[:, None, None].expand(-1, side, side)
    return _fitted(grids.to_image(grids.mosaic(cells, n_columns), _CMAP).convert("RGB"))


def _fitted(image: Image.Image, how: Image.Resampling = Image.Resampling.NEAREST) -> Image.Image:
    factor = _SIDE / max(image.size)
    size = (max(round(image.width * factor), 1), max(round(image.height * factor), 1))
    return image.resize(size, how)


def _start_of(text: str) -> str:
    """As much of a line as fits from its start."""
    fitting = next(n for n in range(len(text), -1, -1) if _font().getlength(text[:n] + "…") <= _SIDE)
    return text if _font().getlength(text) <= _SIDE else text[:fitting] + "…"


def _end_of(text: str) -> str:
    """As much as fits up to its end, where a layer's name says most."""
    return _start_of(text[::-1])[::-1]


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(13)
