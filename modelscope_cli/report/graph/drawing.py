"""The picture as SVG: what stands where in words and colours, by itself or in a page.

Colours are attributes of the elements, for a file that stands alone on its own paper; the style sheet of a page,
which knows the dark scheme, has the last word by their classes. Words of other people pass through `element`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.graph.items import Item, Picture
from modelscope_cli.report.graph.layout import (
    HEAD,
    PAD,
    RADIUS,
    ROW,
    Arc,
    Layout,
    Link,
    lay_out,
    left_of,
)
from modelscope_cli.report.graph.letters import fitted, width
from modelscope_cli.report.page.html import NOTHING, Html, element, joined
from modelscope_cli.report.shades import SHADES, Range, Shade, range_of

SIZE, MARGIN = 12, 18
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
PAPER, PANEL, INK, QUIET, RULE, ARC = "#fdfdfc", "#f4f5f4", "#1d2228", "#5a636d", "#dfe3e6", "#2566ae"
FILLS = (
    *(PANEL, "#fdf3e2", "#fbe8c9", "#f8dbae", "#f5cc93", "#f1bb7a", "#eca865", "#e69453"),
    "#de8046",
)
_MOST_NAME, _MOST_TYPE, _MOST_SHAPE, _MOST_LINE = 250, 230, 190, 560  # pixels
_APART = 18  # pixels between two columns
_NOT_XML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Words:
    """What stands around a picture. `name`: of the model, in a title; `lines`: under it; `notes`: at the end."""

    name: str
    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where the words of every row begin; `value` is where they end."""

    type: float
    kernel: float
    shape: float
    value: float


def draw(picture: Picture, words: Words, shades: Sequence[Shade], *, is_alone: bool = True) -> Html:
    """Return the picture.

    Args:
        shades: what can colour it; by the first it is coloured.
        is_alone: whether it is a file of its own and not a part of a page.
    """
    columns = _columns(picture, shades)
    layout = lay_out(picture, columns.value + PAD)
    rows = [item.row for item in picture.nodes() if item.kind == "layer" and item.row]
    look = _Look(columns, shades, [range_of(rows, shade) for shade in shades], layout, is_alone)
    head, top = _head(words, look)
    body = element("g", *_body(picture, look), transform=f"translate({MARGIN} {top})")
    end = top + layout.height + 8
    notes = [
        element("text", _cut(note, look), class_="quiet", fill=QUIET, x=MARGIN, y=end + 18 * n + 12)
        for n, note in enumerate(words.notes)
    ]
    wide = round(max(layout.width, _least(words)) + 2 * MARGIN)
    high = round(end + 18 * len(words.notes) + MARGIN)
    ground = element("rect", class_="paper", width=wide, height=high, fill=PAPER)
    return element(
        "svg",
        element("title", words.name),
        element("desc", _description(picture, words, shades[0])),
        ground if is_alone else NOTHING,
        head,
        body,
        *notes,
        xmlns="http://www.w3.org/2000/svg",
        class_="graph",
        role="img",
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


@dataclass(frozen=True, slots=True)
class _Look:
    columns: _Columns
    shades: Sequence[Shade]
    ranges: Sequence[Range | None]
    layout: Layout
    is_alone: bool

    def levels(self, item: Item) -> list[tuple[int, str]]:
        """Return the shade of a row and its value in words, for all that can colour it."""
        found = []
        for shade, span in zip(self.shades, self.ranges, strict=True):
            value = shade.value(item.row)
            found.append((span.level(value) if span else 0, shade.words(item.row)))
        return found


def _columns(picture: Picture, shades: Sequence[Shade]) -> _Columns:
    """Find how much room the words of all rows need."""
    names = types = kernels = shapes = values = lines = 0.0
    depths = [(picture.top, -1)]
    while depths:
        item, depth = depths.pop()
        depths += [(one, depth + 1) for one in item.inside]
        if item is picture.top:
            continue
        line = width(f"{item.name}  {item.type}" if item.kind == "box" else item.name, SIZE)
        if item.kind == "layer":
            names = max(names, left_of(depth) + min(line, _MOST_NAME))
        else:
            lines = max(lines, left_of(depth) + min(line, _MOST_LINE) + PAD + 4)
        types = max(types, min(width(item.type, SIZE), _MOST_TYPE) if item.kind == "layer" else 0.0)
        kernels = max(kernels, width(_kernel(item), SIZE))
        shapes = max(shapes, min(width(_shape(item), SIZE), _MOST_SHAPE))
        values = max([values, *(width(_value(item, shade), SIZE) for shade in shades)])
    type = names + PAD + _APART
    kernel = type + types + _APART
    shape = max(kernel + kernels + (_APART if kernels else 0), lines + _APART)
    return _Columns(type, kernel, shape, shape + shapes + _APART + values)


def _kernel(item: Item) -> str:
    return numbers.shape(item.row.kernel_size) if item.row and item.row.kernel_size else ""


def _shape(item: Item) -> str:
    return numbers.shapes(item.shapes, most=1)


def _least(words: Words) -> float:
    return min(max(width(line, SIZE) for line in (words.name, *words.lines)), 900) + 40


def _cut(words: str, look: _Look) -> str:
    return fitted(words, SIZE, max(look.layout.width, 600))


def _head(words: Words, look: _Look) -> tuple[Html, float]:
    """Return the title, what stands under it and the legend, and where they end."""
    title = element("text", _cut(words.name, look), x=MARGIN, y=MARGIN + 14, font_size=15, font_weight=600)
    top = MARGIN + (36 if look.is_alone else 0)
    lines = [
        element("text", _cut(line, look), class_="quiet", fill=QUIET, x=MARGIN, y=top + 18 * n)
        for n, line in enumerate(words.lines)
    ]
    y = top + 20 + 18 * (len(words.lines) - 1)
    return joined([title if look.is_alone else NOTHING, *lines, _legend(look, y)]), y + 34


def _legend(look: _Look, y: float) -> Html:
    chips = [
        element(
            "rect",
            class_=f"h{n} edge",
            fill=FILLS[n],
            x=MARGIN + 18 * n,
            y=y,
            width=18,
            height=12,
            stroke=RULE,
        )
        for n in range(SHADES + 1)
    ]
    said = [_range_words(shade, span) for shade, span in zip(look.shades, look.ranges, strict=True)]
    every = None if look.is_alone else ";".join(f"0,{one}" for one in said)
    words = element("text", said[0], class_="words", x=MARGIN + 18 * (SHADES + 1) + 10, y=y + 10.5)
    return element("g", *chips, words, data_shades=every)


def _range_words(shade: Shade, span: Range | None) -> str:
    if span is None:
        return f"{shade.name}: none"
    scale = ", logarithmic" if span.is_log else ""
    low = shade.scale(span.low) if span.is_log or span.low == span.high else "0"
    between = f"{low} to {shade.scale(span.high)}" if span.low != span.high else shade.scale(span.high)
    return f"{shade.name} of a call: {between}{scale}"


def _description(picture: Picture, words: Words, shade: Shade) -> str:
    rows = [item for item in picture.nodes() if item.kind == "layer" and item.row]
    known = [(shade.value(item.row) or 0.0, item) for item in rows]
    largest = sorted(known, key=lambda pair: -pair[0])[:5]
    named = ", ".join(f"{item.full_name} {shade.words(item.row)}" for value, item in largest if value)
    n_joints = sum(item.kind == "operation" for item in picture.nodes())
    parts = [
        *words.lines,
        f"{counted(len(rows), 'call')} and {counted(n_joints, 'operation')} in the order in which they run",
        f"largest {shade.name}: {named}" if named else "",
        *words.notes,
    ]
    return ". ".join(part for part in parts if part)


def _body(picture: Picture, look: _Look) -> Iterator[Html]:
    items = [item for item in picture.top.walk() if item is not picture.top]
    yield from (_frame(item, look) for item in items if item.kind == "box")
    yield element("g", *(_link(one) for one in look.layout.links), class_="links", fill=QUIET)
    arcs = (_arc(arc, look.layout) for arc in look.layout.arcs)
    yield element("g", *arcs, class_="arcs", fill="none", stroke=ARC, stroke_width=1.3)
    heads = joined(
        _head_of(look.layout.core, look.layout.places[one].into)
        for arc in look.layout.arcs
        for one in arc.targets
    )
    yield element("g", heads, class_="heads", fill=ARC)
    yield from (_thing(item, look) for item in items)


def _frame(item: Item, look: _Look) -> Html:
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


def _thing(item: Item, look: _Look) -> Html:
    if item.kind == "box":
        return element("g", *_written(item, look, HEAD))
    return _row(item, look) if item.kind == "layer" else _pill(item, look)


def _row(item: Item, look: _Look) -> Html:
    place, every = look.layout.places[item], look.levels(item)
    level = every[0][0]
    ground = element("rect", class_=f"chip h{level}", fill=FILLS[level], **_rectangle(item, look), rx=4)
    data = None if look.is_alone else ";".join(f"{n},{words}" for n, words in every)
    assert place.bottom > place.top
    return element("g", ground, *_written(item, look, ROW), data_shades=data)


def _pill(item: Item, look: _Look) -> Html:
    ground = element("rect", class_="pill", fill=PAPER, stroke=QUIET, **_rectangle(item, look), rx=ROW / 2)
    return element("g", ground, *_written(item, look, ROW))


def _rectangle(item: Item, look: _Look) -> dict[str, float]:
    place = look.layout.places[item]
    wide = round(look.layout.core - place.left, 1)
    return {"x": place.left, "y": place.top, "width": wide, "height": place.bottom - place.top}


def _written(item: Item, look: _Look, height: float) -> Iterator[Html]:
    """Give the words of a row, or of the head of a box; what was cut is there in full to whoever points at it."""
    place, columns = look.layout.places[item], look.columns
    y = round(place.top + height / 2 + 0.36 * SIZE, 1)
    x = place.left + PAD + (2 if item.kind not in ("box", "layer") else 0)
    yield element("title", _told(item, look.shades))
    room = (columns.type if item.kind == "layer" else columns.shape) - _APART - x
    is_named = item.kind in ("box", "layer")
    name = fitted(item.name, SIZE, room)
    yield element("text", name, x=x, y=y, font_weight=600 if is_named else None)
    if item.kind == "layer":
        type = fitted(item.type, SIZE, columns.kernel - _APART - columns.type)
        yield element("text", type, x=columns.type, y=y)
        if _kernel(item):
            yield element("text", _kernel(item), x=columns.kernel, y=y)
    elif item.kind == "box" and item.type != item.name:
        after = x + width(name, SIZE) + 9
        yield element(
            "text",
            fitted(item.type, SIZE, columns.shape - _APART - after),
            class_="quiet",
            fill=QUIET,
            x=after,
            y=y,
        )
    shape = fitted(_shape(item), SIZE, _MOST_SHAPE)
    yield element("text", shape, x=columns.shape, y=y) if shape else NOTHING
    words = _value(item, look.shades[0])
    if item.rows:
        yield element("text", words, class_="words", x=columns.value, y=y, text_anchor="end")


def _value(item: Item, shade: Shade) -> str:
    """Return the value of a call in words, or what the calls of blocks that were folded have together."""
    if item.row or not item.rows:
        return shade.words(item.row) if item.row else ""
    values = [value for row in item.rows if (value := shade.value(row)) is not None]
    return shade.scale(sum(values)) if shade.adds and values else ""


def _told(item: Item, shades: Sequence[Shade]) -> str:
    given = numbers.shapes(item.row.input_shapes, most=4) if item.row else ""
    made = numbers.shapes(item.shapes, most=4)
    values = [
        f"{shade.name} {shade.words(item.row)}" for shade in shades if item.row and shade.words(item.row)
    ]
    parts = [
        f"{item.full_name} ({item.type})" if item.type and item.type != item.full_name else item.full_name,
        f"kernel {_kernel(item)}" if _kernel(item) else "",
        f"{given} -> {made}" if given else made,
        *values,
        *item.marks,
    ]
    return ", ".join(part for part in parts if part)


def _link(link: Link) -> Html:
    top, bottom = round(link.top, 1), round(link.bottom, 1)
    return element("path", d=f"M{link.x} {bottom}l-3.5 -4.5h2.8V{top}h1.4V{bottom - 4.5}h2.8z")


def _arc(arc: Arc, layout: Layout) -> Html:
    """Return the way of arcs that share a lane: each joins it with a round corner."""
    edge, x = layout.core, arc.x
    outs = [layout.places[one].out for one in arc.sources]
    ins = [layout.places[one].into for one in arc.targets]
    parts = [_corner(edge, y, x, max(ins), is_out=True) for y in outs]
    parts += [_corner(edge + 5, y, x, min(outs), is_out=False) for y in ins]
    parts.append(f"M{x} {min(outs) + RADIUS}V{max(ins) - RADIUS}")
    return element("path", d="".join(parts))


def _corner(edge: float, y: float, x: float, toward: float, *, is_out: bool) -> str:
    turn = RADIUS if toward > y else -RADIUS
    if is_out:
        return f"M{edge} {y}H{x - RADIUS}Q{x} {y} {x} {y + turn}"
    return f"M{x} {y + turn}Q{x} {y} {x - RADIUS} {y}H{edge}"


def _head_of(edge: float, y: float) -> Html:
    return element("path", d=f"M{edge} {y}l6 -3.5v7z")
