"""`modelscope rules`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import completion
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.output_options import OutputOptions
from modelscope_cli.shell.parameters import command


@command
def rules(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RULE",
            help="A code, a name, or the beginning of a code: MS705, dead-channels, MS7.",
            autocompletion=completion.rules,
        ),
    ] = None,
    *,
    show: OutputOptions,
) -> None:
    """List the rules of check, watch and train, with their thresholds and sources.

    One rule is explained in full: what it finds, why that matters, the source of its threshold, how to fix and how
    to silence it.

    Examples:

      modelscope rules

      modelscope rules MS705

      modelscope rules MS2 MS3

      modelscope rules --columns code,name,threshold,source --format markdown
    """
    from modelscope_cli.report.listings import rules_sheet

    where = show.begin()
    listed = ms.list_rules(*(which or ()))
    emit(where, rules_sheet(listed), listed)
