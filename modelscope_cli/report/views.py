"""How a record looks: the table, figures and page of its command, found by its name when they are asked for.

This is the one door from the library into the folders of the commands; what is typed is not behind it.
"""

from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from modelscope_cli.report.sheet import Sheet


def sheet_of(record: Any) -> Sheet:
    """Lay out a record as its command would, with what the command would have warned of."""
    sheet = _lay_out(record)
    run = getattr(record, "run", record)
    warnings = tuple(("warning", warning.message) for warning in getattr(run, "warnings", ()))
    return replace(sheet, facts=(*sheet.facts, *warnings))


def whole_sheet_of(record: Any) -> Sheet:
    """Lay out a record with all the rows it has, those too that its command shows only when asked to."""
    return _lay_out(record, **getattr(table_of(record.command), "WHOLE", {}))


def _lay_out(record: Any, **options: Any) -> Sheet:
    command = record.command
    sheet: Sheet = getattr(table_of(command), f"{command}_sheet")(record, **options)
    return sheet


def table_of(command: str) -> Any:
    """Return the module that lays out what `command` returns."""
    return import_module(f"modelscope_cli.commands.{command}.table")


def column_keys(command: str) -> list[str]:
    """Return the keys of the columns of all tables of a command; nothing where it has no table."""
    table = _module_of(command, "table")
    make = getattr(table, "every_column", None) or getattr(table, f"{command}_columns", None)
    columns = make() if make else getattr(table, "COLUMNS", ())
    return list(dict.fromkeys(column.key for column in columns))


def figures_of(command: str) -> Any:
    """Return the module that draws what `command` returns and fills its folder; None where there is none."""
    return _module_of(command, "figures")


def page_of(command: str) -> Any:
    """Return the module that makes sections of a page of what `command` returns; None where its table is enough."""
    return _module_of(command, "page")


def graph_of(command: str) -> Any:
    """Return the module that draws the model as `command` saw it."""
    return _module_of(command, "graph")


def _module_of(command: str, kind: str) -> Any:
    name = f"modelscope_cli.commands.{command}.{kind}"
    return import_module(name) if find_spec(name) else None
