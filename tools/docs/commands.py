"""The part of a command's page that comes from the program: how it is called, its options, its examples."""

import re
from collections.abc import Iterable
from typing import Any

from typer.main import get_command

from modelscope_cli.shell.help import usage
from modelscope_cli.shell.overview import GROUPS
from modelscope_cli.shell.typer_app import make_app
from tools.docs.markdown import cell, table

# Panels whose options many commands share; they stand last.
_LAST = ("Layers", "Input", "Model", "Output")
_OWN = "Options"


def commands() -> dict[str, Any]:
    """Return every command, in the order of `modelscope --help`."""
    return dict(get_command(make_app()).commands)  # type: ignore[attr-defined]


def reference(name: str, command: Any) -> str:
    """Return usage, description, examples, arguments and options as Markdown."""
    about, _, examples = (command.help or "").partition("Examples:")
    context = command.make_context(name, [], resilient_parsing=True)
    params = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in params if param.param_type_name == "argument"]
    options = [param for param in params if param.param_type_name == "option" and param.name != "help"]
    context.info_name = f"modelscope {name}"
    parts = [
        "## Usage",
        f"```text\n{usage(command, context)}\n```",
        "\n\n".join(cell_lines(about)),
        "## Examples",
        "```sh\n" + "\n".join(example_lines(examples)) + "\n```",
    ]
    if arguments:
        parts += ["## Arguments", _table(arguments, context)]
    for panel, inside in _panels(options).items():
        parts += [f"## {panel if panel == _OWN else f'{panel} options'}", _table(inside, context)]
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


def _panels(options: Iterable[Any]) -> dict[str, list[Any]]:
    panels: dict[str, list[Any]] = {}
    for option in options:
        panels.setdefault(option.rich_help_panel or _OWN, []).append(option)
    order = sorted(panels, key=lambda panel: _LAST.index(panel) if panel in _LAST else -1)
    return {panel: panels[panel] for panel in order}


def _table(params: Iterable[Any], context: Any) -> str:
    rows = []
    for param in params:
        label, about = param.get_help_record(context)
        default = re.search(r"default: (\(.*\)|[^;\]]*)", about.partition("  [")[2])
        known = cell(default[1].strip("()")) if default else ""
        rows.append((_names(param, label), known, cell(about.partition("  [")[0])))
    return table(("option" if param.opts[0].startswith("-") else "argument", "default", "what it does"), rows)


def _names(param: Any, label: str) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar or param.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*sorted(param.opts, key=len), *param.secondary_opts))
    value = label.partition(param.opts[0])[2].strip() if not param.is_flag else ""
    return names + (f" `{value.strip('<>').replace('|', ', ')}`" if value else "")
