"""The part of a command's page that comes from the program: how it is called, its options, its examples."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

from typer.main import get_command

from modelscope_cli.shell.help import names_of, usage
from modelscope_cli.shell.overview import GROUPS
from modelscope_cli.shell.parameters import OPTIONS, SHARED, Parameter, parameters_of
from modelscope_cli.shell.typer_app import make_app
from tools.docs.markdown import cell, link, table

# By the first sentence of its help: where an argument of many commands is described.
_ARGUMENTS = {
    "The model; see `modelscope help model`": "[The model](../shared.md#a-model).",
    "A torchvision name (resnet34), timm:NAME, hf:NAME, a checkpoint, module:attr, or path/to/file": (
        "[The model](../shared.md#a-model)."
    ),
    "Images: files, folders, globs, @list": "[Images](../shared.md#input), one tensor file, or nothing: noise.",
}
# Commands whose page refers to that of another for the options that both have.
_AS = {"lrfind": "train"}


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
    every = [*parameters_of(name).values()]
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
    other = _AS.get(name, "")
    alike = [
        one
        for one in every
        if other and not one.is_argument and not _is_shared(one) and _is_same(one, parameters_of(other))
    ]
    for panel, inside in panels.items():
        if own := [one for one in inside if not _is_shared(one) and one not in alike]:
            parts += [f"## {panel if panel == OPTIONS else f'{panel} options'}", _table(own)]
    if alike:
        parts += [
            f"## Options of `{other}`",
            f"[As there]({other}.md#usage): {', '.join(map(_spelled, alike))}.",
        ]
    listed = [
        _listed(panel, shared, parameters_of(name))
        for panel, inside in panels.items()
        if (shared := [one for one in inside if _is_shared(one)])
    ]
    return "\n\n".join([*parts, "## Shared options", *listed] if listed else parts)


def _is_same(one: Parameter, others: Mapping[str, Parameter]) -> bool:
    other = others.get(one.name)
    return other is not None and (one.help, one.shown_default) == (other.help, other.shown_default)


def _listed(panel: str, inside: list[Parameter], every: Mapping[str, Parameter]) -> str:
    """Return a link to the shared options of a panel: those that the command has, or those it has not."""
    shared = {name: one for name, one in _shared().items() if one.panel == panel}
    missing = [one for name, one in shared.items() if name not in every]
    other = [one for one in inside if shared[one.name].shown_default != one.shown_default]
    text = f"[{panel}](../shared.md#{link(f'{panel} options')})"
    if len(missing) > len(inside):
        text += f": {', '.join(map(_spelled, inside))}"
    elif missing:
        text += f", except {', '.join(map(_spelled, missing))}"
    defaults = [f"{_spelled(one)}: {one.shown_default or 'no'} by default" for one in other]
    return f"{'; '.join([text, *defaults])}."


def _spelled(one: Parameter) -> str:
    return f"`{one.names[0]}`"


def shared() -> str:
    """Return the options that many commands have, panel by panel."""
    parts = []
    for panel in SHARED:
        parts += [f"## {panel} options", _table([one for one in _shared().values() if one.panel == panel])]
    return "\n\n".join(parts)


def _is_shared(one: Parameter) -> bool:
    return one.name in _shared() and _shared()[one.name].help == one.help


@cache
def _shared() -> dict[str, Parameter]:
    """Return the options that at least three commands have, each with its default in most of them."""
    found: dict[tuple[str, str], list[Parameter]] = {}
    for one in (one for name in documented() for one in parameters_of(name).values()):
        if one.panel in SHARED:
            found.setdefault((one.name, one.help), []).append(one)
    shared = {}
    for (name, _), same in sorted(found.items(), key=lambda item: len(item[1])):
        default = Counter(one.shown_default for one in same).most_common(1)[0][0]
        if len(same) >= 3:
            shared[name] = next(one for one in same if one.shown_default == default)
    return shared


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
    rows = [
        (
            _names(one),
            cell(one.shown_default),
            _ARGUMENTS.get(one.help.partition(".")[0] if one.is_argument else "", cell(one.help)),
        )
        for one in options
    ]
    return table(("argument" if options[0].is_argument else "option", "default", "what it does"), rows)


def _names(one: Parameter) -> str:
    if one.is_argument:
        return f"`{one.example}`"
    names = ", ".join(f"`{name}`" for name in names_of(one))
    value = one.value.replace("|", ", ")
    return names + (f" `{value}`" if value else "")
