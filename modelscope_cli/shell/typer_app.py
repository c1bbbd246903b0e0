"""The Typer application."""

import inspect
import re
from collections.abc import Collection
from functools import cache
from types import MethodType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from modelscope_cli import __version__
from modelscope_cli.errors import UsageError
from modelscope_cli.interrupts import INTERRUPTED, Terminated
from modelscope_cli.shell import console
from modelscope_cli.shell.help import command_page
from modelscope_cli.shell.overview import ABOUT, COMMANDS, HELP, HELP_ALL, overview
from modelscope_cli.shell.parameters import Parameter, function_of, parameters_of

# Arguments after the script belong to the script.
_SETTINGS: dict[str, dict[str, Any]] = {"watch": {"allow_interspersed_args": False}}


class _TakesWords:
    """Reads values by `Parameter.read`: Typer would import pydantic, which takes longer than Typer and Rich."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            param.process_value = MethodType(_process_value, param)
        return params


class Command(_TakesWords, TyperCommand):
    """A command with its own help page and its own errors for excess arguments and repeated options."""

    def make_parser(self, ctx: Any) -> Any:
        # The parser keeps only the last value of an option: let it collect all, for `_process_value`.
        single = [param for param in self.params if param.param_type_name == "option" and not param.multiple]
        for param in single:
            param.multiple = True
        try:
            return super().make_parser(ctx)
        finally:
            for param in single:
                param.multiple = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        is_whole = HELP_ALL in console.settings.argv
        formatter.write(command_page(ctx.command_path, self.help or "", is_whole=is_whole))

    def invoke(self, ctx: Any) -> Any:
        if ctx.args:
            from modelscope_cli.shell.hints import too_many

            raise too_many(self.name or "", ctx.args, console.settings.argv)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:  # Typer would return its exit code without a message
            raise Terminated(INTERRUPTED) from interrupt


class Group(_TakesWords, TyperGroup):
    """The commands, grouped by purpose."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(overview())


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
    """Return the application with these commands; the others are registered by name only."""
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
        command = function_of(name)
        settings = {"allow_extra_args": True, **_SETTINGS.get(name, {})}
        registered = app.command(name, cls=Command, help=doc_of(command), context_settings=settings)
        registered(command)
    return app


@cache
def command_line(names: tuple[str, ...]) -> Any:
    """Return the Click command of the application with these commands; cached."""
    return get_command(make_app(names))


def _process_value(param: Any, ctx: Any, value: Any) -> Any:
    if param.required and value in (None, ()):
        name = param.metavar or param.name.upper()
        raise UsageError(f"missing argument '{name}'", f"modelscope {ctx.info_name} --help")
    if isinstance(value, list) and not param.multiple and param.nargs == 1:
        from modelscope_cli.shell.hints import only_value

        value = only_value(ctx.info_name, param.name, value, console.settings.argv)
    if param.callback is not None:
        return param.callback(ctx, param, value)
    return _typed(parameters_of(ctx.info_name)[param.name], value) if ctx.info_name in COMMANDS else value


def _typed(parameter: Parameter, value: Any) -> Any:
    """Return the value of an option in its type; one that was not given keeps its default."""
    if parameter.is_repeatable:
        return [parameter.read(text) for text in value] if value else None
    return parameter.read(value) if isinstance(value, str) and parameter.takes_value else value


def doc_of(command: Any) -> str:
    """Return a docstring with each paragraph on one line."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.__doc__))
