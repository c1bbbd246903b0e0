"""Look up the table, figures and page of a record's command by name, imported on demand.

The only way from the library into the folders of the commands, whose command lines it does not use.
"""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from modelscope_cli.report.sheet import Sheet


def sheet_of(record: Any) -> Sheet:
    """Return the table of a record as its command prints it, with its warnings."""
    sheet = _lay_out(record)
    run = getattr(record, "run", record)
    warnings = tuple(("warning", warning.message) for warning in getattr(run, "warnings", ()))
    return replace(sheet, facts=(*sheet.facts, *warnings))


def answer_of(record: Any) -> str:
    """Return the result in one sentence; without rows to judge, the title of its table."""
    answer = getattr(table_of(record.command), "answer", None)
    return answer(record) if answer else _lay_out(record).title


def whole_sheet_of(record: Any) -> Sheet:
    """Return the table of a record with all rows, including those that its command shows only on request."""
    return _lay_out(record, **getattr(table_of(record.command), "WHOLE", {}))


def _lay_out(record: Any, **options: Any) -> Sheet:
    command = record.command
    sheet: Sheet = getattr(table_of(command), f"{command}_sheet")(record, **options)
    return sheet


def table_of(command: str) -> Any:
    """Return the module with the table of a command: `table.py`, or `command.py` if it is small."""
    return _module_of(command, "table") or _module_of(command, "command")


def column_keys(command: str) -> list[str]:
    """Return the column keys of all tables of a command; empty if it has none."""
    table = table_of(command)
    make = getattr(table, "every_column", None) or getattr(table, f"{command}_columns", None)
    columns = make() if make else getattr(table, "COLUMNS", ())
    return list(dict.fromkeys(column.key for column in columns))


def figures_of(command: str) -> Any:
    """Return the module with the figures and the output folder of a command; None if it has none."""
    return _module_of(command, "figures")


def page_of(command: str) -> Any:
    """Return the module with the page sections of a command; None if its page is only the table."""
    return _module_of(command, "page")


def graph_of(command: str) -> Any:
    return _module_of(command, "graph")


def _module_of(command: str, kind: str) -> Any:
    name = f"modelscope_cli.commands.{command}.{kind}"
    return import_module(name) if find_spec(name) else None
