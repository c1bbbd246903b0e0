"""The commands as Typer runs them."""

import inspect
import re
from collections.abc import Collection
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from modelscope_cli import __version__
from modelscope_cli.shell import console
from modelscope_cli.shell.help import Command, Group
from modelscope_cli.shell.overview import ABOUT, COMMANDS, HELP, HELP_ALL

# What follows the script belongs to the script.
_SETTINGS: dict[str, dict[str, Any]] = {"watch": {"allow_interspersed_args": False}}


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        console.write(f"modelscope {__version__}\n")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """See what happens inside a PyTorch vision model."""


def make_app(names: Collection[str] = COMMANDS) -> typer.Typer:
    """Return the application with these commands; whoever runs one need not pay for reading the others.

    The others are there by name alone.
    """
    app = typer.Typer(
        name="modelscope",
        help=ABOUT,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": [*HELP, HELP_ALL]},
        cls=Group,
    )
    app.callback()(_main)
    for name, about in COMMANDS.items():
        if name not in names:
            app.command(name, help=about)(lambda: None)
            continue
        command = getattr(import_module(f"modelscope_cli.commands.{name}.command"), name)
        registered = app.command(
            name, cls=Command, help=_paragraphs(command.__doc__), context_settings=_SETTINGS.get(name)
        )
        registered(command)
    return app


@cache
def command_line(names: tuple[str, ...]) -> Any:
    """Return the application with these commands as what Click runs; what was read of a command is kept."""
    return get_command(make_app(names))


def _paragraphs(doc: str) -> str:
    """Return a docstring that a terminal of any width can wrap: one line a paragraph."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(doc))
