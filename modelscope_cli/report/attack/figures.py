"""The figures of `attack` and its output folder."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from modelscope_cli.output_files import write_bytes, write_with
from modelscope_cli.records.attack import Answer, AttackRecord, KeptImages
from modelscope_cli.records.reading import RESULT_FILES
from modelscope_cli.report import numbers
from modelscope_cli.report.attack.table import COMPARISON, attack_words, in_levels, name
from modelscope_cli.report.canvas import ACCENT, INK, LINE, new_figure, save_figure
from modelscope_cli.report.numbers import shortened

_FAINT, _OTHERS, _OLD, _NEW = "#8a93a5", "#c3c9d5", LINE, ACCENT
MIDDLE = 128  # the gray of no change
DPI = 130
# Pixels of the comparison: an image's long side, the narrowest column, what is between, above and below.
_SIDE, _NARROWEST, _GAP, _MARGIN, _HEAD, _ROW = (448, 640), 320, 52, 24, 76, 38


def magnified(record: AttackRecord, before: Tensor, after: Tensor) -> Tensor:
    """Return the change times `record.magnification` around middle gray, `(C, H, W)` uint8."""
    change = (after.int() - before.int()) * record.magnification
    return (MIDDLE + change).clamp(0, 255).to(torch.uint8)


def _save_levels(pixels: Tensor, path: Path, comment: str = "") -> None:
    """Write pixels `(C, H, W)` uint8 as a PNG."""
    metadata = PngImagePlugin.PngInfo()
    if comment:
        metadata.add_text("Comment", comment)
    image = Image.fromarray(_rgb(pixels))
    write_with(path, lambda beside: image.save(beside, format="PNG", pnginfo=metadata))


def draw_comparison(record: AttackRecord, before: Tensor, after: Tensor) -> Any:
    """Draw before + change = after, with the likeliest classes under each image."""
    width, height = _shown_size(before.shape[-1], before.shape[-2])
    column = max(width, _NARROWEST)
    n_rows = max(len(record.before.top), 5)
    whole = (2 * _MARGIN + 3 * column + 2 * _GAP, _HEAD + height + _ROW * n_rows + _MARGIN)
    figure = new_figure(whole[0] / DPI, whole[1] / DPI, is_laid_out=False)

    def place(left: float, top: float, wide: float, high: float) -> Any:
        """Return axes at a position in pixels from the upper left corner."""
        shares = (left / whole[0], 1 - (top + high) / whole[1], wide / whole[0], high / whole[1])
        axes = figure.add_axes(shares)
        axes.set_axis_off()
        return axes

    title = place(_MARGIN, 0, whole[0] - 2 * _MARGIN, _HEAD)
    said = f"{record.run.model.heading}, on {Path(record.image).name}"
    title.text(0, 0.72, said, fontsize=11, color=INK, va="center")
    titles = ("before", f"the perturbation, magnified {record.magnification}x", "after, as saved")
    images = (before, magnified(record, before, after), after)
    lefts = [_MARGIN + i * (column + _GAP) for i in range(3)]
    for left, words, pixels in zip(lefts, titles, images, strict=True):
        place(left, 0, column, _HEAD).text(0, 0.16, words, fontsize=9, color=_FAINT, va="center")
        axes = place(left, _HEAD, width, height)
        axes.imshow(_rgb(pixels), interpolation="antialiased", aspect="auto")
    for left, sign in zip(lefts[1:], "+=", strict=True):
        axes = place(left - _GAP, _HEAD, _GAP, height)
        axes.text(0.5, 0.5, sign, fontsize=20, color=_FAINT, ha="center", va="center")
    below = _HEAD + height + _MARGIN // 2
    boxes = [place(left, below, column, _ROW * n_rows) for left in lefts]
    _draw_answer(boxes[0], record.before, record, n_rows)
    _draw_words(boxes[1], record, n_rows)
    _draw_answer(boxes[2], record.after_saved, record, n_rows)
    return figure


def _shown_size(width: int, height: int) -> tuple[int, int]:
    """Enlarge a small image by an integer factor, so that its pixels stay square; shrink a large one."""
    least, most = _SIDE
    long = max(width, height)
    factor = max(least // long, 1) if long <= most else most / long
    return max(round(width * factor), 1), max(round(height * factor), 1)


def _rgb(pixels: Tensor) -> Any:
    return pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()


def _draw_answer(axes: Any, answer: Answer, record: AttackRecord, n_rows: int) -> None:
    """Draw a thin bar under each class; the old and the new prediction have fixed colours."""
    old, new = ([guess.index for guess in label.top[:1]] for label in (record.before, record.after_saved))
    axes.set_xlim(0, 1)
    axes.set_ylim(n_rows, 0)
    for row, guess in enumerate(answer.top):
        colour = _OLD if guess.index in old else _NEW if guess.index in new else _OTHERS
        weight = "bold" if row == 0 else "normal"
        label = shortened(name(guess.index, guess.label), 30)
        axes.text(0, row + 0.42, label, fontsize=9, color=INK, weight=weight)
        axes.text(
            1, row + 0.42, numbers.percent(guess.score), fontsize=9, color=INK, ha="right", weight=weight
        )
        axes.barh(row + 0.68, 1, color="#eef0f4", height=0.2)
        axes.barh(row + 0.68, guess.score, color=colour, height=0.2)


def _draw_words(axes: Any, record: AttackRecord, n_rows: int) -> None:
    """Describe the attack in the space under the perturbation."""
    lines = (
        attack_words(record),
        f"epsilon {in_levels(record.epsilon, record.norm)}, {record.iterations} of {record.steps} steps",
        f"largest change of a value {in_levels(record.linf_saved)}",
        f"length of the change {numbers.number(record.l2_saved)}",
    )
    axes.set_ylim(n_rows, 0)
    for row, words in enumerate(lines):
        axes.text(0, row + 0.42, words, fontsize=9, color=INK)
    outcome = f"fooled: {record.before.said} is now {record.after_saved.said}"
    if not record.success_saved:
        outcome = f"not fooled{' once saved' if record.success else ''}: {record.after_saved.said}"
    axes.text(
        0, len(lines) + 0.42, outcome, fontsize=9, color=_NEW if record.success_saved else INK, weight="bold"
    )


BEFORE, ADVERSARIAL, PERTURBATION = "before.png", "adversarial.png", "perturbation.png"


def save_images(record: AttackRecord, kept: KeptImages | None, folder: Path) -> AttackRecord:
    """Write the images and the comparison; a record that was read back has none."""
    if kept is None:
        return record.with_changes(files=RESULT_FILES)
    before, after = kept.before, kept.after
    _save_levels(before, folder / BEFORE)
    write_bytes(folder / ADVERSARIAL, kept.png)
    comment = f"{MIDDLE} + {record.magnification} x (adversarial.png - the image)"
    _save_levels(magnified(record, before, after), folder / PERTURBATION, comment)
    save_figure(draw_comparison(record, before, after), folder / COMPARISON, DPI)
    return record.with_changes(files=(BEFORE, ADVERSARIAL, PERTURBATION, COMPARISON, *RESULT_FILES))
