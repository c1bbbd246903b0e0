"""The pictures of `attack`: what was added, before and after side by side, the loss on the way."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from modelscope_cli.records import Answer, AttackRecord
from modelscope_cli.report.attack_sheet import attack_words, best, in_levels
from modelscope_cli.report.folder import write_with

INK, QUIET, OLD, NEW = "#1f2430", "#8a93a5", "#3f5f8f", "#d1495b"
MIDDLE = 128  # the gray that stands for no change


def magnified(record: AttackRecord, before: Tensor, after: Tensor) -> Tensor:
    """Return the change times `record.magnification` around middle gray, `(C, H, W)` uint8."""
    change = (after.int() - before.int()) * record.magnification
    return (MIDDLE + change).clamp(0, 255).to(torch.uint8)


def save_perturbation(record: AttackRecord, before: Tensor, after: Tensor, path: Path) -> None:
    """Write the magnified change as a PNG whose comment states the factor."""
    said = PngImagePlugin.PngInfo()
    said.add_text("Comment", f"{MIDDLE} + {record.magnification} x (adversarial.png - the picture)")
    image = Image.fromarray(_for_show(magnified(record, before, after)))
    write_with(path, lambda beside: image.save(beside, format="PNG", pnginfo=said))


def save_comparison(record: AttackRecord, before: Tensor, after: Tensor, path: Path) -> None:
    """Draw before + change = after, with the five likeliest classes under each picture.

    Raises:
        CannotRunError: the file cannot be written (exit 4).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height, width = before.shape[-2:]
    side = 3.6
    figure = Figure(figsize=(3 * side + 1.6, side * min(height / width, 2.0) + 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    pictures, answers = figure.subplots(2, 3, height_ratios=[side * min(height / width, 2.0), 1.5])
    shown = (before, magnified(record, before, after), after)
    titles = ("before", f"the change, {record.magnification} times magnified", "after, as the file holds it")
    for axes, pixels, title in zip(pictures, shown, titles, strict=True):
        axes.imshow(_for_show(pixels), interpolation="nearest")
        axes.set_title(title, fontsize=10, color=INK, loc="left")
        axes.set_axis_off()
    _draw_answer(answers[0], record.before, OLD, record)
    _draw_words(answers[1], record)
    _draw_answer(answers[2], record.after_saved, NEW, record)
    write_with(path, lambda beside: figure.savefig(beside, format="png", dpi=130))


def _for_show(pixels: Tensor) -> Any:
    return pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()


def _draw_answer(axes: Any, answer: Answer, colour: str, record: AttackRecord) -> None:
    names = [guess.label or str(guess.index) for guess in answer.top]
    scores = [100 * guess.score for guess in answer.top]
    places = list(range(len(names)))
    axes.barh(places, scores, color=[colour, *["#c9cfdb"] * (len(names) - 1)], height=0.7)
    axes.set_yticks(places, names, fontsize=9, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 118)
    for place, score in zip(places, scores, strict=True):
        axes.text(score + 1.5, place, f"{score:.1f} %", va="center", fontsize=8.5, color=INK)
    _bare(axes)


def _draw_words(axes: Any, record: AttackRecord) -> None:
    axes.text(0, 1, attack_words(record), va="top", transform=axes.transAxes)
    _bare(axes)


def _bare(axes: Any) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks([])
    axes.tick_params(length=0)


def save_losses(record: AttackRecord, path: Path) -> None:
    """Draw the loss over the steps, one line a run; the one that found the picture stands out.

    Raises:
        CannotRunError: the file cannot be written (exit 4).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for run, losses in enumerate(record.losses):
        axes.plot(losses, "o-", ms=3.5)
    write_with(path, lambda beside: figure.savefig(beside, format="png", dpi=130))
