"""What a picture looks like: its colours, the words around it, and by what its rows are coloured.

Colours are attributes of the elements, for a file that stands alone on its own paper; the style sheet of a page,
which knows the dark scheme, has the last word by their classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from modelscope_cli.report.graph.columns import Columns, value_words
from modelscope_cli.report.graph.item import Item
from modelscope_cli.report.graph.layout import Layout
from modelscope_cli.report.shades import Range, Shade

MARGIN, LARGE = 18, 15
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
PAPER, PANEL, INK, QUIET, RULE, ARC = "#fdfdfc", "#f4f5f4", "#1d2228", "#5a636d", "#dfe3e6", "#2566ae"
FILLS = (
    *(PANEL, "#fdf3e2", "#fbe8c9", "#f8dbae", "#f5cc93", "#f1bb7a", "#eca865", "#e69453"),
    "#de8046",
)


@dataclass(frozen=True, slots=True)
class Words:
    """What stands around a picture. `name`: of the model, in a title; `lines`: under it; `notes`: at the end."""

    name: str
    lines: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    columns: Columns
    shades: Sequence[Shade]
    ranges: Sequence[Range | None]
    layout: Layout
    width: float
    is_alone: bool

    def levels(self, item: Item) -> list[tuple[int, str]]:
        """Return the shade of a call and its value in words, for all that can colour it."""
        found = []
        for shade, span in zip(self.shades, self.ranges, strict=True):
            value = shade.value(item.row) if item.row else None
            found.append((span.level(value) if span else 0, value_words(item, shade)))
        return found
