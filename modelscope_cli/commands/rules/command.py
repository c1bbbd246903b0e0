"""`modelscope rules`."""

from dataclasses import replace

import modelscope_cli as ms
from modelscope_cli.records.check import RuleInfo, RuleList
from modelscope_cli.report.sheet import Sheet, field_columns
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit

# The columns for a single rule; the rest is below it in full.
_SHORT = ("code", "name", "severity", "threshold")


def _threshold(row: RuleInfo) -> str:
    if row.threshold is None:
        return "yours"
    return row.threshold if isinstance(row.threshold, str) else f"{row.threshold:g}"


COLUMNS = (
    *field_columns(RuleInfo, "code name severity"),
    *field_columns(RuleInfo, "threshold", text=_threshold),
    *field_columns(RuleInfo, "measure sentence source hint why silence"),
)


def rules_sheet(rules: RuleList) -> Sheet:
    """Return the rules; for a single one, with its full text below."""
    if len(rules.rules) == 1:
        (rule,) = rules.rules
        short = tuple(replace(column, is_shown=column.key in _SHORT) for column in COLUMNS)
        return Sheet(f"{rule.code} {rule.name}", short, rules.rules, _explained(rule))
    return Sheet(
        title=f"{len(rules.rules)} rules; MS7xx: watch and train, all others: check",
        columns=COLUMNS,
        rows=rules.rules,
        is_catalogue=True,
        facts=(
            ("threshold", "check --set CODE=threshold changes one; budgets have no default"),
            ("one rule", "modelscope rules MS202 explains it"),
        ),
    )


def _explained(rule: RuleInfo) -> tuple[tuple[str, str], ...]:
    facts = (
        ("what", rule.sentence),
        ("why", rule.why),
        ("threshold", f"{_threshold(rule)}: {rule.measure}"),
        ("source of the threshold", rule.source),
        ("to fix it", rule.hint),
        ("to silence it", rule.silence),
    )
    return tuple((label, text) for label, text in facts if text)


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

    where = call.begin()
    listed = ms.list_rules(*call["which"])
    emit(where, rules_sheet(listed), listed)
