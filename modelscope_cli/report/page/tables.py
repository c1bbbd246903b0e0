"""Tables of a page with every row."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from modelscope_cli.records.naming import counted
from modelscope_cli.report.page.html import NOTHING, Html, element, joined
from modelscope_cli.report.sheet import Column, Sheet

_MOST_IN_VIEW = 14  # columns; a wider table scrolls on its own even on a large screen
_LONG = 50  # characters from which a name wraps, so that its end is visible


def table(
    sheet: Sheet,
    name: str,
    caption: str,
    *,
    anchor: Callable[[Any], str | None] = lambda row: None,
    series: Callable[[Any], int | None] = lambda row: None,
) -> Html:
    """Return a table that the page's script can sort and filter.

    Args:
        name: its anchor on the page.
        anchor: returns the anchor of a row.
        series: returns the index of a row's details in the page's data, shown when the row is opened.
    """
    columns, texts = _with_content(sheet)
    titles = [(column.title or column.key, "n" if column.is_number else None) for column in columns]
    head = joined(element("th", title, scope="col", class_=kind) for title, kind in titles)
    kinds = [None if column.is_number else "w" if column.wraps else "l" for column in columns[1:]]
    body = []
    for row, (first, *others) in zip(sheet.rows, texts, strict=True):
        marks = [mark for mark, is_so in (("bad", sheet.is_bad(row)), ("dim", sheet.is_dim(row))) if is_so]
        cells = [
            element("th", first, scope="row", class_="long" if len(first) > _LONG else None),
            *(element("td", cell, class_=kind) for cell, kind in zip(others, kinds, strict=True)),
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
    is_wide = len(columns) > _MOST_IN_VIEW
    kind = "scroll wide" if is_wide else "scroll"
    return element("div", grid, class_=kind, tabindex=0, role="region", aria_label=caption or sheet.title)


def _with_content(sheet: Sheet) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Return the columns and the cells of every row, without columns that are empty or hidden.
    A tree has full names, as rows are sorted, filtered and searched."""
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
