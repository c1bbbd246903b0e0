"""`modelscope schema`."""

import modelscope_cli as ms
from modelscope_cli.shell import console
from modelscope_cli.shell.call import CommandCall, command

PLACE = 54  # in `modelscope --help`


@command
def schema(call: CommandCall) -> None:
    """Print the JSON Schema of what a command prints with --json.

    The `report.json` in a command's folder is the same document. The schema is of draft 2020-12. Within one
    version of a document keys are added, never renamed or removed.

    Examples:

      modelscope schema stats

      modelscope schema check

      modelscope schema weights-scan
    """
    from modelscope_cli.report.formats import render_json

    call.begin()
    console.write(render_json(ms.schema(call["document"])))
