"""The formats of a result: what `--format`, the suffix of a file and `record.save` choose from."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from modelscope_cli.errors import commented
from modelscope_cli.plain_text import markdown, plain, plain_json, spreadsheet_cell, with_numbers
from modelscope_cli.report.fold import fold
from modelscope_cli.report.sheet import Sheet, Value


@dataclass(frozen=True, slots=True)
class Format:
    """One format, by its name in `FORMATS`."""

    render: Callable[[Any], str]
    suffix: str | None = None  # of the files that have it; None if none has
    of: Literal["sheet", "record", "review"] = "sheet"  # what it renders
    is_rows_only: bool = False  # at most a header before them; facts are told beside them


def to_text(sheet: Sheet, width: int | None = None) -> str:
    """Return the table as plain text, folded as in a terminal; without a `width` all columns are there."""
    from rich.console import Console

    from modelscope_cli.report.table import render_table

    console = Console(file=io.StringIO(), width=width or 10_000, markup=False, emoji=False, highlight=False)
    sheet = sheet.without_empty_columns()
    with console.capture() as capture:
        console.print(render_table(sheet, width, fold(sheet)))
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def render_json(document: dict[str, Any] | list[Any], *, is_indented: bool = True) -> str:
    """Return `document` as standard JSON, indented or on one line."""
    layout: dict[str, Any] = {"indent": 2} if is_indented else {"separators": (",", ":")}
    return plain_json(json.dumps(strict(document), ensure_ascii=False, allow_nan=False, **layout)) + "\n"


def strict(value: Any) -> Any:
    """Return `value` with non-finite numbers as None."""
    return with_numbers(value, lambda number: number if math.isfinite(number) else None)


def render_tsv(sheet: Sheet) -> str:
    """Return the sheet with tabs between the cells; tabs and line ends inside a cell become spaces."""
    lines = [[column.key for column in sheet.columns], *_cells(sheet)]
    return "".join("\t".join(line) + "\n" for line in lines)


def render_csv(sheet: Sheet) -> str:
    """Return the sheet as RFC 4180 comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.key for column in sheet.columns)
    writer.writerows(_cells(sheet, is_whole=True))
    return text.getvalue()


def _cells(sheet: Sheet, *, is_whole: bool = False) -> Iterator[list[str]]:
    """Yield the cells of each row, escaped against spreadsheet formulas; `is_whole` keeps whitespace."""
    for row in sheet.rows:
        cells = []
        for column in sheet.columns:
            value = column.value(row)
            cell = _cell(value) if is_whole else " ".join(commented(_cell(value)).split())
            cells.append(spreadsheet_cell(cell) if isinstance(value, str) else cell)
        yield cells


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else plain(str(value))


def render_markdown(sheet: Sheet) -> str:
    """Return the sheet as a Markdown section: title, answer, table, other facts."""
    columns = sheet.shown()
    lines = [f"### {markdown(sheet.title)}", "", *_bullets(sheet.facts_of(is_answer=True))]
    lines.append(_row(markdown(column.title) for column in columns))
    lines.append(_row("---:" if column.is_number else ":---" for column in columns))
    cells = zip(*(column.cells(sheet.rows) for column in columns), strict=True)
    lines += [_row(map(markdown, row)) for row in cells]
    lines += ["", *_bullets(sheet.facts_of(is_answer=False))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _bullets(facts: Sequence[tuple[str, str]]) -> list[str]:
    return [*(f"- {markdown(label)}: {markdown(text)}" for label, text in facts), *[""] * bool(facts)]


_BRIEF_LINES, _BRIEF_FACTS, _BRIEF_WIDTH = 40, 30, 300


def render_brief(sheet: Sheet) -> str:
    """Return at most 40 lines for a program that reads text: title, facts (verdict, causes, what to do), and the
    flagged rows; the first rows where none is flagged."""
    pairs = (*sheet.facts_of(is_answer=True), *sheet.facts_of(is_answer=False))
    facts = [" ".join(filter(None, [label and f"{label}:", text])) for label, text in pairs]
    lines = [plain(sheet.title), *(plain(line) for line in _few(facts, _BRIEF_FACTS, "facts"))]
    columns = [column for column in sheet.shown() if column.rank <= 1]
    flagged = [row for row in sheet.rows if sheet.is_bad(row)]
    rows = flagged or sheet.rows
    first, *others = columns
    cells = [[f"{column.title} {cell}" * bool(cell) for cell in column.cells(rows)] for column in others]
    names = [_cell(first.value(row)) for row in rows]  # in full, where the table shows a tree
    texts = [" | ".join(filter(None, row)) for row in zip(names, *cells, strict=True)]
    lines.append(
        f"{len(flagged)} of {len(sheet.rows)} rows are flagged"
        if flagged
        else f"{len(rows)} rows, none flagged"
    )
    lines += _few(texts, _BRIEF_LINES - len(lines), "rows")
    short = (line if len(line) <= _BRIEF_WIDTH else f"{line[: _BRIEF_WIDTH - 3]}..." for line in lines)
    return "".join(f"{' '.join(line.split())}\n" for line in short)


def _few(lines: list[str], most: int, what: str) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"... and {len(lines) - most + 1} more {what}; --json has all"]


def _row(cells: object) -> str:
    return "| " + " | ".join(cells) + " |"  # type: ignore[arg-type]


FORMATS = {
    "table": Format(to_text, ".txt"),
    "tsv": Format(render_tsv, ".tsv", is_rows_only=True),
    "csv": Format(render_csv, ".csv", is_rows_only=True),
    "json": Format(lambda record: render_json(record.to_dict()), ".json", "record"),
    "markdown": Format(render_markdown, ".md"),
    "brief": Format(render_brief),
}
