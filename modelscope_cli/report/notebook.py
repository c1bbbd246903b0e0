"""How records show themselves in a notebook and under `print`."""

import io

from modelscope_cli.report.sheet import Sheet


def to_text(sheet: Sheet) -> str:
    """Return the table as plain text, as wide as it needs."""
    from rich.console import Console

    from modelscope_cli.report.table import render_table

    console = Console(file=io.StringIO(), width=10_000, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(render_table(sheet, None))
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def to_html(sheet: Sheet) -> str:
    """Return the table as HTML; every text is escaped."""
    from html import escape

    def row(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}><code>{escape(cell)}</code></{tag}>" for cell in cells) + "</tr>"

    columns = sheet.shown()
    head = row("th", [column.title for column in columns])
    body = "".join(row("td", [column.render(item) for column in columns]) for item in sheet.rows)
    facts = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in sheet.facts)
    return f"<h4>{escape(sheet.title)}</h4><table>{head}{body}</table><dl>{facts}</dl>"
