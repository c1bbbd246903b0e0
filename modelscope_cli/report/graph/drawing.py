"""The picture as SVG: what stands where in words and colours, by itself or in a page.

Words of other people pass through `element`.
"""

import re
from collections.abc import Iterator, Sequence

from modelscope_cli.report import numbers
from modelscope_cli.report.graph.around import cut, description, head, least_width
from modelscope_cli.report.graph.arrows import arrows
from modelscope_cli.report.graph.columns import (
    APART,
    MOST_SHAPE,
    SIZE,
    find_columns,
    kernel_words,
    shape_words,
    type_words,
    value_words,
)
from modelscope_cli.report.graph.item import Item
from modelscope_cli.report.graph.items import Picture
from modelscope_cli.report.graph.layout import HEAD, PAD, ROW, lay_out
from modelscope_cli.report.graph.letters import fitted, width
from modelscope_cli.report.graph.look import ARC, FILLS, INK, MARGIN, MONO, PAPER, QUIET, RULE, Look, Words
from modelscope_cli.report.page.html import NOTHING, Html, element
from modelscope_cli.report.shades import Shade, range_of

_NOT_XML = re.compile("[\ufffe\uffff]")


def draw(picture: Picture, words: Words, shades: Sequence[Shade], *, is_alone: bool = True) -> Html:
    """Return the picture.

    Args:
        shades: what can colour it; by the first it is coloured.
        is_alone: whether it is a file of its own and not a part of a page.
    """
    columns = find_columns(picture, shades)
    layout = lay_out(picture, columns.value + PAD)
    rows = [item.row for item in picture.nodes() if item.kind == "layer" and item.row]
    ranges = [range_of(rows, shade) for shade in shades]
    wide = max(layout.width, least_width(words, shades, ranges))
    look = Look(columns, shades, ranges, layout, wide, is_alone)
    top_words, top = head(words, look)
    body = element("g", *_body(picture, look), transform=f"translate({MARGIN} {top})")
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
        element("desc", description(picture, words, shades[0])),
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
    """Return a picture as a file of its own."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _NOT_XML.sub("\ufffd", svg) + "\n"


def _body(picture: Picture, look: Look) -> Iterator[Html]:
    items = [item for item in picture.top.walk() if item is not picture.top]
    yield from (_frame(item, look) for item in items if item.kind == "box")
    yield arrows(look.layout, QUIET, ARC)
    yield from (_thing(item, look) for item in items)


def _frame(item: Item, look: Look) -> Html:
    place = look.layout.places[item]
    return element(
        "rect",
        class_="box",
        fill=PAPER,
        stroke=RULE,
        x=place.left,
        y=place.top,
        width=round(place.right - place.left, 1),
        height=round(place.bottom - place.top, 1),
        rx=6,
    )


def _thing(item: Item, look: Look) -> Html:
    """Return a row, or the head of a box. What was cut is there in full to whoever points at it."""
    ground = {"layer": _filled, "box": lambda *_: NOTHING}.get(item.kind, _pill)(item, look)
    title = element("title", _told(item, look.shades))
    every = ";".join(f"{level},{words}" for level, words in look.levels(item))
    return element(
        "g",
        title,
        ground,
        *_written(item, look),
        data_shades=None if look.is_alone or not item.rows else every,
    )


def _filled(item: Item, look: Look) -> Html:
    level, _ = look.levels(item)[0]
    return element("rect", class_=f"chip h{level}", fill=FILLS[level], **_rectangle(item, look), rx=4)


def _pill(item: Item, look: Look) -> Html:
    dashes = "4 3" if item.kind == "fold" else None
    return element(
        "rect",
        class_="pill",
        fill=PAPER,
        stroke=QUIET,
        stroke_dasharray=dashes,
        **_rectangle(item, look),
        rx=ROW / 2,
    )


def _rectangle(item: Item, look: Look) -> dict[str, float]:
    place = look.layout.places[item]
    wide = round(look.layout.core - place.left, 1)
    return {"x": place.left, "y": place.top, "width": wide, "height": place.bottom - place.top}


def _written(item: Item, look: Look) -> Iterator[Html]:
    """Give the words, each kind of them in its column."""
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
    given = numbers.shapes(item.row.input_shapes, most=4) if item.row else ""
    made = numbers.shapes(item.shapes, most=4)
    values = [
        f"{shade.name} {shade.words(item.row)}" for shade in shades if item.row and shade.words(item.row)
    ]
    parts = [
        f"{item.full_name} ({item.type})" if item.type and item.type != item.full_name else item.full_name,
        f"kernel {kernel_words(item)}" if kernel_words(item) else "",
        f"{given} -> {made}" if given else made,
        *values,
        *item.marks,
    ]
    return ", ".join(part for part in parts if part)
