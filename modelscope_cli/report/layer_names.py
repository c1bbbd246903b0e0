"""Names of layers beside a picture that has a line a layer: in full, or, of a deep network, grouped by block."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import layer_of
from modelscope_cli.report.canvas import any_letters
from modelscope_cli.report.labels import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ACROSS = 40  # layers whose names can be read side by side
POINTS = 8.2  # at 130 dots an inch a small letter is 8 pixels high
ROW = 0.16  # inches from one name to the next
GAP = 0.1  # inches between the blocks, the names and the picture
FAINT = "#6b7385"
BAND = "#f3f5f9"  # behind every second block


@dataclass(frozen=True, slots=True)
class Name:
    """What a row is called, and the block of the network it belongs to; empty where there is none."""

    text: str
    block: str = ""

    @property
    def within(self) -> str:
        """The name inside its block."""
        return self.text.removeprefix(f"{self.block}.") if self.block else self.text


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one block that follow each other: the first, and one behind the last."""

    block: str
    start: int
    stop: int


def layer_names(labels: Iterable[str]) -> list[Name]:
    """Return names of layers or of their calls with their blocks."""
    return [Name(label, block_of(label)) for label in map(plain, labels)]


def parameter_names(names: Iterable[str]) -> list[Name]:
    """Return names of parameters with the blocks of the layers they belong to."""
    return [Name(name, block_of(layer_of(name))) for name in map(plain, names)]


def block_of(layer: str) -> str:
    """Return the block of a layer: `layer1.0` of `layer1.0.conv1`, `features.2.0` of `features.2.0.block.1.0`.

    That is its name up to the end of the first parts that are numbered; without any, all but the last part.
    """
    parts = layer.split(".")[:-1]
    is_numbered = [any(mark.isdigit() for mark in part) for part in parts]
    if True not in is_numbered:
        return ".".join(parts)
    end = is_numbered.index(True)
    while end < len(parts) and is_numbered[end]:
        end += 1
    return ".".join(parts[:end])


def groups_of(names: Sequence[Name]) -> list[Group]:
    """Return the runs of rows of one block, in order."""
    starts = [i for i, name in enumerate(names) if i == 0 or name.block != names[i - 1].block]
    return [
        Group(names[start].block, start, stop)
        for start, stop in zip(starts, [*starts[1:], len(names)], strict=True)
    ]


def room_for(figure: "Figure", names: Sequence[Name]) -> float:
    """Return how many inches `write_names` needs on the left."""
    texts, blocks = _written(names)
    return _widest(figure, texts) + (_widest(figure, blocks) + GAP if blocks else 0.0) + 2.5 * GAP


def write_names(axes: Any, names: Sequence[Name]) -> None:
    """Write a name to the left of every row 0, 1, 2, ... of axes, and the blocks of a deep network before them."""
    texts, _ = _written(names)
    axes.set_yticks(range(len(names)), texts, fontsize=POINTS)
    axes.tick_params(axis="y", length=0, pad=72 * GAP)
    if len(names) <= MOST_ACROSS:
        return
    away = _widest(axes.figure, texts) + 2 * GAP
    for group in groups_of(names):
        axes.annotate(
            shortened(group.block),
            (0, group.start),
            xytext=(-72 * away, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center_baseline",
            fontsize=POINTS,
            color=FAINT,
            annotation_clip=False,
        )


def band_blocks(axes: Any, names: Sequence[Name]) -> None:
    """Lay every second block on a darker ground."""
    for group in groups_of(names)[1::2]:
        axes.axhspan(group.start - 0.5, group.stop - 0.5, color=BAND, zorder=-2, lw=0)


def _written(names: Sequence[Name]) -> tuple[list[str], list[str]]:
    """Return what is written of the names, and of the blocks before them."""
    if len(names) <= MOST_ACROSS:
        return [shortened(name.text) for name in names], []
    return [shortened(name.within) for name in names], [shortened(group.block) for group in groups_of(names)]


def _widest(figure: "Figure", texts: Iterable[str]) -> float:
    from matplotlib.font_manager import FontProperties

    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # of Agg, which we set
    font = FontProperties(size=POINTS)
    with any_letters():
        widths = [renderer.get_text_width_height_descent(plain(text), font, False)[0] for text in set(texts)]
    return max(widths, default=0.0) / figure.dpi
