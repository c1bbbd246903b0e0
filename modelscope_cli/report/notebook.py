"""How records show themselves in a notebook and under `print`."""

import io
from collections.abc import Callable
from typing import Any

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


def sheet_of(record: Any) -> Sheet:
    """Lay out a record as its command would."""
    from modelscope_cli.records import (
        AblateRecord,
        AttackRecord,
        GradsRecord,
        PredictRecord,
        PruneRecord,
        SummaryRecord,
        WatchRecord,
    )
    from modelscope_cli.report.ablate_sheet import ablate_sheet
    from modelscope_cli.report.attack_sheet import attack_sheet
    from modelscope_cli.report.grads_sheet import grads_sheet
    from modelscope_cli.report.predict_sheet import predict_sheet
    from modelscope_cli.report.prune_sheet import prune_sheet
    from modelscope_cli.report.stats_sheet import stats_sheet
    from modelscope_cli.report.summary_sheet import summary_sheet
    from modelscope_cli.report.watch_sheet import watch_sheet

    sheets: dict[type, Callable[[Any], Sheet]] = {
        SummaryRecord: summary_sheet,
        WatchRecord: watch_sheet,
        GradsRecord: grads_sheet,
        AttackRecord: attack_sheet,
        AblateRecord: ablate_sheet,
        PredictRecord: predict_sheet,
        PruneRecord: prune_sheet,
    }
    return sheets.get(type(record), stats_sheet)(record)
