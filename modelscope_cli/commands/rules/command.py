"""`modelscope rules`."""

from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import set_up


def rules(
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """List the rules, of `check` and of `watch` and `train`, with their thresholds and where those come from.

    Examples:

      modelscope rules

      modelscope rules --columns code,name,threshold,source --format markdown
    """
    from modelscope_cli.commands.rules.table import rules_sheet
    from modelscope_cli.records.check import RuleList
    from modelscope_cli.records.run import versions
    from modelscope_cli.rules import training
    from modelscope_cli.rules.registry import RULES

    set_up(quiet, debug)
    where = destination(format, json, output)
    infos = tuple(rule.info(rule.threshold) for rule in (*RULES, *training.RULES))
    listed = RuleList(versions(), _console.settings.argv, infos)
    emit(where, rules_sheet(listed, columns), listed.to_dict())
