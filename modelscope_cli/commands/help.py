"""`modelscope help`."""

from modelscope_cli.records.refusals import unknown
from modelscope_cli.shell import console
from modelscope_cli.shell.call import CommandCall, command

PLACE = 56  # in `modelscope --help`


@command
def help(call: CommandCall) -> None:
    """Explain what commands have in common: models, images, layer patterns, hooks, output.

    Examples:

      modelscope help model

      modelscope help layers

      modelscope help stats
    """
    from modelscope_cli.shell.overview import COMMANDS, overview
    from modelscope_cli.shell.topics import AGENTS, TOPICS, explain_command, explain_topic, skill

    what = call["what"]
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
