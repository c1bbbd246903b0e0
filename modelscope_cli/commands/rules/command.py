"""`modelscope rules`."""

import modelscope_cli as ms
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.output import emit


@spread
def rules(output: groups.OutputOptions = groups.OUTPUT) -> None:
    """List the rules, of `check` and of `watch` and `train`, with their thresholds and where those come from.

    Examples:

      modelscope rules

      modelscope rules --columns code,name,threshold,source --format markdown
    """
    from modelscope_cli.commands.rules.table import rules_sheet

    where = output.begin()
    listed = ms.list_rules()
    emit(where, rules_sheet(listed, output.columns), listed.to_dict())
