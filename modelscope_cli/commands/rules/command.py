"""`modelscope rules`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit


@command
def rules(call: CommandCall) -> None:
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

    where = call.begin()
    listed = ms.list_rules(*call["which"])
    emit(where, rules_sheet(listed), listed)
