"""`modelscope help`."""

from typing import Annotated

import typer

from modelscope_cli.records.refusals import unknown
from modelscope_cli.shell import completion, console
from modelscope_cli.shell.output_options import QuietOptions
from modelscope_cli.shell.parameters import command


@command
def help(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC|COMMAND",
            help="model, input, output, layers or hooks; a command; or agents, what coding agents need.",
            autocompletion=completion.topics,
        ),
    ] = None,
    *,
    show: QuietOptions,
) -> None:
    """Explain what commands have in common: models, images, layer patterns, hooks, output.

    Examples:

      modelscope help model

      modelscope help layers

      modelscope help stats
    """
    from modelscope_cli.shell.overview import COMMANDS, overview
    from modelscope_cli.shell.topics import AGENTS, TOPICS, explain_command, explain_topic, skill

    show.begin_quietly()
    if what is None:
        console.write(overview() + "\n")
    elif what in COMMANDS:
        console.write(explain_command(what))
    elif what == AGENTS:
        console.write(skill())
    elif what in TOPICS:
        console.write(explain_topic(what))
    else:
        raise unknown("a topic or a command", what, (*TOPICS, AGENTS, *COMMANDS))
