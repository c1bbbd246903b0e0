"""Where the words of every row begin, so that each kind of them can be read downwards."""

from collections.abc import Sequence
from dataclasses import dataclass

from modelscope_cli.report import numbers
from modelscope_cli.report.graph.item import Item
from modelscope_cli.report.graph.items import Picture
from modelscope_cli.report.graph.layout import PAD, left_of
from modelscope_cli.report.graph.letters import width
from modelscope_cli.report.shades import Shade

SIZE = 12  # of the letters
APART = 18  # pixels between two columns
_MOST_NAME, _MOST_TYPE, MOST_SHAPE, _MOST_LINE = 250, 300, 190, 560  # pixels


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the words of every row begin; `value` is where they end."""

    type: float
    kernel: float
    shape: float
    value: float


def find_columns(picture: Picture, shades: Sequence[Shade]) -> Columns:
    """Find how much room the words of all rows need."""
    names = types = kernels = shapes = values = lines = 0.0
    depths = [(picture.top, -1)]
    while depths:
        item, depth = depths.pop()
        depths += [(one, depth + 1) for one in item.inside]
        if item is picture.top:
            continue
        if item.kind == "layer":
            names = max(names, left_of(depth) + min(width(item.name, SIZE), _MOST_NAME))
            types = max(types, min(width(type_words(item), SIZE), _MOST_TYPE))
        else:
            line = width(f"{item.name}  {type_words(item)}", SIZE)
            lines = max(lines, left_of(depth) + min(line, _MOST_LINE) + PAD)
        kernels = max(kernels, width(kernel_words(item), SIZE))
        shapes = max(shapes, min(width(shape_words(item), SIZE), MOST_SHAPE))
        values = max([values, *(width(value_words(item, shade), SIZE) for shade in shades)])
    type = names + PAD + APART
    kernel = type + types + APART
    shape = max(kernel + kernels + (APART if kernels else 0), lines + APART)
    return Columns(type, kernel, shape, shape + shapes + APART + values)


def type_words(item: Item) -> str:
    """Return what stands behind the name: the type, where that says more, and what is odd."""
    is_said = item.kind != "layer" and item.type == item.name
    return " · ".join(filter(None, ("" if is_said else item.type, *item.marks)))


def kernel_words(item: Item) -> str:
    return numbers.shape(item.row.kernel_size) if item.row and item.row.kernel_size else ""


def shape_words(item: Item) -> str:
    return numbers.shapes(item.shapes, most=1)


def value_words(item: Item, shade: Shade) -> str:
    """Return the value of a call in words, or what the calls of blocks that were folded have together."""
    if item.row or not item.rows:
        return shade.words(item.row) if item.row else ""
    values = [value for row in item.rows if (value := shade.value(row)) is not None]
    return shade.scale(sum(values)) if shade.adds and values else ""
