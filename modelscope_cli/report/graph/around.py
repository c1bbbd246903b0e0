"""What stands around a picture: the title, the legend, and all of it in words."""

from collections.abc import Sequence

from modelscope_cli.records.naming import counted
from modelscope_cli.report.graph.columns import SIZE
from modelscope_cli.report.graph.items import Picture
from modelscope_cli.report.graph.letters import fitted, width
from modelscope_cli.report.graph.look import FILLS, LARGE, MARGIN, QUIET, RULE, Look, Words
from modelscope_cli.report.page.html import NOTHING, Html, element, joined
from modelscope_cli.report.shades import SHADES, Range, Shade

_CHIP, _GAP = 18, 10  # pixels: of the legend, whose words stand behind its chips
_LEGEND = _CHIP * (SHADES + 1) + _GAP


def least_width(words: Words, shades: Sequence[Shade], ranges: Sequence[Range | None]) -> float:
    """Return how wide the picture has to be for what stands around it, by whichever shade it is coloured."""
    lines = [width(line, SIZE) for line in (*words.lines, *words.notes)]
    legends = [_LEGEND + width(line, SIZE) for line in map(_range_words, shades, ranges)]
    return min(max(width(words.name, LARGE), *lines, *legends), 900)


def cut(words: str, look: Look) -> str:
    return fitted(words, SIZE, look.width)


def head(words: Words, look: Look) -> tuple[Html, float]:
    """Return the title, what stands under it and the legend, and where they end."""
    name = fitted(words.name, LARGE, look.width)
    title = element("text", name, x=MARGIN, y=MARGIN + 14, font_size=LARGE, font_weight=600)
    top = MARGIN + (36 if look.is_alone else 0)
    lines = [
        element("text", cut(line, look), class_="quiet", fill=QUIET, x=MARGIN, y=top + 18 * n)
        for n, line in enumerate(words.lines)
    ]
    y = top + 20 + 18 * (len(words.lines) - 1)
    return joined([title if look.is_alone else NOTHING, *lines, _legend(look, y)]), y + 34


def _legend(look: Look, y: float) -> Html:
    chips = [
        element(
            "rect",
            class_=f"h{n} edge",
            fill=FILLS[n],
            x=MARGIN + _CHIP * n,
            y=y,
            width=_CHIP,
            height=12,
            stroke=RULE,
        )
        for n in range(SHADES + 1)
    ]
    said = [_range_words(shade, span) for shade, span in zip(look.shades, look.ranges, strict=True)]
    every = None if look.is_alone else ";".join(f"0,{one}" for one in said)
    words = element("text", said[0], class_="words", x=MARGIN + _LEGEND, y=y + 10.5)
    return element("g", *chips, words, data_shades=every)


def _range_words(shade: Shade, span: Range | None) -> str:
    if span is None:
        return f"{shade.name}: none"
    scale = ", logarithmic" if span.is_log else ""
    low = shade.scale(span.low) if span.is_log or span.low == span.high else "0"
    between = f"{low} to {shade.scale(span.high)}" if span.low != span.high else shade.scale(span.high)
    return f"{shade.name} of a call: {between}{scale}"


def description(picture: Picture, words: Words, shade: Shade) -> str:
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
