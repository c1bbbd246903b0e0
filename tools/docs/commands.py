"""The part of a command's page that comes from the program: how it is called, its options, its examples."""

from collections import Counter
from functools import cache
from typing import Any

from typer.main import get_command

from modelscope_cli.shell.help import names_of, usage
from modelscope_cli.shell.overview import GROUPS
from modelscope_cli.shell.parameters import OPTIONS, SHARED, Parameter, parameters_of
from modelscope_cli.shell.typer_app import make_app
from tools.docs.markdown import cell, link, table


@cache
def commands() -> dict[str, Any]:
    """Return every command, in the order of `modelscope --help`, and after them those under former names."""
    return dict(get_command(make_app()).commands)  # type: ignore[attr-defined]


def documented() -> dict[str, Any]:
    """Return the commands that have a page: all but those under former names."""
    return {name: commands()[name] for names in GROUPS.values() for name in names}


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
        if own := [one for one in inside if not one.is_shared]:
            parts += [f"## {panel if panel == OPTIONS else f'{panel} options'}", _table(own)]
    listed = [
        f"[{panel}](../shared.md#{link(f'{panel} options')}): {', '.join(names)}."
        for panel, inside in panels.items()
        if (names := [_listed(one) for one in inside if one.is_shared])
    ]
    return "\n\n".join([*parts, "## Shared options", *listed] if listed else parts)


def _listed(one: Parameter) -> str:
    """Return a shared option, with its default where commands have different ones."""
    names = ", ".join(f"`{name}`" for name in names_of(one))
    if _shared()[one.name].shown_default == one.shown_default:
        return names
    return f"{names} ({f'default {one.shown_default}' if one.shown_default else 'no default'})"


def shared() -> str:
    """Return the options that many commands have, panel by panel."""
    parts = []
    for panel in SHARED:
        parts += [f"## {panel} options", _table([one for one in _shared().values() if one.panel == panel])]
    return "\n\n".join(parts)


@cache
def _shared() -> dict[str, Parameter]:
    """Return the options that many commands have, each with its default in most of them."""
    found: dict[str, list[Parameter]] = {}
    for one in (one for name in documented() for one in parameters_of(name).values() if one.is_shared):
        found.setdefault(one.name, []).append(one)
    defaults = {
        name: Counter(one.shown_default for one in same).most_common(1)[0][0] for name, same in found.items()
    }
    return {
        name: next(one for one in same if one.shown_default == defaults[name]) for name, same in found.items()
    }


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
