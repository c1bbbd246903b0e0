"""How a record looks: the table and the pictures of its command, found by its name when they are asked for.

This is the one door from the library into the folders of the commands; what is typed is not behind it.
"""

from importlib import import_module
from typing import Any

from modelscope_cli.report.sheet import Sheet


def sheet_of(record: Any) -> Sheet:
    """Lay out a record as its command would."""
    command = record.run.command
    sheet: Sheet = getattr(table_of(command), f"{command}_sheet")(record)
    return sheet


def table_of(command: str) -> Any:
    """Return the module that lays out what `command` returns."""
    return import_module(f"modelscope_cli.commands.{command}.table")


def pictures_of(command: str) -> Any:
    """Return the module that draws what `command` returns."""
    return import_module(f"modelscope_cli.commands.{command}.pictures")


def folder_of(command: str) -> Any:
    """Return the module that fills the folder of `command`."""
    return import_module(f"modelscope_cli.commands.{command}.folder")
