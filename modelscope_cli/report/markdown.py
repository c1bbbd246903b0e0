"""A GitHub-flavoured Markdown table."""

from modelscope_cli.plain_text import markdown
from modelscope_cli.report.sheet import Sheet


def render_markdown(sheet: Sheet) -> str:
    """Return the sheet as a Markdown section: title, table, facts."""
    columns = sheet.shown()
    lines = [f"### {markdown(sheet.title)}", ""]
    lines.append(_row(markdown(column.title) for column in columns))
    lines.append(_row("---:" if column.is_number else ":---" for column in columns))
    cells = zip(*(column.cells(sheet.rows) for column in columns), strict=True)
    lines += [_row(map(markdown, row)) for row in cells]
    if sheet.facts:
        lines += ["", *(f"- {markdown(label)}: {markdown(text)}" for label, text in sheet.facts)]
    return "\n".join(lines) + "\n"


def _row(cells: object) -> str:
    return "| " + " | ".join(cells) + " |"  # type: ignore[arg-type]
