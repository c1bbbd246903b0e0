"""The SVG of a model: colours, texts, arrows and boxes.

Colours are attributes of the elements, for a standalone file; the style sheet of a page overrides them by class,
also for the dark scheme.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.graph.items import Item, ModelGraph
from modelscope_cli.report.graph.layout import (
    APART,
    HEAD,
    MOST_SHAPE,
    PAD,
    RADIUS,
    ROW,
    SIZE,
    Arc,
    Columns,
    GraphLayout,
    GraphLink,
    find_columns,
    fitted,
    kernel_words,
    lay_out,
    shape_words,
    type_words,
    value_words,
    width,
)
from modelscope_cli.report.page.html import NOTHING, Html, element, joined
from modelscope_cli.report.shades import SHADES, Range, Shade, range_of

MARGIN, LARGE = 18, 15
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
PAPER, PANEL, INK, QUIET, RULE, ARC = "#fdfdfc", "#f4f5f4", "#1d2228", "#5a636d", "#dfe3e6", "#2566ae"
FILLS = (*(PANEL, "#fdf3e2", "#fbe8c9", "#f8dbae", "#f5cc93", "#f1bb7a", "#eca865", "#e69453"), "#de8046")


@dataclass(frozen=True, slots=True)
class Words:
    """The texts around a graph. `name`: the model, as title; `lines`: under it; `notes`: at the end."""

    name: str
    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphLook:
    columns: Columns
    shades: Sequence[Shade]
    ranges: Sequence[Range | None]
    layout: GraphLayout
    width: float
    is_alone: bool

    def levels(self, item: Item) -> list[tuple[int, str]]:
        """Return the level and the value as text of a call for each shade."""
        levels = []
        for shade, span in zip(self.shades, self.ranges, strict=True):
            value = shade.value(item.row) if item.row else None
            levels.append((span.level(value) if span else 0, value_words(item, shade)))
        return levels


def arrows(layout: GraphLayout) -> Html:
    links = element("g", *map(_link, layout.links), class_="links", fill=QUIET)
    lines = (_arc(arc, layout) for arc in layout.arcs)
    ends = (layout.places[one].into for arc in layout.arcs for one in arc.targets)
    heads = (element("path", d=f"M{layout.core} {y}l6 -3.5v7z") for y in ends)
    arcs = element("g", *lines, class_="arcs", fill="none", stroke=ARC, stroke_width=1.3)
    return joined([links, arcs, element("g", *heads, class_="heads", fill=ARC)])


def _link(link: GraphLink) -> Html:
    top, bottom = round(link.top, 1), round(link.bottom, 1)
    return element("path", d=f"M{link.x} {bottom}l-3.5 -4.5h2.8V{top}h1.4V{bottom - 4.5}h2.8z")


def _arc(arc: Arc, layout: GraphLayout) -> Html:
    """Return the path of arcs that share a lane; each joins it with a round corner."""
    edge, x = layout.core, arc.x
    outs = [layout.places[one].out for one in arc.sources]
    ins = [layout.places[one].into for one in arc.targets]
    parts = [f"M{edge} {y}H{x - RADIUS}Q{x} {y} {x} {y + _turn(y, max(ins))}" for y in outs]
    parts += [f"M{x} {y + _turn(y, min(outs))}Q{x} {y} {x - RADIUS} {y}H{edge + 5}" for y in ins]
    low, high = min(*outs, *ins), max(*outs, *ins)
    return element("path", d="".join(parts) + f"M{x} {low + RADIUS}V{high - RADIUS}")


def _turn(y: float, toward: float) -> int:
    return RADIUS if toward > y else -RADIUS


_CHIP, _GAP = 18, 10  # pixels of the legend
_LEGEND = _CHIP * (SHADES + 1) + _GAP


def least_width(words: Words, shades: Sequence[Shade], ranges: Sequence[Range | None]) -> float:
    """Return the least width for the texts around the graph, for any of the shades."""
    lines = [width(line, SIZE) for line in (*words.lines, *words.notes)]
    legends = [_LEGEND + width(line, SIZE) for line in map(_range_words, shades, ranges)]
    return min(max(width(words.name, LARGE), *lines, *legends), 900)


def cut(words: str, look: GraphLook) -> str:
    return fitted(words, SIZE, look.width)


def head(words: Words, look: GraphLook) -> tuple[Html, float]:
    """Return the title, the lines under it and the legend, and their bottom edge."""
    name = fitted(words.name, LARGE, look.width)
    title = element("text", name, x=MARGIN, y=MARGIN + 14, font_size=LARGE, font_weight=600)
    top = MARGIN + (36 if look.is_alone else 0)
    lines = [
        element("text", cut(line, look), class_="quiet", fill=QUIET, x=MARGIN, y=top + 18 * n)
        for n, line in enumerate(words.lines)
    ]
    y = top + 20 + 18 * (len(words.lines) - 1)
    return joined([title if look.is_alone else NOTHING, *lines, _legend(look, y)]), y + 34


def _legend(look: GraphLook, y: float) -> Html:
    size: dict[str, Any] = {"y": y, "width": _CHIP, "height": 12, "stroke": RULE}
    chips = [
        element("rect", class_=f"h{n} edge", fill=FILLS[n], x=MARGIN + _CHIP * n, **size)
        for n in range(SHADES + 1)
    ]
    range_texts = [_range_words(shade, span) for shade, span in zip(look.shades, look.ranges, strict=True)]
    every = None if look.is_alone else ";".join(f"0,{one}" for one in range_texts)
    words = element("text", range_texts[0], class_="words", x=MARGIN + _LEGEND, y=y + 10.5)
    return element("g", *chips, words, data_shades=every)


def _range_words(shade: Shade, span: Range | None) -> str:
    if span is None:
        return f"{shade.name}: none"
    scale = ", logarithmic" if span.is_log else ""
    low = shade.scale(span.low) if span.is_log or span.low == span.high else "0"
    between = f"{low} to {shade.scale(span.high)}" if span.low != span.high else shade.scale(span.high)
    return f"{shade.name} of a call: {between}{scale}"


def description(graph: ModelGraph, words: Words, shade: Shade) -> str:
    rows = [item for item in graph.nodes() if item.kind == "layer" and item.row]
    values = [(shade.value(item.row) or 0.0, item) for item in rows]
    largest = sorted(values, key=lambda pair: -pair[0])[:5]
    names = ", ".join(f"{item.full_name} {shade.words(item.row)}" for value, item in largest if value)
    n_joints = sum(item.kind == "operation" for item in graph.nodes())
    parts = [
        *words.lines,
        f"{counted(len(rows), 'call')} and {counted(n_joints, 'operation')} in the order of execution",
        f"largest {shade.name}: {names}" if names else "",
        *words.notes,
    ]
    return ". ".join(part for part in parts if part)


_NOT_XML = re.compile("[\ufffe\uffff]")


def draw(graph: ModelGraph, words: Words, shades: Sequence[Shade], *, is_alone: bool = True) -> Html:
    """Return the image.

    Args:
        shades: the choices of colour; the first is used.
        is_alone: whether it is a standalone file, not part of a page.
    """
    columns = find_columns(graph, shades)
    layout = lay_out(graph, columns.value + PAD)
    rows = [item.row for item in graph.nodes() if item.kind == "layer" and item.row]
    ranges = [range_of(rows, shade) for shade in shades]
    wide = max(layout.width, least_width(words, shades, ranges))
    look = GraphLook(columns, shades, ranges, layout, wide, is_alone)
    top_words, top = head(words, look)
    body = element("g", *_body(graph, look), transform=f"translate({MARGIN} {top})")
    end = top + layout.height + 8
    notes = [
        element("text", cut(note, look), class_="quiet", fill=QUIET, x=MARGIN, y=end + 18 * n + 12)
        for n, note in enumerate(words.notes)
    ]
    wide = round(wide + 2 * MARGIN)
    high = round(end + 18 * len(words.notes) + MARGIN)
    ground = element("rect", class_="paper", width=wide, height=high, fill=PAPER)
    return element(
        "svg",
        element("title", words.name),
        element("desc", description(graph, words, shades[0])),
        ground if is_alone else NOTHING,
        top_words,
        body,
        *notes,
        xmlns="http://www.w3.org/2000/svg",
        class_="graph",
        role="img",
        aria_label=words.name,
        viewBox=f"0 0 {wide} {high}",
        width=wide,
        height=high,
        font_family=MONO,
        font_size=SIZE,
        fill=INK,
    )


def as_file(svg: Html) -> str:
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _NOT_XML.sub("\ufffd", svg) + "\n"


def _body(graph: ModelGraph, look: GraphLook) -> Iterator[Html]:
    items = [item for item in graph.top.walk() if item is not graph.top]
    yield from (_frame(item, look) for item in items if item.kind == "box")
    yield arrows(look.layout)
    yield from (_thing(item, look) for item in items)


def _frame(item: Item, look: GraphLook) -> Html:
    place = look.layout.places[item]
    size = {"width": round(place.right - place.left, 1), "height": round(place.bottom - place.top, 1)}
    return element("rect", class_="box", fill=PAPER, stroke=RULE, x=place.left, y=place.top, **size, rx=6)


def _thing(item: Item, look: GraphLook) -> Html:
    """Return a row, or the header of a box. A tooltip shows shortened text in full."""
    levels = look.levels(item)
    title = element("title", _told(item, look.shades))
    every = (
        None if look.is_alone or not item.rows else ";".join(f"{level},{words}" for level, words in levels)
    )
    return element("g", title, _ground(item, look, levels[0][0]), *_written(item, look), data_shades=every)


def _ground(item: Item, look: GraphLook, level: int) -> Html:
    if item.kind == "box":
        return NOTHING
    place = look.layout.places[item]
    wide = round(look.layout.core - place.left, 1)
    shape = {"x": place.left, "y": place.top, "width": wide, "height": place.bottom - place.top}
    if item.kind == "layer":
        return element("rect", class_=f"chip h{level}", fill=FILLS[level], **shape, rx=4)
    dashes = "4 3" if item.kind == "fold" else None
    return element(
        "rect", class_="pill", fill=PAPER, stroke=QUIET, stroke_dasharray=dashes, **shape, rx=ROW / 2
    )


def _written(item: Item, look: GraphLook) -> Iterator[Html]:
    """Yield the texts of an item, each in its column."""
    place, columns = look.layout.places[item], look.columns
    is_layer, is_box = item.kind == "layer", item.kind == "box"
    y = round(place.top + (HEAD if is_box else ROW) / 2 + 0.36 * SIZE, 1)
    x = place.left + PAD
    end = (columns.type if is_layer else columns.shape) - APART
    name = fitted(item.name, SIZE, end - x)
    yield element("text", name, x=x, y=y, font_weight=600 if is_layer or is_box else None)
    after, end = (columns.type, columns.kernel - APART) if is_layer else (x + width(name, SIZE) + SIZE, end)
    type = fitted(type_words(item), SIZE, max(end - after, 0.0)) if type_words(item) else ""
    quiet = {} if is_layer else {"class_": "quiet", "fill": QUIET}
    shape = fitted(shape_words(item), SIZE, MOST_SHAPE)
    for words, left, how in (
        (type, after, quiet),
        (kernel_words(item), columns.kernel, {}),
        (shape, columns.shape, {}),
    ):
        if words:
            yield element("text", words, x=left, y=y, **how)
    if item.rows:
        words = value_words(item, look.shades[0])
        yield element("text", words, class_="words", x=columns.value, y=y, text_anchor="end")


def _told(item: Item, shades: Sequence[Shade]) -> str:
    input_shapes = numbers.shapes(item.row.input_shapes, most=4) if item.row else ""
    output_shapes = numbers.shapes(item.shapes, most=4)
    values = [
        f"{shade.name} {shade.words(item.row)}" for shade in shades if item.row and shade.words(item.row)
    ]
    parts = [
        f"{item.full_name} ({item.type})" if item.type and item.type != item.full_name else item.full_name,
        f"kernel {kernel_words(item)}" if kernel_words(item) else "",
        f"{input_shapes} -> {output_shapes}" if input_shapes else output_shapes,
        *values,
        *item.marks,
    ]
    return ", ".join(part for part in parts if part)
