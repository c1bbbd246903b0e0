"""The part of a command's page that comes from the program: how it is called, its options, its examples."""

from typing import Any

from typer.main import get_command

from modelscope_cli.shell.help import names_of, usage
from modelscope_cli.shell.overview import GROUPS
from modelscope_cli.shell.parameters import OPTIONS, Parameter, parameters_of
from modelscope_cli.shell.typer_app import make_app
from tools.docs.markdown import cell, table


def commands() -> dict[str, Any]:
    """Return every command, in the order of `modelscope --help`."""
    return dict(get_command(make_app()).commands)  # type: ignore[attr-defined]


def reference(name: str, command: Any) -> str:
    """Return usage, description, examples, arguments and options as Markdown."""
    about, _, examples = (command.help or "").partition("Examples:")
    every = parameters_of(name).values()
    parts = [
        "## Usage",
        f"```text\n{usage(f'modelscope {name}')}\n```",
        "\n\n".join(cell_lines(about)),
        "## Examples",
        "```sh\n" + "\n".join(example_lines(examples)) + "\n```",
    ]
    if arguments := [one for one in every if one.is_argument]:
        parts += ["## Arguments", _table(arguments)]
    panels: dict[str, list[Parameter]] = {}
    for one in every:
        if not one.is_argument:
            panels.setdefault(one.panel, []).append(one)
    for panel, inside in panels.items():
        parts += [f"## {panel if panel == OPTIONS else f'{panel} options'}", _table(inside)]
    return "\n\n".join(parts)


def example_lines(examples: str) -> list[str]:
    """Return the command lines of a help text."""
    return [" ".join(text.split()) for text in examples.split("\n\n") if text.strip()]


def cell_lines(about: str) -> list[str]:
    """Return the paragraphs of a help text as Markdown."""
    return [cell(" ".join(text.split())) for text in about.split("\n\n") if text.strip()]


def overview() -> str:
    """Return the list of all commands."""
    parts = []
    for title, names in GROUPS.items():
        rows = [(f"[`{name}`]({name}.md)", cell(about)) for name, about in names.items()]
        parts += [f"## {title}", table(("command", "what it does"), rows)]
    return "\n\n".join(parts)


def _table(options: list[Parameter]) -> str:
    rows = [(_names(one), cell(one.shown_default), cell(one.help)) for one in options]
    return table(("argument" if options[0].is_argument else "option", "default", "what it does"), rows)


def _names(one: Parameter) -> str:
    if one.is_argument:
        return f"`{one.example}`"
    names = ", ".join(f"`{name}`" for name in names_of(one))
    value = one.value.replace("|", ", ")
    return names + (f" `{value}`" if value else "")
