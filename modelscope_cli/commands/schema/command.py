"""`modelscope schema`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.records.documents import DOCUMENTS
from modelscope_cli.shell import completion, console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.option_groups import OutputOptions


@spread
def schema(
    document: Annotated[
        str,
        typer.Argument(
            metavar="DOCUMENT",
            help=f"What the document is of: {', '.join(DOCUMENTS)}.",
            autocompletion=completion.one_of(*DOCUMENTS),
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file.", rich_help_panel="Output"),
    ] = None,
    force: opt.ForceOpt = False,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Print the JSON Schema of what a command prints with --json.

    The `report.json` in a command's folder is the same document. The schema is of draft 2020-12. Within one
    version of a document keys are added, never renamed or removed.

    Examples:

      modelscope schema stats

      modelscope schema check -o check.schema.json

      modelscope schema weights-scan
    """
    from modelscope_cli.report.formats import render_json

    where = OutputOptions(force=force, json=True, output=output, quiet=quiet, debug=debug).begin()
    text = render_json(ms.schema(document))
    if where.file is None:
        console.write(text)
        return
    from modelscope_cli.report.folder import write_text

    write_text(where.file, text)
    console.note(f"wrote {where.file}")
