"""`modelscope rules`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit

PLACE = 42  # in `modelscope --help`


@command
def rules(call: CommandCall) -> None:
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

    where = call.begin()
    listed = ms.list_rules(*call["which"])
    emit(where, rules_sheet(listed), listed)
