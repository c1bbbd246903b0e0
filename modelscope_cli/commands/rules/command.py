"""`modelscope rules`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import completion
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.output import emit


@spread
def rules(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RULE",
            help="A code, a name, or the beginning of a code: MS705, dead-channels, MS7.",
            autocompletion=completion.rules,
        ),
    ] = None,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """List the rules of check, watch and train, with their thresholds and where those come from.

    One rule is explained: what it says, why that matters, where its threshold comes from, how to fix what it finds
    and how to silence it.

    Examples:

      modelscope rules

      modelscope rules MS705

      modelscope rules MS2 MS3

      modelscope rules --columns code,name,threshold,source --format markdown
    """
    from modelscope_cli.commands.rules.table import rules_sheet

    where = output.begin()
    listed = ms.list_rules(*which or ())
    emit(where, rules_sheet(listed), listed)
