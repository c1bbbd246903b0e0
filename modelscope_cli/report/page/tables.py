"""Tables of a page with every row, and collapsible trees of layers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modelscope_cli.records.naming import counted
from modelscope_cli.report.numbers import shortened
from modelscope_cli.report.page.html import NOTHING, Html, element, joined
from modelscope_cli.report.shades import Shade, levels
from modelscope_cli.report.sheet import Column, Sheet

_MOST_IN_VIEW = 14  # columns; a wider table scrolls on its own even on a large screen
_LONG = 50  # characters from which a name wraps, so that its end is visible
Extra = tuple[str, Callable[[Any], Html]]
"""A column of images: its title, and what it shows of a row."""


def table(
    sheet: Sheet,
    name: str,
    caption: str,
    *,
    anchor: Callable[[Any], str | None] = lambda row: None,
    extras: Sequence[Extra] = (),
    series: Callable[[Any], int | None] = lambda row: None,
) -> Html:
    """Return a table that the page's script can sort and filter.

    Args:
        name: its anchor on the page.
        anchor: returns the anchor of a row.
        extras: columns after those of the sheet.
        series: returns the index of a row's details in the page's data, shown when the row is opened.
    """
    columns, texts = _with_content(sheet)
    titles = [(column.title or column.key, "n" if column.is_number else None) for column in columns]
    titles += [(title, None) for title, _ in extras]
    head = joined(element("th", title, scope="col", class_=kind) for title, kind in titles)
    kinds = [None if column.is_number else "w" if column.wraps else "l" for column in columns[1:]]
    body = []
    for row, (first, *others) in zip(sheet.rows, texts, strict=True):
        marks = [mark for mark, is_so in (("bad", sheet.is_bad(row)), ("dim", sheet.is_dim(row))) if is_so]
        cells = [
            element("th", first, scope="row", class_="long" if len(first) > _LONG else None),
            *(element("td", cell, class_=kind) for cell, kind in zip(others, kinds, strict=True)),
            *(element("td", image(row), class_="l") for _, image in extras),
        ]
        about = {"id": anchor(row), "class_": " ".join(marks) or None, "data_series": series(row)}
        body.append(element("tr", *cells, **about))
    grid = element(
        "table",
        element("caption", caption or counted(len(sheet.rows), "row")),
        element("thead", element("tr", head)),
        element("tbody", *body),
        class_="rows",
        id=name,
    )
    is_wide = len(columns) + len(extras) > _MOST_IN_VIEW
    kind = "scroll wide" if is_wide else "scroll"
    return element("div", grid, class_=kind, tabindex=0, role="region", aria_label=caption or sheet.title)


def _with_content(sheet: Sheet) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Return the columns and the cells of every row, without columns that are empty or hidden.

    A tree has full names, as rows are sorted, filtered and searched.
    """
    first, *others = sheet.shown()
    shown = (replace(first, text=None) if sheet.is_tree else first, *others)
    columns = [(column, column.cells(sheet.rows)) for column in shown]
    filled = [(column, cells) for n, (column, cells) in enumerate(columns) if n == 0 or any(cells)]
    return [column for column, _ in filled], list(zip(*(cells for _, cells in filled), strict=True))


def tools(name: str, *, has_marks: bool, hint: str = "") -> Html:
    """Return the controls above a longer table: a filter and the number of matching rows."""
    attributes = {"spellcheck": "false", "autocomplete": "off"}
    box = element("input", type="search", name="filter", class_="filter", data_for=name, **attributes)
    check = element("input", type="checkbox", name="only", class_="only", data_for=name)
    parts = [
        element("label", "filter ", box),
        element("span", f"a regular expression{hint}", class_="hint"),
        element("label", check, " only marked rows") if has_marks else NOTHING,
        element("output", class_="count", data_for=name),
    ]
    return element("form", *parts, class_="tools", hidden=True, role="search")


def sheet_section(sheet: Sheet, name: str, caption: str, **how: Any) -> Html:
    """Return a table, with controls if it has enough rows."""
    if not sheet.rows:
        return element("p", "No rows.", class_="quiet")
    has_marks = any(sheet.is_bad(row) for row in sheet.rows)
    hint = ", as in layer[34].*conv" if sheet.is_by_layer else ""
    above = tools(name, has_marks=has_marks, hint=hint) if len(sheet.rows) > 8 else NOTHING
    return joined([above, table(sheet, name, caption, **how)])


_DEEPEST = 40  # nesting levels; deeper modules are listed with their full name


@dataclass(slots=True)
class _Node:
    """A module: its children by name, and its own rows."""

    inside: dict[str, "_Node"] = field(default_factory=dict)
    rows: list[Any] = field(default_factory=list)

    def all_rows(self) -> Iterator[Any]:
        yield from self.rows
        for node in self.inside.values():
            yield from node.all_rows()


def tree(
    rows: Sequence[Any],
    name: Callable[[Any], str],
    anchor: Callable[[Any], str],
    shades: Sequence[Shade],
    is_bad: Callable[[Any], bool],
) -> Html:
    """Return nested lists; the script offers the `shades` as colours."""
    root = _Node()
    for row in rows:
        node = root
        for part in name(row).split(".", _DEEPEST):
            node = node.inside.setdefault(part, _Node())
        node.rows.append(row)
    look = _BranchLook(anchor, shades, [levels(rows, shade) for shade in shades], is_bad)
    return joined([shade_chooser(shades), element("ul", *_children(root, look), class_="tree")])


def shade_chooser(shades: Sequence[Shade]) -> Html:
    """Return a selector for the colour of the following tree or graph; shown by the script."""
    options = [element("option", shade.name, value=n) for n, shade in enumerate(shades)]
    select = element("select", *options, name="shade", class_="shade")
    return element("label", "colour by ", select, class_="tools", hidden=True)


@dataclass(frozen=True, slots=True)
class _BranchLook:
    anchor: Callable[[Any], str]
    shades: Sequence[Shade]
    levels: Sequence[dict[int, int]]
    is_bad: Callable[[Any], bool]


def _children(node: _Node, look: _BranchLook) -> Iterator[Html]:
    for name, inner in map(_without_single_steps, node.inside.items()):
        leaves = [_leaf(name, row, look) for row in inner.rows]
        if not inner.inside:
            yield from leaves
            continue
        n_bad = sum(look.is_bad(row) for row in inner.all_rows())
        n = sum(1 for _ in inner.all_rows())
        words = element("span", f" {n}" + (f", {n_bad} marked" if n_bad else ""), class_="quiet")
        summary = element("summary", shortened(name), words, class_="bad" if n_bad else None)
        inside = element("ul", *leaves, *_children(inner, look))
        yield element("li", element("details", summary, inside, open=bool(n_bad) or n <= 8))


def _without_single_steps(entry: tuple[str, _Node]) -> tuple[str, _Node]:
    """Collapse single children: `a.b.c` is one step if there is nothing else in `a` and `b`."""
    name, node = entry
    while not node.rows and len(node.inside) == 1:
        ((part, node),) = node.inside.items()
        name = f"{name}.{part}"
    return name, node


def _leaf(name: str, row: Any, look: _BranchLook) -> Html:
    """Return a leaf with its value as text, in addition to the colour."""
    shade, level = look.shades[0], look.levels[0][id(row)]
    chip = element("span", shade.words(row) or "–", class_=f"chip h{level}")
    every = ";".join(
        f"{level[id(row)]},{one.words(row) or '–'}"
        for level, one in zip(look.levels, look.shades, strict=True)
    )
    link = element(
        "a", shortened(name), href=f"#{look.anchor(row)}", class_="bad" if look.is_bad(row) else None
    )
    return element("li", link, chip, data_shades=every)
