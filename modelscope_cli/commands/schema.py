"""`modelscope schema`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.records.documents import DOCUMENTS
from modelscope_cli.shell import completion, console
from modelscope_cli.shell.output_options import QuietOptions
from modelscope_cli.shell.parameters import command


@command
def schema(
    document: Annotated[
        str,
        typer.Argument(
            metavar="DOCUMENT",
            help=f"What the document is of: {', '.join(DOCUMENTS)}.",
            autocompletion=completion.documents,
        ),
    ],
    *,
    show: QuietOptions,
) -> None:
    """Print the JSON Schema of what a command prints with --json.

    The `report.json` in a command's folder is the same document. The schema is of draft 2020-12. Within one
    version of a document keys are added, never renamed or removed.

    Examples:

      modelscope schema stats

      modelscope schema check

      modelscope schema weights-scan
    """
    from modelscope_cli.report.formats import render_json

    show.begin_quietly()
    console.write(render_json(ms.schema(document)))
