"""`modelscope help`."""

from enum import StrEnum
from typing import Annotated

import typer

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.shell import console


class Topic(StrEnum):
    """What several commands share."""

    model = "model"
    input = "input"
    output = "output"
    layers = "layers"
    hooks = "hooks"


def _complete(incomplete: str) -> list[str]:
    from modelscope_cli.shell.overview import COMMANDS

    return [name for name in (*Topic, *COMMANDS) if name.startswith(incomplete)]


def help(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC|COMMAND",
            help="model, input, output, layers or hooks; or a command, which is explained with all its options.",
            autocompletion=_complete,
        ),
    ] = None,
) -> None:
    """Explain what commands share: naming a model, preparing images, layer patterns, hooks, output.

    Examples:

      modelscope help model

      modelscope help layers

      modelscope help stats
    """
    from modelscope_cli.commands.help.topics import explain_command, explain_topic
    from modelscope_cli.shell.overview import COMMANDS, overview

    if what is None:
        console.write(overview() + "\n")
    elif what in COMMANDS:
        console.write(explain_command(what))
    elif what in tuple(Topic):
        console.write(explain_topic(what))
    else:
        near = nearest(what, (*Topic, *COMMANDS))
        message = f"'{what}' is neither a topic nor a command" + (f": {near}" if near else "")
        raise UsageError(
            message, f"modelscope help {Topic.model}   or {', '.join(list(Topic)[1:])}, or a command"
        )
